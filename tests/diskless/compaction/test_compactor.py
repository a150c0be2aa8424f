"""Compaction of diskless partitions: what stays, tombstones, bounds, races, crashes."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from penstock.control import MemoryControlPlane
from penstock.control.values.errors import StaleExtents
from penstock.diskless.compaction import Compactor
from penstock.objects import MemoryStore, StoreUnavailable
from penstock.records.transactions import Marker, encode_marker
from tests.diskless.compaction.ledger import DELETE_RETENTION_MS, TARGET, Ledger, compactor
from tests.diskless.consolidation.bed import KEY, Bed, Sent
from tests.diskless.consolidation.conftest import furnished
from tests.diskless.consolidation.test_consolidator import consolidator, sweep
from tests.diskless.faults import Crash, CrashingPlane, FaultyStore, Steps
from tests.records.reference import Batch, Record, encode, read
from tests.storage.batches import FakeClock


@pytest.fixture
def ledger(bed: Bed, clock: FakeClock) -> Ledger:
    return Ledger(bed, clock)


@pytest.mark.parametrize("seed", range(6))
async def test_the_newest_record_of_every_key_stays(
    bed: Bed, clock: FakeClock, ledger: Ledger, seed: int
) -> None:
    random = Random(seed)
    job = compactor(bed, clock, seed=seed, consolidation_segment_bytes=1 << 20)
    for _ in range(8):
        await ledger.send_some(random, keys=15, batches=random.randint(1, 12))
        if random.random() < 0.4:
            await consolidator(bed, clock, all_ages=True).consolidate()
        before = await ledger.verified()
        assert await job.compact() == 1
        after = await ledger.verified()
        assert after.keys() <= before.keys()
        assert await bed.plane.clean_offset(*KEY) == len(ledger.sent)
        clock.ms += random.choice((0, 1_000, DELETE_RETENTION_MS))
    assert await job.compact() == 0
    await sweep(bed, clock)
    await ledger.verified()
    assert set(await bed.keys()) == {extent.key for extent in await bed.extents()}


async def test_a_tombstone_goes_after_its_time_and_not_before(
    bed: Bed, clock: FakeClock, ledger: Ledger
) -> None:
    job = compactor(bed, clock)
    await ledger.send((b"a", b"1"), (b"b", b"1"), (b"a", b"2"))
    await ledger.send((b"a", None))
    assert await job.compact() == 1
    assert list(await ledger.verified()) == [1, 3]
    for after_ms, left in ((DELETE_RETENTION_MS - 1, [1, 3, 4]), (1, [1, 5])):
        clock.ms += after_ms
        await ledger.send((b"c", b"%d" % after_ms))
        assert await job.compact() == 1
        assert list(await ledger.verified()) == left
    counters = job.counters
    assert (counters.passes, counters.races, counters.failures) == (3, 0, 0)
    assert counters.read_records - counters.kept_records == 4


async def test_only_what_is_old_decided_and_dirty_enough_is_taken(
    bed: Bed, clock: FakeClock, ledger: Ledger
) -> None:
    await ledger.send((b"a", b"1"), (b"a", b"2"))
    await ledger.send((b"a", b"3"))
    young = compactor(bed, clock, consolidation_min_age_ms=1_000)
    lag = compactor(bed, clock, targets=[TARGET._replace(min_lag_ms=1_000)])
    clean = compactor(bed, clock, targets=[TARGET._replace(dirty_ratio=0.9)])
    overdue = compactor(bed, clock, targets=[TARGET._replace(dirty_ratio=1.0, max_lag_ms=5_000)])
    assert [await job.compact() for job in (young, lag, overdue)] == [0, 0, 0]
    clock.ms += 2_000
    await ledger.send((b"a", b"4"))
    assert await lag.compact() == 1
    assert list(await ledger.verified()) == [2, 3]
    assert await young.compact() == 0
    assert await clean.compact() == 0
    clock.ms += 5_000
    assert await overdue.compact() == 1
    assert list(await ledger.verified()) == [3]
    assert await bed.plane.clean_offset(*KEY) == 4


async def test_a_pass_ends_where_its_map_is_full_and_the_next_continues(
    bed: Bed, clock: FakeClock, ledger: Ledger
) -> None:
    keys = [b"key %d" % number for number in range(5_000)]
    for value in (b"1", b"2"):
        for first in range(0, len(keys), 250):
            await ledger.send(*[(key, value) for key in keys[first : first + 250]])
    job = compactor(bed, clock, compaction_map_bytes=64 << 10)
    ends = []
    while await job.compact():
        ends.append(await bed.plane.clean_offset(*KEY))
        await ledger.verified()
    assert ends == sorted(set(ends))
    assert len(ends) > 4
    assert list(await ledger.verified()) == list(range(5_000, 10_000))


async def test_offsets_that_lost_all_records_become_few_batches(
    bed: Bed, clock: FakeClock, ledger: Ledger
) -> None:
    job = compactor(bed, clock)
    for number in range(40):
        await ledger.send((b"a", b"%d" % number))
        if number % 10 == 9:
            assert await job.compact() == 1
    assert list(await ledger.verified()) == [39]
    [one] = await bed.extents()
    assert (one.base_offset, one.next_offset, one.kind) == (0, 40, "segment")
    assert len(one.layout) == 16, "one batch without records, and the newest one"


async def test_two_brokers_at_once_do_no_harm(bed: Bed, clock: FakeClock, ledger: Ledger) -> None:
    random = Random(1)
    jobs = [compactor(bed, clock, seed=n) for n in range(2)]
    for _ in range(12):
        await ledger.send_some(random, keys=6, batches=4)
        await asyncio.gather(*[job.compact() for job in jobs])
        await ledger.verified()
        clock.ms += 4_000
    assert sum(job.counters.races for job in jobs) > 0
    assert sum(job.counters.passes for job in jobs) >= 12


async def test_the_clean_offset_is_of_the_partition_that_was_compacted(
    bed: Bed, clock: FakeClock, ledger: Ledger
) -> None:
    await ledger.send((b"a", b"1"))
    await ledger.send((b"a", b"2"))
    assert await compactor(bed, clock).compact() == 1
    [one] = await bed.extents()
    with pytest.raises(StaleExtents):
        await bed.plane.note_clean(*KEY, 2, newest=one._replace(object_id=one.object_id + 1))
    with pytest.raises(StaleExtents):
        await bed.plane.note_clean(*KEY, 3, newest=one)
    await bed.plane.note_clean(*KEY, 1, newest=one)
    assert await bed.plane.clean_offset(*KEY) == 2
    assert await bed.plane.clean_offset(KEY[0], 1) == 0


async def crashes(job: Compactor) -> bool:
    try:
        await job.compact()
    except Crash:
        return True
    except BaseExceptionGroup as group:
        return group.split(Crash)[1] is None
    return False


async def test_a_crash_between_any_two_steps_loses_nothing(clock: FakeClock) -> None:
    doomed, over = 0, True
    while over:
        doomed += 1
        for effect in (False, True):
            bed = Bed(await furnished(MemoryControlPlane(clock=clock)), MemoryStore(clock=clock))
            ledger = Ledger(bed, clock)
            for value in (b"1", b"2", None):
                await ledger.send((b"a", value), (b"b", b"x" * 700_000))
            steps = Steps(doomed, effect=effect)
            job = compactor(
                bed, clock, plane=CrashingPlane(bed.plane, steps),
                store=CrashingPlane(bed.store, steps), consolidation_segment_bytes=1 << 20,
            )  # fmt: skip
            over = await crashes(job)
            assert over == steps.over
            await ledger.verified()
            referenced = {extent.key for extent in await bed.extents()}
            unused = set(await bed.keys("archive/")) - referenced
            states = await bed.states()
            assert len([key for key in unused if states[key] == "pending"]) <= 1
            await compactor(bed, clock).compact()
            assert list(await ledger.verified()) == [4, 5]
            await sweep(bed, clock)
            await ledger.verified()
    assert doomed > 12


async def test_store_faults_end_a_round_and_the_next_round_continues(
    bed: Bed, clock: FakeClock, ledger: Ledger
) -> None:
    for fault in ("fails", "lands", "truncated", "late"):
        await ledger.send((b"a", b"1"), (b"a", b"2"))
        store = FaultyStore(bed.store, [fault])
        job = compactor(bed, clock, store=store)
        with pytest.raises(StoreUnavailable):
            await job.compact()
        await store.land()
        await ledger.verified()
        assert await job.compact() == 1
        await ledger.verified()
    await sweep(bed, clock)
    assert set(await bed.keys()) == set(await bed.states())


async def test_a_timer_outlives_errors(
    bed: Bed, clock: FakeClock, ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    await ledger.send((b"a", b"1"), (b"a", b"2"))
    job = compactor(bed, clock, store=FaultyStore(bed.store, ["fails"]))
    await job.run()
    assert "PUT archive/" in caplog.text
    await job.run()
    assert (job.counters.passes_failed, job.counters.passes) == (1, 1)
    assert list(await ledger.verified()) == [1]
    names = {sample.metric.name for sample in job.samples()}
    assert "penstock_diskless_compaction_passes_total" in names


async def test_what_was_aborted_goes_and_what_is_open_stays(bed: Bed, clock: FakeClock) -> None:
    async def put(producer_id: int, key: bytes, value: bytes) -> None:
        records = (Record(0, clock.ms - 1, key, value),)
        batch = Batch(0, records, producer=(producer_id, 0, 0), transactional=True)
        [placed] = await bed.write(Sent(encode(batch), verified_from=0))
        assert placed.error is None

    async def end(producer_id: int, *, commit: bool) -> None:
        marker = Marker(producer_id, 0, 0, commit)
        [marks] = await bed.plane.watermarks([KEY])
        sent = Sent(
            bytes(encode_marker(marker, clock.ms - 1)), marker=marker,
            verified_from=marks.high_watermark,
        )  # fmt: skip
        [placed] = await bed.write(sent)
        assert placed.error is None

    async def left() -> list[int]:
        return [record.offset for record in read(await bed.consumed())]

    job = compactor(bed, clock)
    await put(4, b"a", b"committed")
    await end(4, commit=True)
    await put(5, b"a", b"aborted")
    await end(5, commit=False)
    await put(6, b"b", b"open")
    await put(7, b"a", b"newer")
    await end(7, commit=True)
    assert await job.compact() == 1
    assert await bed.plane.clean_offset(*KEY) == 4
    assert await left() == [0, 4, 5]
    await end(6, commit=True)
    assert await job.compact() == 1
    assert await bed.plane.clean_offset(*KEY) == 8
    assert await left() == [4, 5]
    aborted = await bed.plane.aborted(*KEY, offset=0, limit=9)
    assert [transaction.last_offset for transaction in aborted.transactions] == [3]
