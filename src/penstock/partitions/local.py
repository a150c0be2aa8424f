"""Partition whose records are in a log on this broker, and the group commit of its appends.

Appends of all requests that arrive in one turn of the event loop share one journal write and
its sync. `schedule` starts this commit at the end of the turn. All appends of one request share one
`LogStore.flush` callback. The number of requests of a turn decides which thread writes them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, ClassVar, Final

from penstock.base.errors import PenstockError
from penstock.records import OffsetOutOfRange
from penstock.records.appends import NO_APPEND, AppendResult, Done, IdReader, Opening
from penstock.records.extents import (
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
    Extent,
)
from penstock.storage.files.values import Later, OffsetAndTimestamp, Read

if TYPE_CHECKING:
    from penstock.storage.files.producers import OpenTransactions


# High watermark and last stable offset of a partition. No I/O.
#
# The high watermark is the end of committed records: the durable offset of the log if the partition
# has one replica, otherwise the offset that a quorum of replicas has. The last stable offset is the
# first offset of a transaction that is open or whose marker is not committed, or the high watermark
# if that is lower.
#
# Source: KIP-98 (the last stable offset); `ReplicaState` of Kafka's `Partition`.


class ReplicaState:
    """High watermark and last stable offset, up to which consumers read from a replica."""

    __slots__ = ("_start", "_transactions", "high_watermark", "last_stable_offset")

    def __init__(self, committed_offset: int, transactions: OpenTransactions) -> None:
        self._transactions = transactions
        self._start = 0
        self.high_watermark = self.last_stable_offset = committed_offset

    def committed_to(self, offset: int) -> bool:
        """Set the high watermark; return whether consumers may read more."""
        self.high_watermark = offset
        transactions = self._transactions
        if transactions.first_unstable_offset >= offset:  # nearly always
            self.last_stable_offset = offset
            return True
        transactions.committed_to(offset)
        stable = min(offset, transactions.first_unstable_offset)
        self.last_stable_offset = max(stable, min(self._start, offset))
        return True

    def holds(self, transactions: OpenTransactions, start_offset: int) -> None:
        """Set the log's transactions and start offset, then update the last stable offset.

        The last stable offset is not below the start of the log.
        """
        self._transactions, self._start = transactions, start_offset
        self.committed_to(self.high_watermark)


if TYPE_CHECKING:
    from penstock.partitions.port import LookUp
    from penstock.partitions.tiers.part import TieredPart
    from penstock.records.idempotence import ProducerState
    from penstock.records.transactions import AbortedTransaction, Guard, Marker
    from penstock.storage import Lease, LogStore, PartitionLog, StorageError

    Appends = list[tuple[Done, AppendResult]]
    Saving = asyncio.Future[StorageError | None]


class LocalPartition(ReplicaState):
    """Partition over a log on this broker, which leads it.

    The log notifies the partition of its durable offset. The partition determines which durable
    records consumers may read.
    """

    __slots__ = (
        "_commits", "_saving", "leader_epoch", "log", "log_start_offset", "tiers", "topic_id",
        "topic_partition",
    )  # fmt: skip

    append_takes: ClassVar[str] = "the sync"
    everywhere: ClassVar[bool] = False
    config = property(attrgetter("log.state.config"))
    log_end_offset = property(attrgetter("log.state.log_end_offset"))
    size_bytes = property(attrgetter("log.state.size_bytes"))
    segment_count = property(attrgetter("log.segment_count"))
    became_durable = ReplicaState.committed_to

    def __init__(self, log: PartitionLog, commits: GroupCommits) -> None:
        super().__init__(log.durable_offset, log.producer_states.transactions)
        self.log = log
        self.topic_partition = log.topic_partition
        self.topic_id = log.topic_id
        self._commits = commits
        self._saving: Saving | None = None
        """Future of the last deletion of records; done when the new start offset is on disk."""
        self.tiers: TieredPart | None = None
        """Archived part of the partition, if its topic is tiered."""
        self.log_moved()
        log.state.owner = self

    @property
    def look_up(self) -> LookUp | None:
        """Function that loads unknown offsets of the archive; None if none are unknown."""
        tiers = self.tiers
        return None if tiers is None or tiers.core.known else _look_up_tiers

    @property
    def leads(self) -> bool:
        return True

    @property
    def store_url(self) -> str:
        return "" if self.tiers is None else self.tiers.store_url

    def log_moved(self) -> None:
        """Update start offset, leader epoch and transactions after a change of the log."""
        log = self.log
        tiers = self.tiers
        self.log_start_offset = log.log_start_offset if tiers is None else tiers.start_offset
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
        opening: Opening = Opening.HERE,
        ids: IdReader | None = None,
    ) -> None:
        """Append as `Partition.append`; durable after the sync of this turn of the loop.

        Raises:
            PenstockError: see `PartitionLog.append`.
        """
        log = self.log
        result = log.append(
            batches, now_ms=now_ms, lease=lease, config=log.state.config, single=True, guard=guard,
            opening=opening, ids=ids,
        )  # fmt: skip
        commits = self._commits
        commits.appends.append((done, result))
        if not commits.scheduled:
            commits.schedule()

    def begin_verification(
        self, producer_id: int, epoch: int, sequence: int, *, now_ms: int
    ) -> Guard | None:
        self.log.load()
        states = self.log.producer_states
        return states.begin_verification(producer_id, epoch, sequence, now_ms)

    def write_marker(self, marker: Marker, *, now_ms: int, done: Done) -> None:
        """Write a marker as `Partition.write_marker`; durable after the sync of this turn.

        Raises:
            PenstockError: see `Transactions.append_marker`.
        """
        result = self.log.transactions.append_marker(marker, now_ms=now_ms)
        self._commits.appends.append((done, result))
        self._commits.schedule()

    def aborted(self, start: int, end: int) -> Sequence[AbortedTransaction]:
        if self.tiers is not None and start < self.log.log_start_offset:
            return self.tiers.aborted(start, end)
        return self.log.transactions.aborted(start, end)

    async def all_aborted(self, start: int, end: int) -> Sequence[AbortedTransaction]:
        return self.log.transactions.aborted(start, end)

    def fence(self, error: PenstockError) -> int:
        """Reject appends and deletions with `error` until `unfence`; return the leader epoch.

        A migration of the topic fences the partition while it copies the last records.
        """
        self.log.state.fence = error
        return max(self.log.leader_epoch, 0)

    def unfence(self) -> None:
        self.log.state.fence = None

    def when_committed(self, done: Done) -> None:
        """Call `done` once everything appended so far is committed, or with an error."""
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
    ) -> Read | Later:
        """Read as `Partition.read`.

        If the offset is between the high watermark and the end of the log, return no batches.
        """
        log = self.log
        if self.tiers is not None and offset < log.log_start_offset:
            return self.tiers.read(offset, max_bytes=max_bytes, at_least_one=at_least_one)
        if self.high_watermark < offset <= log.log_end_offset:
            return Read([], 0, offset)
        return log.read(
            offset, max_bytes=max_bytes, end_offset=end_offset, at_least_one=at_least_one
        )

    def position(
        self, spec: int, *, committed: bool
    ) -> OffsetAndTimestamp | Awaitable[OffsetAndTimestamp | None] | None:
        """Return the position as `Partition.position`, in the archive or in the log."""
        log, tiers = self.log, self.tiers
        end = self.last_stable_offset if committed else self.high_watermark
        if spec == LATEST:
            return OffsetAndTimestamp(end, -1, max(log.leader_epoch, self.leader_epoch))
        if spec in (EARLIEST, EARLIEST_LOCAL):
            return self._at(self.log_start_offset if spec == EARLIEST else log.log_start_offset)
        if spec in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
            return None if tiers is None else self._tiered(tiers, spec)
        newest = spec == MAX_TIMESTAMP
        found = log.offset_of_max_timestamp() if newest else log.offset_for_timestamp(spec)
        found = found if found is not None and found.offset < end else None
        if tiers is None or not tiers.alive or tiers.start_offset >= log.log_start_offset:
            return found
        return tiers.position(None if newest else spec, found)

    def _at(self, offset: int) -> OffsetAndTimestamp:
        epoch = self.epoch_at(offset)
        known = max(self.log.leader_epoch, self.leader_epoch)
        return OffsetAndTimestamp(offset, -1, epoch if epoch >= 0 else known)

    def _tiered(self, tiers: TieredPart, spec: int) -> OffsetAndTimestamp | None:
        if spec == LATEST_TIERED:
            return self._at(tiers.tiered_end - 1) if tiers.alive else None
        return self._at(max(tiers.tiered_end, self.log_start_offset))

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        if self.tiers is None or not self.tiers.alive:
            return self.log.end_offset_for_epoch(epoch)
        return self.tiers.epochs().end_offset_for(epoch, self.log.log_end_offset)

    def check_end(self) -> None:
        """Do nothing, because no other broker appends to the partition."""

    def epoch_at(self, offset: int) -> int:
        if self.tiers is not None and offset < self.log.log_start_offset:
            return self.tiers.epochs().epoch_at(offset)
        return self.log.latest_epoch_at(offset)

    async def extents(self, start: int, end: int, *, limit: int) -> list[Extent]:
        """Return extents in segment files or, below the start of the log, in archived objects.

        Returns none for the log of a compacted topic.

        Raises:
            CorruptLog: the log is damaged.
        """
        end = min(end, self.high_watermark)
        if self.tiers is not None and start < min(end, self.log.log_start_offset):
            return await self.tiers.extents(start, end, limit=limit)
        if "compact" in self.log.config.cleanup_policy:
            return []  # compaction may replace the files during the read
        return self.log.extents(start, end)

    async def delete_records(self, before_offset: int) -> int:
        if self.tiers is not None:
            before_offset = await self._delete_tiers(self.tiers, before_offset)
            if before_offset <= self.log.log_start_offset:
                return self.log_start_offset
        saving: Saving = asyncio.get_running_loop().create_future()
        self.log.delete_records(before_offset, saving.set_result)
        if not saving.done():
            self._saving = saving
        return self.log_start_offset

    async def _delete_tiers(self, tiers: TieredPart, before_offset: int) -> int:
        """Delete archived records below an offset, and return it.

        The control plane is updated before the log; otherwise a crash would restore the records.
        """
        end = self.log.durable_offset
        if self.log.state.fence is not None:
            raise self.log.state.fence
        if not -1 <= before_offset <= end:
            raise OffsetOutOfRange(self.topic_partition, before_offset, self.log_start_offset, end)
        before_offset = end if before_offset == -1 else before_offset
        await tiers.delete_records(before_offset, self.leader_epoch)
        return before_offset

    async def deleted(self, offset: int, *, seconds: float) -> None:
        """Wait until the log's new start is on disk; raises StorageError."""
        saving = self._saving
        if saving is not None and (error := await asyncio.shield(saving)) is not None:
            raise error

    async def producers(self) -> list[ProducerState]:
        return self.log.producers()


