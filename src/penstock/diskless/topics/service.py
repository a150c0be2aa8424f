"""Diskless topics on one broker: writer, reader and background jobs, with their timers.

    produce ──> DisklessPartition.append ──> ObjectWriter ──> store, control plane
                                                │ committed: extents, watermarks, bytes
    fetch <── DisklessPartition.read <── Reader <┘ <── FetchPaths <── store

The service is *active* if there are diskless topics, if object ids were ever leased, or if the
settings require the store. Only then it opens the store and leases keys. First it checks that the
store is the control plane's. If the store is another one at the start, the broker does not start.
If that is found later, writes fail with a fatal error. If the check itself fails, partitions return
a retriable error. In both cases the readiness check reports it (`failure`), and the service tries
again.

Commits of other brokers arrive as notices (`others_committed`), which may be lost. With several
brokers, the watermarks of partitions that consumers wait for are therefore also read every second.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final
from uuid import UUID

from penstock.base.errors import BugError, PenstockError, UnavailableError
from penstock.base.ids import TopicPartition
from penstock.base.pause import pause
from penstock.control.rules.diskless import DISKLESS_CONFIG
from penstock.control.values.errors import SINK_OBJECTS_MAX
from penstock.diskless.errors import StoreMismatch
from penstock.diskless.settings import WATERMARKS_PER_CALL_MAX, DisklessSettings
from penstock.diskless.topics.partition import DisklessPartition
from penstock.diskless.topics.serving import NotServing, Parts, Serving, Surroundings

if TYPE_CHECKING:
    from penstock.base.metrics import Sample
    from penstock.base.system import Clock, Randomness
    from penstock.control import MetadataImage, SinkAnswer, SinkCommit, Topic
    from penstock.control.operations.diskless import DisklessPlane
    from penstock.control.values.diskless import (
        CommitAnswer,
        ObjectCommit,
        PartitionKey,
        Watermarks,
    )
    from penstock.diskless.compaction import CompactionTarget
    from penstock.diskless.consolidation import WorkQueue
    from penstock.diskless.gc import RetentionTarget
    from penstock.diskless.topics.migration import MigrationPart
    from penstock.diskless.writing import StagedObjects
    from penstock.objects import FetchSettings, ObjectStore, UrlSigner
    from penstock.storage import LogConfig


SINK_COMMIT_REPEATS_MAX: Final = 3
"""Repetitions of a sink's commit whose outcome is unknown."""

logger = logging.getLogger(__name__)

WATERMARKS_SECONDS: Final = 1.0
"""Interval at which the watermarks of partitions that consumers wait for are read."""

AWAITED_MAX: Final = 10_000
"""Partitions whose watermarks one such read returns. The next read includes others."""

UPKEEP_SECONDS: Final = 5.0
ACTIVATION_SECONDS: Final = 10.0
"""Timeout of an attempt to activate the service, and the pause after a failed attempt."""


