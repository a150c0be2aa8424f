"""A partition whose records lie in a log of this broker, which leads it; and its group commit.

What all requests of one turn of the event loop append is synced together. Appends of one request
are one callback of the store (`flush`), because the store writes a lone request on the spot and
hands several to its thread; all requests of a turn are committed at its end (`schedule`), with one
journal write and one sync.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, ClassVar, Final

from penstock.partitions.errors import NotEnoughReplicas
from penstock.partitions.replica_state import ReplicaState
from penstock.records.appends import NO_APPEND
from penstock.records.positions import (
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
)
from penstock.storage.values import OffsetAndTimestamp, Read

if TYPE_CHECKING:
    from penstock.base.errors import PenstockError
    from penstock.records.appends import AppendResult, Done
    from penstock.records.extents import Extent
    from penstock.records.idempotence import ProducerState
    from penstock.records.transactions import AbortedTransaction, Guard, Marker
    from penstock.storage import Lease, LogStore, StorageError, TransactionalLog

    Appends = list[tuple[Done, AppendResult]]
    Saving = asyncio.Future[StorageError | None]

_ALL: Final = -1


class LocalPartition(ReplicaState):
    """A log and the commits that make it durable.

    It owns the log: the log tells it what is durable, it says what consumers may read.
    """

    __slots__ = (
        "_commits", "_saving", "leader_epoch", "log", "log_start_offset", "topic_id",
        "topic_partition",
    )  # fmt: skip

    append_takes: ClassVar[str] = "the sync"
    everywhere: ClassVar[bool] = False
    look_up: Final = None
    store_url: Final = ""

    config = property(attrgetter("log.config"))
    log_end_offset = property(attrgetter("log.log_end_offset"))
    size_bytes = property(attrgetter("log.size_bytes"))
    segment_count = property(attrgetter("log.segment_count"))
    became_durable = ReplicaState.committed_to

    def __init__(self, log: TransactionalLog, commits: GroupCommits) -> None:
        super().__init__(log.durable_offset, log.producer_states.transactions)
        self.log = log
        self.topic_partition = log.topic_partition
        self.topic_id = log.topic_id
        self._commits = commits
        self._saving: Saving | None = None
        """Of the last deletion: done when the log's start is on disk."""
        self.log_moved()
        log.owner = self

    def log_moved(self) -> None:
        """The log has another start, another leader epoch, or other producers."""
        log = self.log
        self.log_start_offset = log.log_start_offset
        self.leader_epoch = log.leader_epoch
        self.holds(log.producer_states.transactions, log.log_start_offset)

    def append(
        self,
        batches: memoryview,
        *,
        now_ms: int,
        acks: int,
        lease: Lease | None,
        done: Done,
        guard: Guard | None = None,
    ) -> None:
        """As `Partition.append`: they are durable after the sync of this turn of the loop.

        Raises:
            NotEnoughReplicas: fewer than `min.insync.replicas`, and `acks` asks for all.
            PenstockError: as `PartitionLog.append`.
        """
        log = self.log
        config = log.config
        if acks == _ALL and config.min_insync_replicas > 1:
            self.check_in_sync()
        result = log.append(
            batches, now_ms=now_ms, lease=lease, config=config, single=True, guard=guard
        )
        commits = self._commits
        commits.appends.append((done, result))
        if not commits.scheduled:
            commits.schedule()

    def begin_verification(
        self, producer_id: int, epoch: int, sequence: int, *, now_ms: int
    ) -> Guard | None:
        """As `Partition.begin_verification`; raises StorageError."""
        self.log.load()
        states = self.log.producer_states
        return states.begin_verification(producer_id, epoch, sequence, now_ms)

    def write_marker(self, marker: Marker, *, now_ms: int, done: Done) -> None:
        """As `Partition.write_marker`: it is durable after the sync of this turn of the loop.

        Raises:
            NotEnoughReplicas: fewer than `min.insync.replicas`.
            PenstockError: as `TransactionalLog.append_marker`.
        """
        self.check_in_sync()
        result = self.log.append_marker(marker, now_ms=now_ms)
        self._commits.appends.append((done, result))
        self._commits.schedule()

    def aborted(self, start: int, end: int) -> Sequence[AbortedTransaction]:
        """As `Partition.aborted`; raises CorruptLog."""
        return self.log.aborted(start, end)

    async def all_aborted(self, start: int, end: int) -> Sequence[AbortedTransaction]:
        """As `Partition.all_aborted`; raises CorruptLog."""
        return self.log.aborted(start, end)

    def check_in_sync(self) -> None:
        """Raise NotEnoughReplicas: there is one, and `min.insync.replicas` asks for more."""
        needed = self.log.config.min_insync_replicas
        if needed > 1:
            raise NotEnoughReplicas(
                f"{self.log.topic_partition} has 1 replica in sync, min.insync.replicas = {needed}"
            )

    def fence(self, error: PenstockError) -> int:
        """Refuse appends and deletions with an error until `unfence`; in which epoch."""
        self.log.fence = error
        return max(self.log.leader_epoch, 0)

    def unfence(self) -> None:
        """Take appends and deletions again."""
        self.log.fence = None

    def when_settled(self, done: Done) -> None:
        """Call `done` when all that was appended until now is committed, or with an error."""
        self._commits.appends.append((done, NO_APPEND))
        self._commits.schedule()

    def read(
        self,
        offset: int,
        *,
        max_bytes: int,
        end_offset: int,
        at_least_one: bool,
        instantly: bool = True,
    ) -> Read:
        """As `Partition.read`; what is appended and not durable yet reads as nothing."""
        log = self.log
        if self.high_watermark < offset <= log.log_end_offset:
            return Read([], 0, offset)
        return log.read(
            offset, max_bytes=max_bytes, end_offset=end_offset, at_least_one=at_least_one
        )

    def position(self, spec: int, *, committed: bool) -> OffsetAndTimestamp | None:
        """As `Partition.position`; nothing is tiered yet."""
        log = self.log
        end = self.last_stable_offset if committed else self.high_watermark
        if spec == LATEST:
            return OffsetAndTimestamp(end, -1, log.leader_epoch)
        if spec in (EARLIEST, EARLIEST_LOCAL):
            start = log.log_start_offset
            epoch = self.epoch_at(start)
            return OffsetAndTimestamp(start, -1, epoch if epoch >= 0 else log.leader_epoch)
        if spec in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
            return None
        newest = spec == MAX_TIMESTAMP
        found = log.offset_of_max_timestamp() if newest else log.offset_for_timestamp(spec)
        return found if found is not None and found.offset < end else None

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        return self.log.end_offset_for_epoch(epoch)

    def check_end(self) -> None:
        """Nobody else appends."""

    def epoch_at(self, offset: int) -> int:
        return self.log.latest_epoch_at(offset)

    async def extents(self, start: int, end: int, *, limit: int) -> list[Extent]:
        """As `Partition.extents`, in segment files; raises CorruptLog."""
        return self.log.extents(start, min(end, self.high_watermark))

    async def delete_records(self, before_offset: int) -> int:
        """As `Partition.delete_records`; raises OffsetOutOfRange."""
        saving: Saving = asyncio.get_running_loop().create_future()
        start = self.log.delete_records(before_offset, saving.set_result)
        if not saving.done():
            self._saving = saving
        return start

    async def deleted(self, offset: int) -> None:
        """As `Partition.deleted`: of this broker's own, the start is on disk.

        Raises:
            StorageError: it cannot be written.
        """
        saving = self._saving
        if saving is not None and (error := await asyncio.shield(saving)) is not None:
            raise error

    async def producers(self) -> list[ProducerState]:
        return self.log.producers()


