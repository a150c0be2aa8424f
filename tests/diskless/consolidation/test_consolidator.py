"""The consolidator over memory: passes, crashes at every step, races with all that changes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest

from penstock.archive.segments import SealedSegment, SegmentPart, write_segment
from penstock.control import ControlUnavailable, MemoryControlPlane
from penstock.control.values.diskless import ObjectLease, SegmentSwap
from penstock.diskless.consolidation import Consolidator, Made
from penstock.diskless.gc import Collection
from penstock.diskless.settings import DisklessSettings
from penstock.diskless.topics.verification import Verifier
from penstock.objects import MemoryStore, StoreUnavailable
from penstock.records.extents import Extent
from tests.diskless.consolidation.bed import KEY, START_MS, TOPIC, Bed, Sent, produced, seen
from tests.diskless.consolidation.conftest import furnished
from tests.diskless.faults import Crash, CrashingPlane, FaultyStore, Steps
from tests.diskless.world import SeededRandomness, guard_of
from tests.storage.batches import FakeClock

DAY_MS = 86_400_000
PARTITIONS = 3


def settings(**changes: Any) -> DisklessSettings:
    return DisklessSettings(
        **{
            "consolidation_min_extents": 2,
            "consolidation_bytes_per_second": 0,
            "sweep_unreferenced_grace_ms": 0,
            **changes,
        }
    )


def consolidator(
    bed: Bed,
    clock: FakeClock,
    *,
    plane: Any = None,
    store: Any = None,
    seed: int = 0,
    made: list[Made] | None = None,
    pause: Callable[[float], Awaitable[None]] | None = None,
    all_ages: bool = False,
    **changes: Any,
) -> Consolidator:
    async def at_once(seconds: float) -> None:
        await asyncio.sleep(0)

    return Consolidator(
        settings(**changes),
        plane=plane or bed.plane,
        store=store or bed.store,
        clock=clock,
        randomness=SeededRandomness(seed),
        on_made=(made if made is not None else []).append,
        pause=pause or at_once,
        all_ages=all_ages,
    )


async def filled(bed: Bed, objects: int = 6) -> list[bytes]:
    """Objects of all partitions; what consumers get of each."""
    for number in range(objects):
        value = b"%d" % number * 10
        await bed.write(
            Sent(produced(value, timestamp=START_MS - DAY_MS), 0),
            Sent(produced(value, value, codec=number % 5, timestamp=START_MS - DAY_MS), 1),
            Sent(produced(value, timestamp=START_MS - DAY_MS), 2, append_time=True),
            now_ms=START_MS - DAY_MS + number,
        )
    return await all_of(bed)


async def all_of(bed: Bed) -> list[bytes]:
    return [await bed.consumed(partition) for partition in range(PARTITIONS)]


async def kinds(bed: Bed) -> list[set[str]]:
    return [{extent.kind for extent in await bed.extents(number)} for number in range(PARTITIONS)]


async def sweep(bed: Bed, clock: FakeClock) -> None:
    """Sweep all unused objects, as if every grace had passed."""
    collection = Collection(
        settings(),
        plane=bed.plane,
        store=bed.store,
        guard=guard_of(bed.plane, bed.store),
        clock=clock,
        targets=list,
        on_watermarks=lambda key, watermarks: None,
    )
    clock.ms += DAY_MS
    await collection.sweeper.sweep()
    clock.ms -= DAY_MS


async def whole(bed: Bed) -> None:
    """Index and objects agree."""
    verifier = Verifier(plane=bed.plane, store=bed.store, checksums=True)
    await verifier.verify([(f"orders-{n}", (TOPIC, n)) for n in range(PARTITIONS)])
    assert verifier.findings == []


async def test_a_pass_makes_segments_and_the_sweeper_takes_what_they_replace(
    bed: Bed, clock: FakeClock
) -> None:
    before = await filled(bed)
    made: list[Made] = []
    job = consolidator(bed, clock, made=made)
    assert await job.consolidate() == 3
    assert await kinds(bed) == [{"segment"}] * 3
    assert await all_of(bed) == before
    assert sorted((segment.key[1], *segment[2:4], segment.extents) for segment in made) == [
        (0, 0, 6, 6), (1, 0, 12, 6), (2, 0, 6, 6),
    ]  # fmt: skip
    values = {sample.metric.name: sample.value for sample in job.samples()}
    assert values["penstock_diskless_consolidation_segments_total"] == 3
    assert values["penstock_diskless_consolidation_extents_total"] == 18
    assert values["penstock_diskless_consolidation_segment_bytes_total"] == sum(map(len, before))
    assert await job.consolidate() == 0
    await whole(bed)
    await sweep(bed, clock)
    assert await bed.keys() == sorted(segment.object_key for segment in made)
    assert await all_of(bed) == before
    await whole(bed)


async def test_what_is_young_or_little_stays(bed: Bed, clock: FakeClock) -> None:
    await filled(bed, 3)
    await bed.write(Sent(produced(b"young")))
    assert await consolidator(bed, clock, consolidation_min_extents=4).consolidate() == 0
    job = consolidator(bed, clock, consolidation_min_extents=3)
    assert await job.consolidate([KEY]) == 1
    assert [extent.kind for extent in await bed.extents()] == ["segment", "wal"]
    assert await job.consolidate() == 2
    clock.ms += 900_000 - 1
    assert await job.consolidate() == 0
    assert await consolidator(bed, clock, all_ages=True).consolidate() == 1
    assert await kinds(bed) == [{"segment"}] * 3


async def test_segments_are_bounded_and_the_rate_is_kept(bed: Bed, clock: FakeClock) -> None:
    value = bytes(300_000)
    for _ in range(8):
        await bed.write(Sent(produced(value, timestamp=START_MS - DAY_MS)))
    before = await bed.consumed()
    waited: list[float] = []

    async def pause(seconds: float) -> None:
        waited.append(seconds)
        clock.ms += round(seconds * 1000)

    made: list[Made] = []
    job = consolidator(
        bed, clock, made=made, pause=pause,
        consolidation_segment_bytes=1 << 20, consolidation_bytes_per_second=600_000,
    )  # fmt: skip
    start_ms = clock.ms
    assert await job.consolidate() == 3
    assert [segment.extents for segment in made] == [3, 3, 2]
    assert await bed.consumed() == before
    elapsed = (clock.ms - start_ms) / 1000
    assert 2.9 < elapsed < 4  # 2.4 MB, of which 0.6 at once
    assert waited


async def crashes(job: Consolidator) -> bool:
    """Whether the process ended in this pass."""
    try:
        await job.consolidate()
    except Crash:
        return True
    except BaseExceptionGroup as group:
        return group.split(Crash)[1] is None
    return False


async def test_a_crash_between_any_two_steps_leaves_nothing_but_a_pending_object(
    clock: FakeClock,
) -> None:
    doomed = 0
    while True:
        doomed += 1
        for effect in (False, True):
            bed = await fresh(clock)
            before = await filled(bed)
            steps = Steps(doomed, effect=effect)
            job = consolidator(
                bed,
                clock,
                plane=CrashingPlane(bed.plane, steps),
                store=CrashingPlane(bed.store, steps),
            )
            crashed = await crashes(job)
            assert crashed == steps.over
            assert await all_of(bed) == before
            referenced = {extent.key for n in range(PARTITIONS) for extent in await bed.extents(n)}
            unused = set(await bed.keys("archive/")) - referenced
            assert len(unused) <= 1
            assert {(await bed.states())[key] for key in unused} <= {"pending"}
            await consolidator(bed, clock).consolidate()
            assert await kinds(bed) == [{"segment"}] * 3
            await sweep(bed, clock)
            assert await all_of(bed) == before
            referenced = {extent.key for n in range(PARTITIONS) for extent in await bed.extents(n)}
            assert set(await bed.keys()) == referenced == set(await bed.states())
            await whole(bed)
        if not steps.over:
            break
    assert doomed > 20


async def fresh(clock: FakeClock) -> Bed:
    return Bed(await furnished(MemoryControlPlane(clock=clock)), MemoryStore(clock=clock))


async def test_store_faults_end_a_pass_and_the_next_pass_continues(
    bed: Bed, clock: FakeClock
) -> None:
    before = await filled(bed)
    for fault in ("fails", "lands", "truncated", "late"):
        store = FaultyStore(bed.store, ["fine", fault])
        job = consolidator(bed, clock, store=store, all_ages=True)
        with pytest.raises(StoreUnavailable):
            await job.consolidate()
        assert job.counters.segments == 1
        await store.land()
        assert await all_of(bed) == before
        assert await job.consolidate() == 2
        await whole(bed)
        await sweep(bed, clock)
        assert set(await bed.keys()) == set(await bed.states())
        before = await filled(bed, 2)


async def test_a_timer_outlives_errors(
    bed: Bed, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    await filled(bed)
    store = FaultyStore(bed.store, ["fails"])
    job = consolidator(bed, clock, store=store)
    await job.run()
    assert "PUT archive/" in caplog.text

    class Broken(CrashingPlane):
        async def backlogs(self, *, min_extents: int, limit: int) -> None:
            raise RuntimeError("unforeseen")

    broken = consolidator(bed, clock, plane=Broken(bed.plane, Steps()))
    await broken.run()
    assert (job.counters.passes_failed, broken.counters.passes_failed) == (1, 1)
    await job.run()
    assert await kinds(bed) == [{"segment"}] * 3


class SlowSwap:
    """A plane on which something happens just before a swap, and swaps that lose answers."""

    def __init__(self, plane: Any) -> None:
        self._plane = plane
        self.before: Callable[[SegmentSwap], Awaitable[object]] | None = None
        self.faults: list[str] = []
        self.swaps = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plane, name)

    async def swap_extents(self, swap: SegmentSwap) -> None:
        self.swaps += 1
        if self.before is not None:
            before, self.before = self.before, None
            await before(swap)
        fault = self.faults.pop(0) if self.faults else "fine"
        if fault != "fails":
            await self._plane.swap_extents(swap)
        if fault != "fine":
            raise ControlUnavailable(fault)


async def test_a_swap_whose_outcome_is_unknown_is_repeated(bed: Bed, clock: FakeClock) -> None:
    before = await filled(bed)
    plane = SlowSwap(bed.plane)
    plane.faults = ["fails", "lands", "lands"]
    job = consolidator(bed, clock, plane=plane)
    assert await job.consolidate() == 3
    assert plane.swaps == 6
    assert await all_of(bed) == before
    await filled(bed)
    plane.faults = ["fails"] * 5
    with pytest.raises(ControlUnavailable):
        await job.consolidate()
    assert await job.consolidate() == 3
    await whole(bed)


@pytest.mark.parametrize(
    "rival", ["consolidator", "retention", "deletion", "sweeper", "topic", "partial"]
)
async def test_the_second_of_two_swaps_fails_without_harm(
    bed: Bed, plane: MemoryControlPlane, clock: FakeClock, rival: str
) -> None:
    await filled(bed)

    async def before(swap: SegmentSwap) -> None:
        key = (swap.topic_id, swap.partition)
        if rival == "consolidator":
            assert await consolidator(bed, clock, seed=1).consolidate([key]) == 1
        elif rival == "partial":
            lease = await plane.lease_segment(*key, base_offset=0)
            await plane.swap_extents(await write_segment(bed.store, swap.replaced[:2], key, lease))
        elif rival == "retention":
            await plane.retain(*key, before_timestamp=None, max_bytes=100, limit=2)
        elif rival == "deletion":
            await plane.delete_records(*key, 3)
        elif rival == "sweeper":
            await plane.mark_for_deletion(
                pending_grace_ms=0, unreferenced_grace_ms=2**40, limit=100
            )
        else:
            topic = (await plane.image()).topics["orders"]
            await plane.delete_topic(topic.topic_id)
            while await plane.forget_partitions(limit=100):
                pass

    slow = SlowSwap(plane)
    slow.before = before
    job = consolidator(bed, clock, plane=slow)
    await job.consolidate()
    lost = rival != "deletion"  # rows of extents do not change with the log's start
    assert job.counters.races == lost
    assert job.counters.failures == 0
    if rival != "topic":
        await job.consolidate()
        await whole(bed)
        await all_of(bed)
    await sweep(bed, clock)
    assert set(await bed.keys()) == set(await bed.states())
    if rival != "topic":
        await whole(bed)
        assert await kinds(bed) == [{"segment"}] * 3


async def test_readers_of_old_extents_continue_until_their_grace_ends(
    bed: Bed, clock: FakeClock
) -> None:
    before = await filled(bed)
    known = [await bed.extents(number) for number in range(PARTITIONS)]
    await consolidator(bed, clock).consolidate()
    collection = Collection(
        settings(sweep_unreferenced_grace_ms=1_000), plane=bed.plane, store=bed.store,
        guard=guard_of(bed.plane, bed.store), clock=clock, targets=list,
        on_watermarks=lambda key, watermarks: None,
    )  # fmt: skip
    clock.ms += 999
    assert await collection.sweeper.sweep() == 0
    assert [await seen(bed.store, extents) for extents in known] == before
    clock.ms += 1
    assert await collection.sweeper.sweep() == 6
    assert await all_of(bed) == before


async def test_a_damaged_object_is_passed_over(
    bed: Bed, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    await filled(bed, 4)
    damaged: Extent = (await bed.extents(1))[1]
    store = MemoryStore(clock=clock)
    async for info in bed.store.list("wal/"):
        content = bytearray(await bed.store.get(info.key, 0, info.size_bytes))
        if info.key == damaged.key:
            content[damaged.byte_offset + 70] ^= 4
        await store.put(info.key, [bytes(content)])
    job = consolidator(bed, clock, store=store)
    assert await job.consolidate() == 2
    assert job.counters.failures == 1
    assert f"partition 1 of topic {TOPIC} cannot be consolidated from offset 0 to 8" in caplog.text
    assert damaged.key in caplog.text
    assert await kinds(bed) == [{"segment"}, {"wal"}, {"segment"}]
    await job.consolidate()
    assert job.counters.failures == 2


class Interleaved:
    """A port whose calls let others run before and after."""

    def __init__(self, inner: Any, dice: Random) -> None:
        self._inner = inner
        self._dice = dice

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)
        if not asyncio.iscoroutinefunction(method):
            return method

        async def waited(*arguments: Any, **options: Any) -> Any:
            for _ in range(self._dice.randrange(4)):
                await asyncio.sleep(0)
            try:
                return await method(*arguments, **options)
            finally:
                for _ in range(self._dice.randrange(4)):
                    await asyncio.sleep(0)

        return waited


async def test_many_at_once_harm_nothing(clock: FakeClock) -> None:
    """Consolidators, a writer, retention, deletions and the sweeper, in any order."""
    made = races = 0
    for seed in range(25):
        dice = Random(seed)
        bed = await fresh(clock)
        plane = bed.plane
        logs = await filled(bed)
        jobs = [
            consolidator(
                bed, clock, plane=Interleaved(plane, dice), store=Interleaved(bed.store, dice),
                seed=seed + number,
            )
            for number in range(3)
        ]  # fmt: skip

        async def change(bed: Bed = bed, dice: Random = dice) -> None:
            for _ in range(6):
                for _ in range(dice.randrange(12)):
                    await asyncio.sleep(0)
                what, partition = dice.randrange(4), dice.randrange(PARTITIONS)
                if what == 0:
                    await bed.plane.delete_records(TOPIC, partition, dice.randrange(6))
                elif what == 1:
                    await bed.plane.retain(
                        TOPIC, partition, before_timestamp=None, max_bytes=400, limit=1
                    )
                elif what == 2:
                    await bed.write(Sent(produced(b"new", timestamp=START_MS - DAY_MS), partition))
                else:
                    await bed.plane.mark_for_deletion(
                        pending_grace_ms=2**40, unreferenced_grace_ms=2**40, limit=9
                    )

        async with asyncio.TaskGroup() as group:
            group.create_task(change())
            for job in jobs:
                group.create_task(job.consolidate())
        await whole(bed)
        now = await all_of(bed)
        for before, after in zip(logs, now, strict=True):
            # What is left of the log before, and what was written since.
            assert any(after.startswith(before[at:]) for at in range(len(before) + 1))
        made += sum(job.counters.segments for job in jobs)
        races += sum(job.counters.races for job in jobs)
        assert sum(job.counters.failures for job in jobs) == 0
        await sweep(bed, clock)
        assert await all_of(bed) == now
        await whole(bed)
    assert made > 50
    assert races > 5


def test_leases_are_not_used_twice() -> None:
    """A segment names the object that its lease does."""
    lease = ObjectLease(5, "archive/x")
    sealed = SealedSegment([], 10, (SegmentPart(0, 10, 3, 4, 9, b"\0" * 8),))
    (extent,) = sealed.extents(lease)
    assert (extent.object_id, extent.key, extent.kind) == (5, "archive/x", "segment")
    assert (extent.base_offset, extent.next_offset, extent.append_time_ms) == (3, 4, -1)


async def test_a_segment_with_other_offsets_is_found(bed: Bed, clock: FakeClock) -> None:
    await filled(bed)
    made: list[Made] = []
    await consolidator(bed, clock, made=made).consolidate([KEY])
    [one] = made
    data = bytearray(await bed.store.get(one.object_key, 0, one.size_bytes))
    data[7] += 1  # the first batch's base offset, which no checksum covers
    await bed.store.delete([one.object_key])
    await bed.store.put(one.object_key, [bytes(data)])
    verifier = Verifier(plane=bed.plane, store=bed.store, checksums=True)
    await verifier.verify([("orders-0", KEY)])
    [finding] = verifier.findings
    assert (finding.kind, finding.detail) == (
        "differs",
        "the batches have other offsets than the index",
    )
