"""Leases and commits of objects: one contract for all forms of the control plane."""

from __future__ import annotations

import asyncio
import re
from uuid import UUID

import pytest

from penstock.control import (
    CommitAnswer,
    InvalidCommit,
    ObjectCommit,
    ObjectLease,
    ObjectLeaseLost,
    StaleBroker,
    TooLarge,
    Watermarks,
)
from penstock.control.values import errors as limits
from penstock.objects.port import check_key
from penstock.records.appends import AppendResult
from penstock.records.extents import Extent
from tests.control.diskless import (
    BROKER,
    DISKLESS,
    INCARNATION,
    LOCAL,
    OTHER,
    TOPIC,
    Plane,
    Sequenced,
    bases,
    entry,
    errors,
    lease,
    plain,
    put,
    wide_topic,
    written,
)

KEY = re.compile(r"wal/([0-9a-f]{2})/([0-9a-f]{16})-([0-9a-f]{8})")


async def test_leased_keys_never_come_again(plane: Plane) -> None:
    assert await plane.highest_object_id() == 0
    leases = [*await lease(plane, 3), *await lease(plane, 2)]
    ids = [leased.object_id for leased in leases]
    assert ids == sorted(set(ids))
    assert await plane.highest_object_id() == ids[-1]
    for object_id, key in leases:
        match = KEY.fullmatch(key)
        assert match is not None
        assert int(match[2], 16) == object_id
    assert len({key for _, key in leases}) == 5
    nonces = [key[-8:] for _, key in leases]
    assert len(set(nonces[:3])) == len(set(nonces[3:])) == 1
    assert nonces[0] != nonces[3]
    await plane.mark_for_deletion(pending_grace_ms=0, unreferenced_grace_ms=0, limit=9)
    await plane.forget_objects(ids)
    assert await plane.referenced_keys(after="", limit=9) == []
    assert await plane.highest_object_id() == ids[-1]
    assert (await lease(plane))[0].object_id > ids[-1]


async def test_only_a_registered_incarnation_gets_leases(plane: Plane) -> None:
    for broker_id, incarnation in ((BROKER, UUID(int=3)), (2, INCARNATION)):
        with pytest.raises(StaleBroker):
            await plane.lease_objects(broker_id=broker_id, incarnation=incarnation, count=1)
    for count in (0, limits.OBJECT_LEASES_PER_CALL_MAX + 1):
        with pytest.raises(TooLarge, match=f"{count} object keys"):
            await plane.lease_objects(broker_id=BROKER, incarnation=INCARNATION, count=count)
    assert await plane.referenced_keys(after="", limit=9) == []
    assert len(await lease(plane, limits.OBJECT_LEASES_PER_CALL_MAX)) == 256


async def test_a_segment_has_a_key_by_partition_and_offset(plane: Plane) -> None:
    [first] = await lease(plane)
    one = await plane.lease_segment(TOPIC, 2, base_offset=70)
    other = await plane.lease_segment(TOPIC, 2, base_offset=70)
    [last] = await lease(plane)
    ids = [key.object_id for key in (first, one, other, last)]
    assert ids == sorted(set(ids))
    for key in (one, other):
        start = f"archive/{TOPIC}/2/00000000000000000070-0-{key.object_id:016x}-"
        assert re.fullmatch(re.escape(start) + "[0-9a-f]{8}[.]log", key.key)
        check_key(key.key)
    assert await plane.highest_object_id() == last.object_id
    rows = await plane.referenced_keys(after="", limit=9)
    assert {("pending", key) for key in (first, one, other, last)} == set(rows)
    condemned = await plane.mark_for_deletion(pending_grace_ms=0, unreferenced_grace_ms=0, limit=9)
    assert {item.key for item in condemned} == {key.key for key in (first, one, other, last)}


async def test_a_commit_gives_offsets_and_extents(plane: Plane) -> None:
    [key] = await lease(plane)
    commit = ObjectCommit(
        object_id=key.object_id,
        size_bytes=1_000,
        entries=(
            entry(2, (70, 2), (80, 3), at=16, timestamp=400),
            entry(0, at=166, timestamp=-1, topic_id=OTHER),
        ),
        now_ms=900,
    )
    answer = await plane.commit_object(commit)
    first = Extent(
        *key, "wal", 16, 150, 0, 5, 400, -1, bytes.fromhex("46000000020000005000000003000000")
    )
    second = Extent(*key, "wal", 166, 100, 0, 5, -1, -1, commit.entries[1].layout)
    assert answer == CommitAnswer(
        placed=(plain(0), plain(0)),
        watermarks={(TOPIC, 2): Watermarks(0, 5, 150), (OTHER, 0): Watermarks(0, 5, 100)},
        extents={(TOPIC, 2): (first,), (OTHER, 0): (second,)},
    )
    assert await plane.watermarks([(TOPIC, 2), (OTHER, 0), (TOPIC, 0), (UUID(int=99), 0)]) == [
        Watermarks(0, 5, 150), Watermarks(0, 5, 100),
        Watermarks(0, 0, 0), Watermarks(0, 0, 0),
    ]  # fmt: skip
    assert await plane.extents(TOPIC, 2, start=0, end=9, limit=9) == [first]


