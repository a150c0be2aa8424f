"""A story: producers, agents that come and go, and faults; then all is well again.

Faults rage for a while. Then an agent stays up, and within a bound everything that was submitted
must have ended; what is submitted after that must be accepted. At the end both sides of every
connection agree on their windows, and these are full; and the log is compared with the history.

Run as a module with a first seed and a count, it prints a digest of all that happened, so that
runs under different hash seeds can be compared; with "--tell" it tells the stories.
"""

from __future__ import annotations

import hashlib
import sys
from dataclasses import dataclass
from random import Random

from penstock.base.retry import Backoff
from penstock.host.client_machine import ClientTerms
from penstock.host.credits import Credit
from penstock.host.delivery import Delivery
from penstock.host.errors import PRODUCER_EPOCH_MAX
from penstock.host.server_machine import ServerMachine, ServerTerms
from sim.host import plants, rude
from sim.host.agent import Agent
from sim.host.history import History
from sim.host.log import ModelLog
from sim.host.producer import Producer
from sim.host.scheduler import Scheduler, Violation

FAULTS_MS = 2_500
HEALING_MS = 7_000
"""By then agents that drained are gone, and everybody has heard of every end."""
SETTLE_MS = 90_000
FINAL_MS = 15_000
TRACE_TAIL = 60
ITEMS_PER_PRODUCER_MAX = 14


@dataclass(frozen=True, slots=True, kw_only=True)
class Knobs:
    """How bad a story is: probabilities of what a sink does, and pauses between faults."""

    saturation: float
    refusal: float
    broker_failure: float
    poison: float
    at_once: float
    fault_every_ms: float

    @classmethod
    def draw(cls, random: Random) -> Knobs:
        def often(most: float) -> float:
            return random.choice((0.0, most / 3, most))

        return cls(
            saturation=often(0.3),
            refusal=often(0.08),
            broker_failure=often(0.25),
            poison=often(0.1),
            at_once=random.choice((0.0, 0.5, 1.0)),
            fault_every_ms=random.choice((60.0, 250.0, 800.0)),
        )


