"""Epochs of replicated partitions: one contract for all forms of the control plane."""

from __future__ import annotations

from uuid import UUID

import pytest
from msgspec.structs import replace

from penstock.control import (
    ControlPlane,
    EpochClaim,
    InSyncReplicas,
    InvalidPartitions,
    InvalidQuorum,
    Reservation,
    Resignation,
    StaleBroker,
    TooLarge,
)
from penstock.control.values import errors
from tests.control.replicated import (
    DISKLESS,
    OTHER,
    PROCESSES,
    REPLICAS,
    SINGLE,
    TOPIC,
    assert_sound,
    chain,
    claim,
    claims,
    create,
    epoch,
    furnish,
    names,
    open_all,
    opening,
    register,
)

FIRST = (TOPIC, 0)
NEWER = UUID(int=111)


# Creation


async def test_the_first_epoch_is_open_when_a_topic_is_created(control: ControlPlane) -> None:
    keys = await furnish(control, 2)
    found = await control.partition_chains(keys)
    assert list(found) == keys
    for found_chain in found.values():
        assert found_chain.reservation == Reservation(0, 1, PROCESSES[1], 0)
        assert found_chain.epochs == (epoch(0, 0),)
        assert_sound(found_chain)
    [partition, _] = (await control.image()).topics["replicated"].partitions
    assert (partition.leader, partition.leader_epoch, partition.isr) == (1, 0, REPLICAS)


async def test_a_leader_that_is_not_registered_has_to_claim(control: ControlPlane) -> None:
    await create(control)
    [first] = (await chain(control, FIRST)).epochs
    assert (first.leader, first.incarnation) == (1, None)
    await register(control, 1, PROCESSES[1])
    change = InSyncReplicas(*FIRST, 0, (1,))
    assert names(await control.set_isr([change], broker_id=1, incarnation=PROCESSES[1])) == {
        FIRST: "StaleEpoch"
    }
    assert await claim(control, [FIRST]) == {FIRST: 1}
    assert await open_all(control, {FIRST: 1}, end=0) == {}
    assert (await chain(control, FIRST)).epochs[1] == epoch(1, 0)


async def test_one_replica_and_diskless_topics_have_no_epochs(control: ControlPlane) -> None:
    await furnish(control)
    await create(control, "single", SINGLE, partitions=[[1], [2]])
    await create(control, "diskless", DISKLESS, configs={"diskless.enable": "true"})
    await create(control, "mixed", OTHER, partitions=[[1], [1, 2]], min_insync_replicas=2)
    keys = [(SINGLE, 0), (DISKLESS, 0), (OTHER, 0), (OTHER, 1), (OTHER, 2), (UUID(int=9), 0)]
    assert list(await control.partition_chains(keys)) == [(OTHER, 1)]
    assert list(await control.highest_reserved(keys)) == [(OTHER, 1)]
    got = await control.claim_epochs(claims(keys), broker_id=1, incarnation=PROCESSES[1])
    assert names(got.refused) == {key: "NotReplicated" for key in keys if key != (OTHER, 1)}
    refused = await control.open_epochs(
        [opening(key, 1) for key in keys[:3]], broker_id=1, incarnation=PROCESSES[1]
    )
    assert set(names(refused).values()) == {"NotReplicated"}


@pytest.mark.parametrize(
    ("replicas", "asked", "quorum"),
    [(2, 1, 2), (3, 1, 2), (3, 2, 2), (3, 3, 3), (4, 1, 3), (5, 1, 3), (5, 4, 4)],
)
async def test_the_ack_quorum_is_a_majority_or_what_is_asked(
    control: ControlPlane, replicas: int, asked: int, quorum: int
) -> None:
    await create(control, partitions=[range(replicas)], min_insync_replicas=asked)
    [first] = (await chain(control, FIRST)).epochs
    assert (first.ack_quorum, first.fence_quorum) == (quorum, replicas - quorum + 1)


async def test_a_quorum_above_the_replicas_is_refused(control: ControlPlane) -> None:
    with pytest.raises(InvalidQuorum, match=r"min\.insync\.replicas = 4 .* factor 3"):
        await create(control, min_insync_replicas=4)
    assert (await control.image()).version == 0
    await create(control, partitions=[REPLICAS])
    with pytest.raises(InvalidQuorum):
        await control.create_partitions(
            topic_id=TOPIC, expected_count=1, new=[[1, 2]], min_insync_replicas=3
        )
    assert len((await control.image()).topics["replicated"].partitions) == 1
    await create(control, "single", SINGLE, partitions=[[1]], min_insync_replicas=4)


