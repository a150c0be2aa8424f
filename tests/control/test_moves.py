"""Other replicas for a partition: one contract for all forms of the control plane."""

from __future__ import annotations

from uuid import UUID

import pytest

from penstock.control import (
    BrokerInUse,
    ControlPlane,
    EpochClaim,
    Partition,
    PartitionChain,
    Reassignment,
    Reservation,
    StaleTopic,
    UnknownBroker,
)
from penstock.control.values.diskless import PartitionKey
from tests.control.replicated import (
    DISKLESS,
    PROCESSES,
    REPLICAS,
    SINGLE,
    TOPIC,
    assert_grown,
    chain,
    claim,
    create,
    epoch,
    furnish,
    names,
    opening,
    register,
)

FIRST = (TOPIC, 0)
TARGET = (2, 3, 4)


async def row(control: ControlPlane, key: PartitionKey = FIRST) -> Partition:
    image = await control.image()
    topic = image.topic_by_id(key[0])
    assert topic is not None
    return topic.partitions[key[1]]


async def order(
    control: ControlPlane, replicas: tuple[int, ...] | None, key: PartitionKey = FIRST
) -> str | None:
    """Order replicas; return the rejection, if any."""
    return names(await control.reassign([Reassignment(*key, replicas)])).get(key)


async def open_one(control: ControlPlane, number: int, **terms: object) -> str | None:
    refused = await control.open_epochs(
        [opening(FIRST, number, **terms)],  # type: ignore[arg-type]
        broker_id=2,
        incarnation=PROCESSES[2],
    )
    return names(refused).get(FIRST)


async def test_a_reassignment_is_stored_until_a_leader_completes_it(control: ControlPlane) -> None:
    await furnish(control)
    before = await row(control)
    assert (before.adding, before.removing, before.copies) == ((), (), (1, 2, 3))
    assert await order(control, TARGET) is None
    ordered = await row(control)
    assert (ordered.replicas, ordered.target) == ((1, 2, 3), TARGET)
    assert (ordered.adding, ordered.removing, ordered.copies) == ((4,), (1,), (2, 3, 4, 1))
    version = (await control.image()).version
    assert ordered.move == version
    assert await order(control, TARGET) is None
    assert (await control.image()).version == version, "the same once more is no news"
    # A leader that knows nothing of it opens an epoch as before.
    assert await claim(control, [FIRST], 2) == {FIRST: 1}
    assert await open_one(control, 1) is None
    assert (await row(control)).move == version
    # By a step in between, in which the leader is removed.
    assert await claim(control, [FIRST], 2) == {FIRST: 2}
    terms = {"ack_quorum": 3, "move": version}
    assert await open_one(control, 2, replicas=(2, 3, 4, 1), **terms) is None
    between = await row(control)
    assert (between.adding, between.removing, between.move) == ((), (1,), version)
    assert await claim(control, [FIRST], 2) == {FIRST: 3}
    assert await open_one(control, 3, replicas=TARGET, isr=(2, 3), move=version) is None
    after = await row(control)
    assert (after.replicas, after.target, after.move, after.isr) == (TARGET, (), 0, (2, 3))
    assert (await chain(control, FIRST)).epochs[-1] == epoch(3, 10, leader=2, replicas=TARGET)
    assert await open_one(control, 3, replicas=TARGET, isr=(2, 3), move=version) is None


async def test_a_cancelled_or_replaced_order_is_not_carried_out(
    control: ControlPlane,
) -> None:
    await furnish(control)
    assert await order(control, None) == "NotReassigned"
    assert await order(control, TARGET) is None
    first = (await row(control)).move
    assert await claim(control, [FIRST], 2) == {FIRST: 1}
    assert await order(control, None) is None
    assert (await row(control)).copies == (1, 2, 3)
    assert await open_one(control, 1, replicas=TARGET, move=first) == "StaleEpoch"
    assert await order(control, TARGET) is None
    assert await open_one(control, 1, replicas=TARGET, move=first) == "StaleEpoch"
    second = (await row(control)).move
    assert second > first
    assert await order(control, (1, 2)) is None
    assert await open_one(control, 1, replicas=TARGET, move=second) == "StaleEpoch"
    assert await open_one(control, 1) is None


