"""Finding, deletion and retention of diskless batches: one contract for all forms."""

from __future__ import annotations

from uuid import UUID

import pytest

from penstock.control import FindRequest, Found, OffsetBeyondEnd, Retained, Watermarks
from penstock.control.values import errors
from penstock.records.extents import Extent
from penstock.records.idempotence import ProducerState
from tests.control.diskless import (
    LOCAL,
    OTHER,
    TOPIC,
    Plane,
    Sequenced,
    entry,
    lease,
    put,
    wide_topic,
    written,
)


async def ten_extents(plane: Plane) -> list[Extent]:
    """Extents of 100 bytes and 5 offsets in partition 0, with the times 0, 10, …, 90."""
    return (await ten_extents_each(plane, TOPIC, 1))[0]


async def ten_extents_each(plane: Plane, topic_id: UUID, partitions: int) -> list[list[Extent]]:
    """The same in each of the first partitions of a topic."""
    extents: list[list[Extent]] = [[] for _ in range(partitions)]
    for number in range(10):
        answer = await put(
            plane,
            *[
                entry(partition, topic_id=topic_id, timestamp=number * 10)
                for partition in range(partitions)
            ],
        )
        for (_, partition), added in answer.extents.items():
            extents[partition] += added
    return extents


def found(offset: int, max_bytes: int, partition: int = 0) -> FindRequest:
    return FindRequest(TOPIC, partition, offset, max_bytes)


async def test_a_find_begins_with_the_extent_of_its_offset(plane: Plane) -> None:
    extents = await ten_extents(plane)
    watermarks = Watermarks(0, 50, 1000)
    for offset, max_bytes, first, after in (
        (0, 1000, 0, 10), (0, 999, 0, 9), (0, 299, 0, 2), (0, 300, 0, 3), (0, 1, 0, 1),
        (0, 0, 0, 1), (4, 100, 0, 1), (5, 100, 1, 2), (24, 10**9, 4, 10), (49, 5, 9, 10),
    ):  # fmt: skip
        expected = Found(watermarks, tuple(extents[first:after]))
        assert await plane.find([found(offset, max_bytes)]) == [expected], offset


async def test_bytes_before_the_offset_do_not_count(plane: Plane) -> None:
    await put(plane, entry(0, (400, 2), (300, 2), (200, 2)), entry(1))
    await put(plane, entry(0))
    for offset, max_bytes, count in ((0, 999, 1), (0, 1000, 2), (2, 599, 1), (3, 600, 2),
                                     (4, 299, 1), (5, 300, 2), (6, 1, 1)):  # fmt: skip
        [answer] = await plane.find([found(offset, max_bytes)])
        assert len(answer.extents) == count, (offset, max_bytes)


async def test_what_a_find_cannot_have(plane: Plane) -> None:
    await put(plane, entry(0))
    await put(plane, entry(0))
    await plane.delete_records(TOPIC, 0, 7)
    watermarks, none = Watermarks(7, 10, 200), Watermarks(0, 0, 0)
    requests = [
        found(10, 99), found(11, 99), found(6, 99), found(-1, 99),
        found(0, 99, 1), found(1, 99, 1), found(0, 99, 3),
        FindRequest(LOCAL, 0, 0, 99), FindRequest(UUID(int=99), 0, 0, 99),
    ]  # fmt: skip
    assert await plane.find(requests) == [
        Found(watermarks), *[Found(watermarks, error="offset_out_of_range")] * 3,
        Found(none), Found(none, error="offset_out_of_range"),
        Found(None, error="unknown_topic_or_partition"),
        Found(None, error="not_leader_or_follower"), Found(None, error="unknown_topic_id"),
    ]  # fmt: skip
    [answer] = await plane.find([found(7, 99)])
    assert [extent.base_offset for extent in answer.extents] == [5]
    assert await plane.find([]) == []
    await plane.delete_topic(TOPIC)
    assert await plane.find([found(7, 99)]) == [Found(None, error="unknown_topic_id")]