async def test_partitions_that_are_added_have_epochs(control: ControlPlane) -> None:
    await furnish(control, 1)
    await control.create_partitions(
        topic_id=TOPIC, expected_count=1, new=[[2, 1], [3]], min_insync_replicas=1
    )
    found = await control.partition_chains([(TOPIC, number) for number in range(4)])
    assert list(found) == [(TOPIC, 0), (TOPIC, 1)]
    assert found[TOPIC, 1].epochs == (epoch(0, 0, leader=2, replicas=(2, 1)),)


async def test_epochs_go_with_their_topic(control: ControlPlane) -> None:
    keys = await furnish(control, 2)
    await create(control, "other", OTHER)
    reserved = await claim(control, [*keys, (OTHER, 0)])
    await control.delete_topic(TOPIC)
    await control.set_topic_configs(
        topic_id=OTHER, configs={"diskless.enable": "true"}, expected={}
    )
    assert await control.partition_chains(list(reserved)) == {}
    assert await control.assigned_epochs(1) == []
    assert set((await open_all(control, reserved)).values()) == {"NotReplicated"}
    await create(control)
    assert (await chain(control, FIRST)).reservation.reserved == 0


async def test_epochs_go_with_a_topic_whose_placements_shrank(control: ControlPlane) -> None:
    await furnish(control, 1)
    await claim(control, [FIRST])
    alone = opening(FIRST, 1, replicas=(1,), ack_quorum=1)
    assert await control.open_epochs([alone], broker_id=1, incarnation=PROCESSES[1]) == {}
    await control.set_topic_configs(topic_id=TOPIC, configs={"a": "1"}, expected={})
    assert len((await chain(control, FIRST)).epochs) == 2
    await control.delete_topic(TOPIC)
    assert await control.highest_reserved([FIRST]) == {}


# Claims


async def test_a_claim_reserves_above_all_that_was_reserved(control: ControlPlane) -> None:
    keys = await furnish(control)
    got = await control.claim_epochs(claims(keys), broker_id=2, incarnation=PROCESSES[2])
    assert not got.refused
    for found_chain in got.chains.values():
        assert found_chain.reservation == Reservation(1, 2, PROCESSES[2], 0)
        assert found_chain.reservation.is_recovering
        assert found_chain.epochs == (epoch(0, 0),)
    assert await control.partition_chains(keys) == got.chains
    assert await claim(control, keys[:1], 3) == {FIRST: 2}
    found = await control.highest_reserved(keys)
    assert [found[key].reserved for key in keys] == [2, 1, 1, 1]
    image = await control.image()
    assert {partition.leader for partition in image.topics["replicated"].partitions} == {1}


async def test_a_repeated_claim_gets_the_same_epoch(control: ControlPlane) -> None:
    keys = await furnish(control)
    first = await claim(control, keys)
    assert await claim(control, keys[1:]) == {key: 1 for key in keys[1:]}
    assert first == {key: 1 for key in keys}
    assert await claim(control, keys[:2], above=1) == {key: 2 for key in keys[:2]}
    assert await claim(control, keys[:1], 2) == {FIRST: 3}
    assert await claim(control, keys[:2]) == {FIRST: 4, (TOPIC, 1): 2}


async def test_a_leader_that_claims_again_gets_a_new_epoch(control: ControlPlane) -> None:
    await furnish(control)
    assert await claim(control, [FIRST]) == {FIRST: 1}
    assert await open_all(control, {FIRST: 1}) == {}
    assert await claim(control, [FIRST]) == {FIRST: 2}


