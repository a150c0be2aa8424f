"""Filling logs from the store: passes, what overtakes one, objects that go, producers, no room."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from penstock.base.errors import PenstockError
from penstock.base.ids import TopicPartition
from penstock.control import MemoryControlPlane
from penstock.diskless.consolidation import Consolidator
from penstock.diskless.settings import DisklessSettings
from penstock.diskless.topics import migration
from penstock.diskless.topics.migration import GET_ATTEMPTS_MAX, FilledLog, TopicFilling
from penstock.objects import MemoryStore, ObjectNotFound, StoreUnavailable
from penstock.records import split_batches
from penstock.storage import LogConfig, LogStore, PartitionLog, StorageError, StorageSettings
from tests.diskless.consolidation.bed import KEY, TOPIC, Bed, Sent, produced
from tests.diskless.consolidation.conftest import furnished
from tests.diskless.world import SeededRandomness
from tests.storage.batches import FakeClock

EPOCH = 3
WHERE = TopicPartition("orders", 0)


async def _nothing() -> None:
    return


async def _away() -> None:
    raise StoreUnavailable("it is away")


class Reads(MemoryStore):
    """A store in memory, before whose reads something happens."""

    before: list[Callable[[], Awaitable[None]]]

    async def get(self, key: str, start: int, size_bytes: int) -> memoryview:
        if self.before:
            await self.before.pop(0)()
        return await super().get(key, start, size_bytes)


class Place:
    """A diskless partition, and a log of a broker that is filled from it."""

    def __init__(self, root: Path, plane: MemoryControlPlane, clock: FakeClock) -> None:
        self.root = root
        self.clock = clock
        self.plane = plane
        self.store = self.reads = Reads(clock=clock)
        self.reads.before = []
        self.bed = Bed(plane, self.store)
        self.waits: list[float] = []
        self.during: list[Callable[[], object]] = []
        """What happens in the next pauses."""
        self.open()

    def open(self) -> None:
        config = LogConfig(segment_bytes=1 << 14)
        self.logs = LogStore.open(
            self.root, StorageSettings(), clock=self.clock, config_of=lambda topic: config
        )

    @property
    def log(self) -> PartitionLog:
        return self.logs.partitions[WHERE]

    def filling(self, **settings: int) -> TopicFilling:
        self.logs.delete(WHERE)
        log = self.logs.create(WHERE, topic_id=TOPIC, leader_epoch=-1)
        return TopicFilling(
            [FilledLog(log, EPOCH)],
            DisklessSettings(**settings),
            plane=self.plane,
            store=self.store,
            clock=self.clock,
            flush=self._flush,
            pause=self._pause,
        )

    def _flush(self, told: Callable[[StorageError | None], None]) -> None:
        self.logs.flush(told)
        self.logs.commit_pending()

    async def _pause(self, seconds: float) -> None:
        self.waits.append(seconds)
        if self.during:
            done = self.during.pop(0)()
            if asyncio.iscoroutine(done):
                await done

    async def write(self, count: int, *, append_time: bool = False) -> None:
        """So many objects of one batch of two records."""
        for _ in range(count):
            await self.bed.write(Sent(produced(b"a" * 100, b"b"), 0, append_time))

    async def consolidate(self) -> None:
        """Consolidate small objects into segments, and sweep them."""
        made = Consolidator(
            DisklessSettings(consolidation_min_extents=2, consolidation_bytes_per_second=0),
            plane=self.plane,
            store=self.store,
            clock=self.clock,
            randomness=SeededRandomness(),
            all_ages=True,
        )
        assert await made.consolidate([KEY])
        await self.store.delete(await self.bed.keys("wal/"))

    def offsets(self) -> list[int]:
        """Return the base offsets of the log's batches, all of its epoch."""
        found, offset = [], self.log.log_start_offset
        while offset < self.log.durable_offset:
            read = self.log.read(offset, max_bytes=1 << 20, end_offset=self.log.durable_offset)
            for data in read.buffers:
                for header in split_batches(data):
                    assert header.partition_leader_epoch == EPOCH
                    found.append(header.base_offset)
            offset = read.next_offset
        return found


@pytest.fixture
async def place(tmp_path: Path) -> Place:
    clock = FakeClock()
    return Place(tmp_path, await furnished(MemoryControlPlane(clock=clock)), clock)


@pytest.fixture(autouse=True)
def closed(place: Place) -> Iterator[None]:
    yield
    place.logs.close()


