"""The reader over a real plane and store: what is loaded, what fails, what is asked again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from penstock.base.errors import PenstockError
from penstock.control import ControlUnavailable
from penstock.control.values.diskless import CommitAnswer, PartitionKey, Watermarks
from penstock.diskless.errors import PartitionGone
from penstock.diskless.reading.loads import FAILURE_SECONDS
from penstock.diskless.reading.reader import READ_ATTEMPTS_MAX, Reader, Want
from penstock.objects import LaggingConsumerRejected, StoreUnavailable
from penstock.objects.fetch_paths import ObjectRange
from penstock.records import OffsetOutOfRange, split_batches
from penstock.storage import Read
from tests.diskless.reading.extents import stored
from tests.diskless.submissions import TOPIC, Sent
from tests.diskless.world import World, answered
from tests.storage.batches import FakeClock

ALL = 1 << 20


class PlainPaths:
    """Reads from the store directly; answers with errors, or waits, on demand."""

    def __init__(self, world: World) -> None:
        self._store = world.memory
        self.calls: list[tuple[list[ObjectRange], int]] = []
        self.errors: dict[str, PenstockError] = {}
        self.gate = asyncio.Event()
        self.gate.set()
        self.memory: dict[str, bytes] = {}

    def cached(
        self, ranges: Sequence[ObjectRange], *, newest_timestamp_ms: int
    ) -> list[memoryview] | None:
        if not all(object_range.key in self.memory for object_range in ranges):
            return None
        return [
            memoryview(self.memory[object_range.key])[
                object_range.start : object_range.start + object_range.size_bytes
            ]
            for object_range in ranges
        ]

    async def fetch(
        self, ranges: Sequence[ObjectRange], *, newest_timestamp_ms: int
    ) -> list[memoryview | PenstockError]:
        self.calls.append((list(ranges), newest_timestamp_ms))
        await self.gate.wait()
        answers: list[memoryview | PenstockError] = []
        for key, start, size_bytes, _ in ranges:
            try:
                if key in self.errors:
                    raise self.errors[key]
                answers.append(await self._store.get(key, start, size_bytes))
            except PenstockError as error:
                answers.append(error)
        return answers


class ReaderBed:
    """A reader, and the calls of its callbacks."""

    def __init__(self) -> None:
        self.world = World()
        self.paths = PlainPaths(self.world)
        self.clock = FakeClock()
        self.watermarks: dict[PartitionKey, Watermarks] = {}
        self.woken: list[PartitionKey] = []
        self._changed = asyncio.Event()
        self.reader = Reader(
            plane=self.world.plane,
            paths=self.paths,
            clock=self.clock,
            learn=self.watermarks.__setitem__,
            wake=self._wake,
        )

    def _wake(self, keys: Sequence[PartitionKey]) -> None:
        self.woken += keys
        self._changed.set()

    async def write(self, *objects: Sequence[Sent]) -> None:
        """Write an object per list of submissions."""
        writer = self.world.writer()
        for sent in objects:
            for submitted in sent:
                writer.submit(submitted.submission)
            await answered(sent)
        await writer.stop()

    async def load(self, *wants: tuple[int, int, int], budget: int = ALL) -> None:
        """Load (partition, offset, max bytes) and wait until all of it has ended."""
        self.woken.clear()
        asked = [Want((TOPIC, partition), offset, size) for partition, offset, size in wants]
        self.reader.load(asked, budget)
        async with asyncio.timeout(60):
            while not {want.key for want in asked} <= set(self.woken):
                self._changed.clear()
                await self._changed.wait()

    def read(self, partition: int, offset: int, max_bytes: int = ALL) -> Read | None:
        return self.reader.read(Want((TOPIC, partition), offset, max_bytes), at_least_one=True)

    def offsets(self, partition: int, offset: int) -> list[int]:
        read = self.read(partition, offset)
        assert read is not None
        return [
            header.base_offset + n
            for piece in read.buffers
            for header in split_batches(piece)
            for n in range(header.record_count)
        ]


@pytest.fixture
async def bed() -> AsyncIterator[ReaderBed]:
    bed = ReaderBed()
    await bed.world.begin()
    yield bed
    await bed.reader.stop()


async def test_what_was_written_is_loaded_and_read(bed: ReaderBed) -> None:
    await bed.write([Sent(count=3), Sent(partition=1, count=2)], [Sent(count=2)])
    assert bed.read(0, 0) is None
    await bed.load((0, 0, ALL), (1, 0, ALL))
    assert bed.offsets(0, 0) == [0, 1, 2, 3, 4]
    assert bed.offsets(0, 3) == [3, 4]
    assert bed.offsets(1, 0) == [0, 1]
    assert bed.watermarks[TOPIC, 0].high_watermark == 5
    ((ranges, _),) = bed.paths.calls
    # Both partitions of the first object are one range.
    assert len(ranges) == 2


async def test_a_commit_of_this_broker_need_not_be_asked_for(bed: ReaderBed) -> None:
    await bed.write([Sent(count=3)])
    bed.reader.committed(bed.world.answers[0])
    await bed.load((0, 1, ALL))
    assert bed.offsets(0, 1) == [0, 1, 2]
    assert (bed.reader.counters.known, bed.reader.counters.finds) == (1, 0)


async def test_what_is_in_the_cache_is_read_at_once(bed: ReaderBed) -> None:
    await bed.write([Sent(count=3), Sent(count=2), Sent(partition=1)])
    bed.reader.committed(bed.world.answers[0])
    assert bed.read(0, 0) is None
    bed.paths.memory = bed.world.kept
    assert bed.offsets(0, 0) == [0, 1, 2, 3, 4]
    assert bed.offsets(0, 4) == [3, 4]
    nothing_fits = bed.reader.read(Want((TOPIC, 1), 0, 10), at_least_one=False)
    assert nothing_fits == Read([], 0, 0)
    assert bed.offsets(1, 0) == [0]
    assert bed.paths.calls == []
    # Of what is damaged nothing is served; a load says so.
    (key,) = bed.world.kept
    damaged = bytearray(bed.world.kept[key])
    damaged[60:2000] = bytes(len(damaged[60:2000]))
    bed.paths.memory = {key: bytes(damaged)}
    bed.reader.forget((TOPIC, 0))
    bed.reader.committed(bed.world.answers[0])
    assert bed.read(0, 0) is None


async def test_the_end_of_the_log_is_no_failure(bed: ReaderBed) -> None:
    await bed.write([Sent(count=3)])
    await bed.load((0, 3, ALL))
    assert bed.read(0, 3) is None
    assert bed.paths.calls == []
    assert bed.watermarks[TOPIC, 0].high_watermark == 3


async def test_an_offset_out_of_range_is_refused_by_the_plane(bed: ReaderBed) -> None:
    await bed.write([Sent(count=3)])
    await bed.load((0, 4, ALL))
    with pytest.raises(OffsetOutOfRange, match=r"offset 4 is not within \[0, 3\]"):
        bed.read(0, 4)
    bed.clock.ms += int(FAILURE_SECONDS * 1000)
    assert bed.read(0, 4) is None


async def test_a_partition_that_is_not_there_is_gone(bed: ReaderBed) -> None:
    await bed.load((99, 0, ALL))
    with pytest.raises(PartitionGone, match="partition 99"):
        bed.read(99, 0)


async def test_a_failed_object_ends_its_partition_alone(bed: ReaderBed) -> None:
    await bed.write(
        [Sent(count=1), Sent(partition=1, count=1)],
        [Sent(count=1)],
        [Sent(count=1), Sent(partition=1, count=1)],
    )
    keys = sorted(key for key in await bed.world.keys())
    bed.paths.errors[keys[1]] = StoreUnavailable("no answer")
    await bed.load((0, 0, ALL), (1, 0, ALL))
    assert bed.offsets(0, 0) == [0]
    assert bed.offsets(1, 0) == [0, 1]
    with pytest.raises(StoreUnavailable):
        bed.read(0, 1)
    bed.paths.errors.clear()
    # Not before its time is over.
    bed.reader.load([Want((TOPIC, 0), 1, ALL)], ALL)
    assert len(bed.paths.calls) == 1
    bed.clock.ms += int(FAILURE_SECONDS * 1000)
    await bed.load((0, 1, ALL))
    assert bed.offsets(0, 1) == [1, 2]


async def test_outdated_coordinates_are_looked_up_again_once(bed: ReaderBed) -> None:
    await bed.write([Sent(count=3)])
    gone, _ = stored(0, [[b"a", b"b", b"c"]], key="wal/gone")
    bed.reader.committed(CommitAnswer(placed=(), extents={(TOPIC, 0): (gone,)}))
    await bed.load((0, 0, ALL))
    assert bed.offsets(0, 0) == [0, 1, 2]
    assert len(bed.paths.calls) == 2
    assert bed.reader.counters.finds == 1


async def test_an_object_that_is_lost_is_an_error_and_no_loop(bed: ReaderBed) -> None:
    await bed.write([Sent(count=3)])
    await bed.world.memory.delete([*await bed.world.keys()])
    await bed.load((0, 0, ALL))
    with pytest.raises(PenstockError) as raised:
        bed.read(0, 0)
    assert raised.value.code == "kafka_storage_error"
    assert len(bed.paths.calls) == READ_ATTEMPTS_MAX


async def test_a_rejected_consumer_waits_without_an_error(bed: ReaderBed) -> None:
    await bed.write([Sent(count=3)])
    (key,) = await bed.world.keys()
    bed.paths.errors[key] = LaggingConsumerRejected("1600 wait")
    await bed.load((0, 0, ALL))
    assert bed.read(0, 0) is None
    bed.reader.load([Want((TOPIC, 0), 0, ALL)], ALL)
    assert len(bed.paths.calls) == 1
    bed.paths.errors.clear()
    bed.clock.ms += int(FAILURE_SECONDS * 1000)
    await bed.load((0, 0, ALL))
    assert bed.offsets(0, 0) == [0, 1, 2]


async def test_an_unavailable_plane_causes_an_error_that_consumers_know(
    bed: ReaderBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(requests: Any) -> Any:
        raise ControlUnavailable("the database is away")

    await bed.write([Sent(count=3)])
    monkeypatch.setattr(bed.world.plane, "find", away)
    await bed.load((0, 0, ALL))
    with pytest.raises(PenstockError, match="the database is away") as raised:
        bed.read(0, 0)
    assert raised.value.code == "kafka_storage_error"


async def test_one_load_serves_all_requests_of_the_same_batches(bed: ReaderBed) -> None:
    await bed.write([Sent(count=3)])
    bed.paths.gate.clear()
    for _ in range(5):
        bed.reader.load([Want((TOPIC, 0), 0, ALL)], ALL)
    bed.paths.gate.set()
    await bed.load((0, 1, ALL))
    async with asyncio.timeout(60):
        while bed.read(0, 0) is None:
            await asyncio.sleep(0)
    assert len(bed.paths.calls) == 2
    assert bed.reader.counters.finds + bed.reader.counters.known == 2


async def test_the_budget_of_a_request_is_shared_and_its_first_batch_is_whole(
    bed: ReaderBed,
) -> None:
    await bed.write([Sent(count=1, size=5000), Sent(partition=1, count=1, size=5000)])
    await bed.load((0, 0, 100), (1, 0, 100), budget=200)
    assert bed.offsets(0, 0) == [0]
    assert bed.read(1, 0) is None
    await bed.load((1, 0, ALL), (0, 0, ALL), budget=6000)
    assert bed.offsets(1, 0) == [0]


async def test_the_newest_batch_of_all_decides_the_path(bed: ReaderBed) -> None:
    await bed.write([Sent(count=1), Sent(partition=1, count=1)])
    await bed.load((0, 0, ALL), (1, 0, ALL))
    assert [newest for _, newest in bed.paths.calls] == [1000]


async def test_stopping_ends_loads_and_takes_no_more(bed: ReaderBed) -> None:
    await bed.write([Sent(count=3)])
    bed.paths.gate.clear()
    bed.reader.load([Want((TOPIC, 0), 0, ALL)], ALL)
    await asyncio.sleep(0)
    await bed.reader.stop()
    calls = len(bed.paths.calls)
    bed.reader.load([Want((TOPIC, 0), 1, ALL)], ALL)
    await asyncio.sleep(0)
    assert len(bed.paths.calls) == calls
