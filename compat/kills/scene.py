"""One kill at one step of a transaction, all that follows, and what must be true then."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from enum import Enum

from compat.drivers import eventually
from compat.drivers.confluent import Confluent
from compat.kills.cluster import Cluster
from compat.kills.history import History
from compat.kills.plan import ANYBODY, SELF
from compat.kills.producers import FAILURES, Producer, Target, commit_one
from compat.kills.readers import Reader
from compat.kills.steps import End, Phase, Step
from compat.servers import PenstockProcess

STEP_SECONDS = 60
LONG_TIMEOUT_MS = 60_000
SHORT_TIMEOUT_MS = 5_000


class Victim(Enum):
    """Who is killed, or stopped; of one broker the leader is the coordinator as well."""

    PRODUCER = "producer"
    ZOMBIE = "zombie"
    COORDINATOR = "coordinator"
    LEADER = "leader"
    BOTH = "both"
    REACHER = "reacher"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is tried."""

    client: str
    end: End
    step: Step
    victim: Victim

    def __str__(self) -> str:
        return f"{self.client}, {self.end.value}, {self.victim.value} at {self.step}"


class Scene:
    """The id's producers, its readers, and the brokers."""

    def __init__(self, cluster: Cluster, client: str, end: End) -> None:
        self.cluster = cluster
        self.history = History()
        self.end = end
        self._client = client
        self._pool = ThreadPoolExecutor(1)
        self._topic = cluster.create_topic()
        self._stack = ExitStack()
        self.target = self._place()
        self.producer = self._new()

    def _place(self) -> Target:
        """An id whose coordinator leads one partition, and not the other, where it can be so."""
        cluster = self.cluster
        leaders = cluster.leaders(self._topic)
        while True:
            name = uuid.uuid4().hex[:10]
            self.coordinator = cluster.coordinator(f"tx-{name}")
            own = [part for part, leader in leaders.items() if leader == self.coordinator]
            far = [part for part in leaders if part not in own] or own[1:]
            alone = cluster.kind.brokers == 1
            other = alone or cluster.coordinator(f"g-{name}", group=True) != self.coordinator
            if own and far and other:
                break
        self.leader = leaders[far[0]]
        short = self.end is End.TIMEOUT
        return Target(
            transactional_id=f"tx-{name}",
            topic=self._topic,
            group=f"g-{name}",
            far=far[0],
            own=own[0],
            timeout_ms=SHORT_TIMEOUT_MS if short else LONG_TIMEOUT_MS,
        )

    def _new(self) -> Producer:
        client = self.cluster.client(self._client)
        return Producer(client, self.target, self.history)

    def __enter__(self) -> Scene:
        parts = [self.target.far, self.target.own]
        self.reader = self._stack.enter_context(Reader(self.cluster.bootstrap, self._topic, parts))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        self._pool.shutdown(wait=False)
        self.cluster.plans.clear()
        for broker in self.cluster.brokers:
            if not broker.alive:
                self._restart(broker)
        with suppress(*FAILURES):
            self.producer.close()
            self.cluster.give_back(self._client, self.producer.client)
        self.cluster.delete_topic(self._topic)

    # What happens

    def begin(self, phase: Phase) -> None:
        """Come to where the step's phase begins."""
        if phase is not Phase.BEGIN:
            self.producer.open()
            self.producer.transact(End.COMMIT)

    def plan(self, step: Step, victims: Sequence[tuple[int, int]]) -> None:
        """Have somebody die at a step."""
        point = step.point.format(far=self.target.far, own=self.target.own)
        by = ANYBODY if step.first else self.cluster.broker(self.coordinator).pid
        self.cluster.plans.put(point, step.count, victims, by=by)

    def transact(self, phase: Phase) -> Future[None]:
        """The transaction of the step, beside the caller."""

        def work(producer: Producer) -> None:
            if phase is Phase.BEGIN:
                producer.open()
            producer.transact(self.end)

        return self._pool.submit(work, self.producer)

    def await_step(self) -> None:
        """Until the step was reached."""
        plans = self.cluster.plans
        eventually(lambda: plans.taken, lambda: plans.reached(), seconds=STEP_SECONDS)

    def replace(self) -> Producer:
        """Another producer of the id, in the place of one that is killed now, if it lives."""
        self.producer.client.program.kill()
        self.producer.client.close()
        self.producer = self._new()
        self.producer.open()
        return self.producer

    def go_on(self, transaction: Future[None]) -> None:
        """Have the transaction end as it may, and commit another one."""
        try:
            transaction.result(STEP_SECONDS)
        except FAILURES:
            if self._is_open(transaction) and not self.producer.abort():
                self.replace()
        self.commit()

    @staticmethod
    def _is_open(transaction: Future[None]) -> bool:
        return transaction.exception() is not None

    def commit(self) -> None:
        """One more transaction that is committed, by whichever producer can."""
        commit_one(self.producer, self.replace)

    # Victims

    def pids(self, victim: Victim) -> Sequence[tuple[int, int]]:
        """Who gets which signal."""
        producer = self.producer.client.program.pid
        broker = self.cluster.broker
        coordinator, leader = broker(self.coordinator).pid, broker(self.leader).pid
        return {
            Victim.PRODUCER: [(producer, signal.SIGKILL)],
            Victim.ZOMBIE: [(producer, signal.SIGSTOP)],
            Victim.COORDINATOR: [(coordinator, signal.SIGKILL)],
            Victim.LEADER: [(leader, signal.SIGKILL)],
            Victim.BOTH: [(leader, signal.SIGKILL), (coordinator, signal.SIGKILL)],
            Victim.REACHER: [(SELF, signal.SIGKILL)],
        }[victim]

    def kill_producer(self, transaction: Future[None]) -> None:
        """The producer is dead: another one takes its place."""
        with suppress(*FAILURES):
            transaction.result(STEP_SECONDS)
        self.replace()
        self.commit()

    def wake_zombie(self, transaction: Future[None]) -> None:
        """Another producer takes the place of a stopped one, which goes on afterwards."""
        zombie = self.producer
        self.producer = self._new()
        try:
            self.producer.open()
            self.commit()
        finally:
            os.kill(zombie.client.program.pid, signal.SIGCONT)
        with suppress(*FAILURES):
            transaction.result(STEP_SECONDS)
        self.commit()
        zombie.client.program.kill()
        zombie.client.close()

    def kill_brokers(self, transaction: Future[None], count: int) -> None:
        """So many brokers are dead. If a majority is left, it goes on before they come back."""
        cluster = self.cluster
        eventually(lambda: len(self._dead()) >= count, self._dead, seconds=STEP_SECONDS)
        dead = self._dead()
        if len(dead) * 2 < len(cluster.brokers):
            self.go_on(transaction)
        for broker in dead:
            self._restart(broker)
        if len(dead) * 2 >= len(cluster.brokers):
            self.go_on(transaction)

    def _dead(self) -> list[PenstockProcess]:
        return [broker for broker in self.cluster.brokers if not broker.alive]

    @staticmethod
    def _restart(broker: PenstockProcess) -> None:
        broker.kill()
        broker.start()

    # What must be true

    def check(self) -> None:
        """Another producer of the id commits, nothing is open, and all readers see the same."""
        self.producer.close()
        self.producer.open()
        self.producer.transact(End.COMMIT)
        target, cluster = self.target, self.cluster
        parts = [target.far, target.own]
        cluster.await_no_transaction(target.transactional_id, target.topic, parts)
        ends = cluster.ends(target.topic, parts, committed=True)
        with self._readers(parts) as readers:
            for reader in readers:
                reader.await_ends(ends)
        offset = self._offset()
        violations = [
            f"{who}: {violation}"
            for who, reader in enumerate(readers)
            for violation in self.history.violations(
                dict(enumerate(reader.seen.values())), offset, reader.times
            )
            + reader.refusals
        ]
        assert not violations, "\n".join([*violations, str(self.history.told)])

    @contextmanager
    def _readers(self, parts: list[int]) -> Iterator[list[Reader]]:
        """The one that was there all the time, and a new one beside each broker."""
        with ExitStack() as stack:
            beside = [
                stack.enter_context(
                    Reader(self.cluster.bootstrap, self._topic, parts, rack=f"rack-{number}")
                )
                for number in range(1, self.cluster.kind.brokers + 1)
            ]
            yield [self.reader, *beside]

    def _offset(self) -> int | None:
        with Confluent(self.cluster.bootstrap) as driver:
            found = driver.committed(self.target.group, self.target.topic, [0])
        return found[0][0] if 0 in found else None