async def test_passes_continue_and_the_end_is_durable(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migration, "CHUNK_BYTES", 400)
    monkeypatch.setattr(migration, "EXTENTS_PER_CHUNK", 3)
    await place.write(10)
    filled = place.filling()
    assert await filled.needed_bytes() == await filled.catch_up() == filled.copied_bytes
    await place.write(1)
    assert 0 < await filled.catch_up() < filled.copied_bytes
    assert await filled.catch_up() == 0
    assert place.log.replica.promised == -1
    await filled.finish()
    place.logs.close()
    place.open()
    assert (place.log.replica.promised, place.log.replica.limbo, place.log.replica.lost) == (
        EPOCH,
        -1,
        None,
    )
    assert place.offsets() == list(range(0, 22, 2))


async def test_batches_are_those_that_consumers_got(place: Place) -> None:
    await place.write(3, append_time=True)
    consumed = await place.bed.consumed()
    await place.filling().finish()
    read = place.log.read(0, max_bytes=1 << 20, end_offset=6)
    times = [batch.max_timestamp for batch in split_batches(consumed)]
    filled = split_batches(b"".join(read.buffers))
    assert [batch.max_timestamp for batch in filled] == times
    assert [batch.crc for batch in filled] == [batch.crc for batch in split_batches(consumed)]


async def test_a_log_that_the_start_overtakes_restarts(place: Place) -> None:
    await place.write(5)
    filled = place.filling()
    await filled.catch_up()
    await place.write(5)
    await place.plane.delete_records(*KEY, 13)
    await filled.finish()
    assert place.offsets() == [12, 14, 16, 18]
    assert (place.log.log_start_offset, place.log.log_end_offset) == (13, 20)


async def test_of_what_is_deleted_whole_the_end_is_left(place: Place) -> None:
    await place.write(2)
    filled = place.filling()
    await filled.catch_up()
    await place.plane.delete_records(*KEY, -1)
    await place.write(1)
    await place.plane.delete_records(*KEY, -1)
    await filled.finish()
    assert (place.log.log_start_offset, place.log.log_end_offset) == (6, 6)


async def test_an_empty_partition_has_an_empty_log(place: Place) -> None:
    await place.filling().finish()
    assert (place.log.log_start_offset, place.log.log_end_offset) == (0, 0)
    assert place.log.replica.promised == EPOCH


async def test_objects_that_go_meanwhile_are_in_segments_then(place: Place) -> None:
    await place.write(4)
    place.reads.before = [_nothing, _nothing, place.consolidate]
    await place.filling().finish()
    assert not place.reads.before
    assert place.offsets() == [0, 2, 4, 6]


@pytest.mark.parametrize(("failures", "fails"), [(2, False), (100, True)])
async def test_a_store_that_does_not_answer_is_asked_again(
    place: Place, failures: int, fails: bool
) -> None:
    await place.write(1)
    place.reads.before = [_away] * failures
    filled = place.filling()
    if fails:
        with pytest.raises(StoreUnavailable, match="it is away"):
            await filled.catch_up()
        assert len(place.waits) == GET_ATTEMPTS_MAX - 1
    else:
        await filled.catch_up()
        assert place.offsets() == [0]


async def test_an_object_that_is_lost_is_named(place: Place) -> None:
    await place.write(1)
    [key] = await place.bed.keys("wal/")
    await place.store.delete([key])
    with pytest.raises(ObjectNotFound, match=key):
        await place.filling().catch_up()


async def test_the_rate_is_kept_until_the_last_pass(place: Place) -> None:
    await place.write(10)
    filled = place.filling(switch_bytes_per_second=100)
    await filled.catch_up()
    assert sum(place.waits) > 1
    waits = len(place.waits)
    await place.write(10)
    await filled.finish()
    assert len(place.waits) == waits


async def test_producers_below_the_start_are_known(place: Place) -> None:
    for producer, sequence in ((1, 0), (2, 0), (1, 1)):
        await place.bed.write(Sent(produced(b"x", producer=(producer, 0, sequence))))
    await place.plane.delete_records(*KEY, 2)
    await place.filling().finish()
    known = place.log.producer_states.states()
    batches = {
        producer_id: [(it.first_sequence, it.last_offset) for it in known[producer_id].batches]
        for producer_id in known
    }
    assert batches == {1: [(0, 0), (1, 2)], 2: [(0, 1)]}


async def test_a_log_that_is_taken_away_ends_it(place: Place) -> None:
    await place.write(10)
    filled = place.filling(switch_bytes_per_second=100)
    place.during = [partial(place.logs.delete, WHERE)]
    with pytest.raises(PenstockError, match="deleted"):
        await filled.catch_up()