class DisklessService:
    """The diskless topics of one broker. Belongs to the event loop."""

    def __init__(
        self,
        settings: DisklessSettings,
        fetch_settings: FetchSettings,
        *,
        plane: DisklessPlane,
        open_store: Callable[[], ObjectStore],
        clock: Clock,
        randomness: Randomness,
        broker_id: int,
        config_of: Callable[[str], LogConfig],
        store_url: str,
        store_place: str = "",
        url_signer: UrlSigner | None = None,
        needed: bool = False,
    ) -> None:
        """`open_store` opens a separate client of the store for each use.

        `store_url` is for clients that read the store themselves. `store_place` names the store in
        messages. Both have no credentials. `url_signer` signs the URLs of extents. With `needed`,
        the store is opened at the start, even without diskless topics.
        """
        self._settings = settings
        self._plane = plane
        self._around = Surroundings(
            settings=settings,
            fetch_settings=fetch_settings,
            plane=plane,
            open_store=open_store,
            store_place=store_place,
            clock=clock,
            randomness=randomness,
            broker_id=broker_id,
        )
        self.store_url = store_url
        self.url_signer = url_signer
        self._partitions: dict[PartitionKey, DisklessPartition] = {}
        self._image: MetadataImage | None = None
        self._incarnation: UUID | None = None
        self._advanced: Callable[[Iterable[DisklessPartition]], None] = _nobody
        self._awaited: Callable[[], Iterable[object]] = tuple
        self._tasks: set[asyncio.Task[None]] = set()
        self._serving = Serving(
            plane=plane,
            config_of=config_of,
            store_url=store_url,
            look_up=self.look_up_watermarks,
            learn=self.learn,
        )
        self._wanted = needed
        self._started = False

    @property
    def failure(self) -> str:
        """Reason why diskless topics are not served; empty if they are, or if there are none."""
        return str(self.mismatch or self._serving.failed or "")

    @property
    def mismatch(self) -> StoreMismatch | None:
        """Mismatch of store and control plane, or None. During a mismatch, writes fail."""
        if self._serving.parts is not None:
            return self._serving.parts.guard.mismatch
        return self._serving.failed if isinstance(self._serving.failed, StoreMismatch) else None

    # -- start, images and stop --------------------------------------------------------------

    async def start(
        self,
        *,
        image: MetadataImage,
        incarnation: UUID,
        advanced: Callable[[Iterable[DisklessPartition]], None],
        awaited: Callable[[], Iterable[object]],
    ) -> None:
        """Start in the running event loop for a broker process, and prepare a first image.

        `advanced` gets partitions that have more to read, or whose loads have ended. `awaited`
        returns the partitions that consumers wait for, and possibly other objects.

        Raises:
            StoreMismatch: the store is not the control plane's. The broker must not start.
        """
        self._incarnation = incarnation
        self._advanced, self._awaited = advanced, awaited
        try:
            self._wanted = self._wanted or await self._plane.highest_object_id() > 0
        except PenstockError as error:
            logger.warning("cannot check the store against the control plane: %s", error)
        await self.prepare(image, image.topics.values())
        self._started = True

    async def stop(self) -> None:
        """Finish the objects being written, then stop everything else. Idempotent."""
        self._serving.stopped = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        parts, self._serving.parts = self._serving.parts, None
        if parts is not None:
            await parts.stop()

    async def prepare(self, image: MetadataImage, changed: Iterable[Topic]) -> None:
        """Load the watermarks of an image's new diskless partitions.

        Call it before the image applies.
        """
        self._image = image
        fresh = [
            self._partition(topic, partition.index)
            for topic in changed
            if topic.configs.get(DISKLESS_CONFIG) == "true"
            for partition in topic.partitions
            if (topic.topic_id, partition.index) not in self._partitions
        ]
        self._wanted = self._wanted or bool(fresh)
        if self._wanted and self._serving.parts is None and self._serving.failed is None:
            await self._activate()
        await self._try_watermarks(fresh)

    def partitions_of(self, topic: Topic) -> list[DisklessPartition]:
        """Return the partitions of a diskless topic, by index. Each is always the same object."""
        return [self._partition(topic, partition.index) for partition in topic.partitions]

    def _partition(self, topic: Topic, index: int) -> DisklessPartition:
        key = (topic.topic_id, index)
        partition = self._partitions.get(key)
        if partition is None:
            where = TopicPartition(topic.name, index)
            epoch = topic.partitions[index].leader_epoch
            partition = self._partitions[key] = DisklessPartition(
                self._serving, where, topic.topic_id, epoch
            )
        return partition

    def forget_gone(self, image: MetadataImage, gone: Iterable[Topic] | None) -> None:
        """Drop the partitions of topics that are deleted or not diskless any more.

        These are the topics `gone`. None means all topics that are not diskless in `image`.
        """
        if gone is None:
            there = {
                topic.topic_id
                for topic in image.topics.values()
                if topic.configs.get(DISKLESS_CONFIG) == "true"
            }
            keys = [key for key in self._partitions if key[0] not in there]
        else:
            keys = [
                (topic.topic_id, index) for topic in gone for index in range(len(topic.partitions))
            ]
        for key in keys:
            partition = self._partitions.pop(key, None)
            if partition is None:
                continue
            partition.closed = NotServing(f"{partition.topic_partition} is not diskless any more")
            if self._serving.parts is not None:
                self._serving.parts.reader.forget(key)
                self._serving.parts.aborted.forget(key)

    # -- activation --------------------------------------------------------------------------

    async def _activate(self) -> None:
        """Try to activate the service. Retries later, except after a mismatch at the start."""
        try:
            async with asyncio.timeout(ACTIVATION_SECONDS):
                self._serving.parts = await self._begin()
        except (PenstockError, TimeoutError) as error:
            if isinstance(error, StoreMismatch) and not self._started:
                raise
            slow = NotServing(f"the object store took more than {ACTIVATION_SECONDS} s")
            self._serving.failed = error if isinstance(error, PenstockError) else slow
            logger.error("diskless topics cannot be served: %s", self._serving.failed)
            self._spawn(self._activate_later())
            return
        self._serving.failed = None
        for job in self._serving.parts.collection.jobs():
            self._spawn(self._repeat(job.interval_ms / 1000, job.run))
        settings, parts = self._settings, self._serving.parts
        for interval_ms, run in (
            (settings.consolidation_interval_ms, parts.consolidator.run),
            (settings.compaction_interval_ms, parts.compactor.run),
        ):
            if interval_ms:
                self._spawn(self._repeat(interval_ms / 1000, run))
        self._spawn(self._repeat(WATERMARKS_SECONDS, self._look_for_others))
        self._spawn(self._repeat(UPKEEP_SECONDS, self._upkeep))

    async def _activate_later(self) -> None:
        await pause(ACTIVATION_SECONDS)
        await self._activate()

    async def _begin(self) -> Parts:
        if self._incarnation is None or self._image is None:
            raise BugError("the service of diskless topics was not started")
        parts = Parts(
            self._around,
            cluster_id=self._image.cluster_id,
            incarnation=self._incarnation,
            on_commit=self.committed,
            learn=self.learn,
            look_up=self.look_up_watermarks,
            wake=self.wake,
            targets=self.targets,
            compacted=self.compacted,
        )
        try:
            await parts.collection.start()
        except BaseException:
            await parts.stop()
            raise
        parts.writer.attach(asyncio.get_running_loop())
        return parts

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _repeat(self, seconds: float, run: Callable[[], Awaitable[None]]) -> None:
        while not self._serving.stopped:
            await pause(seconds)
            await run()

    @property
    def migration(self) -> MigrationPart:
        """Part of this broker in migrations of topics."""
        from penstock.diskless.topics.migration import MigrationPart

        if self._incarnation is None:
            raise BugError("the service of diskless topics was not started")
        return MigrationPart(
            self._settings,
            plane=self._plane,
            ready_store=self._ready_store,
            clock=self._around.clock,
            randomness=self._around.randomness,
            broker_id=self._around.broker_id,
            incarnation=self._incarnation,
        )

    async def client(self) -> ObjectStore:
        """Return one more client of the store, which rejects writes during a mismatch.

        The service closes it when it stops.

        Raises:
            NotServing, StoreMismatch: the store cannot be used now.
        """
        await self._ready_store()
        return self._serving.to_write().client()

    async def _ready_store(self) -> ObjectStore:
        """Return the store, and activate the service first. Raises NotServing, StoreMismatch."""
        if self._serving.parts is None and self._serving.failed is None:
            self._wanted = True
            await self._activate()
        return self._serving.to_write().store

    # -- requests of the broker --------------------------------------------------------------

    @property
    def sink_bytes_max(self) -> int:
        """Maximum bytes of a sink's commit: half of what its objects may hold."""
        return SINK_OBJECTS_MAX // 2 * self._settings.buffer_bytes_max

    def staged_objects(self, size_bytes: int) -> StagedObjects:
        """Return objects for a sink's commit of about `size_bytes`.

        Raises NotServing, StoreMismatch.
        """
        return self._serving.to_write().staged_objects(size_bytes=size_bytes)

    async def commit_sink(self, record: SinkCommit, commits: Sequence[ObjectCommit]) -> SinkCommit:
        """Commit a sink's objects by `DisklessPlane.commit_sink_objects`; return its row."""
        for _ in range(SINK_COMMIT_REPEATS_MAX):
            try:
                saved, answers = await self._commit_sink_once(record, commits)
                break
            except UnavailableError as error:
                logger.info("committing query %r: %s", record.query_id, error)
        else:
            saved, answers = await self._commit_sink_once(record, commits)
        for answer in answers:
            self.committed(answer)
        return saved

    async def _commit_sink_once(
        self, record: SinkCommit, commits: Sequence[ObjectCommit]
    ) -> SinkAnswer:
        return await self._plane.commit_sink_objects(
            record, expected_version=record.version, commits=commits
        )

    @property
    def work_queue(self) -> WorkQueue:
        """Queue of consolidation work for other processes. Raises NotServing."""
        return self._serving.to_read().work_queue

    async def look_up_watermarks(self, partitions: Sequence[DisklessPartition]) -> None:
        watermarks: list[Watermarks] = []
        for start in range(0, len(partitions), WATERMARKS_PER_CALL_MAX):
            part = partitions[start : start + WATERMARKS_PER_CALL_MAX]
            watermarks += await self._plane.watermarks([partition.key for partition in part])
        for partition, mark in zip(partitions, watermarks, strict=True):
            self.learn(partition.key, mark)

    # -- events ------------------------------------------------------------------------------

    def others_committed(self, rows: Iterable[tuple[UUID, int, Watermarks]]) -> None:
        """Apply notices of other brokers.

        Each row has topic id, partition, and watermarks with an unknown size in bytes.
        """
        risen = []
        for topic_id, index, watermarks in rows:
            partition = self._partitions.get((topic_id, index))
            if partition is not None and partition.learn(watermarks):
                risen.append(partition)
        self._advanced(risen)

    def notices_lost(self) -> None:
        """Read the watermarks of partitions that consumers wait for, after lost notices."""
        if self._serving.parts is not None and not self._serving.stopped:
            self._spawn(self._look())

    def committed(self, answer: CommitAnswer) -> None:
        """Apply the commit of an object of this broker.

        Called before its producers get responses.
        """
        if self._serving.parts is not None:
            self._serving.parts.reader.committed(answer)
        risen = []
        for key, watermarks in answer.watermarks.items():
            partition = self._partitions.get(key)
            if partition is not None and partition.learn(watermarks):
                risen.append(partition)
        self._advanced(risen)

    def learn(self, key: PartitionKey, watermarks: Watermarks) -> None:
        partition = self._partitions.get(key)
        if partition is not None and partition.learn(watermarks):
            self._advanced([partition])

    def wake(self, keys: Iterable[PartitionKey]) -> None:
        partitions = (self._partitions.get(key) for key in keys)
        self._advanced([partition for partition in partitions if partition is not None])

    def targets(self) -> Iterator[RetentionTarget]:
        """Yield all partitions, with the retention settings of their topics."""
        from penstock.diskless.gc import RetentionTarget

        for partition in list(self._partitions.values()):
            config = partition.config
            kept = "delete" not in config.cleanup_policy
            yield RetentionTarget(
                *partition.key,
                retention_ms=-1 if kept else config.retention_ms,
                retention_bytes=-1 if kept else config.retention_bytes,
            )

    def compacted(self) -> Iterator[CompactionTarget]:
        """Yield the partitions of compacted topics, with the settings of compaction."""
        from penstock.diskless.compaction import CompactionTarget

        for partition in list(self._partitions.values()):
            config = partition.config
            if "compact" in config.cleanup_policy:
                yield CompactionTarget(
                    *partition.key,
                    min_lag_ms=config.min_compaction_lag_ms,
                    max_lag_ms=config.max_compaction_lag_ms,
                    dirty_ratio=config.min_cleanable_dirty_ratio,
                    delete_retention_ms=config.delete_retention_ms,
                )

    # -- timers ------------------------------------------------------------------------------

    async def _look_for_others(self) -> None:
        if self._image is not None and len(self._image.brokers) > 1:
            await self._look()

    async def _look(self) -> None:
        awaited = [
            partition
            for partition in self._awaited()
            if isinstance(partition, DisklessPartition) and partition.closed is None
        ]
        await self._try_watermarks(awaited[:AWAITED_MAX])

    async def _upkeep(self) -> None:
        self._serving.to_read().reader.upkeep()
        unknown = [partition for partition in self._partitions.values() if not partition.known]
        await self._try_watermarks(unknown[:AWAITED_MAX])

    async def _try_watermarks(self, partitions: Sequence[DisklessPartition]) -> None:
        if not partitions:
            return
        try:
            await self.look_up_watermarks(partitions)
        except PenstockError as error:
            logger.warning(
                "cannot read the watermarks of %d diskless partitions: %s", len(partitions), error
            )

    async def probe(self) -> None:
        """Check with one GET that the store is still the control plane's.

        Does nothing if no store is in use.

        Raises:
            StoreMismatch: the store was emptied or replaced.
            PenstockError: the store does not answer.
        """
        if self._serving.parts is not None:
            await self._serving.parts.guard.check()

    def samples(self) -> Iterator[Sample]:
        if self._serving.parts is not None:
            yield from self._serving.parts.samples()


def _nobody(partitions: Iterable[DisklessPartition]) -> None: ...