async def test_the_same_replicas_in_another_order_are_had_at_once(control: ControlPlane) -> None:
    await furnish(control)
    assert await order(control, (3, 1, 2)) is None
    now = await row(control)
    assert (now.replicas, now.isr, now.move, now.leader) == ((3, 1, 2), (3, 1, 2), 0, 1)
    assert await order(control, TARGET) is None
    assert await order(control, (1, 2, 3)) is None
    now = await row(control)
    assert (now.replicas, now.target, now.move) == ((1, 2, 3), (), 0), "as if it was cancelled"


async def test_one_replica_may_become_several(control: ControlPlane) -> None:
    await furnish(control)
    await create(control, "single", SINGLE, partitions=[[1], [2]])
    key = (SINGLE, 0)
    assert not (await row(control, key)).has_epochs
    assert await order(control, (1, 2, 3), key) is None
    assert (await row(control, key)).has_epochs
    assert not (await row(control, (SINGLE, 1))).has_epochs
    found = await control.partition_chains([key, (SINGLE, 1)])
    assert list(found) == [key]
    assert found[key].epochs == (epoch(0, 0, replicas=(1,), ack_quorum=1),)
    assert await claim(control, [key]) == {key: 1}
    await control.delete_topic(SINGLE)
    assert await control.partition_chains([key]) == {}


async def test_orders_that_cannot_be(control: ControlPlane) -> None:
    await furnish(control)
    await create(control, "diskless", DISKLESS, configs={"diskless.enable": "true"})
    for replicas in ((), (1, 1), (-1, 2)):
        assert await order(control, replicas) == "InvalidReplicas"
    for key in ((TOPIC, 9), (TOPIC, -1), (SINGLE, 0), (DISKLESS, 0)):
        assert await order(control, (1, 2), key) == "NotReplicated"


async def test_a_broker_is_removed_that_is_off_and_holds_nothing(control: ControlPlane) -> None:
    await furnish(control, 1)
    await register(control, 4, UUID(int=104))
    await order(control, (1, 2, 4))
    await create(
        control, "diskless", DISKLESS, partitions=[[4]], configs={"diskless.enable": "true"}
    )
    await control.set_broker_configs(broker="4", configs={"a": "b"}, expected=None)
    with pytest.raises(BrokerInUse, match="broker 4 is registered"):
        await control.remove_broker(4)
    await control.unregister_broker(broker_id=4, incarnation=UUID(int=104))
    with pytest.raises(BrokerInUse, match=r"4 holds replicas of 1 .*, for example of repl"):
        await control.remove_broker(4)
    await order(control, None)
    await control.remove_broker(4)
    assert not (await control.image()).broker_configs["4"]
    await control.remove_broker(4)
    with pytest.raises(UnknownBroker, match="broker 9 was never registered"):
        await control.remove_broker(9)


async def test_an_unclean_opening_shortens_epochs_and_says_so(control: ControlPlane) -> None:
    await furnish(control, 2)
    for number, end in ((1, 10), (2, 20)):
        assert await claim(control, [FIRST], 2) == {FIRST: number}
        assert await open_one(control, number, end=end) is None
    assert await claim(control, [FIRST], 2) == {FIRST: 3}
    alone = {"replicas": (2,), "ack_quorum": 1, "end": 5}
    assert await open_one(control, 3, **alone) == "StaleEpoch", "starts never fall"
    assert await control.partition_losses() == []
    assert await open_one(control, 3, unclean=True, **alone) is None
    assert await open_one(control, 3, unclean=True, **alone) is None
    found = await chain(control, FIRST)
    assert [(found_epoch.start_offset, found_epoch.end_offset) for found_epoch in found.epochs] == [
        (0, 5),
        (5, 5),
        (5, 5),
        (5, None),
    ]
    (loss,) = await control.partition_losses()
    assert loss[:7] == (TOPIC, 0, 3, 2, 5, 2, (1, 3))
    assert loss.at_ms > 0
    now = await row(control)
    assert (now.replicas, now.target, now.copies) == ((2,), (1, 2, 3), (1, 2, 3))
    assert now.move == (await control.image()).version
    await control.delete_topic(TOPIC)
    assert await control.partition_losses() == []


