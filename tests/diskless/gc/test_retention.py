"""Retention: by size in every pass, by time when it is due, and what deletions leave."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from penstock.control import ControlUnavailable
from penstock.control.values.diskless import Watermarks
from penstock.diskless.gc import RetentionTarget
from penstock.diskless.gc import jobs as retention
from penstock.diskless.gc.jobs import Retain, RetentionCore
from tests.diskless.faults import Crash, CrashingPlane, Steps
from tests.diskless.submissions import TOPIC, Sent
from tests.diskless.world import World, answered

HOUR_MS = 3_600_000


def target(
    retention_ms: int = -1, retention_bytes: int = -1, partition: int = 0
) -> RetentionTarget:
    return RetentionTarget(TOPIC, partition, retention_ms, retention_bytes)


FULL = Watermarks(0, 100, 5000)


def test_size_is_looked_at_in_every_pass() -> None:
    core = RetentionCore(interval_ms=1000)
    for wanted, expected in ((4999, True), (5000, False), (0, True), (-1, False)):
        item = target(retention_bytes=wanted)
        calls = [Retain(item, None, wanted)] if expected else []
        assert core.calls([item], [FULL], 10) == calls
        assert core.calls([item], [FULL], 11) == calls


def test_time_is_looked_at_once_per_hundredth_of_its_length() -> None:
    core = RetentionCore(interval_ms=1000)
    item = target(retention_ms=HOUR_MS)
    core.begin([item])
    now_ms = 10 * HOUR_MS
    assert core.calls([item], [FULL], now_ms) == [Retain(item, 9 * HOUR_MS, None)]
    assert core.calls([item], [FULL], now_ms + 35_999) == []
    assert core.calls([item], [FULL], now_ms + 36_000) == [Retain(item, 9 * HOUR_MS + 36_000, None)]
    core.failed(item)
    assert len(core.calls([item], [FULL], now_ms + 36_001)) == 1
    assert len(core.calls([item], [FULL], 5)) == 1  # the clock was set back


def test_short_times_are_looked_at_in_every_pass() -> None:
    core = RetentionCore(interval_ms=1000)
    item = target(retention_ms=500)
    assert core.calls([item], [FULL], 10_000) == [Retain(item, 9500, None)]
    assert core.calls([item], [FULL], 10_999) == []
    assert core.calls([item], [FULL], 11_000) == [Retain(item, 10_500, None)]


def test_an_empty_partition_is_left_alone() -> None:
    core = RetentionCore(interval_ms=1000)
    item = target(retention_ms=0, retention_bytes=0)
    assert core.calls([item], [Watermarks(0, 0, 0)], 10) == []


def test_records_below_a_moved_start_are_deleted_once() -> None:
    core = RetentionCore(interval_ms=1000)
    item = target()
    moved = Watermarks(100, 100, 5000)
    assert core.calls([item], [moved], 10) == [Retain(item, None, None)]
    assert core.calls([item], [moved], 10) == [Retain(item, None, None)]
    core.done(item, moved)
    assert core.calls([item], [moved], 10) == []
    core.begin([])
    assert len(core.calls([item], [moved], 10)) == 1


async def filled(**settings: Any) -> World:
    """Ten extents of one record each in partitions 0 and 1, all of one object size."""
    world = World(**settings)
    await world.begin()
    writer = world.writer()
    for _ in range(10):
        sent = [Sent(partition=partition, size=100) for partition in (0, 1)]
        for submitted in sent:
            writer.submit(submitted.submission)
        await answered(sent)
    await writer.stop()
    return world


async def starts(world: World) -> list[int]:
    watermarks = await world.plane.watermarks([(TOPIC, 0), (TOPIC, 1)])
    return [mark.log_start_offset for mark in watermarks]


async def test_each_topic_keeps_what_it_is_to_keep() -> None:
    world = await filled()
    world.targets = [target(retention_bytes=400), target(retention_ms=HOUR_MS, partition=1)]
    collection = world.collection()
    await collection.retention.retain()
    assert await starts(world) == [7, 10]
    assert {partition for partition, _ in world.moved} == {0, 1}
    assert collection.counters.dropped_extents == 17
    assert collection.counters.dropped_bytes == 17 * 161
    world.clock.ms += world.settings.sweep_unreferenced_grace_ms
    assert await collection.sweeper.sweep() == 7
    assert len(await world.log(0)) == 3 * 161


async def test_deleted_records_go_from_a_topic_that_keeps_everything() -> None:
    world = await filled()
    await world.plane.delete_records(TOPIC, 0, 6)
    collection = world.collection()
    await collection.retention.retain()
    assert len(await world.extents(0)) == 4
    assert collection.counters.dropped_extents == 6
    await collection.retention.retain()
    assert collection.counters.dropped_extents == 6


async def test_a_deleted_topic_and_idle_producers_are_forgotten() -> None:
    world = await filled()
    writer = world.writer()
    sent = Sent(partition=2, producer_id=7, sequence=0)
    writer.submit(sent.submission)
    await answered([sent])
    await writer.stop()
    collection = world.collection()
    await collection.retention.retain()
    assert len(await world.plane.diskless_producers(TOPIC, 2)) == 1
    world.clock.ms += world.settings.producer_expiration_ms
    await collection.retention.retain()
    assert await world.plane.diskless_producers(TOPIC, 2) == []
    assert collection.counters.producers_forgotten == 1
    await world.plane.delete_topic(topic_id=TOPIC)
    world.targets = []
    await collection.retention.retain()
    assert collection.counters.partitions_forgotten >= 3
    world.clock.ms += world.settings.sweep_pending_grace_ms
    await collection.sweeper.sweep()
    assert await world.rows() == {}
    assert await world.keys() == set()


async def test_work_is_cut_into_calls_and_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "RETAINED_EXTENTS_MAX", 2)
    monkeypatch.setattr(retention, "RETENTION_CALLS_MAX", 3)
    world = await filled()
    world.targets = [target(retention_bytes=0), target(retention_bytes=0, partition=1)]
    collection = world.collection()
    await collection.retention.retain()
    assert await starts(world) == [6, 6]
    await collection.retention.retain()
    assert await starts(world) == [10, 10]


async def test_a_partition_that_fails_does_not_hold_up_the_others() -> None:
    world = await filled()
    world.targets = [target(retention_ms=1), target(retention_ms=1, partition=1)]

    class Broken(CrashingPlane):
        async def retain(self, topic_id: Any, partition: int, **options: Any) -> Any:
            if partition == 0 and failing:
                raise ControlUnavailable("busy")
            return await world.plane.retain(topic_id, partition, **options)

    failing = True
    collection = world.collection(plane=Broken(world.plane, Steps()))
    await collection.retention.retain()
    assert await starts(world) == [0, 10]
    assert collection.counters.retention_failures == 1
    failing = False
    await collection.retention.retain()
    assert await starts(world) == [10, 10]


@pytest.mark.parametrize("effect", [False, True])
async def test_a_crash_at_any_call_is_made_good_by_the_next_pass(effect: bool) -> None:
    doomed = 0
    while True:
        doomed += 1
        world = await filled()
        world.targets = [target(retention_bytes=400), target(retention_ms=1, partition=1)]
        steps = Steps(doomed, effect=effect)
        with suppress(Crash):
            await world.collection(plane=CrashingPlane(world.plane, steps)).retention.retain()
        await world.collection().retention.retain()
        assert await starts(world) == [7, 10]
        assert len(await world.log(0)) == 3 * 161
        if not steps.over:
            assert doomed > 4
            return


async def test_jobs_do_not_raise_and_count_their_failures(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = await filled()

    class Away(CrashingPlane):
        async def highest_object_id(self) -> int:
            raise ControlUnavailable("away")

        async def watermarks(self, keys: Any) -> Any:
            raise ZeroDivisionError

    collection = world.collection(plane=Away(world.plane, Steps()))
    jobs = collection.jobs()
    assert [job.name for job in jobs] == ["mark", "sweep", "retention", "orphans"]
    for job in jobs:
        await job.run()
    assert collection.counters.failures == 4
    assert "away" in caplog.text
    assert "ZeroDivisionError" in caplog.text
    assert len(World(orphan_interval_ms=0).collection().jobs()) == 3
