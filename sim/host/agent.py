"""An agent: `ServerMachine`s with a thin shell around them, and a sink. It can die at any time."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from penstock.host.credits import Credit
from penstock.host.errors import ProtocolViolation
from penstock.host.port import Chunks, FinalVerdict, Introduction, Pending
from penstock.host.server_machine import Close, Deliver, Effect, Introduce, ServerState
from penstock.wire.frames import MalformedFrame, decode
from sim.host.link import Link
from sim.host.scheduler import Violation
from sim.host.sink import ModelSink

if TYPE_CHECKING:
    from sim.host.world import World

TICK_MS = 1_500


class Connection:
    """The agent's end of a link."""

    def __init__(self, agent: Agent, link: Link, *, honest: bool) -> None:
        self.agent = agent
        self.link = link
        self.honest = honest
        self.closed = False
        self.machine = agent.world.new_server(agent.clock_ms(), draining=agent.draining)
        self._buffer = b""
        link.to_agent.receive = self.receive
        link.to_agent.ended = self.close

    def receive(self, data: bytes) -> None:
        machine = self.machine
        machine.heard(self.agent.clock_ms())
        self._buffer += data
        offset = 0
        try:
            while not self.closed:
                frame, size = decode(self._buffer, offset, machine.terms.frame_bytes_max)
                if frame is None:
                    break
                offset += size
                self._perform(machine.receive(frame))
        except (ProtocolViolation, MalformedFrame) as error:
            if self.honest:
                raise Violation(
                    f"the agent does not understand an honest producer: {error}"
                ) from error
            self._perform(machine.violated(str(error)))
        self._buffer = self._buffer[offset:]
        machine.flush()
        self.send()

    def _perform(self, effect: Effect | None) -> None:
        if isinstance(effect, Introduce):
            world = self.agent.world
            slow_ms = 6_000 * world.random.random() if world.chance(0.05) else 0
            world.after(world.delay_ms() + slow_ms, partial(self._introduce, effect))
        elif isinstance(effect, Deliver):
            chunks = effect.chunks
            verdict = self.agent.sink.accept(chunks, partial(self._completed, chunks))
            if not isinstance(verdict, Pending):
                self.machine.completed(chunks, verdict)
        elif isinstance(effect, Close):
            self.send()
            self.close()

    def _introduce(self, effect: Introduce) -> None:
        world, machine = self.agent.world, self.machine
        if self.closed or self.agent.dead:
            return
        if world.chance(0.08):
            self._perform(machine.refuse("the sink does not know you now"))
            return
        producer_id = effect.producer_id
        if producer_id < 0:
            producer_id = world.log.new_producer_id()
        ring = effect.ring_bytes > 0 and self.link.ring is not None and not world.chance(0.2)
        if ring and self.link.ring is not None:
            machine.ring = memoryview(self.link.ring)
        counts = dict.fromkeys(effect.topics, 3)
        machine.introduced(Introduction(producer_id=producer_id, partitions=counts), ring=ring)
        self.send()

    def _completed(self, chunks: Chunks, verdict: FinalVerdict) -> None:
        self.machine.completed(chunks, verdict)
        if not self.closed:
            self.agent.world.after(0, self._flush)

    def _flush(self) -> None:
        if not self.closed:
            self.machine.flush()
            self.send()

    def send(self) -> None:
        output = self.machine.take_output()
        if output and not self.closed:
            self.link.to_producer.send(b"".join(output))
        self.check()

    def close(self) -> None:
        """Close, or hear that the producer has."""
        if not self.closed:
            self.closed = True
            self.link.leave_agent()
            self.agent.overdrafts += self.machine.overdrafts
            self.machine.disconnected()
            self.agent.connections.remove(self)

    def check(self) -> None:
        """The window is the truth: what is in flight has taken it, exactly."""
        machine = self.machine
        window = machine.window
        if not all(
            0 <= left <= most for left, most in zip(window.available, window.granted, strict=True)
        ):
            raise Violation(f"agent: {window.available} left of {window.granted}")
        in_flight = tuple(map(sum, zip((0, 0, 0), *machine.in_flight.values(), strict=True)))
        if in_flight != window.taken:
            raise Violation(f"agent: {window.taken} taken, {in_flight} in flight")
        if self.honest and machine.overdrafts:
            raise Violation("an honest producer has overdrawn its credit")


class Agent:
    """One process."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.sink = ModelSink(world, accepts_early=world.plant == "accept early")
        self.connections: list[Connection] = []
        self.overdrafts = 0
        """Of connections that have ended."""
        self.draining = False
        self.dead = False
        self.skew_ms = 0.0
        world.after(TICK_MS, self._tick)

    def clock_ms(self) -> float:
        return self.world.now_ms + self.skew_ms

    def accept(self, link: Link, *, honest: bool) -> None:
        """A producer has connected."""
        self.connections.append(Connection(self, link, honest=honest))

    def _tick(self) -> None:
        if self.dead:
            return
        for connection in list(self.connections):
            close = connection.machine.tick(self.clock_ms())
            if close is not None:
                connection._perform(close)
            else:
                connection.send()
        self.world.after(TICK_MS, self._tick)

    def grant(self, more: Credit) -> None:
        """Widen the window of one connection."""
        if self.connections:
            connection = self.world.random.choice(self.connections)
            connection.machine.grant(more)
            connection.send()

    def drain(self, deadline_ms: int) -> None:
        """Go away within `deadline_ms`."""
        self.draining = True
        for connection in list(self.connections):
            connection.machine.drain(deadline_ms, "replaced")
            connection.send()
        self.world.after(deadline_ms, self._leave)

    def _leave(self) -> None:
        if self.dead:
            return
        self.world.note("agent", self.number, "leaves")
        for connection in list(self.connections):
            if connection.machine.state is not ServerState.CLOSED:
                connection.machine.flush()
                connection.send()
            connection.close()
        self.kill()

    def kill(self) -> None:
        """Die now: nothing more is said, and nothing that is held here survives."""
        if self.dead:
            return
        self.dead = True
        self.sink.die()
        for connection in list(self.connections):
            connection.closed = True
            self.overdrafts += connection.machine.overdrafts
            if self.world.random.random() < 0.5:
                connection.link.leave_agent()
            else:
                connection.link.to_agent.stop()
                connection.link.to_producer.cut()
        self.connections.clear()