LINKED = (SINGLE, 0)


async def linked(control: ControlPlane, **configs: str) -> None:
    """Create a topic with one replica, with the configurations of a link."""
    for broker_id, incarnation in PROCESSES.items():
        await register(control, broker_id, incarnation)
    configs = {name.replace("_", "."): value for name, value in configs.items()}
    await create(control, "linked", SINGLE, partitions=[(1,)], configs=configs)


async def claimed(control: ControlPlane, *history: tuple[int, int], above: int = 0) -> int:
    """Claim the promoted partition with the epochs of its log; return the reserved epoch."""
    asked = EpochClaim(*LINKED, above, history)
    got = await control.claim_epochs([asked], broker_id=1, incarnation=PROCESSES[1])
    return got.chains[LINKED].reservation.reserved


async def test_a_linked_topic_gets_no_replicas(control: ControlPlane) -> None:
    await linked(control, link_source="elsewhere:9092")
    assert await order(control, (1, 2, 3), LINKED) == "InvalidReplicas"
    assert (await row(control, LINKED)).move == 0


async def test_a_promoted_partition_begins_with_the_epochs_of_its_log(
    control: ControlPlane,
) -> None:
    await linked(control, link_epoch="7")
    assert await order(control, (1, 2, 3), LINKED) is None
    assert await claimed(control, (2, 0), (5, 30), (7, 40)) == 8
    assert await order(control, None, LINKED) is None
    # Its records since then, and perhaps those of another link, replace the first claim's.
    assert await order(control, (1, 2, 3), LINKED) is None
    assert await claimed(control, (2, 0), (5, 30), (9, 60), above=10) == 11
    move, terms = (await row(control, LINKED)).move, {"replicas": REPLICAS, "isr": (1,)}
    opened = [opening(LINKED, 11, 80, move=move, **terms)]  # type: ignore[arg-type]
    assert not await control.open_epochs(opened, broker_id=1, incarnation=PROCESSES[1])
    epochs = (await chain(control, LINKED)).epochs
    assert [(found.epoch, found.start_offset, found.end_offset) for found in epochs] == [
        (2, 0, 30), (5, 30, 60), (9, 60, 80), (11, 80, None),
    ]  # fmt: skip
    assert [found.replicas for found in epochs] == [(1,), (1,), (1,), REPLICAS]
    assert await claimed(control, (2, 0), (5, 30)) == 12, "a led partition keeps its epochs"
    assert_grown(PartitionChain(Reservation(11, 1, None, 11), epochs), await chain(control, LINKED))


async def test_a_topic_that_becomes_linked_loses_its_epochs(control: ControlPlane) -> None:
    await linked(control, link_epoch="7")
    await order(control, (1, 2, 3), LINKED)
    await claimed(control, (7, 0))
    topic = (await control.image()).topic_by_id(SINGLE)
    assert topic is not None
    link = {"topic_id": SINGLE, "configs": {"link.source": "elsewhere:9092"}}
    with pytest.raises(StaleTopic, match="replicas"):
        await control.set_topic_configs(**link, expected=topic.configs)  # type: ignore[arg-type]
    move = (await row(control, LINKED)).move
    opened = [opening(LINKED, 8, 5, replicas=(1,), ack_quorum=1, isr=(1,), move=move)]
    assert not await control.open_epochs(opened, broker_id=1, incarnation=PROCESSES[1])
    assert (await row(control, LINKED)).leader_epoch == 8
    await order(control, None, LINKED)
    await control.set_topic_configs(**link, expected=topic.configs)  # type: ignore[arg-type]
    assert (await row(control, LINKED)).leader_epoch == 0
    assert await control.partition_chains([LINKED]) == {}