def play(cluster: Cluster, case: Case) -> None:
    """Raises AssertionError if something is true that must not be."""
    with Scene(cluster, case.client, case.end) as scene:
        scene.begin(case.step.phase)
        victims = scene.pids(case.victim)
        scene.plan(case.step, victims)
        transaction = scene.transact(case.step.phase)
        scene.await_step()
        if case.victim is Victim.PRODUCER:
            scene.kill_producer(transaction)
        elif case.victim is Victim.ZOMBIE:
            scene.wake_zombie(transaction)
        else:
            scene.kill_brokers(transaction, len(victims))
        scene.check()


def trace(cluster: Cluster, client: str, end: End) -> list[str]:
    """The points that one transaction reaches from its producer's begin on, in their order."""
    with Scene(cluster, client, end) as scene:
        cluster.plans.clear()
        scene.transact(Phase.BEGIN).result(STEP_SECONDS)
        last = f"saved Complete{end.state}"
        eventually(lambda: last in cluster.plans.reached(), cluster.plans.reached)
        reached = cluster.plans.reached()
        cluster.plans.clear()
        places = {str(scene.target.far): "{far}", str(scene.target.own): "{own}"}
        return [_unplaced(point, places) for point in reached]


def _unplaced(point: str, places: dict[str, str]) -> str:
    words, _, last = point.rpartition(" ")
    return f"{words} {places[last]}" if last in places else point