async def test_a_process_that_restarted_gets_a_new_epoch(control: ControlPlane) -> None:
    await furnish(control)
    assert await claim(control, [FIRST]) == {FIRST: 1}
    await register(control, 1, NEWER)
    with pytest.raises(StaleBroker, match="newer incarnation"):
        await claim(control, [FIRST])
    with pytest.raises(StaleBroker, match="newer incarnation"):
        await open_all(control, {FIRST: 1})
    refused = await control.open_epochs([opening(FIRST, 1)], broker_id=1, incarnation=NEWER)
    assert names(refused) == {FIRST: "StaleEpoch"}, "it is another process that reserved it"
    got = await control.claim_epochs(claims([FIRST]), broker_id=1, incarnation=NEWER)
    assert got.chains[FIRST].reservation == Reservation(2, 1, NEWER, 0)
    refused = await control.open_epochs([opening(FIRST, 1)], broker_id=1, incarnation=NEWER)
    assert names(refused) == {FIRST: "StaleEpoch"}


async def test_unregistered_brokers_cannot_claim(control: ControlPlane) -> None:
    await furnish(control)
    await control.unregister_broker(broker_id=2, incarnation=PROCESSES[2])
    with pytest.raises(StaleBroker, match="not registered"):
        await claim(control, [FIRST], 2)
    assert (await chain(control, FIRST)).reservation.reserved == 0


async def test_claims_are_refused_one_by_one(control: ControlPlane) -> None:
    await furnish(control)
    await create(control, "other", OTHER, partitions=[[1, 2], [2, 3], REPLICAS, REPLICAS])
    asked = [
        EpochClaim(OTHER, 0, 0),
        EpochClaim(OTHER, 1, 0),
        EpochClaim(OTHER, 2, 7),
        EpochClaim(OTHER, 9, 0),
        EpochClaim(OTHER, 3, 0),
    ]
    got = await control.claim_epochs(asked, broker_id=3, incarnation=PROCESSES[3])
    assert list(got.chains) == [(OTHER, 1), (OTHER, 3)]
    assert names(got.refused) == {
        (OTHER, 0): "NotReplica", (OTHER, 2): "DatabaseSetBack", (OTHER, 9): "NotReplicated"
    }  # fmt: skip
    assert "epoch 7" in str(got.refused[OTHER, 2])
    assert "broker 3 cannot lead" in str(got.refused[OTHER, 0])
    reserved = await control.highest_reserved([(OTHER, number) for number in range(4)])
    assert [reservation.reserved for reservation in reserved.values()] == [0, 1, 0, 1]


# Seal and open


async def test_an_opening_seals_and_moves_the_leader(control: ControlPlane) -> None:
    keys = await furnish(control)
    reserved = await claim(control, keys[:2], 2)
    before = await control.image()
    refused = await control.open_epochs(
        [
            opening(keys[0], 1, end=10, isr=(2, 3)),
            opening(keys[1], 1, end=0, replicas=(2, 1), isr=(2,)),
        ],
        broker_id=2,
        incarnation=PROCESSES[2],
    )
    assert (refused, reserved) == ({}, {keys[0]: 1, keys[1]: 1})
    found = await control.partition_chains(keys)
    assert found[keys[0]].epochs == (epoch(0, 0, 10), epoch(1, 10, leader=2))
    assert found[keys[1]].epochs == (epoch(0, 0, 0), epoch(1, 0, leader=2, replicas=(2, 1)))
    assert not found[keys[0]].reservation.is_recovering
    after = await control.image()
    assert after.version == before.version + 1
    assert [
        (partition.leader, partition.leader_epoch, partition.replicas, partition.isr)
        for partition in after.topics["replicated"].partitions
    ] == [(2, 1, REPLICAS, (2, 3)), (2, 1, (2, 1), (2,))] + [(1, 0, REPLICAS, REPLICAS)] * 2


async def test_a_repeated_opening_changes_nothing(control: ControlPlane) -> None:
    keys = await furnish(control)
    reserved = await claim(control, keys)
    assert await open_all(control, reserved) == {}
    image, chains = await control.image(), await control.partition_chains(keys)
    assert await open_all(control, reserved) == {}
    assert await control.image() is image
    assert await claim(control, keys[:1], 2) == {FIRST: 2}
    assert await open_all(control, reserved) == {}, "what was made is true, fenced or not"
    assert await open_all(control, {FIRST: 2}, 2) == {}
    assert await open_all(control, reserved) == {FIRST: "StaleEpoch"}
    assert list((await control.partition_chains(keys[1:])).values()) == list(chains.values())[1:]