async def test_offsets_continue_where_the_last_commit_ended(plane: Plane) -> None:
    assert bases(await put(plane, entry(0), entry(1))) == [0, 0]
    answer = await put(plane, entry(0, (60, 1)), entry(0), entry(2))
    assert bases(answer) == [5, 6, 0]
    assert answer.watermarks[TOPIC, 0] == Watermarks(0, 11, 260)
    assert (TOPIC, 1) not in answer.watermarks


async def test_adjoining_entries_of_a_partition_become_one_extent(plane: Plane) -> None:
    entries = (entry(0, timestamp=300), entry(0, (50, 1), timestamp=900), entry(0, timestamp=7))
    answer = await put(plane, *entries)
    assert bases(answer) == [0, 5, 6]
    [extent] = answer.extents[TOPIC, 0]
    assert extent[3:8] == (10, 250, 0, 11, 900)
    assert extent.layout == b"".join(batches.layout for batches in entries)
    apart = (await put(plane, *entries, spread=True)).extents[TOPIC, 0]
    assert [extent[3:8] for extent in apart] == [
        (10, 100, 11, 16, 300), (111, 50, 16, 17, 900), (162, 100, 17, 22, 7),
    ]  # fmt: skip


async def test_what_is_not_accepted_ends_an_extent(plane: Plane) -> None:
    again = Sequenced(4, 0)
    answer = await put(plane, entry(0, by=again), entry(0, by=again), entry(0))
    assert answer.placed == (plain(0), plain(0)._replace(duplicate=True), plain(5))
    assert [extent[3:7] for extent in answer.extents[TOPIC, 0]] == [
        (10, 100, 0, 5),
        (210, 100, 5, 10),
    ]
    answer = await put(plane, entry(0), entry(0, by=Sequenced(4, 9)), entry(0))
    assert errors(answer) == [None, "out_of_order_sequence_number", None]
    assert bases(answer) == [10, -1, 15]
    assert [extent[3:7] for extent in answer.extents[TOPIC, 0]] == [
        (10, 100, 10, 15),
        (210, 100, 15, 20),
    ]


async def test_append_time_is_the_brokers(plane: Plane) -> None:
    answer = await put(
        plane, entry(0, append_time=True), entry(0, append_time=True), entry(0), now_ms=1234
    )
    assert [result.log_append_time_ms for result in answer.placed] == [1234, 1234, -1]
    assert [extent[5:9] for extent in answer.extents[TOPIC, 0]] == [
        (0, 10, 1234, 1234), (10, 15, 500, -1),
    ]  # fmt: skip
    one = entry(1, by=Sequenced(1, 0), append_time=True)
    await put(plane, one, now_ms=50)
    again = await put(plane, one, now_ms=60)
    assert again.placed == (AppendResult(0, 50, 0, duplicate=True),)


REFUSED = [
    (LOCAL, 0, "not_leader_or_follower", "topic 'local' has no diskless.enable = true"),
    (UUID(int=99), 0, "unknown_topic_id", str(UUID(int=99))),
    (
        TOPIC,
        3,
        "unknown_topic_or_partition",
        "topic 'flights' has 3 partitions; partition 3 does not exist",
    ),
    (TOPIC, -1, "unknown_topic_or_partition", "partition -1 does not exist"),
]


async def test_an_entry_is_refused_on_its_own(plane: Plane) -> None:
    for number, (topic_id, partition, error, message) in enumerate(REFUSED):
        answer = await put(plane, entry(0), entry(partition, topic_id=topic_id), entry(1))
        assert errors(answer) == [None, error, None]
        assert bases(answer) == [number * 5, -1, number * 5]
        assert message in (answer.placed[1].message or "")
        assert answer.watermarks.keys() == {(TOPIC, 0), (TOPIC, 1)}


async def test_partitions_that_are_added_can_be_written(plane: Plane) -> None:
    assert errors(await put(plane, entry(3))) == ["unknown_topic_or_partition"]
    await plane.create_partitions(topic_id=TOPIC, expected_count=3, new=[[BROKER]])
    assert bases(await put(plane, entry(3))) == [0]


