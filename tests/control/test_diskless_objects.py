"""The lives of objects: swaps, references, the sweeper's marks; one contract for all forms."""

from __future__ import annotations

import asyncio
from struct import pack
from uuid import UUID

import pytest
from msgspec.structs import replace

from penstock.control import (
    Backlog,
    FindRequest,
    InvalidCommit,
    ObjectLease,
    ObjectLeaseLost,
    ObjectTotals,
    SegmentSwap,
    StaleExtents,
    Watermarks,
)
from penstock.records.extents import Extent
from tests.control.diskless import (
    OTHER,
    TOPIC,
    Plane,
    Sequenced,
    bases,
    entry,
    lease,
    put,
    written,
)

FOREVER_MS = 10**9


async def condemned(
    plane: Plane, *, pending_ms: int = FOREVER_MS, unreferenced_ms: int = 0, limit: int = 99
) -> list[int]:
    found = await plane.mark_for_deletion(
        pending_grace_ms=pending_ms, unreferenced_grace_ms=unreferenced_ms, limit=limit
    )
    return [marked.object_id for marked in found]


async def drop_all(plane: Plane, partition: int, topic_id: UUID = TOPIC) -> None:
    await plane.delete_records(topic_id, partition, -1)
    await plane.retain(topic_id, partition, before_timestamp=None, max_bytes=None, limit=999)