async def test_a_later_claim_fences_its_partition_alone(control: ControlPlane) -> None:
    keys = await furnish(control)
    reserved = await claim(control, keys)
    await claim(control, keys[1:3], 2)
    assert await open_all(control, reserved) == {keys[1]: "StaleEpoch", keys[2]: "StaleEpoch"}
    found = await control.partition_chains(keys)
    assert [found_chain.reservation.opened for found_chain in found.values()] == [1, 0, 0, 1]
    assert [len(found_chain.epochs) for found_chain in found.values()] == [2, 1, 1, 2]


async def test_an_end_is_set_once_and_starts_rise(control: ControlPlane) -> None:
    await furnish(control)
    await open_all(control, await claim(control, [FIRST]), end=10)
    assert await open_all(control, {FIRST: 1}, end=11) == {FIRST: "StaleEpoch"}
    assert await claim(control, [FIRST]) == {FIRST: 2}
    assert await open_all(control, {FIRST: 2}, end=9) == {FIRST: "StaleEpoch"}
    assert await open_all(control, {FIRST: 3}, end=10) == {FIRST: "StaleEpoch"}
    assert await open_all(control, {FIRST: 2}, end=10) == {}
    found = await chain(control, FIRST)
    assert found.epochs == (epoch(0, 0, 10), epoch(1, 10, 10), epoch(2, 10))


async def test_no_process_opens_an_epoch_that_another_has_reserved(control: ControlPlane) -> None:
    await furnish(control)
    await claim(control, [FIRST], 2)
    assert await open_all(control, {FIRST: 1}, 1) == {FIRST: "StaleEpoch"}
    assert await open_all(control, {FIRST: 1}, 2) == {}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"replicas": ()}, "InvalidReplicas"),
        ({"replicas": (1, 2, 2)}, "InvalidReplicas"),
        ({"replicas": (1, -2)}, "InvalidReplicas"),
        ({"replicas": (2, 3)}, "NotReplica"),
        ({"ack_quorum": 1}, "InvalidQuorum"),
        ({"ack_quorum": 4}, "InvalidQuorum"),
        ({"ack_quorum": 2, "replicas": (1, 2, 3, 4)}, "InvalidQuorum"),
        ({"isr": ()}, "InvalidReplicas"),
        ({"isr": (2, 3)}, "InvalidReplicas"),
        ({"isr": (1, 1)}, "InvalidReplicas"),
        ({"isr": (1, 4)}, "InvalidReplicas"),
    ],
)
async def test_placements_that_are_none_are_refused(
    control: ControlPlane, changes: dict[str, object], reason: str
) -> None:
    keys = await furnish(control)
    await claim(control, keys[:2])
    asked = opening(FIRST, 1)._replace(**changes)  # type: ignore[arg-type]
    refused = await control.open_epochs(
        [asked, opening(keys[1], 1)], broker_id=1, incarnation=PROCESSES[1]
    )
    assert names(refused) == {FIRST: reason}
    found = await control.partition_chains(keys[:2])
    assert [found_chain.reservation.opened for found_chain in found.values()] == [0, 1]


async def test_more_topics_than_an_image_notes_may_move_at_once(control: ControlPlane) -> None:
    await furnish(control, 1)
    count = errors.CHANGES_KNOWN_MAX + 6
    ids = [UUID(int=1000 + number) for number in range(count)]
    for topic_id in ids:
        await create(control, f"t{topic_id.int}", topic_id, partitions=[REPLICAS])
    before = await control.image()
    assert (
        await open_all(control, await claim(control, [(topic_id, 0) for topic_id in ids], 2), 2)
        == {}
    )
    after = await control.image()
    assert after.version == before.version + 1
    assert after.changed_since(before) is None
    assert after.topics["replicated"] is before.topics["replicated"]
    moved = [after.topics[f"t{topic_id.int}"].partitions[0] for topic_id in ids]
    assert {(row.leader, row.leader_epoch) for row in moved} == {(2, 1)}
    await control.close()
    await control.start()
    assert (await control.image()).topics == after.topics


# In-sync replicas