class GroupCommits:
    """See the module's text. Belongs to the event loop."""

    __slots__ = ("_call_soon", "_store", "appends", "scheduled")

    def __init__(self, store: LogStore) -> None:
        self._store = store
        self.appends: Appends = []
        """What `done(result)`, or `done(error)`, is called of when it is durable; once something is
        put here, `schedule` is to be called, unless it is `scheduled`."""
        self.scheduled = False
        self._call_soon: Callable[[Callable[[], None]], object] | None = None

    @property
    def failed(self) -> StorageError | None:
        """Why nothing is committed any more, if it is so."""
        return self._store.failed

    def attach(self, call_soon: Callable[[Callable[[], None]], object]) -> None:
        """Name the loop whose turns count; without one, every request is committed by `flush`."""
        self._call_soon = call_soon

    def flush(self) -> None:
        """End a request: what is added after this belongs to another one."""
        appends = self.appends
        if appends:
            self.appends = []
            self._store.flush(partial(_tell, appends))
            if self._call_soon is None:
                self._store.commit_pending()

    def flush_then(self, on_durable: Callable[[StorageError | None], None]) -> None:
        """As `LogStore.flush`, at the end of this turn."""
        self._store.flush(on_durable)
        self.schedule()
        if self._call_soon is None:
            self._store.commit_pending()

    def schedule(self) -> None:
        """Have what is appended committed at the end of this turn."""
        if self._call_soon is not None and not self.scheduled:
            self.scheduled = True
            self._call_soon(self._commit)

    def _commit(self) -> None:
        self.scheduled = False
        self.flush()
        self._store.commit_pending()


def _tell(appends: Appends, error: StorageError | None) -> None:
    if error is None:
        for done, result in appends:
            done(result)
        return
    for done, _ in appends:
        done(error)