async def _look_up_tiers(partitions: Sequence[LocalPartition]) -> None:
    for partition in partitions:
        if partition.tiers is not None:
            await partition.tiers.look_up_unknown()


CROWDED_REQUESTS: Final = 3
"""Requests of a turn from which on it pays to join them."""
SAMPLED_REQUESTS: Final = 7
"""Number of requests of which one is counted; odd, so that it has every place in its turn."""


class GroupCommits:
    """Group commit of the appends of one event loop turn; belongs to the event loop."""

    __slots__ = (
        "_call_soon",
        "_store",
        "appends",
        "at_once",
        "before_commit",
        "crowded",
        "gathered",
        "repeats",
        "requests",
        "scheduled",
        "turn",
        "uncounted",
    )

    def __init__(self, store: LogStore) -> None:
        self._store = store
        self.at_once = self.repeats = store.policy == "os"
        """Whether appends need no group (`Committer.write_through`). Then, and while turns are
        crowded, requests that begin like earlier ones are not decoded (`repeats`)."""
        self.appends: Appends = []
        """Callbacks of the request's appends, with the results that they receive once durable.
        After adding one, the caller calls `schedule` unless `scheduled` is true."""
        self.scheduled = False
        self.before_commit: Callable[[], None] = _nothing
        """Function that appends the requests that wait for the end of the turn (`gathered`)."""
        self.gathered = False
        self.requests = 0
        """Number of requests of this turn that `flush_then` was called for."""
        self.turn = 0
        """Number of commits, which is the same for all requests of a turn."""
        self.uncounted = 0
        """Number of requests since the last one that was counted."""
        self.crowded = False
        """Whether the last turn with a commit had several such requests."""
        self._call_soon: Callable[[Callable[[], None]], object] | None = None
        store.before_failure(self.flush)

    @property
    def failed(self) -> StorageError | None:
        """Error that stops all commits, or None."""
        return self._store.failed

    def attach(self, call_soon: Callable[[Callable[[], None]], object]) -> None:
        """Set the event loop's `call_soon`; without it, `flush` commits every request."""
        self._call_soon = call_soon

    def append_each(
        self, partitions: Sequence[LocalPartition], batches: Sequence[memoryview], now_ms: int
    ) -> list[AppendResult | None]:
        """Append as `LogStore.append_each` to partitions of a topic, and commit at the end of this
        turn. The caller adds the results to `appends`."""
        logs = [partition.log for partition in partitions]
        config = partitions[0].config
        self.schedule()
        return self._store.append_each(logs, batches, config=config, now_ms=now_ms)

    def flush(self) -> None:
        """End a request: register one store callback for all of its appends."""
        appends = self.appends
        if appends:
            self.appends = []
            self._store.flush(partial(_complete, appends))
            if self._call_soon is None:
                self._store.commit_pending()

    def flush_then(
        self,
        on_durable: Callable[[StorageError | None], None],
        requests: int = 1,
        *,
        durable: bool = False,
    ) -> None:
        """Call `on_durable` at once if the appends are `durable`; otherwise as `LogStore.flush`
        does, and commit at the end of this turn."""
        self.count(requests)
        if durable:
            on_durable(None)
            return
        self._store.flush(on_durable, requests)
        if self._call_soon is None:
            self._store.commit_pending()

    def count(self, requests: int = 1) -> None:
        """Count requests of this turn."""
        self.requests += requests
        if not self.scheduled:
            self.schedule()

    def count_alone(self) -> bool:
        """Count a request that needs no commit; return whether its turn is counted.

        Counting takes a tenth of its time. So of requests that may be alone in their turns, one in
        `SAMPLED_REQUESTS` has the rest of its turn counted.
        """
        self.uncounted += 1
        counted = self.scheduled or self.crowded or self.uncounted >= SAMPLED_REQUESTS
        if counted:
            self.uncounted = 0
            self.count()
        return counted

    def schedule(self) -> None:
        if self._call_soon is not None and not self.scheduled:
            self.scheduled = True
            self._call_soon(self._commit)

    def _commit(self) -> None:
        if self.gathered:
            self.before_commit()
        self.turn += 1
        self.crowded, self.requests = self.requests >= CROWDED_REQUESTS, 0
        self.repeats = self.crowded or self.at_once
        self.scheduled = False
        self.flush()
        self._store.commit_pending()


def _complete(appends: Appends, error: StorageError | None) -> None:
    if error is None:
        for done, result in appends:
            done(result)
        return
    for done, _ in appends:
        done(error)


def _nothing() -> None:
    return