async def test_a_find_has_so_many_extents(plane: Plane) -> None:
    [key] = await lease(plane)
    count = errors.FIND_EXTENTS_MAX + 5
    await plane.commit_object(written(key, [entry(0, (1, 1))] * count, spread=True))
    [answer] = await plane.find([found(2, 10**9)])
    assert len(answer.extents) == errors.FIND_EXTENTS_MAX
    assert (answer.extents[0].base_offset, answer.extents[-1].next_offset) == (2, count - 3)


async def test_extents_of_a_range(plane: Plane) -> None:
    extents = await ten_extents(plane)
    for start, end, limit, first, after in (
        (0, 50, 99, 0, 10), (0, 50, 3, 0, 3), (7, 8, 9, 1, 2), (4, 6, 9, 0, 2), (5, 10, 9, 1, 2),
        (9, 11, 1, 1, 2), (50, 99, 9, 0, 0), (10, 10, 9, 0, 0),
    ):  # fmt: skip
        there = await plane.extents(TOPIC, 0, start=start, end=end, limit=limit)
        assert there == extents[first:after], (start, end)
    assert await plane.extents(TOPIC, 1, start=0, end=99, limit=9) == []


async def test_the_extent_of_a_time(plane: Plane) -> None:
    for timestamp in (30, 10, 50, 50, 40):
        await put(plane, entry(0, timestamp=timestamp))

    async def base(timestamp: int | None) -> int | None:
        extent = await plane.extent_at_time(TOPIC, 0, timestamp)
        return extent and extent.base_offset

    assert [await base(time) for time in (0, 30, 31, 50, 51, None)] == [0, 0, 10, 10, None, 10]
    await plane.delete_records(TOPIC, 0, 3)
    assert await base(0) == 0
    await plane.delete_records(TOPIC, 0, 15)
    assert [await base(time) for time in (0, 50, None)] == [15, 15, 15]
    await plane.delete_records(TOPIC, 0, -1)
    assert [await base(time) for time in (0, None)] == [None, None]
    assert await plane.extent_at_time(TOPIC, 1, None) is None


async def test_producers_are_described(plane: Plane) -> None:
    assert await plane.diskless_producers(TOPIC, 0) == []
    for by in (Sequenced(9, 0), Sequenced(4, 0), Sequenced(9, 5), Sequenced(4, 0, 2)):
        await put(plane, entry(0, by=by), entry(1, by=Sequenced(2, 0)))
    nine, four = Sequenced(9, 9), Sequenced(4, 4, 2)
    described = await plane.diskless_producers(TOPIC, 0)
    assert [producer._replace(last_timestamp=0) for producer in described] == [
        ProducerState(four.producer_id, 2, four.sequence, 0, 19),
        ProducerState(nine.producer_id, 0, nine.sequence, 0, 14),
    ]
    assert all(producer.last_timestamp > 0 for producer in described)


async def test_idle_producers_are_forgotten(plane: Plane) -> None:
    for number in range(5):
        await put(plane, entry(number % 3, by=Sequenced(number, 0)))
    assert await plane.forget_producers(idle_ms=10**9, limit=9) == 0
    assert await plane.forget_producers(idle_ms=0, limit=3) == 3
    assert await plane.forget_producers(idle_ms=0, limit=3) == 2
    assert await plane.diskless_producers(TOPIC, 0) == []
    answer = await put(plane, entry(0, by=Sequenced(0, 77)))
    assert answer.placed[0].error is None


async def test_records_are_deleted_up_to_an_offset(plane: Plane) -> None:
    await ten_extents(plane)
    for before, start in ((0, 0), (12, 12), (3, 12), (12, 12), (45, 45), (-1, 50), (50, 50)):
        assert await plane.delete_records(TOPIC, 0, before) == Watermarks(start, 50, 1000)
    for before in (51, -2):
        with pytest.raises(OffsetBeyondEnd, match=f"offset {before} .* high watermark 50"):
            await plane.delete_records(TOPIC, 0, before)
    assert await plane.delete_records(TOPIC, 1, -1) == Watermarks(0, 0, 0)
    with pytest.raises(OffsetBeyondEnd):
        await plane.delete_records(TOPIC, 1, 1)
    [answer] = (await put(plane, entry(0))).placed
    assert (answer.base_offset, answer.log_start_offset) == (50, 50)


