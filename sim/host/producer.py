"""A producer: `Delivery`, a thin shell around it, and an application that submits."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from penstock.base.errors import PenstockError
from penstock.host import errors
from penstock.host.client_machine import ClientState, Disconnect, Event, Started
from penstock.host.credits import Credit, CreditWindow
from penstock.host.errors import NoCredit, ProtocolViolation
from penstock.host.publication import single
from penstock.wire.frames import MalformedFrame, decode
from sim.host.history import Item, ProducerPartition
from sim.host.link import Link
from sim.host.scheduler import Violation

if TYPE_CHECKING:
    from sim.host.world import World

FRAME_BYTES_MAX = 1 << 16
HANDSHAKE_MS = 5_000


class Boundless(CreditWindow):
    """The window of a producer that does not care."""

    def try_acquire(self, slots: int, events: int, payload_bytes: int) -> bool:
        return True

    def has_room(self, slots: int, events: int, payload_bytes: int) -> bool:
        return True

    def restore(self, slots: int, events: int, payload_bytes: int) -> None:
        return


class Producer:
    """One process. `writer` numbers those whose items keep their order among themselves."""

    def __init__(
        self, world: World, number: int, *, producer_id: int = -1, producer_epoch: int = 0
    ) -> None:
        random = world.random
        self.world = world
        self.number = number
        self.resend = random.random() < 0.8
        self.idempotent = random.random() < 0.75
        self.cheats = self.resend and random.random() < 0.12
        if self.cheats:
            self.idempotent = False  # lanes would keep it from sending much
        self.uses_ring = random.random() < 0.4
        self.began_last = producer_epoch == errors.PRODUCER_EPOCH_MAX
        self.dead = False
        self.skew_ms = 0.0
        self.link: Link | None = None
        self.delivery = world.new_delivery(self, producer_id, producer_epoch)
        lanes = random.randint(1, 3)
        self.lanes: list[ProducerPartition | None] = [
            ("t", partition) for partition in range(lanes)
        ]
        if random.random() < 0.3:
            self.lanes.append(None)
        if producer_id < 0 and random.random() < 0.1:
            self._begin_near_the_end()
        self._buffer = b""
        self._wake_at_ms = float("inf")
        self._handshake_by_ms = float("inf")
        self._old_ring: bytearray | None = None
        self.connect()

    def clock_ms(self) -> float:
        return self.world.now_ms + self.skew_ms

    def _begin_near_the_end(self) -> None:
        """Let numbers wrap soon; a log takes any number of a producer that is new to it."""
        for target in self.lanes:
            if target is not None:
                lane = self.delivery._producer_partitions.of(
                    single(b"", topic=target[0], partition=target[1])
                )
                lane._next = errors.LOG_SEQUENCES - 4

    # The application

    def publish(self) -> None:
        """Submit something, unless this process is dead."""
        if not self.dead:
            self.submit()

    def submit(self, *, must_arrive: bool = False, lane: int = -1) -> Item | None:
        """Publish something; None if it was not taken."""
        world = self.world
        random = world.random
        target = self.lanes[lane] if lane >= 0 else random.choice(self.lanes)
        item = world.history.new_item(
            random,
            writer=self.number,
            lane=target,
            idempotent=self.idempotent and self.resend and target is not None,
            poison=not must_arrive and random.random() < world.knobs.poison,
        )
        item.must_arrive = must_arrive = must_arrive and not world.tight
        publication = item.publication
        if publication is None:
            raise Violation(f"{item} has no publication")
        try:
            self.delivery.submit(publication, self.clock_ms())
        except PenstockError as error:
            if must_arrive and (self.resend or not isinstance(error, NoCredit)):
                raise Violation(f"{item} is not taken though all is well: {error}") from error
            item.ends, item.error, item.must_arrive = 1, error, False
            return None
        world.note("submit", self.number, item.number)
        self.perform()
        return item

    # The shell

    def connect(self) -> None:
        if self.dead or self.link is not None:
            return
        world = self.world
        agent = world.listening
        if agent is None or agent.dead or world.chance(0.05):
            self._disconnected("refused")
            return
        terms = self.delivery.machine.terms
        ring = bytearray(terms.ring_bytes) if self.uses_ring else None
        if world.plant == "reuse ring" and ring is not None:
            ring = self._old_ring = self._old_ring or ring
        self._buffer = b""
        self.link = link = Link(world, ring)
        link.to_producer.receive = self._receive
        link.to_producer.ended = partial(self._lost, link)
        world.note("connect", self.number, agent.number)
        agent.accept(link, honest=not self.cheats)
        self._handshake_by_ms = self.clock_ms() + HANDSHAKE_MS
        self.delivery.connected(self.clock_ms(), ring=ring is not None)
        self.perform()

    def perform(self) -> None:
        """What a shell does after every call."""
        delivery, link = self.delivery, self.link
        delivery.pump(self.clock_ms())
        writes = delivery.take_ring_writes()
        if link is not None and link.ring is not None:
            for publication in writes:
                at = publication.ring_position
                for piece in publication.payload:
                    link.ring[at : at + len(piece)] = piece
                    at += len(piece)
        elif writes:
            raise Violation("a payload is to be written to a ring that is not there")
        output = delivery.take_output()
        if link is not None and output:
            link.to_agent.send(b"".join(output))
        self.check()
        self._plan_wake()

    def _plan_wake(self) -> None:
        now_ms = self.clock_ms()
        wake_ms = self.delivery.next_wake_ms(now_ms)
        if self.delivery.machine.state is ClientState.HANDSHAKE:
            wake_ms = min(wake_ms, self._handshake_by_ms)
        at_ms = self.world.now_ms + min(max(wake_ms - now_ms, 0.01), 60_000)
        if at_ms < self._wake_at_ms - 1e-6 or self._wake_at_ms <= self.world.now_ms:
            self._wake_at_ms = at_ms
            self.world.at(at_ms, self._wake)

    def _wake(self) -> None:
        if self.dead or self.world.now_ms < self._wake_at_ms:
            return  # planned before something earlier was
        self._wake_at_ms = float("inf")
        self.tick()

    def tick(self) -> None:
        now_ms = self.clock_ms()
        self._events(self.delivery.tick(now_ms))
        if self.link is None:
            if now_ms >= self.delivery.reconnect_at_ms:
                self.connect()
                return
        elif (
            self.delivery.machine.state is ClientState.HANDSHAKE and now_ms >= self._handshake_by_ms
        ):
            self.leave("no answer to HELLO")
        self.perform()

    def _receive(self, data: bytes) -> None:
        self._buffer += data
        offset = 0
        link = self.link
        try:
            while self.link is link:
                frame, size = decode(self._buffer, offset, FRAME_BYTES_MAX)
                if frame is None:
                    break
                offset += size
                self._events(self.delivery.receive(frame, self.clock_ms()))
        except (ProtocolViolation, MalformedFrame) as error:
            raise Violation(
                f"producer {self.number} does not understand its agent: {error}"
            ) from error
        if self.link is link:
            self._buffer = self._buffer[offset:]
        self.perform()

    def _events(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Started) and self.cheats:
                self.delivery.machine.window = Boundless(Credit(10**6, 10**9, 10**9))
            elif isinstance(event, Disconnect) and self.link is not None:
                self.leave(event.reason)

    def leave(self, reason: str) -> None:
        """Close the connection."""
        if self.link is not None:
            self.link.leave_producer()
            self._lost(self.link, reason)

    def _lost(self, link: Link, reason: str = "the agent closed the connection") -> None:
        if self.dead or link is not self.link:
            return
        self.link = None
        link.leave_producer()
        self._disconnected(reason)

    def _disconnected(self, reason: str) -> None:
        self.world.note("disconnected", self.number, reason)
        self.delivery.disconnected(reason, self.clock_ms(), self.world.random.random())
        self.perform()

    def kill(self) -> None:
        """Die now; nobody hears what becomes of what it had submitted."""
        self.dead = True
        for item in self.world.history.items:
            if item.writer == self.number and not item.ends:
                item.producer_gone = True
        link = self.link
        if link is None:
            return
        if self.world.random.random() < 0.5:
            link.leave_producer()
        else:
            link.to_producer.stop()
            link.to_agent.cut()

    # What must hold

    @property
    def quiet(self) -> bool:
        """Nothing is left to do, and the agent is there."""
        machine = self.delivery.machine
        return (
            not self.delivery.outstanding
            and not machine.in_flight
            and machine.state is ClientState.STARTED
        )

    def check(self) -> None:
        delivery = self.delivery
        machine = delivery.machine
        window = machine.window
        if not self.cheats:
            slots = events = size = 0
            for publication in machine.in_flight.values():
                slots += publication.count
                events += publication.event_count
                size += publication.payload_bytes
            if (slots, events, size) != window.taken:
                raise Violation(
                    f"producer: {window.taken} taken, ({slots}, {events}, {size}) in flight"
                )
            if min(window.available) < 0 or min(window.taken) < 0:
                raise Violation(f"producer: {window.available} left of {window.granted}")
        alive = delivery._alive
        if sum(publication.payload_bytes for publication in alive) != delivery.buffered_bytes:
            raise Violation(f"{delivery.buffered_bytes} bytes are said to be buffered")
        if not (
            delivery.buffered_bytes <= delivery.buffer_bytes_max
            and len(alive) <= delivery.buffer_frames_max
        ):
            raise Violation(f"the buffer holds {len(alive)} of {delivery.buffered_bytes} bytes")
        self._check_ring()
        self._check_lanes()

    def _check_ring(self) -> None:
        machine = self.delivery.machine
        space = machine.space
        if space is None:
            return
        places = sorted(
            (publication.ring_position, publication.payload_bytes)
            for publication in machine.in_flight.values()
            if publication.ring_position >= 0
        )
        end = taken = 0
        for position, size in places:
            if position < end:
                raise Violation(f"two payloads share byte {position} of the ring")
            end = position + size
            taken += size
        if end > space.size_bytes or not taken <= space.taken_bytes <= space.size_bytes:
            raise Violation(f"{space.taken_bytes} bytes of the ring are taken, {taken} are in use")
        if not places and space.taken_bytes:
            raise Violation(f"{space.taken_bytes} bytes of the ring are taken for nothing")

    def _check_lanes(self) -> None:
        for lane in self.delivery._producer_partitions.all():
            if lane.batches > 5 or lane.batches < 0 or lane.under_way < 0:
                raise Violation(f"{lane.batches} batches of a lane may be in the log")