SEQUENCES = [
    # (what was stored, what comes, what becomes of it)
    ([], Sequenced(4, 77), 0),
    ([Sequenced(4, 0)], Sequenced(4, 5), 5),
    ([Sequenced(4, 0)], Sequenced(4, 0), "duplicate 0"),
    ([Sequenced(4, 0)], Sequenced(4, 4), "out_of_order_sequence_number"),
    ([Sequenced(4, 0)], Sequenced(4, 6), "out_of_order_sequence_number"),
    ([Sequenced(4, 0)], Sequenced(5, 0), 5),
    ([Sequenced(4, 0)], Sequenced(4, 0, 1), 5),
    ([Sequenced(4, 0)], Sequenced(4, 5, 1), "out_of_order_sequence_number"),
    ([Sequenced(4, 0, 3)], Sequenced(4, 0, 2), "invalid_producer_epoch"),
    ([Sequenced(4, 0), Sequenced(4, 5)], Sequenced(4, 0), "duplicate 0"),
    ([Sequenced(4, 2**31 - 5)], Sequenced(4, 0), 5),
    ([Sequenced(4, 2**31 - 3)], Sequenced(4, 2), 5),
    ([Sequenced(4, n * 5) for n in range(5)], Sequenced(4, 0), "duplicate 0"),
    ([Sequenced(4, n * 5) for n in range(6)], Sequenced(4, 0), "out_of_order_sequence_number"),
    ([Sequenced(4, n * 5) for n in range(6)], Sequenced(4, 5), "duplicate 5"),
]


def outcome(placed: AppendResult) -> int | str:
    if placed.error is not None:
        return placed.error
    return f"duplicate {placed.base_offset}" if placed.duplicate else placed.base_offset


@pytest.mark.parametrize("together", [True, False])
async def test_sequences_of_idempotent_producers(plane: Plane, together: bool) -> None:
    topic_id = await wide_topic(plane, len(SEQUENCES))
    for partition, (stored, comes, becomes) in enumerate(SEQUENCES):
        entries = [
            entry(partition, by=producer, topic_id=topic_id) for producer in [*stored, comes]
        ]
        if together:
            answer = await put(plane, *entries)
        else:
            for batches in entries:
                answer = await put(plane, batches)
        assert outcome(answer.placed[-1]) == becomes, (stored, comes)


async def test_partitions_remember_producers_apart(plane: Plane) -> None:
    by = Sequenced(4, 0)
    answer = await put(plane, entry(0, by=by), entry(1, by=by), entry(0, by=by, topic_id=OTHER))
    assert [outcome(result) for result in answer.placed] == [0, 0, 0]


async def test_an_entry_of_several_batches_is_one_sequence(plane: Plane) -> None:
    both = entry(0, (60, 2), (70, 3), by=Sequenced(4, 0))
    assert bases(await put(plane, both)) == [0]
    assert (await put(plane, both)).placed[0].duplicate
    assert errors(await put(plane, entry(0, (60, 2), by=Sequenced(4, 0)))) == [
        "out_of_order_sequence_number"
    ]
    assert bases(await put(plane, entry(0, by=Sequenced(4, 5)))) == [5]


async def test_a_repeated_commit_gets_the_first_answer(plane: Plane) -> None:
    [key] = await lease(plane)
    entries = (entry(0), entry(1, by=Sequenced(4, 0)), entry(9), entry(0, append_time=True))
    commit = written(key, sorted(entries, key=lambda one: one.partition))
    first = await plane.commit_object(commit)
    await put(plane, entry(0), entry(1, by=Sequenced(4, 5)))
    await plane.delete_records(TOPIC, 0, -1)
    await plane.retain(TOPIC, 0, before_timestamp=None, max_bytes=None, limit=9)
    watermarks = await plane.watermarks([(TOPIC, 0), (TOPIC, 1)])
    assert await plane.commit_object(commit) == first
    assert await plane.watermarks([(TOPIC, 0), (TOPIC, 1)]) == watermarks


async def test_a_refused_object_is_marked_and_keeps_its_answer(plane: Plane) -> None:
    [key] = await lease(plane)
    commit = written(key, [entry(9), entry(1, topic_id=LOCAL)])
    first = await plane.commit_object(commit)
    assert errors(first) == ["unknown_topic_or_partition", "not_leader_or_follower"]
    assert (first.watermarks, first.extents) == ({}, {})
    assert await plane.referenced_keys(after="", limit=9) == [("deleting", key)]
    assert await plane.commit_object(commit) == first
    [condemned] = await plane.mark_for_deletion(
        pending_grace_ms=10**9, unreferenced_grace_ms=10**9, limit=9
    )
    assert condemned == (*key, commit.size_bytes)
    assert await plane.commit_object(commit) == first
    await plane.forget_objects([key.object_id])
    with pytest.raises(ObjectLeaseLost):
        await plane.commit_object(commit)