async def retained(
    plane: Plane, *, before: int | None = None, max_bytes: int | None = None, limit: int = 99
) -> Retained:
    return await plane.retain(TOPIC, 0, before_timestamp=before, max_bytes=max_bytes, limit=limit)


RETENTION = [
    # (deleted before, older than, bytes to keep, extents that go, log start)
    (0, None, None, 0, 0),
    (0, 0, None, 0, 0),
    (0, 1, None, 1, 5),
    (0, 10, None, 1, 5),
    (0, 1_000, None, 10, 50),
    (0, None, 1_000, 0, 0),
    (0, None, 901, 0, 0),
    (0, None, 900, 1, 5),
    (0, None, 899, 1, 5),
    (0, None, 100, 9, 45),
    (0, None, 0, 10, 50),
    (0, 31, 500, 5, 25),
    (0, 71, 500, 8, 40),
    (12, None, None, 2, 12),
    (15, None, None, 3, 15),
    (12, 31, None, 4, 20),
    (12, None, 750, 2, 12),
    (50, None, None, 10, 50),
]


async def test_what_retention_drops(plane: Plane) -> None:
    topic_id = await wide_topic(plane, len(RETENTION))
    extents = await ten_extents_each(plane, topic_id, len(RETENTION))
    for partition, (deleted, before, max_bytes, dropped, start) in enumerate(RETENTION):
        await plane.delete_records(topic_id, partition, deleted)
        watermarks = Watermarks(start, 50, 1000 - 100 * dropped)
        for count in (dropped, 0):
            answer = await plane.retain(
                topic_id, partition, before_timestamp=before, max_bytes=max_bytes, limit=99
            )
            assert answer == Retained(watermarks, count, 100 * count, more=False), partition
        assert await plane.watermarks([(topic_id, partition)]) == [watermarks]
        left = await plane.extents(topic_id, partition, start=0, end=99, limit=99)
        assert left == extents[partition][dropped:]


async def test_retention_drops_so_many_at_once(plane: Plane) -> None:
    await ten_extents(plane)
    steps = [await retained(plane, before=71, limit=3) for _ in range(4)]
    assert [
        (step.extents_dropped, step.more, step.watermarks.log_start_offset) for step in steps
    ] == [
        (3, True, 15), (3, True, 30), (2, False, 40), (0, False, 40),
    ]  # fmt: skip
    exact = await retained(plane, before=10**6, limit=2)
    assert (exact.extents_dropped, exact.more) == (2, False)


async def test_extents_without_times_are_as_old_as_the_next_with_one(plane: Plane) -> None:
    for timestamp in (-1, 20, -1, -1, 30, -1):
        await put(plane, entry(0, timestamp=timestamp))
    for before, dropped in ((20, 0), (21, 2), (30, 0), (31, 3), (10**9, 0)):
        assert (await retained(plane, before=before)).extents_dropped == dropped, before
    assert (await retained(plane, max_bytes=0)).extents_dropped == 1


async def test_retention_of_a_partition_leaves_the_others(plane: Plane) -> None:
    await put(plane, entry(0), entry(1), entry(0, topic_id=OTHER))
    await retained(plane, before=10**9)
    assert await plane.watermarks([(TOPIC, 0), (TOPIC, 1), (OTHER, 0)]) == [
        Watermarks(5, 5, 0), Watermarks(0, 5, 100), Watermarks(0, 5, 100),
    ]  # fmt: skip
    answer = await put(plane, entry(0))
    assert answer.placed[0].base_offset == 5
    assert answer.watermarks[TOPIC, 0] == Watermarks(5, 10, 100)


async def test_retention_of_an_empty_partition(plane: Plane) -> None:
    assert await plane.retain(TOPIC, 1, before_timestamp=9, max_bytes=0, limit=9) == Retained(
        Watermarks(0, 0, 0), 0, 0, more=False
    )