async def test_the_leader_sets_the_isr(control: ControlPlane) -> None:
    keys = await furnish(control)
    await open_all(control, await claim(control, keys[1:2], 2), 2)
    asked = [InSyncReplicas(*keys[0], 0, (1, 3)), InSyncReplicas(*keys[1], 1, (1, 2))]
    assert names(await control.set_isr(asked, broker_id=1, incarnation=PROCESSES[1])) == {
        keys[1]: "StaleEpoch"
    }
    assert names(await control.set_isr(asked, broker_id=2, incarnation=PROCESSES[2])) == {
        keys[0]: "StaleEpoch"
    }
    image = await control.image()
    partitions = image.topics["replicated"].partitions
    assert [partition.isr for partition in partitions] == [(1, 3), (1, 2), REPLICAS, REPLICAS]
    assert await control.set_isr(asked[:1], broker_id=1, incarnation=PROCESSES[1]) == {}
    assert await control.image() is image, "what stays as it is changes nothing"


async def test_brokers_that_do_not_lead_the_open_epoch_cannot_set_the_isr(
    control: ControlPlane,
) -> None:
    keys = await furnish(control)
    await open_all(control, await claim(control, [FIRST]))
    await register(control, 1, NEWER)
    image = await control.image()
    for change, process in (
        (InSyncReplicas(*FIRST, 0, (1,)), PROCESSES[1]),
        (InSyncReplicas(*FIRST, 2, (1,)), PROCESSES[1]),
        (InSyncReplicas(*FIRST, 1, (1,)), NEWER),
        (InSyncReplicas(*keys[1], 0, (1,)), NEWER),
    ):
        refused = await control.set_isr([change], broker_id=1, incarnation=process)
        assert names(refused) == {change.key: "StaleEpoch"}
    malformed: list[tuple[int, ...]] = [(), (2, 3), (1, 1), (1, 9)]
    for isr in malformed:
        change = InSyncReplicas(*FIRST, 1, isr)
        refused = await control.set_isr([change], broker_id=1, incarnation=PROCESSES[1])
        assert names(refused) == {FIRST: "InvalidReplicas"}
    unknown = InSyncReplicas(UUID(int=9), 0, 0, (1,))
    refused = await control.set_isr([unknown], broker_id=1, incarnation=NEWER)
    assert names(refused) == {unknown.key: "NotReplicated"}
    assert await control.image() is image


# Resignations


async def test_a_leader_has_another_one_claim(control: ControlPlane) -> None:
    keys = await furnish(control)
    before = await control.image()
    asked = [Resignation(*keys[0], 0, 3), Resignation(*keys[1], 0, 2)]
    assert await control.resign(asked, broker_id=1, incarnation=PROCESSES[1]) == {}
    image = await control.image()
    assert image.version == before.version + 1
    rows = image.topics["replicated"].partitions
    assert [(row.leader, row.leader_epoch) for row in rows] == [(3, 0), (2, 0), (1, 0), (1, 0)]
    refused = await control.resign(asked, broker_id=1, incarnation=PROCESSES[1])
    assert names(refused) == dict.fromkeys(keys[:2], "StaleEpoch")
    assert await open_all(control, await claim(control, keys[:1], 3), 3) == {}
    [row, *_] = (await control.image()).topics["replicated"].partitions
    assert (row.leader, row.leader_epoch) == (3, 1)


async def test_only_the_leader_resigns_and_only_in_favour_of_a_replica(
    control: ControlPlane,
) -> None:
    await furnish(control)
    image = await control.image()
    for resignation, by, why in (
        (Resignation(*FIRST, 0, 3), 2, "StaleEpoch"),
        (Resignation(*FIRST, 1, 3), 1, "StaleEpoch"),
        (Resignation(*FIRST, 0, 1), 1, "NotReplica"),
        (Resignation(*FIRST, 0, 9), 1, "NotReplica"),
        (Resignation(UUID(int=9), 0, 0, 2), 1, "NotReplicated"),
    ):
        refused = await control.resign([resignation], broker_id=by, incarnation=PROCESSES[by])
        assert names(refused) == {resignation.key: why}
    with pytest.raises(StaleBroker):
        await control.resign([Resignation(*FIRST, 0, 3)], broker_id=1, incarnation=NEWER)
    assert await control.image() is image
    await control.unregister_broker(broker_id=3, incarnation=PROCESSES[3])
    refused = await control.resign(
        [Resignation(*FIRST, 0, 3)], broker_id=1, incarnation=PROCESSES[1]
    )
    assert names(refused) == {FIRST: "NotReplica"}


# What is read


