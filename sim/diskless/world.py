"""A story: producers, brokers, consumers and jobs, and all that can go wrong; then all is well.

Faults rage for a while. Then two brokers stay up, and within a bound everything that was sent must
be acknowledged and read; and when all graces are over, nothing may be left that nobody refers to.
`ledger.py` says what must hold in between.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from uuid import UUID

from penstock.control import PartitionKey
from penstock.diskless.settings import DisklessSettings
from penstock.diskless.writing.accumulator import Accumulator
from sim.diskless import upkeep
from sim.diskless.broker import Broker
from sim.diskless.ledger import Ledger
from sim.diskless.plane import PlaneLine, SeededDice, SkewedClock, run_now
from sim.diskless.plants import PLANTS, Plants
from sim.diskless.producer import Producer
from sim.diskless.reader import Reader
from sim.diskless.store import ModelStore
from sim.diskless.transactions import TransactionalProducer
from sim.host.scheduler import Scheduler, Violation

FAULTS_MS = 2_000.0
SETTLE_MS = 30_000.0
QUIET_STEP_MS = 400.0
QUIET_STEPS_MAX = 60
TRACE_TAIL = 60
_HOUR_MS = 3_600_000
_TOPICS = (UUID(int=1), UUID(int=2))


class World(Scheduler):
    """Everything in one story. `plant` names a bug that the checks have to find."""

    def __init__(self, seed: int, plant: str = "") -> None:
        super().__init__(seed)
        random = self.random
        self.plants: Plants = PLANTS[plant]() if plant else Plants()
        self.dice = SeededDice(random)
        self.clock = SkewedClock(self)
        self.clock_moved = False
        """Whether the plane's own clock was moved: then graces are not what they say."""
        self.plane = self.plants.plane(clock=self.clock, randomness=self.dice)
        self.store = ModelStore(self, trouble=random.choice((0.0, 0.1, 0.3, 0.5)))
        self.line = PlaneLine(self, self.plane, trouble=random.choice((0.0, 0.1, 0.3, 0.5)))
        self.ledger = Ledger(self, self.plane, self.store)
        self.line.on_change = self.ledger.changed
        self.settings = DisklessSettings(
            commit_interval_ms=random.choice((5, 40)),
            write_timeout_ms=random.choice((300, 1_000)),
            put_timeout_ms=random.choice((50, 150)),
            retry_backoff_ms=10,
            retry_backoff_max_ms=80,
            objects_in_flight_max=random.randint(1, 4),
            lease_block_objects=random.choice((2, 3)),
            sweep_pending_grace_ms=2_000,
            sweep_unreferenced_grace_ms=2_600,
        )
        self.pending_grace_ms = random.choice((self.settings.sweep_pending_grace_ms, 250))
        self.unreferenced_grace_ms = random.choice(
            (self.settings.sweep_unreferenced_grace_ms,) * 2 + (150,)
        )
        """Graces of the sweeper; nothing may be lost by one that is far too short."""
        self.coordinates_age_ms = 300 if self.unreferenced_grace_ms > 300 else 1_500
        self.brokers: list[Broker] = []
        self.cores: list[Accumulator] = []
        """Of all incarnations."""
        self.producers: list[Producer] = []
        self.transactional: list[TransactionalProducer] = []
        self.readers: list[Reader] = []
        self.partitions: list[PartitionKey] = []
        self._tags = 0
        self._favourite = random.choice([action for _, action in _FAULTS])
        """What goes wrong more often than the rest."""

    # What others ask for

    def new_core(self, broker_id: int) -> Accumulator:
        interval_ms = self.settings.commit_interval_ms
        core = self.plants.core(self.settings, interval_ms=interval_ms, broker_id=broker_id)
        self.cores.append(core)
        return core

    def any_broker(self) -> Broker | None:
        """One that takes requests."""
        there = [broker for broker in self.brokers if broker.ready and not broker.dead]
        return self.random.choice(there) if there else None

    def next_tag(self) -> int:
        self._tags += 1
        return self._tags

    def append_time(self, where: PartitionKey) -> bool:
        return where[0] == _TOPICS[1]

    # The plot

    def _furnish(self) -> None:
        random = self.random
        for topic_id, partitions in zip(_TOPICS, (random.choice((1, 2)), 1), strict=True):
            run_now(
                self.plane.create_topic(
                    name=f"t{topic_id.int}",
                    topic_id=topic_id,
                    partitions=[[1]] * partitions,
                    configs={"diskless.enable": "true", "record.validation": "headers"},
                )
            )
            self.partitions += [(topic_id, number) for number in range(partitions)]
        for number in range(random.choice((1, 2, 3))):
            self.brokers.append(Broker(self, number + 1))
        for number in range(random.choice((1, 2, 2, 3))):
            producer = Producer(self, number, random.choice(self.partitions))
            self.producers.append(producer)
            for _ in range(random.randint(3, 9)):
                self.after(20 + FAULTS_MS * 0.8 * random.random() ** 2, producer.produce)
        self.readers += [Reader(self, key) for key in self.partitions]
        for number in range(random.choice((0, 1, 2))):
            where = random.choice(self.partitions)
            self.transactional.append(TransactionalProducer(self, number, where))

    def disturb(self) -> None:
        """One thing goes wrong, or someone comes or goes."""
        if not self.faults:
            return
        draw = self.random.random()
        if self.random.random() < 0.4:
            self._favourite(self)
            draw = 1.0
        for weight, action in _FAULTS:
            if draw < weight:
                action(self)
                break
            draw -= weight
        self.after(500 * self.random.random(), self.disturb)

    def work(self) -> None:
        """One job of one broker."""
        broker = self.any_broker()
        if broker is not None:
            draw = self.random.random()
            if draw < 0.4:
                upkeep.SweepRun(self, broker)
            elif draw < 0.5:
                self.plants.orphans(self, broker)
            elif draw < 0.75:
                upkeep.Consolidation(self, broker)
            else:
                upkeep.retain(self, broker)
        if self.faults:
            self.after(200 * self.random.random(), self.work)

    def kill(self) -> None:
        """A broker dies; another incarnation comes some time later, or at once."""
        broker = self.any_broker()
        if broker is not None:
            self.note("broker", broker.broker_id, "is killed")
            broker.dead = True
            self.ledger.seen["killed"] += 1
            self.after(300 * self.random.random(), lambda: self._replace(broker))

    def fenced(self, broker: Broker) -> None:
        """A broker found that another incarnation has its id: it ends, and begins anew."""
        self.note("broker", broker.broker_id, "is fenced")
        self.ledger.seen["fenced"] += 1
        if broker in self.brokers:
            self.after(100 * self.random.random(), lambda: self._replace(broker))

    def _replace(self, broker: Broker) -> None:
        if broker in self.brokers:
            self.brokers.remove(broker)
            self.brokers.append(Broker(self, broker.broker_id))

    def stall(self) -> None:
        """A broker stops and goes on later; perhaps it has been replaced by then."""
        broker = self.any_broker()
        if broker is None:
            return
        broker.stalled_ms = self.now_ms + self.random.choice((100, 1_500, 3_500))
        self.note("broker", broker.broker_id, "stalls until", broker.stalled_ms)
        self.ledger.seen["stalled"] += 1
        if self.random.random() < 0.5:
            self.ledger.seen["zombie"] += 1
            self._replace(broker)

    def storm(self) -> None:
        self.note("storm")
        self.ledger.seen["storm"] += 1
        self.store.slow = True
        self.after(400 * self.random.random(), self._calm)

    def _calm(self) -> None:
        self.store.slow = False

    def move_clock(self) -> None:
        """The plane's clock is moved, one time in two by an hour; or a broker's is."""
        broker = self.any_broker()
        step = self.random.choice((_HOUR_MS, -_HOUR_MS, 1_500, -1_500))
        if broker is not None and self.random.random() < 0.7:
            broker.clock.skew_ms += step
        else:
            self.clock.skew_ms += step
            self.clock_moved = True
            self.ledger.seen["clock moved"] += 1
            self.note("clock", step)

    def restart_producer(self) -> None:
        self.random.choice(self.producers).restart()
        self.ledger.seen["restarted"] += 1

    def delete_topic(self) -> None:
        """The second topic goes."""
        topic_id = _TOPICS[1]
        if all(key in self.ledger.gone for key in self.partitions if key[0] == topic_id):
            return
        self.note("topic", topic_id.int, "is deleted")
        self.ledger.seen["deleted topic"] += 1
        run_now(self.plane.delete_topic(topic_id))
        for key in [key for key in self.partitions if key[0] == topic_id]:
            self.ledger.forget(key)

    # The end

    def run_story(self) -> None:
        self._furnish()
        self.after(600 * self.random.random(), self.disturb)
        self.after(300 * self.random.random(), self.work)
        self.run(FAULTS_MS)
        self.faults = False
        self.store.slow = False
        self.note("healed")
        if not self.run(self.now_ms + SETTLE_MS, self._settled):
            raise Violation(f"not settled {SETTLE_MS:.0f} ms after healing: {self._left()}")
        for reader in self.readers:
            reader.stopped = True
        self._clear_away()
        self.ledger.check_index()

    def _settled(self) -> bool:
        return (
            all([producer.quiet for producer in self.producers])
            and all([producer.quiet for producer in self.transactional])
            and all([self._is_read(reader) for reader in self.readers])
        )

    def _is_read(self, reader: Reader) -> bool:
        truth = self.ledger.truths.get(reader.where)
        return truth is None or reader.position == truth.next_offset

    def _left(self) -> str:
        waiting = [producer.number for producer in self.producers if not producer.quiet]
        behind = [reader.where[1] for reader in self.readers if not self._is_read(reader)]
        open_ones = [producer.identity for producer in self.transactional if not producer.quiet]
        return f"producers {waiting} wait, readers of {behind} are behind, {open_ones} go on"

    def _clear_away(self) -> None:
        """Time passes, and jobs run: in the end nothing is left that nobody refers to."""
        for step in range(QUIET_STEPS_MAX):
            broker = self.any_broker()
            if broker is not None:
                upkeep.SweepRun(self, broker)
                self.plants.orphans(self, broker)
            self.run(self.now_ms + QUIET_STEP_MS)
            if step == QUIET_STEPS_MAX // 2 and self.clock_moved:
                self.run(self.now_ms + 4 * _HOUR_MS)
            if step > 10 and self._is_clear():
                return
        self.ledger.check_leaks()

    def _is_clear(self) -> bool:
        try:
            self.ledger.check_leaks()
        except Violation:
            return False
        return True

    def seen(self) -> Counter[str]:
        """What happened how often."""
        seen = +self.ledger.seen
        for core in self.cores:
            counters = core.counters
            seen["lease lost"] += counters.leases_lost
            seen["written again"] += counters.put_retries
            seen["committed again"] += counters.commit_retries
            seen["given up"] += counters.objects_failed
        return +seen

    def digest(self) -> str:
        return hashlib.sha256(repr(self.trace).encode()).hexdigest()


_FAULTS = (
    (0.28, World.kill),
    (0.18, World.stall),
    (0.12, World.storm),
    (0.10, World.move_clock),
    (0.20, World.restart_producer),
    (0.03, World.delete_topic),
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