def sealed(key: ObjectLease, replaced: list[Extent], *, cuts: int = 1) -> SegmentSwap:
    """A segment of the replaced extents' bytes, in so many extents of whole batches."""
    layout = b"".join(extent.layout for extent in replaced)
    batches = [layout[at : at + 8] for at in range(0, len(layout), 8)]
    share = -(-len(batches) // cuts)
    made, at, base = [], 0, replaced[0].base_offset
    for first in range(0, len(batches), share):
        part = b"".join(batches[first : first + share])
        numbers = memoryview(part).cast("i").tolist()
        size_bytes, offsets = sum(numbers[0::2]), sum(numbers[1::2])
        made.append(Extent(*key, "segment", at, size_bytes, base, base + offsets, 500, -1, part))
        at, base = at + size_bytes, base + offsets
    return SegmentSwap(
        topic_id=TOPIC,
        partition=0,
        object_id=key.object_id,
        size_bytes=at,
        replaced=tuple(replaced),
        extents=tuple(made),
    )


async def extents(plane: Plane, partition: int = 0) -> list[Extent]:
    return await plane.extents(TOPIC, partition, start=0, end=FOREVER_MS, limit=999)


async def test_an_object_lives_as_long_as_an_extent_refers_to_it(plane: Plane) -> None:
    answer = await put(plane, entry(0), entry(1), entry(1), spread=True)
    object_id = answer.extents[TOPIC, 0][0].object_id
    assert await condemned(plane) == []
    await drop_all(plane, 0)
    assert await condemned(plane) == []
    await plane.delete_records(TOPIC, 1, 5)
    await plane.retain(TOPIC, 1, before_timestamp=None, max_bytes=None, limit=9)
    assert await condemned(plane) == []
    await drop_all(plane, 1)
    assert await condemned(plane, unreferenced_ms=FOREVER_MS) == []
    assert await plane.object_totals() == [ObjectTotals("committed", "wal", 1, 343)]
    assert await condemned(plane) == [object_id]
    assert await plane.object_totals() == [ObjectTotals("deleting", "wal", 1, 343)]
    assert await condemned(plane, unreferenced_ms=FOREVER_MS) == [object_id]
    await plane.forget_objects([object_id, object_id + 40])
    assert await condemned(plane) == []
    assert await plane.object_totals() == []
    await plane.forget_objects([object_id])


async def test_only_marked_objects_are_forgotten(plane: Plane) -> None:
    answer = await put(plane, entry(0))
    [pending] = await lease(plane)
    committed = answer.extents[TOPIC, 0][0]
    await plane.forget_objects([pending.object_id, committed.object_id])
    assert await plane.referenced_keys(after="", limit=9) == [
        ("committed", ObjectLease(committed.object_id, committed.key)),
        ("pending", pending),
    ]


async def test_the_sweeper_takes_so_many_at_once(plane: Plane) -> None:
    leases = [leased.object_id for leased in await lease(plane, 5)]
    assert await condemned(plane, pending_ms=0, limit=2) == leases[:2]
    assert await condemned(plane, pending_ms=0, limit=2) == leases[:2]
    await plane.forget_objects(leases[:1])
    assert await condemned(plane, pending_ms=0, limit=2) == leases[1:3]
    assert await condemned(plane, pending_ms=0) == leases[1:]
    assert await condemned(plane, limit=3) == leases[1:4]


async def test_leases_in_their_grace_are_left(plane: Plane) -> None:
    [key] = await lease(plane)
    assert await condemned(plane) == []
    assert bases(await plane.commit_object(written(key, [entry(0)]))) == [0]
    assert await condemned(plane, pending_ms=0) == []


async def test_of_a_commit_and_the_sweeper_one_wins(plane: Plane) -> None:
    leases = await lease(plane, 12)
    results = await asyncio.gather(
        *(plane.commit_object(written(key, [entry(0)])) for key in leases[:6]),
        plane.mark_for_deletion(pending_grace_ms=0, unreferenced_grace_ms=FOREVER_MS, limit=99),
        *(plane.commit_object(written(key, [entry(0)])) for key in leases[6:]),
        return_exceptions=True,
    )
    marked = set(await condemned(plane))
    commits = [*results[:6], *results[7:]]
    for key, result in zip(leases, commits, strict=True):
        assert isinstance(result, ObjectLeaseLost) == (key.object_id in marked)
    there = await extents(plane)
    assert {extent.object_id for extent in there} == {key.object_id for key in leases} - marked
    assert [extent.base_offset for extent in there] == list(range(0, 5 * len(there), 5))


@pytest.mark.parametrize("cuts", [1, 2])
async def test_a_segment_takes_the_place_of_extents(plane: Plane, cuts: int) -> None:
    for _ in range(5):
        await put(plane, entry(0, (60, 2), (70, 3)), entry(1))
    before = await extents(plane)
    [key] = await lease(plane)
    swap = sealed(key, before[1:4], cuts=cuts)
    for _ in range(2):
        await plane.swap_extents(swap)
        assert await extents(plane) == [before[0], *swap.extents, before[4]]
        assert await plane.watermarks([(TOPIC, 0)]) == [Watermarks(0, 25, 650)]
    [answer] = await plane.find([FindRequest(TOPIC, 0, 7, 1)])
    assert answer.extents[0].kind == "segment"
    assert await condemned(plane) == []
    await drop_all(plane, 1)
    assert await condemned(plane) == [leased.object_id for leased in before[1:4]]
    assert ObjectTotals("committed", "segment", 1, 390) in await plane.object_totals()
    await drop_all(plane, 0)
    assert key.object_id in await condemned(plane)


async def test_a_segment_is_made_again_of_segments(plane: Plane) -> None:
    for _ in range(3):
        await put(plane, entry(0))
    before = await extents(plane)
    keys = await lease(plane, 2)
    await plane.swap_extents(sealed(keys[0], before[:2]))
    middle = await extents(plane)
    await plane.swap_extents(sealed(keys[1], middle))
    [one] = await extents(plane)
    assert (one.object_id, one.base_offset, one.next_offset) == (keys[1].object_id, 0, 15)
    assert keys[0].object_id in await condemned(plane)
    assert await plane.backlogs(min_extents=0, limit=9) == []


async def test_a_swap_of_what_has_changed_is_refused(plane: Plane) -> None:
    for _ in range(4):
        await put(plane, entry(0))
    before = await extents(plane)
    keys = await lease(plane, 4)
    await plane.delete_records(TOPIC, 0, 5)
    await plane.retain(TOPIC, 0, before_timestamp=None, max_bytes=None, limit=9)
    with pytest.raises(StaleExtents, match=r"partition 0 .* offsets \[0, 10\)"):
        await plane.swap_extents(sealed(keys[0], before[:2]))
    await plane.swap_extents(sealed(keys[1], before[1:3]))
    with pytest.raises(StaleExtents, match=r"\[5, 20\)"):
        await plane.swap_extents(sealed(keys[2], before[1:]))
    changed = before[3]._replace(byte_offset=11)
    with pytest.raises(StaleExtents):
        await plane.swap_extents(sealed(keys[2], [changed]))
    elsewhere = replace(sealed(keys[2], before[3:]), partition=1)
    with pytest.raises(StaleExtents):
        await plane.swap_extents(elsewhere)
    assert [extent.base_offset for extent in await extents(plane)] == [5, 15]
    assert ("pending", keys[2]) in await plane.referenced_keys(after="", limit=99)
    await condemned(plane, pending_ms=0)
    with pytest.raises(ObjectLeaseLost):
        await plane.swap_extents(sealed(keys[3], before[3:]))
    with pytest.raises(ObjectLeaseLost):
        await plane.swap_extents(sealed(ObjectLease(999, "wal/x"), before[3:]))


async def test_the_clean_offset_is_of_what_was_compacted(plane: Plane) -> None:
    assert await plane.clean_offset(TOPIC, 0) == 0
    for _ in range(4):
        await put(plane, entry(0), entry(1))
    before = await extents(plane)
    [key, other] = await lease(plane, 2)
    swap = sealed(key, before[:3])
    await plane.swap_extents(swap)
    [made] = swap.extents
    for offset, clean in ((12, 12), (15, 15), (11, 15)):
        await plane.note_clean(TOPIC, 0, offset, newest=made)
        assert await plane.clean_offset(TOPIC, 0) == clean
    for partition, offset, newest in (
        (0, 16, made), (0, 15, before[2]), (0, 20, before[2]), (1, 15, made), (2, 15, made)
    ):  # fmt: skip
        with pytest.raises(StaleExtents, match=f"up to offset {offset}, has changed"):
            await plane.note_clean(TOPIC, partition, offset, newest=newest)
    await plane.note_clean(TOPIC, 0, 20, newest=before[3])
    await put(plane, entry(0))
    await plane.swap_extents(sealed(other, [made, before[3]]))
    with pytest.raises(StaleExtents):
        await plane.note_clean(TOPIC, 0, 20, newest=before[3])
    assert [await plane.clean_offset(TOPIC, partition) for partition in range(3)] == [20, 0, 0]


async def test_two_compactions_of_the_same_extents_race_and_one_wins(plane: Plane) -> None:
    for _ in range(6):
        await put(plane, entry(0))
    before = await extents(plane)
    keys = await lease(plane, 6)
    results = await asyncio.gather(
        *[plane.swap_extents(sealed(key, before[:3])) for key in keys[:3]],
        *[plane.swap_extents(sealed(key, before[1:4])) for key in keys[3:]],
        return_exceptions=True,
    )
    assert [result for result in results if result is None] == [None]
    assert all(isinstance(result, StaleExtents) for result in results if result is not None)
    winner = keys[results.index(None)]
    there = await extents(plane)
    assert [extent.object_id for extent in there if extent.kind == "segment"] == [winner.object_id]
    assert sum(extent.next_offset - extent.base_offset for extent in there) == 30


async def test_a_swap_that_contradicts_itself_is_refused(plane: Plane) -> None:
    for _ in range(3):
        await put(plane, entry(0))
    before = await extents(plane)
    [key] = await lease(plane)
    good = sealed(key, before)
    [one] = good.extents
    for swap, message in (
        (replace(good, replaced=()), "no extents to replace"),
        (replace(good, extents=()), "or no new extents"),
        (replace(good, replaced=(before[0], before[2])), "do not adjoin"),
        (replace(good, replaced=tuple(before[:2])), r"\(0, 15\) cannot replace offsets \(0, 10\)"),
        (replace(good, size_bytes=299), "not within the object's 299 bytes"),
        (replace(good, extents=(one._replace(object_id=7),)), "belongs to object 7"),
        (replace(good, extents=(one._replace(kind="wal"),)), "wal"),
        (replace(good, extents=(one._replace(layout=pack("<ii", 300, 14)),)), "contradicts its"),
    ):
        with pytest.raises(InvalidCommit, match=message):
            await plane.swap_extents(swap)
    await plane.swap_extents(good)


async def test_backlogs_have_the_most_extents_first(plane: Plane) -> None:
    for count in range(3):
        answer = await put(plane, entry(2, timestamp=700 + count), entry(0, topic_id=OTHER))
        assert bases(answer) == [count * 5] * 2
    await put(plane, entry(0), entry(1, (60, 1), timestamp=40), entry(1), spread=True)
    assert await plane.backlogs(min_extents=1, limit=9) == [
        Backlog(TOPIC, 2, 3, 300, 700), Backlog(OTHER, 0, 3, 300, 500),
        Backlog(TOPIC, 1, 2, 160, 40), Backlog(TOPIC, 0, 1, 100, 500),
    ]  # fmt: skip
    assert len(await plane.backlogs(min_extents=2, limit=9)) == 3
    assert len(await plane.backlogs(min_extents=2, limit=1)) == 1
    await plane.delete_records(TOPIC, 2, 6)
    await plane.retain(TOPIC, 2, before_timestamp=None, max_bytes=None, limit=9)
    await drop_all(plane, 1)
    await plane.delete_topic(OTHER)
    assert await plane.backlogs(min_extents=1, limit=9) == [
        Backlog(TOPIC, 2, 2, 200, 701), Backlog(TOPIC, 0, 1, 100, 500),
    ]  # fmt: skip


async def test_partitions_of_deleted_topics_are_dropped_piece_by_piece(plane: Plane) -> None:
    for number in range(4):
        await put(
            plane,
            entry(0, by=Sequenced(number, 0)),
            entry(1),
            entry(0, topic_id=OTHER, by=Sequenced(1, number * 5)),
        )
    assert await plane.forget_partitions(limit=9) == 0
    await plane.delete_topic(TOPIC)
    # 4 extents, 4 producers and a row of one partition; 4 extents and a row of the other.
    pieces = [await plane.forget_partitions(limit=3) for _ in range(7)]
    assert sum(pieces) == 14
    assert max(pieces) <= 3
    assert pieces[-1] == 0
    assert await extents(plane) == []
    assert await plane.diskless_producers(TOPIC, 0) == []
    assert await plane.watermarks([(TOPIC, 0), (OTHER, 0)]) == [
        Watermarks(0, 0, 0), Watermarks(0, 20, 400),
    ]  # fmt: skip
    assert len(await plane.diskless_producers(OTHER, 0)) == 1
    assert await condemned(plane) == []
    await drop_all(plane, 0, OTHER)
    assert len(await condemned(plane)) == 4


async def test_rows_by_key(plane: Plane) -> None:
    await put(plane, entry(0))
    await put(plane, entry(9))
    await lease(plane, 3)
    rows = await plane.referenced_keys(after="", limit=99)
    keys = [leased.key for _, leased in rows]
    assert keys == sorted(keys)
    assert sorted(state for state, _ in rows) == ["committed", "deleting", *["pending"] * 3]
    pages, after = [], ""
    for _ in range(4):
        page = await plane.referenced_keys(after=after, limit=2)
        pages.append(len(page))
        after = page[-1][1].key if page else after
    assert pages == [2, 2, 1, 0]
    assert after == keys[-1]
