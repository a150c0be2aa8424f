"""Orphans: found by comparing, deleted after their grace, and only those."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.diskless.errors import DatabaseRestored
from penstock.diskless.gc import orphans
from penstock.objects import ObjectInfo
from tests.diskless.faults import CrashingPlane, Steps
from tests.diskless.submissions import TOPIC, Sent
from tests.diskless.world import BROKER, World, answered

DAY_MS = 86_400_000


async def populated(**settings: Any) -> World:
    world = World(lease_block_objects=4, **settings)
    await world.begin()
    writer = world.writer()
    for partition in range(3):
        sent = Sent(partition=partition)
        writer.submit(sent.submission)
        await answered([sent])
    await writer.stop()
    return world


async def mark(world: World) -> None:
    """A mark of the present time."""
    await world.plane.lease_objects(broker_id=BROKER, incarnation=world.incarnation, count=1)
    await world.collection().id_markers.note()


async def test_orphans_are_reported_and_deleted_when_their_grace_is_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = await populated()
    await world.memory.put("wal/00/0-orphan", [b"123"])
    await world.memory.put("wal/ff/zz-orphan", [b"4567"])
    before = await world.keys()
    await mark(world)
    collection = world.collection()
    compared = await collection.orphans.collect()
    assert (compared.objects, compared.orphan_count, compared.orphan_bytes) == (5, 2, 7)
    assert compared.due == []
    assert "wal/00/0-orphan, wal/ff/zz-orphan" in caplog.text
    world.clock.ms += DAY_MS - 1
    await mark(world)
    assert (await collection.orphans.collect()).due == []
    assert await world.keys() == before
    world.clock.ms += 1
    assert (await collection.orphans.collect()).due == []  # no mark says yet how late it is
    await mark(world)
    assert len((await collection.orphans.collect()).due) == 2
    assert before - await world.keys() == {"wal/00/0-orphan", "wal/ff/zz-orphan"}
    values = {sample.metric.name: sample.value for sample in collection.samples()}
    assert values["penstock_diskless_orphans_deleted_total"] == 2
    assert values["penstock_diskless_orphans"] == 0


async def test_without_a_grace_orphans_are_only_reported() -> None:
    world = await populated(orphan_grace_ms=-1)
    await world.memory.put("wal/00/0-orphan", [b"123"])
    world.clock.ms += 100 * DAY_MS
    await mark(world)
    compared = await world.collection().orphans.collect()
    assert (compared.orphan_count, compared.due) == (1, [])


async def test_rows_of_every_state_keep_their_objects() -> None:
    world = await populated()
    rows = await world.rows()
    for key, state in rows.items():
        if state == "pending":
            await world.memory.put(key, [b"not committed yet"])
    world.clock.ms += 2 * DAY_MS
    await mark(world)
    compared = await world.collection().orphans.collect()
    assert (compared.objects, compared.orphan_count) == (len(rows), 0)


async def test_sealed_segments_are_compared_too() -> None:
    world = await populated()
    await mark(world)
    leased = await world.plane.lease_segment(TOPIC, 0, base_offset=0)
    orphan = leased.key.replace("-0-", "-1-")
    for key in (leased.key, orphan):
        await world.memory.put(key, [b"123"])
    collection = world.collection()
    compared = await collection.orphans.collect()
    assert (compared.objects, [info.key for info in compared.orphans]) == (5, [orphan])
    world.clock.ms += DAY_MS
    await mark(world)
    assert (await collection.orphans.collect()).due == [orphan]
    assert [info.key async for info in world.memory.list("archive/")] == [leased.key]


async def test_pages_of_objects_and_rows_fit_together(monkeypatch: pytest.MonkeyPatch) -> None:
    world = await populated()
    for key, state in (await world.rows()).items():
        if state == "pending":
            await world.memory.put(key, [b"-"])
    expected = []
    for number in range(0, 256, 5):
        key = f"wal/{number:02x}/orphan"
        expected.append(key)
        await world.memory.put(key, [b"-"])
    monkeypatch.setattr(orphans, "ORPHANS_NAMED_MAX", 1000)
    for page in (1, 2, 3, 5, 64):
        monkeypatch.setattr(orphans, "LISTED_ROWS_MAX", page)
        compared = await world.collection().orphans.collect()
        assert [info.key for info in compared.orphans] == expected


async def test_an_object_that_is_written_during_the_comparison_is_no_orphan() -> None:
    world = await populated()
    await mark(world)

    class Growing(CrashingPlane):
        async def referenced_keys(self, *, after: str, limit: int) -> Any:
            rows = await world.plane.referenced_keys(after=after, limit=limit)
            (leased,) = await world.plane.lease_objects(
                broker_id=BROKER, incarnation=world.incarnation, count=1
            )
            await world.memory.put(leased.key, [b"new"])
            return rows

    collection = world.collection(plane=Growing(world.plane, Steps()))
    for _ in range(5):
        assert (await collection.orphans.collect()).orphan_count == 0


async def test_what_is_deleted_in_one_pass_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orphans, "ORPHANS_DELETED_MAX", 2)
    comparison = orphans.Comparison(grace_ms=0, store_now_ms=100)
    comparison.page([ObjectInfo(f"wal/{number}", 1, 50) for number in range(5)], set())
    assert comparison.result().due == ["wal/0", "wal/1"]
    assert comparison.result().orphan_count == 5


async def test_nothing_is_deleted_by_a_database_that_was_set_back() -> None:
    world = await populated()
    world.clock.ms += 10 * DAY_MS
    await mark(world)
    await world.plane.set_back(2)
    await world.plane.plant("DELETE FROM diskless_objects")
    before = await world.keys()
    with pytest.raises(DatabaseRestored):
        await world.collection().orphans.collect()
    assert await world.keys() == before


async def test_nothing_is_deleted_when_the_database_is_set_back_meanwhile() -> None:
    world = await populated()
    world.clock.ms += 10 * DAY_MS
    await mark(world)

    class Restored(CrashingPlane):
        async def referenced_keys(self, *, after: str, limit: int) -> Any:
            await world.plane.set_back(2)
            return []

    before = await world.keys()
    with pytest.raises(DatabaseRestored):
        await world.collection(plane=Restored(world.plane, Steps())).orphans.collect()
    assert await world.keys() == before
