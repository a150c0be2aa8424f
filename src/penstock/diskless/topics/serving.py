"""Components that serve diskless topics on one broker, or the reason why they are missing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol
from uuid import UUID

from msgspec import Struct

from penstock.base.errors import PenstockError, RetriableError
from penstock.diskless.errors import StoreMismatch
from penstock.records.transactions import EPOCH_VERSION, OFFSET_MAX, Marker

if TYPE_CHECKING:
    from penstock.base.metrics import Sample
    from penstock.base.system import Clock, Randomness
    from penstock.control.operations.diskless import DisklessPlane
    from penstock.control.values.diskless import CommitAnswer, PartitionKey, Watermarks
    from penstock.diskless.compaction import CompactionTarget
    from penstock.diskless.gc import RetentionTarget
    from penstock.diskless.reading.reader import Want
    from penstock.diskless.settings import DisklessSettings
    from penstock.objects import FetchSettings, ObjectStore
    from penstock.records.appends import Done
    from penstock.storage import LogConfig


class NotServing(RetriableError):
    """This broker cannot serve diskless topics for now. The message has the cause."""

    code: ClassVar[str] = "kafka_storage_error"


class Serving:
    """State that all diskless partitions of a broker share. Created by `DisklessService`."""

    __slots__ = (
        "config_of", "failed", "learn", "look_up", "parts", "plane", "stopped", "store_url",
    )  # fmt: skip

    def __init__(
        self,
        *,
        plane: DisklessPlane,
        config_of: Callable[[str], LogConfig],
        store_url: str,
        look_up: Callable[[Sequence[Any]], Awaitable[None]],
        learn: Callable[[PartitionKey, Watermarks], None],
    ) -> None:
        self.plane = plane
        self.config_of = config_of
        self.store_url = store_url
        self.look_up = look_up
        self.learn = learn
        self.parts: Parts | None = None
        self.failed: PenstockError | None = None
        self.stopped = False

    def to_read(self) -> Parts:
        """Return the components for a read; raises NotServing if they are missing."""
        if self.parts is None:
            cause = self.failed or ("the broker stops" if self.stopped else "not started yet")
            raise NotServing(f"diskless topics cannot be served: {cause}")
        return self.parts

    def to_write(self) -> Parts:
        """Return the components for a write; raises NotServing or StoreMismatch."""
        if self.parts is None and isinstance(self.failed, StoreMismatch):
            raise self.failed.with_traceback(None)
        return self.to_read()

    def load(self, wants: Sequence[Want], max_bytes: int) -> None:
        if self.parts is not None:
            self.parts.reader.load(wants, max_bytes)


class Surroundings(Struct, frozen=True, kw_only=True):
    """Settings and dependencies from which `Parts` builds the components.

    `open_store` is called once for each component that needs its own client of the store.
    """

    settings: DisklessSettings
    fetch_settings: FetchSettings
    plane: DisklessPlane
    open_store: Callable[[], ObjectStore]
    store_place: str
    clock: Clock
    randomness: Randomness
    broker_id: int


class Parts:
    """Components of an active service. Their modules are imported here, on first use."""

    def __init__(
        self,
        around: Surroundings,
        *,
        cluster_id: str,
        incarnation: UUID,
        on_commit: Callable[[CommitAnswer], None],
        learn: Callable[[PartitionKey, Watermarks], None],
        look_up: Callable[[Sequence[Any]], Awaitable[None]],
        wake: Callable[[Iterable[PartitionKey]], None],
        targets: Callable[[], Iterable[RetentionTarget]],
        compacted: Callable[[], Iterable[CompactionTarget]],
    ) -> None:
        from penstock.diskless.compaction import Compactor
        from penstock.diskless.consolidation import Consolidator, WorkQueue
        from penstock.diskless.gc import Collection
        from penstock.diskless.identity import GuardedStore, StoreGuard
        from penstock.diskless.reading.lookups import AbortedTransactions, Positions
        from penstock.diskless.reading.reader import Reader
        from penstock.objects.fetch_paths import FetchPaths

        settings, plane, clock = around.settings, around.plane, around.clock
        dice, place = around.randomness, around.store_place
        opened = self._stores = [around.open_store() for _ in range(3)]
        self.guard = guard = StoreGuard(
            plane=plane, store=opened[0], cluster_id=cluster_id, randomness=dice, place=place
        )
        self.store, hot, cold = (GuardedStore(store, guard) for store in opened)
        self._guarded, self._open = GuardedStore, around.open_store
        self.paths = FetchPaths(
            around.fetch_settings, hot=hot, cold=cold, clock=clock, randomness=dice
        )
        self._write(around, incarnation, on_commit)
        self.markers = MarkerWriter(look_up)
        self.reader = Reader(plane=plane, paths=self.paths, clock=clock, learn=learn, wake=wake)
        self.positions = Positions(plane=plane, reader=self.reader)
        self.aborted = AbortedTransactions(plane=plane, learn=learn, wake=wake)
        self.collection = Collection(
            settings,
            plane=plane,
            store=self.store,
            guard=guard,
            clock=clock,
            targets=targets,
            on_watermarks=learn,
        )
        self.consolidator = Consolidator(
            settings, plane=plane, store=cold, clock=clock, randomness=dice
        )
        self.compactor = Compactor(
            settings, plane=plane, store=cold, clock=clock, randomness=dice, targets=compacted
        )
        self.work_queue = WorkQueue(settings, plane=plane, store=cold, clock=clock)

    def _write(
        self, around: Surroundings, incarnation: UUID, on_commit: Callable[[CommitAnswer], None]
    ) -> None:
        from penstock.diskless.writing import ObjectPlace, ObjectWriter, StagedObjects, Submission
        from penstock.objects import DirectoryStore, MemoryStore

        self.submission = Submission
        self.staged_objects = partial(
            StagedObjects,
            around.settings,
            ObjectPlace(around.plane, self.store, around.broker_id, incarnation),
            clock=around.clock,
            randomness=around.randomness,
        )
        self.writer = ObjectWriter(
            around.settings,
            plane=around.plane,
            store=self.store,
            broker_id=around.broker_id,
            incarnation=incarnation,
            clock=around.clock,
            randomness=around.randomness,
            on_commit=on_commit,
            keep=self.paths.keep,
            local=isinstance(self._stores[0], (DirectoryStore, MemoryStore)),
        )

    def client(self) -> ObjectStore:
        opened = self._open()
        self._stores.append(opened)
        return self._guarded(opened, self.guard)

    async def stop(self) -> None:
        await self.reader.stop()
        await self.aborted.stop()
        await self.markers.stop()
        await self.writer.stop()
        await self.paths.close()
        for store in self._stores:
            await store.close()

    def samples(self) -> Iterator[Sample]:
        yield from self.writer.samples()
        yield from self.reader.samples()
        yield from self.paths.samples()
        yield from self.collection.samples()
        yield from self.consolidator.samples()
        yield from self.compactor.samples()


# Submission of transaction markers to the writer.
#
# With transaction version 1, a producer keeps its epoch in its next transaction. A coordinator may
# time a marker out, write it again, and let the producer continue. If the first marker takes effect
# later, it must not end the producer's next transaction. A marker therefore has the partition's end
# at the time of the decision. It is ignored if the producer's open transaction was verified after
# that (`records.idempotence.check_marker`). The ends are looked up once for all markers that are
# submitted in one turn of the event loop.


class MarkedPartition(Protocol):
    """A partition that gets a marker. Its high watermark is current after a lookup."""

    @property
    def high_watermark(self) -> int: ...

    def place_marker(self, marker: Marker, *, now_ms: int, made_at: int, done: Done) -> None:
        """Submit a marker to the writer; raises PenstockError."""
        ...


class _Waiting(NamedTuple):
    partition: MarkedPartition
    marker: Marker
    now_ms: int
    done: Done


class MarkerWriter:
    """Submits transaction markers to partitions, with the partition's end if it is needed.

    It looks up the ends of many partitions at once. Callers limit the number of markers.
    """

    def __init__(self, look_up: Callable[[Sequence[Any]], Awaitable[None]]) -> None:
        self._look_up = look_up
        self._waiting: list[_Waiting] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def write(self, partition: MarkedPartition, marker: Marker, now_ms: int, done: Done) -> None:
        """Submit a marker, at once or after a lookup of the partition's end.

        Errors are raised, or passed to `done`.
        """
        if marker.transaction_version >= EPOCH_VERSION:
            partition.place_marker(marker, now_ms=now_ms, made_at=OFFSET_MAX, done=done)
            return
        if not self._waiting:
            task = asyncio.get_running_loop().create_task(self._place())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        self._waiting.append(_Waiting(partition, marker, now_ms, done))

    async def stop(self) -> None:
        """Cancel pending submissions. Their coordinator writes the markers again. Idempotent."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _place(self) -> None:
        waiting, self._waiting = self._waiting, []
        try:
            await self._look_up([submission.partition for submission in waiting])
        except PenstockError as error:
            for submission in waiting:
                submission.done(error)
            return
        for partition, marker, now_ms, done in waiting:
            try:
                made_at = partition.high_watermark
                partition.place_marker(marker, now_ms=now_ms, made_at=made_at, done=done)
            except PenstockError as error:
                done(error)
