"""Epochs against a slow, obvious model: rules in any order, and all forms of the plane."""

from __future__ import annotations

from collections.abc import Coroutine
from random import Random
from typing import Any, TypeVar
from uuid import UUID

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.control import (
    ControlPlane,
    EpochClaim,
    EpochOpening,
    InSyncReplicas,
    MemoryControlPlane,
    PartitionChain,
)
from penstock.control.values.diskless import PartitionKey
from tests.control.replicated import (
    PROCESSES,
    REPLICAS,
    TOPIC,
    Model,
    Opened,
    assert_grown,
    assert_sound,
    furnish,
    names,
    register,
)

T = TypeVar("T")
PARTITIONS = 3
KEYS = [(TOPIC, number) for number in range(PARTITIONS)]
BROKERS = (1, 2, 3, 4)


class Cluster:
    """A plane, and the model of each of its partitions; what they say is compared."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        self.restarts = 0
        self.registered: dict[int, UUID] = {}
        self.models: dict[PartitionKey, Model] = {}
        self.seen: dict[PartitionKey, PartitionChain] = {}
        self.openers: dict[tuple[PartitionKey, int], UUID | None] = {}

    async def start(self) -> None:
        await furnish(self.plane, PARTITIONS)
        self.registered |= PROCESSES
        await self.restart(4)
        for key in KEYS:
            first = Opened(0, 0, REPLICAS, 2, 1, PROCESSES[1])
            self.models[key] = Model([(0, 1, PROCESSES[1])], [first], REPLICAS, self.registered)
        await self.compare()

    async def restart(self, broker_id: int) -> None:
        self.restarts += 1
        self.registered[broker_id] = UUID(int=1000 + self.restarts)
        await register(self.plane, broker_id, self.registered[broker_id])

    async def claim(self, broker_id: int, above: dict[PartitionKey, int]) -> None:
        expected = {
            key: self.models[key].claim(broker_id, known_epoch)
            for key, known_epoch in above.items()
        }
        got = await self.plane.claim_epochs(
            [EpochClaim(*key, known_epoch) for key, known_epoch in above.items()],
            broker_id=broker_id,
            incarnation=self.registered[broker_id],
        )
        found: dict[PartitionKey, int | str] = dict(names(got.refused))
        for key, chain in got.chains.items():
            found[key] = chain.reservation.reserved
            assert chain.epochs == self.models[key].chain()
        assert found == expected

    async def open(self, broker_id: int, openings: list[EpochOpening]) -> None:
        before = {opening.key: len(self.models[opening.key].opened) for opening in openings}
        expected = {
            opening.key: self.models[opening.key].open(broker_id, opening) for opening in openings
        }
        refused = await self.plane.open_epochs(
            openings, broker_id=broker_id, incarnation=self.registered[broker_id]
        )
        found = names(refused)
        assert {opening.key: found.get(opening.key) for opening in openings} == expected
        for opening in openings:
            if len(self.models[opening.key].opened) > before[opening.key]:
                assert (opening.key, opening.epoch) not in self.openers, "one opener for each epoch"
                self.openers[opening.key, opening.epoch] = self.registered[broker_id]

    async def set_isr(
        self, broker_id: int, key: PartitionKey, epoch: int, isr: tuple[int, ...]
    ) -> None:
        expected = self.models[key].set_isr(broker_id, epoch, isr)
        refused = await self.plane.set_isr(
            [InSyncReplicas(*key, epoch, isr)],
            broker_id=broker_id,
            incarnation=self.registered[broker_id],
        )
        assert names(refused).get(key) == expected

    async def compare(self) -> None:
        """Chains, what brokers owe, and the image, as the model has them."""
        found = await self.plane.partition_chains(KEYS)
        for key, model in self.models.items():
            chain, (reserved, owner, process) = found[key], model.reservations[-1]
            assert chain.epochs == model.chain()
            assert chain.reservation[:3] == (reserved, owner, process)
            assert_sound(chain)
            if key in self.seen:
                assert_grown(self.seen[key], chain)
            self.seen[key] = chain
        for broker_id in BROKERS:
            owed = await self.plane.assigned_epochs(broker_id)
            assert [
                (assigned.topic_id, assigned.partition, assigned.epoch) for assigned in owed
            ] == [
                (*key, epoch)
                for key, model in self.models.items()
                for epoch in model.chain()
                if broker_id in epoch.replicas
            ]
        image = await self.plane.image()
        for partition in image.topics["replicated"].partitions:
            model = self.models[TOPIC, partition.index]
            last = model.opened[-1]
            assert (partition.leader, partition.leader_epoch) == (last.leader, last.number)
            assert (partition.replicas, partition.isr) == (last.replicas, model.isr)


def now(work: Coroutine[Any, Any, T]) -> T:
    """Return the value of a coroutine that never waits, as in the in-memory control plane."""
    try:
        work.send(None)
    except StopIteration as end:
        value: T = end.value
        return value
    raise AssertionError("it waits")


brokers = st.sampled_from(BROKERS)
keys = st.sampled_from(KEYS)
replica_lists = st.sampled_from(
    [(1, 2, 3), (1, 2, 3), (3, 4, 1), (1, 2), (4,), (2, 2, 1), (1, 2, 3, 4), ()]
)
some = st.lists(brokers, max_size=4).map(tuple)


class AgainstModel(RuleBasedStateMachine):
    """Brokers that restart, claim, open, and say things that are stale or wrong."""

    @initialize()
    def start(self) -> None:
        self.cluster = Cluster(MemoryControlPlane())
        now(self.cluster.start())

    def reserved(self, key: PartitionKey) -> int:
        return self.cluster.models[key].reservations[-1][0]

    def end(self, key: PartitionKey) -> int:
        return self.cluster.models[key].opened[-1].start

    @rule(broker_id=brokers)
    def restart(self, broker_id: int) -> None:
        now(self.cluster.restart(broker_id))

    @rule(broker_id=brokers, of=st.dictionaries(keys, st.integers(-2, 1), min_size=1))
    def claim(self, broker_id: int, of: dict[PartitionKey, int]) -> None:
        """Knowing of epochs that are above the reserved one, equal, or below."""
        above = {key: self.reserved(key) + by for key, by in of.items()}
        now(self.cluster.claim(broker_id, above))

    @rule(of=st.dictionaries(keys, st.integers(0, 5), min_size=1), data=st.data())
    def claimant_opens(self, of: dict[PartitionKey, int], data: st.DataObject) -> None:
        """Open an epoch as the last claimant, with valid values."""
        for key, by in of.items():
            epoch, broker_id, _ = self.cluster.models[key].reservations[-1]
            others = data.draw(st.lists(brokers, unique=True, max_size=3))
            replicas = (broker_id, *(replica for replica in others if replica != broker_id))
            opening = EpochOpening(
                *key, epoch, self.end(key) + by, replicas, len(replicas) // 2 + 1, (broker_id,)
            )
            now(self.cluster.open(broker_id, [opening]))
            now(self.cluster.open(broker_id, [opening]))

    @rule(
        broker_id=brokers,
        of=st.dictionaries(
            keys,
            st.tuples(st.integers(-1, 1), st.integers(-1, 2), replica_lists, some),
            min_size=1,
        ),
        quorum=st.integers(0, 4),
    )
    def anybody_opens(
        self,
        broker_id: int,
        of: dict[PartitionKey, tuple[int, int, tuple[int, ...], tuple[int, ...]]],
        quorum: int,
    ) -> None:
        openings = [
            EpochOpening(
                *key, self.reserved(key) + by, max(0, self.end(key) + more), replicas, quorum, isr
            )
            for key, (by, more, replicas, isr) in of.items()
        ]
        now(self.cluster.open(broker_id, openings))

    @rule(broker_id=brokers, key=keys, by=st.integers(-1, 1), isr=some)
    def set_isr(self, broker_id: int, key: PartitionKey, by: int, isr: tuple[int, ...]) -> None:
        epoch = self.cluster.models[key].opened[-1].number + by
        now(self.cluster.set_isr(broker_id, key, epoch, isr))

    @invariant()
    def compare(self) -> None:
        if hasattr(self, "cluster"):
            now(self.cluster.compare())


TestAgainstModel = AgainstModel.TestCase
TestAgainstModel.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


@pytest.mark.parametrize("seed", [1, 2])
async def test_all_forms_do_as_the_model_does(control: ControlPlane, seed: int) -> None:
    random = Random(seed)
    cluster = Cluster(control)
    await cluster.start()
    for _ in range(60):
        broker_id, key = random.choice(BROKERS), random.choice(KEYS)
        model = cluster.models[key]
        reserved, owner, _ = model.reservations[-1]
        end = model.opened[-1].start + random.randrange(4)
        replicas = tuple(random.sample(BROKERS, random.choice([1, 2, 3, 3, 4])))
        if (kind := random.randrange(8)) == 0:
            await cluster.restart(broker_id)
        elif kind < 4:
            chosen = random.sample(KEYS, random.randint(1, PARTITIONS))
            highest = {key: cluster.models[key].reservations[-1][0] for key in chosen}
            above = {key: epoch - random.randrange(3) for key, epoch in highest.items()}
            await cluster.claim(broker_id, above)
        elif kind < 7:
            opener = random.choice([owner, owner, broker_id])
            quorum = len(replicas) // 2 + 1
            asked = EpochOpening(*key, reserved, end, replicas, quorum, replicas)
            for _ in range(random.randint(1, 2)):
                await cluster.open(opener, [asked])
        else:
            last = model.opened[-1]
            await cluster.set_isr(last.leader, key, last.number, replicas)
        await cluster.compare()