class World(Scheduler):
    """Everything in one story. `plant` names a bug that the checks have to find."""

    def __init__(self, seed: int, plant: str = "") -> None:
        super().__init__(seed)
        random = self.random
        self.plant = plant
        self.knobs = Knobs.draw(random)
        self.log = ModelLog()
        self.history = History()
        self.producers: list[Producer] = []
        self.agents: list[Agent] = []
        self.listening: Agent | None = None
        self.tight = random.random() < 0.05
        """Whether some frames are over the agent's limit."""
        self.terms = ServerTerms(
            credit=Credit(random.randint(4, 12), random.randint(12, 40), random.randint(300, 1500)),
            frame_bytes_max=200 if self.tight else 4_096,
            idle_timeout_ms=9_000,
            ping_interval_ms=3_000,
            retry_after_ms=random.choice((5, 50)),
            ring_bytes_max=1 << 12,
        )
        self.delivery_timeout_ms = random.choice((700, 3_000, 20_000))

    # What a plant may replace

    def new_server(self, now_ms: float, *, draining: bool) -> ServerMachine:
        kind = plants.SERVERS.get(self.plant, ServerMachine)
        return kind(self.terms, now_ms=now_ms, draining=draining)

    def new_delivery(self, producer: Producer, producer_id: int, producer_epoch: int) -> Delivery:
        random = self.random
        terms = ClientTerms(
            topics=("t",),
            client_name=str(producer.number),
            publish_timeout_ms=random.choice((300, 2_000)),
            drain_timeout_ms=random.choice((100, 1_000)),
            checksum=random.random() < 0.3,
            ring_bytes=random.choice((150, 600)) if producer.uses_ring else 0,
            ring_payload_bytes_min=30,
        )
        kind = plants.DELIVERIES.get(self.plant, Delivery)
        return kind(
            terms,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            resend=producer.resend,
            idempotent=producer.idempotent,
            buffer_bytes_max=2_000,
            buffer_frames_max=random.choice((4, 20)),
            delivery_timeout_ms=self.delivery_timeout_ms,
            backoff=Backoff(first_ms=10, ceiling_ms=400),
        )

    # The plot

    def start_agent(self) -> Agent:
        agent = Agent(self, len(self.agents))
        self.agents.append(agent)
        self.listening = agent
        self.note("agent", agent.number, "listens")
        return agent

    def start_producer(self, *, producer_id: int = -1, producer_epoch: int = 0) -> None:
        number = len(self.producers)
        producer = Producer(self, number, producer_id=producer_id, producer_epoch=producer_epoch)
        self.producers.append(producer)
        when_ms = FAULTS_MS / 4 * self.random.random()
        for _ in range(self.random.randint(3, ITEMS_PER_PRODUCER_MAX)):
            if not producer.cheats:
                when_ms = FAULTS_MS * 0.9 * self.random.random() ** 2
            self.after(when_ms, producer.publish)

    def disturb(self) -> None:
        """One thing goes wrong, or someone comes or goes."""
        if not self.faults:
            return
        draw = self.random.random()
        for weight, action in _FAULTS:
            if draw < weight:
                action(self)
                break
            draw -= weight
        self.after(2 * self.knobs.fault_every_ms * self.random.random(), self.disturb)

    def cut_link(self) -> None:
        producer = self.random.choice(self.producers)
        if producer.link is not None:
            self.note("cut", producer.number)
            producer.link.cut()

    def kill_agent(self) -> None:
        agent = self.listening
        if agent is None:
            return
        self.note("agent", agent.number, "is killed")
        agent.kill()
        self.listening = None
        self.after(300 * self.random.random(), self._replace)

    def _replace(self) -> None:
        if self.listening is None:
            self.start_agent()

    def roll_agent(self) -> None:
        """A new agent takes over the path; the old one drains."""
        agent = self.listening
        if agent is not None:
            self.note("agent", agent.number, "drains")
            self.start_agent()
            agent.drain(self.random.choice((50, 400)))

    def kill_producer(self) -> None:
        """It may come back with its id and the next epoch, as somebody who remembers neither."""
        old = self.random.choice(self.producers)
        if old.dead or len(self.producers) > 3:
            return
        self.note("producer", old.number, "is killed")
        old.kill()
        machine = old.delivery.machine
        if machine.producer_id >= 0 and machine.producer_epoch < PRODUCER_EPOCH_MAX:
            self.start_producer(
                producer_id=machine.producer_id, producer_epoch=machine.producer_epoch + 1
            )
        else:
            self.start_producer()

    def step_clock(self) -> None:
        step = self.random.choice((500.0, 4_000.0, 30_000.0))
        parties: list[Agent | Producer] = [*self.producers, *self.agents]
        party = self.random.choice(parties)
        party.skew_ms += step
        self.note("clock", type(party).__name__, party.number, step)
        if isinstance(party, Producer) and not party.dead:
            party.tick()

    def grant(self) -> None:
        if self.listening is not None:
            random = self.random
            more = Credit(random.randint(0, 3), random.randint(0, 9), random.randint(0, 300))
            self.note("grant", *more)
            self.listening.grant(more)

    # The end

    def run_story(self) -> None:
        self.start_agent()
        for _ in range(self.random.choice((1, 1, 2, 3))):
            if self.random.random() < 0.05:  # an old identity, whose epochs are nearly used up
                self.start_producer(
                    producer_id=self.log.new_producer_id(), producer_epoch=PRODUCER_EPOCH_MAX
                )
            else:
                self.start_producer()
        self.after(200 * self.random.random(), self.disturb)
        self.run(FAULTS_MS)
        self.faults = False
        self.note("healed")
        self._replace()
        self.run(self.now_ms + HEALING_MS)
        alive = [producer for producer in self.producers if not producer.dead]
        if not self.run(self.now_ms + SETTLE_MS, lambda: all(p.quiet for p in alive)):
            left = {p.number: p.delivery.outstanding for p in alive}
            raise Violation(f"not completed {SETTLE_MS} ms after healing: {left} outstanding")
        self._submit_last(alive)
        if not self.run(self.now_ms + FINAL_MS, lambda: all(p.quiet for p in alive)):
            raise Violation("what was submitted when all was well has not ended")
        # Agents hear of connections that were left, and what the dead had sent to the log arrives.
        self.run(self.now_ms + 4_000)
        self._check_windows(alive)
        self.history.check(self.log)

    def _submit_last(self, alive: list[Producer]) -> None:
        for producer in alive:
            for lane in range(len(producer.lanes)):
                producer.submit(must_arrive=True, lane=lane)

    def _check_windows(self, alive: list[Producer]) -> None:
        agent = self.listening
        if agent is None:
            raise Violation("there is no agent")
        strangers = len(agent.connections) - len(alive)
        if strangers:
            raise Violation(f"{strangers} connections of the agent have no producer")
        windows = {connection.link: connection.machine.window for connection in agent.connections}
        for producer in alive:
            mine, link = producer.delivery.machine.window, producer.link
            if producer.cheats:
                continue
            theirs = windows.get(link) if link is not None else None
            if theirs is None or mine.granted != theirs.granted:
                raise Violation(f"producer {producer.number} and its agent granted differently")
            if not mine.available == mine.granted == theirs.available:
                raise Violation(f"{mine.available}, {theirs.available} left of {mine.granted}")

    def digest(self) -> str:
        return hashlib.sha256(repr(self.trace).encode()).hexdigest()


_FAULTS = (
    (0.28, World.cut_link),
    (0.20, World.kill_agent),
    (0.14, World.roll_agent),
    (0.08, World.kill_producer),
    (0.10, World.step_clock),
    (0.12, World.grant),
    (0.08, rude.visit),
)


def run(seed: int, plant: str = "") -> World:
    """Run one seed; a violation names it and tells how the story ended."""
    world = World(seed, plant)
    try:
        world.run_story()
    except Exception as error:
        tail = "\n".join(" ".join(map(str, line)) for line in world.trace[-TRACE_TAIL:])
        raise Violation(f"seed {seed}: {error!r}\n{tail}") from error
    return world


def main() -> None:
    first, count = int(sys.argv[1]), int(sys.argv[2])
    digest, events = hashlib.sha256(), 0
    for seed in range(first, first + count):
        world = run(seed)
        events += world.events
        digest.update(world.digest().encode())
        if "--tell" in sys.argv:
            for line in world.trace:
                print(seed, *line)
    print(f"{count} seeds, {events} events, {digest.hexdigest()}")


if __name__ == "__main__":
    main()
