"""The reader over a real plane and store: what is loaded, what fails, what is asked again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from penstock.base.errors import PenstockError
from penstock.control import ControlUnavailable
from penstock.control.batch_index.values import CommitAnswer, PartitionKey, Watermarks
from penstock.diskless.reading import limits
from penstock.diskless.reading.errors import PartitionGone
from penstock.diskless.reading.reader import Reader, Want
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
    """Reads straight from the store; can be told to answer with errors, or to wait."""

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
        if not all(one.key in self.memory for one in ranges):
            return None
        return [
            memoryview(self.memory[one.key])[one.start : one.start + one.size_bytes]
            for one in ranges
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


class House:
    """A reader, and what it has told its owner."""

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
        """One object per list of submissions."""
        writer = self.world.writer()
        for sent in objects:
            for one in sent:
                writer.submit(one.submission)
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
async def house() -> AsyncIterator[House]:
    house = House()
    await house.world.begin()
    yield house
    await house.reader.stop()


async def test_what_was_written_is_loaded_and_read(house: House) -> None:
    await house.write([Sent(count=3), Sent(partition=1, count=2)], [Sent(count=2)])
    assert house.read(0, 0) is None
    await house.load((0, 0, ALL), (1, 0, ALL))
    assert house.offsets(0, 0) == [0, 1, 2, 3, 4]
    assert house.offsets(0, 3) == [3, 4]
    assert house.offsets(1, 0) == [0, 1]
    assert house.watermarks[TOPIC, 0].high_watermark == 5
    ((ranges, _),) = house.paths.calls
    # Both partitions of the first object are one range.
    assert len(ranges) == 2


async def test_a_commit_of_this_broker_need_not_be_asked_for(house: House) -> None:
    await house.write([Sent(count=3)])
    house.reader.committed(house.world.answers[0])
    await house.load((0, 1, ALL))
    assert house.offsets(0, 1) == [0, 1, 2]
    assert (house.reader.counters.known, house.reader.counters.finds) == (1, 0)


async def test_what_is_in_the_cache_is_read_at_once(house: House) -> None:
    await house.write([Sent(count=3), Sent(count=2), Sent(partition=1)])
    house.reader.committed(house.world.answers[0])
    assert house.read(0, 0) is None
    house.paths.memory = house.world.kept
    assert house.offsets(0, 0) == [0, 1, 2, 3, 4]
    assert house.offsets(0, 4) == [3, 4]
    nothing_fits = house.reader.read(Want((TOPIC, 1), 0, 10), at_least_one=False)
    assert nothing_fits == Read([], 0, 0)
    assert house.offsets(1, 0) == [0]
    assert house.paths.calls == []
    # Of what is damaged nothing is served; a load says so.
    (key,) = house.world.kept
    damaged = bytearray(house.world.kept[key])
    damaged[60:2000] = bytes(len(damaged[60:2000]))
    house.paths.memory = {key: bytes(damaged)}
    house.reader.forget((TOPIC, 0))
    house.reader.committed(house.world.answers[0])
    assert house.read(0, 0) is None


async def test_the_end_of_the_log_is_no_failure(house: House) -> None:
    await house.write([Sent(count=3)])
    await house.load((0, 3, ALL))
    assert house.read(0, 3) is None
    assert house.paths.calls == []
    assert house.watermarks[TOPIC, 0].high_watermark == 3


async def test_an_offset_out_of_range_is_refused_by_the_plane(house: House) -> None:
    await house.write([Sent(count=3)])
    await house.load((0, 4, ALL))
    with pytest.raises(OffsetOutOfRange, match=r"offset 4 is not within \[0, 3\]"):
        house.read(0, 4)
    house.clock.ms += int(limits.FAILURE_SECONDS * 1000)
    assert house.read(0, 4) is None


async def test_a_partition_that_is_not_there_is_gone(house: House) -> None:
    await house.load((99, 0, ALL))
    with pytest.raises(PartitionGone, match="partition 99"):
        house.read(99, 0)


async def test_a_failed_object_ends_its_partition_alone(house: House) -> None:
    await house.write(
        [Sent(count=1), Sent(partition=1, count=1)],
        [Sent(count=1)],
        [Sent(count=1), Sent(partition=1, count=1)],
    )
    keys = sorted(key for key in await house.world.keys())
    house.paths.errors[keys[1]] = StoreUnavailable("no answer")
    await house.load((0, 0, ALL), (1, 0, ALL))
    assert house.offsets(0, 0) == [0]
    assert house.offsets(1, 0) == [0, 1]
    with pytest.raises(StoreUnavailable):
        house.read(0, 1)
    house.paths.errors.clear()
    # Not before its time is over.
    house.reader.load([Want((TOPIC, 0), 1, ALL)], ALL)
    assert len(house.paths.calls) == 1
    house.clock.ms += int(limits.FAILURE_SECONDS * 1000)
    await house.load((0, 1, ALL))
    assert house.offsets(0, 1) == [1, 2]


async def test_old_coordinates_are_asked_for_anew_once(house: House) -> None:
    await house.write([Sent(count=3)])
    gone, _ = stored(0, [[b"a", b"b", b"c"]], key="wal/gone")
    house.reader.committed(CommitAnswer(placed=(), extents={(TOPIC, 0): (gone,)}))
    await house.load((0, 0, ALL))
    assert house.offsets(0, 0) == [0, 1, 2]
    assert len(house.paths.calls) == 2
    assert house.reader.counters.finds == 1


async def test_an_object_that_is_lost_is_an_error_and_no_loop(house: House) -> None:
    await house.write([Sent(count=3)])
    await house.world.memory.delete([*await house.world.keys()])
    await house.load((0, 0, ALL))
    with pytest.raises(PenstockError) as raised:
        house.read(0, 0)
    assert raised.value.code == "kafka_storage_error"
    assert len(house.paths.calls) == limits.READ_ATTEMPTS_MAX


async def test_a_rejected_consumer_waits_and_is_told_nothing(house: House) -> None:
    await house.write([Sent(count=3)])
    (key,) = await house.world.keys()
    house.paths.errors[key] = LaggingConsumerRejected("1600 wait")
    await house.load((0, 0, ALL))
    assert house.read(0, 0) is None
    house.reader.load([Want((TOPIC, 0), 0, ALL)], ALL)
    assert len(house.paths.calls) == 1
    house.paths.errors.clear()
    house.clock.ms += int(limits.FAILURE_SECONDS * 1000)
    await house.load((0, 0, ALL))
    assert house.offsets(0, 0) == [0, 1, 2]


async def test_a_plane_that_is_away_is_told_as_consumers_know_it(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(requests: Any) -> Any:
        raise ControlUnavailable("the database is away")

    await house.write([Sent(count=3)])
    monkeypatch.setattr(house.world.plane, "find", away)
    await house.load((0, 0, ALL))
    with pytest.raises(PenstockError, match="the database is away") as raised:
        house.read(0, 0)
    assert raised.value.code == "kafka_storage_error"


async def test_one_load_serves_all_who_want_the_same(house: House) -> None:
    await house.write([Sent(count=3)])
    house.paths.gate.clear()
    for _ in range(5):
        house.reader.load([Want((TOPIC, 0), 0, ALL)], ALL)
    house.paths.gate.set()
    await house.load((0, 1, ALL))
    async with asyncio.timeout(60):
        while house.read(0, 0) is None:
            await asyncio.sleep(0)
    assert len(house.paths.calls) == 2
    assert house.reader.counters.finds + house.reader.counters.known == 2


async def test_the_budget_of_a_request_is_shared_and_its_first_batch_is_whole(
    house: House,
) -> None:
    await house.write([Sent(count=1, size=5000), Sent(partition=1, count=1, size=5000)])
    await house.load((0, 0, 100), (1, 0, 100), budget=200)
    assert house.offsets(0, 0) == [0]
    assert house.read(1, 0) is None
    await house.load((1, 0, ALL), (0, 0, ALL), budget=6000)
    assert house.offsets(1, 0) == [0]


async def test_the_newest_batch_of_all_decides_the_path(house: House) -> None:
    await house.write([Sent(count=1), Sent(partition=1, count=1)])
    await house.load((0, 0, ALL), (1, 0, ALL))
    assert [newest for _, newest in house.paths.calls] == [1000]


async def test_stopping_ends_loads_and_takes_no_more(house: House) -> None:
    await house.write([Sent(count=3)])
    house.paths.gate.clear()
    house.reader.load([Want((TOPIC, 0), 0, ALL)], ALL)
    await asyncio.sleep(0)
    await house.reader.stop()
    calls = len(house.paths.calls)
    house.reader.load([Want((TOPIC, 0), 1, ALL)], ALL)
    await asyncio.sleep(0)
    assert len(house.paths.calls) == calls