async def test_a_duplicate_alone_leaves_nothing_to_keep(plane: Plane) -> None:
    one = entry(0, by=Sequenced(4, 0))
    await put(plane, one)
    answer = await put(plane, one)
    assert answer.placed == (plain(0)._replace(duplicate=True),)
    assert [state for state, _ in await plane.referenced_keys(after="", limit=9)] == [
        "committed", "deleting",
    ]  # fmt: skip


async def test_a_commit_that_comes_after_the_sweeper_loses(plane: Plane) -> None:
    [key] = await lease(plane)
    [condemned] = await plane.mark_for_deletion(
        pending_grace_ms=0, unreferenced_grace_ms=0, limit=9
    )
    assert condemned == (*key, 0)
    for _ in range(2):
        with pytest.raises(ObjectLeaseLost, match=f"object {key.object_id} "):
            await plane.commit_object(written(key, [entry(0)]))
        await plane.forget_objects([key.object_id])
    assert await plane.watermarks([(TOPIC, 0)]) == [Watermarks(0, 0, 0)]


async def test_an_object_that_was_never_leased_is_not_committed(plane: Plane) -> None:
    with pytest.raises(ObjectLeaseLost, match="object 12 "):
        await plane.commit_object(written(ObjectLease(12, "wal/x"), [entry(0)]))


WRONG = [
    ([entry(0, at=990)], "end at byte 1090, but the object has 1000 bytes"),
    ([entry(0, at=-1)], "at byte -1"),
    ([entry(0, at=0), entry(0, at=99)], "the entry before it ends at byte 100"),
    ([entry(0)._replace(size_bytes=0)], "has 0 bytes"),
    ([entry(0)._replace(size_bytes=99)], "do not add up to 99 bytes and 5 offsets"),
    ([entry(0)._replace(offset_count=4)], "do not add up to 100 bytes and 4 offsets"),
    ([entry(0)._replace(layout=b"")], "do not add up"),
    ([entry(0)._replace(layout=entry(0).layout[:7])], "do not add up"),
    ([entry(0, (101, 5), (-1, 0))], "do not add up"),
    ([entry(0, (0, 5))], "has 0 bytes"),
]


async def test_an_object_that_contradicts_itself_is_refused(plane: Plane) -> None:
    [key] = await lease(plane)
    for entries, message in WRONG:
        commit = ObjectCommit(
            object_id=key.object_id, size_bytes=1_000, entries=tuple(entries), now_ms=900
        )
        with pytest.raises(InvalidCommit, match=message):
            await plane.commit_object(commit)
    assert await plane.referenced_keys(after="", limit=9) == [("pending", key)]


async def test_an_object_has_so_many_entries(plane: Plane) -> None:
    [key] = await lease(plane)
    most = limits.OBJECT_ENTRIES_MAX
    with pytest.raises(TooLarge, match=f"{most + 1} entries"):
        await plane.commit_object(written(key, [entry(0, (1, 1))] * (most + 1)))
    answer = await plane.commit_object(written(key, [entry(0, (1, 1))] * most))
    assert len(answer.extents[TOPIC, 0]) == 1
    assert answer.watermarks[TOPIC, 0] == Watermarks(0, most, most)


async def test_commits_that_race_share_no_offset(plane: Plane) -> None:
    leases = await lease(plane, 24)
    entries = [[entry(n % 3), entry((n + 1) % 3), entry((n + 2) % 3)] for n in range(24)]
    answers = await asyncio.gather(
        *(
            plane.commit_object(written(key, sorted(some, key=lambda one: one.partition)))
            for key, some in zip(leases, entries, strict=True)
        )
    )
    for partition in range(3):
        given = sorted(answer.placed[partition].base_offset for answer in answers)
        assert given == list(range(0, 24 * 5, 5))
        extents = await plane.extents(TOPIC, partition, start=0, end=10**9, limit=99)
        assert [extent.base_offset for extent in extents] == given


async def test_of_the_same_commit_that_races_one_is_made(plane: Plane) -> None:
    [key] = await lease(plane)
    commit = written(key, [entry(0), entry(1)])
    answers = await asyncio.gather(*(plane.commit_object(commit) for _ in range(8)))
    assert all(answer == answers[0] for answer in answers)
    assert await plane.watermarks([(TOPIC, 0)]) == [Watermarks(0, 5, 100)]


async def test_a_recreated_topic_begins_at_zero(plane: Plane) -> None:
    by = Sequenced(4, 0)
    await put(plane, entry(0, by=by))
    await plane.delete_topic(TOPIC)
    assert errors(await put(plane, entry(0, by=Sequenced(4, 5)))) == ["unknown_topic_id"]
    new = UUID(int=70)
    await plane.create_topic(name="flights", topic_id=new, partitions=[[BROKER]], configs=DISKLESS)
    answer = await put(plane, entry(0, by=by, topic_id=new))
    assert answer.placed == (plain(0),)
