"""The writer over stores and planes that fail: answered once, written once, in order."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from penstock.base.errors import PenstockError
from penstock.base.metrics import Histogram
from penstock.diskless.errors import WriteFailed, WriterStopped, WriteTimedOut
from penstock.diskless.writing.writer import ObjectWriter
from penstock.objects import DirectoryStore, StoreRefused
from penstock.records.appends import AppendResult
from tests.diskless.faults import Crash, CrashingPlane, Fault, Steps
from tests.diskless.submissions import CountedLease, Sent
from tests.diskless.world import PARTITIONS, World, answered


def submit(writer: ObjectWriter, **options: Any) -> Sent:
    sent = Sent(**options)
    writer.submit(sent.submission)
    return sent


async def test_what_is_answered_is_in_the_store_the_index_and_the_cache() -> None:
    world = World()
    await world.begin()
    writer = world.writer()
    sent = [submit(writer, partition=index % 3, fill=index, count=2) for index in range(30)]
    await answered(sent)
    for partition in range(3):
        mine = sent[partition::3]
        assert [submitted.placed.base_offset for submitted in mine] == list(range(0, 20, 2))
        assert await world.log(partition) == b"".join(submitted.data for submitted in mine)
    await world.check_objects()
    committed = {key for key, state in (await world.rows()).items() if state == "committed"}
    assert set(world.kept) == committed
    for key, data in world.kept.items():
        assert data == await world.memory.get(key, 0, len(data))
    await writer.stop()


async def test_the_cache_and_the_marks_come_before_the_answers() -> None:
    world = World()
    await world.begin()
    seen: list[tuple[int, int]] = []
    writer = world.writer()
    sent = Sent()
    done = lambda outcome: seen.append((len(world.answers), len(world.kept)))  # noqa: E731
    writer.submit(sent.submission._replace(done=done))
    async with asyncio.timeout(60):
        while not seen:
            await asyncio.sleep(0.001)
    assert seen == [(1, 1)]
    await writer.stop()


async def test_an_answer_may_submit_more_and_a_failing_one_affects_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    await world.begin()
    writer = world.writer()
    second = Sent(fill=2)

    def broken(outcome: object) -> None:
        writer.submit(second.submission)
        raise ValueError("a bug")

    third = Sent(fill=3)
    writer.submit(Sent(fill=1).submission._replace(done=broken))
    writer.submit(third.submission)
    await answered([second, third])
    assert third.placed.base_offset == 1
    assert second.placed.base_offset == 2
    assert "a bug" in caplog.text
    await writer.stop()


async def test_small_submissions_are_copied_and_large_ones_hold_their_lease_to_the_end() -> None:
    world = World()
    await world.begin()
    writer = world.writer()
    small, large = CountedLease(), CountedLease()
    first = Sent(size=1000, lease=small, fill=1)
    second = Sent(size=100_000, lease=large, fill=2)
    writer.submit(first.submission)
    writer.submit(second.submission)
    assert (small.count, large.count) == (1, 2)
    first.submission.batches[:] = bytes(len(first.data))  # the buffer is used for something else
    await answered([first, second])
    assert (small.count, large.count) == (1, 1)
    assert await world.log(0) == first.data + second.data
    await writer.stop()


@pytest.mark.parametrize("fault", ["fails", "lands", "hangs", "late", "truncated"])
async def test_a_put_that_goes_wrong_is_made_again_under_another_key(fault: Fault) -> None:
    world = World(put_timeout_ms=50 if fault == "hangs" else 5_000)
    await world.begin()
    world.store.script.extend([fault, fault])
    writer = world.writer()
    lease = CountedLease()
    sent = submit(writer, size=20_000, lease=lease)
    await answered([sent])
    assert sent.placed.base_offset == 0
    assert len(set(world.store.puts)) == 3
    await world.store.land()
    assert await world.log(0) == sent.data
    assert lease.count == 1
    await writer.stop()
    await world.check_objects()


@pytest.mark.parametrize("faults", [["fails"], ["lands"], ["lands", "fails", "lands"], ["swept"]])
async def test_a_commit_that_goes_wrong_is_made_once(faults: list[Any]) -> None:
    world = World()
    await world.begin()
    world.plane.script.extend(faults)
    writer = world.writer()
    sent = [submit(writer, fill=index) for index in range(3)]
    await answered(sent)
    assert [submitted.placed.base_offset for submitted in sent] == [0, 1, 2]
    assert await world.log(0) == b"".join(submitted.data for submitted in sent)
    await writer.stop()
    await world.check_objects()


async def test_a_store_that_never_answers_ends_in_an_error_and_holds_nothing() -> None:
    world = World(write_timeout_ms=100)
    await world.begin()
    world.store.script.extend(["hangs"] * 10)
    writer = world.writer()
    lease = CountedLease()
    sent = submit(writer, size=20_000, lease=lease)
    await answered([sent])
    assert isinstance(sent.error, WriteTimedOut)
    assert lease.count == 1
    await writer.stop()
    assert not writer._tasks


async def test_an_unknown_error_is_answered_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    await world.begin()

    async def broken(key: str, pieces: object) -> None:
        raise ZeroDivisionError

    world.store.put = broken  # type: ignore[method-assign]
    writer = world.writer()
    sent = submit(writer)
    await answered([sent])
    assert isinstance(sent.error, WriteFailed)
    assert "ZeroDivisionError" in caplog.text
    await writer.stop()


async def test_stopping_writes_what_is_open_and_answers_what_cannot_be_written() -> None:
    world = World(commit_interval_ms=10_000, drain_timeout_ms=60_000)
    await world.begin()
    writer = world.writer()
    sent = submit(writer)
    await writer.stop()
    assert sent.placed.base_offset == 0
    with pytest.raises(WriterStopped):
        submit(writer)
    world.settings = replace(world.settings, drain_timeout_ms=50)
    writer = world.writer()
    world.store.script.extend(["hangs"] * 10)
    hopeless = submit(writer, size=20_000, lease=CountedLease())
    await writer.stop()
    assert isinstance(hopeless.error, WriterStopped)
    assert not writer._tasks


async def test_metrics_count_what_happened() -> None:
    world = World()
    await world.begin()
    world.store.script.append("fails")
    world.plane.script.append("fails")
    writer = world.writer()
    sent = [submit(writer, batches=2) for _ in range(5)]
    await answered(sent)
    values = {sample.metric.name: sample.value for sample in writer.samples()}
    assert values["penstock_diskless_objects_committed_total"] == 1
    assert values["penstock_diskless_submissions_total"] == 5
    assert values["penstock_diskless_put_retries_total"] == 1
    assert values["penstock_diskless_commit_retries_total"] == 1
    assert values["penstock_diskless_pending_bytes"] == 0
    assert values["penstock_diskless_object_committed_bytes_total"] == sum(
        map(len, world.kept.values())
    )
    batches = values["penstock_diskless_object_batches"]
    assert isinstance(batches, Histogram)
    assert batches.total == 10
    await writer.stop()


async def test_a_directory_keeps_what_was_answered(tmp_path: Any) -> None:
    world = World()
    await world.begin()
    store = DirectoryStore(tmp_path / "objects")
    writer = world.writer(store=store)
    assert writer.core.interval_ms == 1
    sent = [submit(writer, fill=index, size=3000) for index in range(20)]
    await answered(sent)
    log = b""
    for extent in await world.extents(0):
        log += await store.get(extent.key, extent.byte_offset, extent.size_bytes)
    assert log == b"".join(submitted.data for submitted in sent)
    await writer.stop()
    await store.close()


class Producer:
    """An idempotent producer with up to five appends under way, which sends again what failed."""

    def __init__(self, producer_id: int, partition: int, total: int) -> None:
        self.producer_id = producer_id
        self.partition = partition
        self.total = total
        self.acknowledged = 0
        self.under_way: list[Sent] = []
        self.expected = bytearray()
        self.errors = 0

    @property
    def over(self) -> bool:
        return self.acknowledged >= self.total

    def turn(self, writer: ObjectWriter) -> None:
        """Take answers in, in order; send what may be sent."""
        while self.under_way and self.under_way[0].outcomes:
            outcome = self.under_way[0].outcomes[0]
            if isinstance(outcome, AppendResult) and outcome.error is None:
                sent = self.under_way.pop(0)
                self.expected += sent.data
                self.acknowledged += 1
                continue
            if not all(sent.outcomes for sent in self.under_way):
                return
            self.errors += 1
            self.under_way.clear()
        sequence = self.acknowledged + len(self.under_way)
        while len(self.under_way) < 5 and sequence < self.total:
            sent = Sent(
                partition=self.partition,
                producer_id=self.producer_id,
                sequence=sequence,
                fill=sequence,
                size=50 + self.producer_id,
            )
            self.under_way.append(sent)
            sequence += 1
            try:
                writer.submit(sent.submission)
            except PenstockError as error:
                sent.outcomes.append(error)

    def forget(self) -> None:
        """The broker is gone, and the answers with it."""
        self.under_way.clear()


async def drive(world: World, writer: ObjectWriter, producers: list[Producer]) -> None:
    async with asyncio.timeout(60):
        while not all(producer.over for producer in producers):
            for producer in producers:
                producer.turn(writer)
            if world.store.late and world.randomness.uniform() < 0.2:
                await world.store.land()
            await asyncio.sleep(0)


async def check_logs(world: World, producers: list[Producer]) -> None:
    for partition in range(PARTITIONS):
        log = await world.log(partition)
        mine = [producer for producer in producers if producer.partition == partition]
        assert len(log) == sum(len(producer.expected) for producer in mine)
        for producer in mine:
            size_bytes = 61 + 50 + producer.producer_id
            parts = [
                part
                for part in by_size(log, {61 + 50 + producer.producer_id for producer in mine})
                if len(part) == size_bytes
            ]
            assert b"".join(parts) == producer.expected


def by_size(log: bytes, sizes: set[int]) -> list[bytes]:
    """The batches of a log, by the length in their headers."""
    parts = []
    at = 0
    while at < len(log):
        size_bytes = int.from_bytes(log[at + 8 : at + 12], "big") + 12
        assert size_bytes in sizes
        parts.append(log[at : at + size_bytes])
        at += size_bytes
    return parts


@pytest.mark.parametrize("seed", range(6))
async def test_idempotent_producers_get_every_record_once_and_in_order(seed: int) -> None:
    world = World(seed=seed, objects_in_flight_max=4, put_timeout_ms=50, lease_block_objects=4)
    await world.begin()
    world.store.dice = Random(seed)
    world.plane.dice = Random(seed + 1000)
    writer = world.writer()
    producers = [Producer(index, index % PARTITIONS, 25) for index in range(8)]
    await drive(world, writer, producers)
    world.store.dice = world.plane.dice = None
    await writer.stop()
    await world.store.land()
    await check_logs(world, producers)
    await world.check_objects()
    collection = world.collection()
    await collection.start()
    world.clock.ms += world.settings.sweep_pending_grace_ms
    await collection.sweeper.sweep()
    referenced = {
        extent.key for partition in range(PARTITIONS) for extent in await world.extents(partition)
    }
    assert await world.keys() == referenced
    assert set(await world.rows()) == referenced


class DyingStore:
    """A store whose process may end at any call."""

    def __init__(self, world: World, steps: Steps) -> None:
        self._world = world
        self._steps = steps

    async def put(self, key: str, pieces: Any) -> None:
        await self._steps.take(self._world.store.put(key, pieces))


@pytest.mark.parametrize("effect", [False, True])
async def test_a_crash_at_any_call_of_the_writer_loses_and_repeats_nothing(effect: bool) -> None:
    doomed = 0
    while True:
        doomed += 1
        steps = Steps(doomed, effect=effect)
        world = World(seed=doomed, objects_in_flight_max=2, lease_block_objects=2)
        await world.begin()
        writer = world.writer(
            plane=CrashingPlane(world.plane, steps), store=DyingStore(world, steps)
        )
        producers = [Producer(index, index % 2, 23) for index in range(3)]
        await drive_until(world, writer, producers, steps)
        survived = not steps.over
        if not survived:
            for producer in producers:
                producer.forget()
            world.incarnation = world.randomness.uuid()
            await world.plane.register_broker(
                broker_id=1, host="h", port=1, rack=None, incarnation=world.incarnation
            )
            writer = world.writer()
            await drive(world, writer, producers)
        await writer.stop()
        await check_logs(world, producers)
        await world.check_objects()
        if survived:
            assert doomed > 12
            return


async def drive_until(
    world: World,
    writer: ObjectWriter,
    producers: list[Producer],
    steps: Steps,
) -> None:
    """Drive until all is over, or the process has ended; then nothing of it runs on."""
    async with asyncio.timeout(60):
        while not steps.over and not all(producer.over for producer in producers):
            for producer in producers:
                producer.turn(writer)
            await asyncio.sleep(0)
    if not steps.over:
        return
    tasks = list(writer._tasks)
    for task in tasks:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(result, Crash | asyncio.CancelledError | None) for result in results)
    writer.core.abandon(WriterStopped("gone"))
    writer._perform()


async def test_the_store_that_refuses_is_not_asked_again() -> None:
    world = World()
    await world.begin()

    async def refuses(key: str, pieces: object) -> None:
        world.store.puts.append(key)
        raise StoreRefused("no such bucket")

    world.store.put = refuses  # type: ignore[method-assign]
    writer = world.writer()
    sent = submit(writer)
    await answered([sent])
    assert isinstance(sent.error, WriteFailed)
    assert len(world.store.puts) == 1
    await writer.stop()


async def test_a_timer_that_comes_a_little_early_closes_the_object() -> None:
    world = World(commit_interval_ms=10_000)
    await world.begin()
    writer = world.writer()
    sent = submit(writer)
    opened_ms = writer.core.wake_ms - 10_000

    class Stopped:
        """A clock that stands where a loop's timer may fire."""

        at_ms = opened_ms + 9_998.9

        def now_ms(self) -> int:
            return 0

        def monotonic(self) -> float:
            return self.at_ms / 1000

    clock = writer._clock = Stopped()
    writer._wake()
    assert writer.core.objects_in_flight == 0
    clock.at_ms += 0.2
    writer._wake()
    assert writer.core.objects_in_flight == 1
    await answered([sent])
    await writer.stop()