async def test_a_broker_reads_what_it_should_hold(control: ControlPlane) -> None:
    keys = await furnish(control, 3)
    await create(control, "other", OTHER, partitions=[[2, 1], [3, 2]])
    reserved = await claim(control, keys[1:], 2)
    await control.open_epochs(
        [opening(keys[1], 1, replicas=(2, 3)), opening(keys[2], 1)],
        broker_id=2,
        incarnation=PROCESSES[2],
    )
    assert len(reserved) == 2
    owed = await control.assigned_epochs(1)
    assert [(assigned.topic_id, assigned.partition, assigned.epoch.epoch) for assigned in owed] == [
        (TOPIC, 0, 0), (TOPIC, 1, 0), (TOPIC, 2, 0), (TOPIC, 2, 1), (OTHER, 0, 0)
    ]  # fmt: skip
    assert owed[1].epoch == epoch(0, 0, 10)
    assert owed[3].epoch == epoch(1, 10, leader=2)
    paged = []
    page = await control.assigned_epochs(1, limit=2)
    while page:
        paged += page
        page = await control.assigned_epochs(1, after=page[-1], limit=2)
    assert paged == owed
    assert len(await control.assigned_epochs(2)) == 7
    assert await control.assigned_epochs(21) == await control.assigned_epochs(9) == []


async def test_long_chains_are_read_in_parts(
    control: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.control.operations.epochs.CHAIN_EPOCHS_MAX", 3)
    keys = await furnish(control, 2)
    for number in range(1, 6):
        assert await open_all(control, await claim(control, [FIRST]), end=number) == {}
    found = await control.partition_chains(keys)
    assert [found_epoch.epoch for found_epoch in found[FIRST].epochs] == [3, 4, 5]
    assert [found_chain.is_whole for found_chain in found.values()] == [False, True]
    assert [found_epoch.epoch for found_epoch in found[keys[1]].epochs] == [0]
    older = await control.partition_chains(keys, below=3)
    assert [found_epoch.epoch for found_epoch in older[FIRST].epochs] == [0, 1, 2]
    assert older[FIRST].is_whole
    got = await control.claim_epochs(claims([FIRST]), broker_id=2, incarnation=PROCESSES[2])
    assert [found_epoch.epoch for found_epoch in got.chains[FIRST].epochs] == [3, 4, 5]


@pytest.mark.parametrize("count", [2, errors.EPOCH_PARTITIONS_PER_CALL_MAX + 1])
async def test_calls_are_bounded(control: ControlPlane, count: int) -> None:
    keys = [FIRST] * 2 if count == 2 else [(TOPIC, number) for number in range(count)]
    isr = [InSyncReplicas(*key, 0, (1,)) for key in keys]
    openings = [opening(key, 1) for key in keys]
    process = PROCESSES[1]
    for call in (
        control.claim_epochs(claims(keys), broker_id=1, incarnation=process),
        control.open_epochs(openings, broker_id=1, incarnation=process),
        control.set_isr(isr, broker_id=1, incarnation=process),
        control.partition_chains(keys),
        control.highest_reserved(keys),
    ):
        with pytest.raises(InvalidPartitions if count == 2 else TooLarge):
            await call


async def test_nothing_is_asked_for_nothing(control: ControlPlane) -> None:
    await furnish(control)
    got = await control.claim_epochs([], broker_id=1, incarnation=PROCESSES[1])
    assert (got.chains, got.refused) == ({}, {})
    image = await control.image()
    assert await control.open_epochs([], broker_id=1, incarnation=PROCESSES[1]) == {}
    assert await control.set_isr([], broker_id=1, incarnation=PROCESSES[1]) == {}
    assert await control.partition_chains([]) == {}
    assert await control.highest_reserved([]) == {}
    assert await control.image() is image


async def test_epochs_outlive_their_plane(control: ControlPlane) -> None:
    keys = await furnish(control)
    await open_all(control, await claim(control, keys[:2], 2), 2)
    await claim(control, keys[:1], 3)
    before = await control.partition_chains(keys)
    topics = (await control.image()).topics
    await control.close()
    await control.start()
    assert await control.partition_chains(keys) == before
    assert (await control.image()).topics == topics
    first = topics["replicated"].partitions[0]
    assert replace(first, isr=()) == replace(first, isr=(), leader=2, leader_epoch=1)
