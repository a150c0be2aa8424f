"""Log of one partition: offsets, segments, tail and producers behind append and read.

`append` assigns offsets and queues; the committer makes a group durable and raises the durable
offset; the segment writer writes the same bytes to files. Reads return durable batches; the log's
owner decides which of them consumers may read.

A log is opened lazily: before its first append or read, it only has the checkpoint's state, and
none of its files is touched.

Source: Kafka's `UnifiedLog`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from penstock.base.errors import PenstockError
from penstock.base.ids import TopicPartition
from penstock.base.settings import LONG_MAX
from penstock.base.system import Clock
from penstock.records import BatchHeader, OffsetOutOfRange, stamp
from penstock.records.appends import AppendResult, Opening, placed
from penstock.records.extents import Extent
from penstock.records.idempotence import ProducerBatch, ProducerState
from penstock.records.transactions import AbortedTransaction, Guard, decode_marker
from penstock.storage import lookups
from penstock.storage.appended import Appended, AppendQueue, Tail, TailCache
from penstock.storage.batch_validation import prepared, stamp_times
from penstock.storage.changes import Changes
from penstock.storage.config import LogConfig
from penstock.storage.counters import Counters
from penstock.storage.epochs import EpochHistory
from penstock.storage.errors import AppendBacklog, CorruptLog, StorageError
from penstock.storage.formats.checkpoint import RecoveryPoint, encode_recovery_point
from penstock.storage.formats.journal_entry import encode_key
from penstock.storage.formats.snapshot import encoded_snapshots
from penstock.storage.limits import COPIED_APPEND_BYTES_MAX
from penstock.storage.loading import load_log
from penstock.storage.names import directory_name
from penstock.storage.producers import ProducerStates, Undo
from penstock.storage.reading import Written, read_files, read_tail
from penstock.storage.replaying import LogReplay
from penstock.storage.rolling import should_roll
from penstock.storage.segment import Segment, segment_place
from penstock.storage.segment_files import SegmentFiles
from penstock.storage.settings import StorageSettings
from penstock.storage.transactions import aborted_flags, index_written
from penstock.storage.values import UNOWNED, Buffer, Lease, LogOwner, OffsetAndTimestamp, Read

_RELATIVE_OFFSET_MAX: Final = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreParts:
    """Objects shared by the logs of one store and their maintenance."""

    root: str
    settings: StorageSettings
    clock: Clock
    config_of: Callable[[str], LogConfig]
    segment_files: SegmentFiles
    queue: AppendQueue[PartitionLog]
    tails: TailCache[PartitionLog]
    changes: Changes[PartitionLog]
    counters: Counters


class PartitionLog:
    """Append-only log of one partition, made by `LogStore`; belongs to the owner's thread."""

    __slots__ = (
        "_growing", "_loaded", "_parts", "_queue", "_roll_due", "_save_recovery_points",
        "_write_segments", "closed", "committed_offset", "damage", "directory", "due_snapshots",
        "durable_offset", "end_before", "epochs", "epochs_dirty", "fence", "has_holes", "key",
        "leader_epoch", "log_end_offset", "log_start_offset", "owner", "producer_states",
        "recovery_point", "recovery_point_bytes", "replay", "segments", "tail", "tiered_offset",
        "topic_id", "topic_partition", "unflushed_records", "unindexed", "unwritten_bytes",
        "written_bytes_total",
    )  # fmt: skip

    def __init__(
        self,
        parts: StoreParts,
        topic_partition: TopicPartition,
        topic_id: UUID,
        recovery_point: RecoveryPoint,
        *,
        write_segments: Callable[[PartitionLog], None],
        save_recovery_points: Callable[..., None],
    ) -> None:
        """Create a log; `write_segments` writes its durable appends."""
        self._parts = parts
        self._queue = parts.queue
        self._write_segments = write_segments
        self._save_recovery_points = save_recovery_points
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.directory = os.path.join(parts.root, directory_name(topic_partition))
        self.key = encode_key(topic_id, topic_partition.topic, topic_partition.partition)
        self.leader_epoch = recovery_point.leader_epoch
        self.log_start_offset = recovery_point.log_start_offset
        self.log_end_offset = self.durable_offset = self.end_before = recovery_point.recovery_offset
        self.written_bytes_total = recovery_point.size_bytes
        self.segments: list[Segment] = []
        self.tail: Tail[PartitionLog] = Tail()
        self.epochs = EpochHistory()
        self.epochs_dirty = False
        self.producer_states = ProducerStates()
        self.due_snapshots: list[tuple[int, bytes, bytes]] = []
        self.unindexed: list[AbortedTransaction] = []
        """Aborted transactions whose markers are in no file yet."""
        self.has_holes = recovery_point.has_holes
        """Whether offsets may lack a batch, after compaction here or at the leader."""
        self.damage: CorruptLog | None = None
        self.closed: PenstockError | None = None
        self.fence: PenstockError | None = None
        """Error for appends and deletions, set by the owner while the log is read-only."""
        self.owner: LogOwner = UNOWNED
        """Owner that is notified first when the durable offset rises."""
        self.committed_offset, self.tiered_offset = LONG_MAX, 0
        """Offsets at and above which retention keeps segments, set by the owner of replicas or
        tiers."""
        self.unwritten_bytes = self.unflushed_records = 0
        self.replay: LogReplay | None = None
        """Journal entries of the log after a start, until it is loaded."""
        self._loaded = False
        self._growing: Segment | None = None
        self.set_recovery_point(recovery_point)

    def __repr__(self) -> str:
        offsets = f"[{self.log_start_offset}, {self.log_end_offset})"
        return f"<PartitionLog {self.topic_partition} {offsets}>"

    # -- interface for the broker ------------------------------------------------------------

    @property
    def config(self) -> LogConfig:
        return self._parts.config_of(self.topic_partition.topic)

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments, including bytes in memory."""
        if not self._loaded:
            return self.written_bytes_total
        return sum([segment.end_position for segment in self.segments])

    @property
    def segment_count(self) -> int:
        self.load()
        return len(self.segments)

    @property
    def loaded(self) -> bool:
        return self._loaded

    def append(
        self,
        batches: memoryview,
        *,
        now_ms: int,
        lease: Lease | None = None,
        config: LogConfig | None = None,
        internal: bool = False,
        single: bool = False,
        guard: Guard | None = None,
        opening: Opening = Opening.HERE,
    ) -> AppendResult:
        """Assign offsets to batches and queue them; durable once a later flush is.

        All or nothing. Offsets and epoch are stamped into `batches`, which must be writable. With a
        lease, its bytes are used until they are in the segment; without one, the tail cache keeps
        them. With a guard the batches belong to a transaction. For the other parameters see
        `prepared`.

        Raises:
            CorruptBatch, InvalidRecord, TransactionalBatch, UnsupportedCodec, RecordTooLarge,
            BatchesTooLarge, InvalidTimestamp: the batches cannot be stored.
            OutOfOrderSequence, InvalidProducerEpoch, InvalidTxnState: the producer's state rejects
            them.
            AppendBacklog: too many bytes wait for the journal.
            StorageError, CorruptLog: the log accepts no appends; NeedsOpening; the fence.
        """
        queue = self._queue
        if not self._loaded:
            self.load()
        if (
            self.closed is not None
            or self.fence is not None
            or self.damage is not None
            or queue.failed is not None
        ):
            self._refuse()
        waiting = queue.pending_bytes + queue.unwritten_bytes + len(batches)
        if waiting > queue.limit_bytes:
            raise self._backlog(waiting)
        if config is None:
            config = self.config
        transactional = guard is not None
        ready, headers = prepared(
            batches, config, now_ms, internal=internal, single=single,
            transactional=transactional, opening=opening,
        )  # fmt: skip
        if ready is not batches:
            batches, lease = ready, None
        for header in headers:
            if header.producer_id >= 0:
                original = self.producer_states.check_all(headers, guard)
                if original is not None:
                    self._parts.counters.duplicates += 1
                    return self._duplicate(original)
                break
        return self._accept(batches, headers, config, now_ms, lease)

    def _accept(
        self,
        batches: memoryview,
        headers: list[BatchHeader],
        config: LogConfig,
        now_ms: int,
        lease: Lease | None,
        stamped: bool = False,
    ) -> AppendResult:
        """Queue validated batches; `stamped` ones keep offsets, epoch and timestamps."""
        size_bytes = len(batches)
        base_offset = self.log_end_offset
        segment = self.segments[-1]
        last_base = headers[-1].base_offset if stamped else base_offset + len(headers)
        reach = last_base + headers[-1].last_offset_delta - segment.base_offset
        if reach > _RELATIVE_OFFSET_MAX or (
            segment.end_position
            and (
                self._roll_due
                or segment.end_position + size_bytes > config.segment_bytes
                or should_roll(segment, headers, config, self._parts.segment_files)
            )
        ):
            segment = self._roll(headers[0].base_offset if stamped else base_offset)
        append_time = config.message_timestamp_type != "CreateTime" and not stamped
        if append_time:
            headers = stamp_times(batches, headers, now_ms)
        next_offset, undo = self._stamp(batches, headers, now_ms, stamped)
        data: Buffer = batches
        if size_bytes <= COPIED_APPEND_BYTES_MAX:
            data, lease = bytes(batches), None
        elif lease is not None:
            lease.retain()
        if segment.first_timestamp < 0:
            segment.first_timestamp = headers[0].newest_timestamp
        item = Appended(
            self, segment, segment.end_position, base_offset, next_offset, size_bytes, headers,
            data, lease, undo, stamped,
        )  # fmt: skip
        segment.end_position += size_bytes
        self.log_end_offset = next_offset
        self.tail.push(item)
        self._parts.tails.add(item)
        self._queue.add(item)
        time_ms = now_ms if append_time else -1
        return placed((base_offset, time_ms, self.log_start_offset, False, None, None))

    def _stamp(
        self, batches: memoryview, headers: list[BatchHeader], now_ms: int, stamped: bool
    ) -> tuple[int, list[Undo] | None]:
        """Write offsets and epoch in place, record producers; return next offset and undos."""
        epoch = self.leader_epoch
        next_offset = self.log_end_offset
        offset = 0
        undo: list[Undo] | None = None
        for header in headers:
            if stamped:
                next_offset = header.base_offset
            else:
                stamp(batches, offset, next_offset, header.batch_length, epoch)
            if header.producer_id >= 0:
                undo = undo or []
                if header.base_sequence >= 0:
                    undo.append(self.producer_states.append(header, next_offset, now_ms))
                else:
                    marker = decode_marker(batches[offset:], header)
                    done, aborted = self.producer_states.decide(marker, next_offset, now_ms)
                    undo.append(done)
                    if aborted is not None:
                        self.unindexed.append(aborted)
            next_offset += header.last_offset_delta + 1
            offset += header.batch_length + 12
        return next_offset, undo

    def read(
        self,
        offset: int,
        *,
        max_bytes: int,
        end_offset: int,
        at_least_one: bool = True,
        appended: bool = False,
    ) -> Read:
        """Return whole batches below `end_offset`, from the one that holds `offset`.

        Returns up to `max_bytes`; with `at_least_one` the first batch even if it is larger. The
        result may be shorter than possible, and is empty at the end. The caller may keep the
        buffers. `appended` includes batches that are not durable yet.

        Raises:
            OffsetOutOfRange: `offset` is below the log start or above the readable end.
            CorruptLog: the stored batches at `offset` are damaged.
        """
        if not self._loaded:
            self.load()
        if self.closed is not None:
            raise self.closed
        limit = self.log_end_offset if appended else self.durable_offset
        end_offset = min(end_offset, limit)
        if not self.log_start_offset <= offset <= limit:
            raise OffsetOutOfRange(self.topic_partition, offset, self.log_start_offset, limit)
        if offset >= end_offset:
            return Read([], 0, offset)
        place = self.tail.from_offset(offset)
        if place is not None:
            self._parts.counters.tail_reads += 1
            return read_tail(self.tail, place, offset, max_bytes, end_offset, at_least_one)
        files = self._parts.segment_files
        return read_files(files, self._written(), offset, max_bytes, end_offset, at_least_one)

    def offset_for_timestamp(self, timestamp_ms: int) -> OffsetAndTimestamp | None:
        """Return the first record at or after a timestamp, or None."""
        self.write_segments()
        return lookups.first_at_or_after(self._parts.segment_files, self._written(), timestamp_ms)

    def offset_of_max_timestamp(self) -> OffsetAndTimestamp | None:
        """Return the first record with the highest timestamp; None for an empty log."""
        self.write_segments()
        return lookups.of_highest_timestamp(self._parts.segment_files, self._written())

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """Return the largest epoch not above `epoch` and its end offset; (-1, -1) if unknown."""
        self.load()
        return self.epochs.end_offset_for(epoch, self.log_end_offset)

    def latest_epoch_at(self, offset: int) -> int:
        self.load()
        return self.epochs.epoch_at(offset)

    def set_leader_epoch(self, epoch: int) -> None:
        self.load()
        if epoch <= self.leader_epoch and self.epochs.latest >= 0:
            return
        self.leader_epoch = epoch
        self.owner.log_moved()
        if self.epochs.assign(epoch, self.log_end_offset):
            self.epochs_dirty = True
            self._roll_when_due()
        self._parts.changes.of(self)

    def _roll_when_due(self) -> None:
        begins = self.epochs.latest_start >= self.log_end_offset
        self._roll_due = begins and self.segments[-1].end_position > 0

    def delete_records(
        self, before_offset: int, saved: Callable[[StorageError | None], None] | None = None
    ) -> int:
        """Move the log's start, for -1 to the durable offset; return the new start.

        The new start is on disk at return or, with `saved`, when that is called.

        Raises:
            OffsetOutOfRange: `before_offset` is beyond the durable offset.
            PenstockError: the fence, if set.
        """
        self.load()
        if self.fence is not None:
            raise self.fence
        if before_offset == -1:
            before_offset = self.durable_offset
        if not 0 <= before_offset <= self.durable_offset:
            raise OffsetOutOfRange(
                self.topic_partition, before_offset, self.log_start_offset, self.durable_offset
            )
        if before_offset > self.log_start_offset:
            self.move_start(before_offset)
            self._save_recovery_points(saved)
        elif saved is not None:
            saved(None)
        return self.log_start_offset

    def producers(self) -> list[ProducerState]:
        self.load()
        return self.producer_states.describe()

    def extents(self, start: int, end: int) -> list[Extent]:
        """Return file extents of the whole batches that hold [start, min(end, durable offset))."""
        self.write_segments()
        if self.damage is not None:
            raise self.damage
        end = min(end, self.durable_offset)
        return lookups.extents(self._parts.segment_files, self._written(), start, end)

    # -- interface for the store -------------------------------------------------------------

    def load(self) -> None:
        """Load the log from its files, unless it is loaded; see `loading`."""
        if self._loaded:
            return
        if self.closed is not None:
            raise self.closed
        loaded = load_log(
            self._parts.segment_files,
            self.directory,
            self.recovery_point,
            interval_bytes=self.config.index_interval_bytes,
            now_ms=self._parts.clock.now_ms(),
            replay=self.replay,
        )
        self.replay = None
        self.epochs_dirty = loaded.epochs_dirty
        self.segments = loaded.segments
        self.epochs = loaded.epochs
        self.producer_states, self.due_snapshots = loaded.producers, loaded.due_snapshots
        self.log_end_offset = self.durable_offset = loaded.end_offset
        self.log_start_offset = max(self.log_start_offset, loaded.start_offset)
        self.damage, self.end_before = loaded.damage, loaded.durable_offset
        self.has_holes = self.has_holes or loaded.has_holes
        self._growing = self.segments[-1]
        self._loaded = True
        self.leader_epoch = max(self.leader_epoch, self.epochs.latest)
        self.owner.became_durable(self.durable_offset)
        self.owner.log_moved()
        if loaded.damage is not None:
            self._parts.counters.corruptions += 1
        if self.leader_epoch >= 0 and self.epochs.assign(self.leader_epoch, self.log_end_offset):
            self.epochs_dirty = True
        self._roll_when_due()
        if loaded.changed or self.epochs_dirty:
            self._parts.changes.of(self).update(loaded.changed)
            self._parts.changes.directories.add(self.directory)

    def write_segments(self) -> None:
        self.load()
        if self.tail.written < len(self.tail):
            self._write_segments(self)

    def undo(self, item: Appended[PartitionLog]) -> None:
        """Take an append back; appends are taken back newest first."""
        self.tail.pop_newest()
        self.log_end_offset = item.base_offset
        item.segment.end_position = item.position
        for undo in reversed(item.undo or ()):
            self.producer_states.undo(undo)
        while len(self.segments) > 1 and self.segments[-1].base_offset > item.base_offset:
            self.segments.pop()
        self.due_snapshots = [due for due in self.due_snapshots if due[0] <= item.base_offset]
        self.unindexed = [txn for txn in self.unindexed if txn.last_offset < item.base_offset]
        if self.epochs.cut_end(item.base_offset + 1):
            self.epochs.assign(self.leader_epoch, item.base_offset)
            self._roll_when_due()
        self._parts.tails.drop(item)

    def note_written(self, items: list[Appended[PartitionLog]]) -> None:
        """Index the next unwritten appends, which are in their files now."""
        config = self.config
        interval_bytes = config.index_interval_bytes
        index_bytes_max = config.segment_index_bytes
        parts = self._parts
        changed = parts.changes.of(self)
        leased = written_bytes = 0
        for place, item in enumerate(items, 1):
            segment = item.segment
            if segment is not self._growing:
                self._finish(self._growing)
                self._growing = segment
            changed.add(segment)
            index = segment.index or parts.segment_files.index_of(segment, interval_bytes)
            full = len(index.offsets) + 8 > index_bytes_max
            base_offset = item.base_offset
            for header in item.headers:
                base_offset = header.base_offset if item.stamped else base_offset
                segment.add(header, base_offset, _RELATIVE_OFFSET_MAX if full else interval_bytes)
                base_offset += header.last_offset_delta + 1
            item.headers = []
            item.undo = None
            written_bytes += item.size_bytes
            if item.lease is not None:
                leased = place
        if self.unindexed:
            end, files = items[-1].next_offset, parts.segment_files
            self.unindexed = index_written(files, self.segments, self.unindexed, end)
        self.unwritten_bytes -= written_bytes
        self._queue.unwritten_bytes -= written_bytes
        parts.counters.written_bytes += written_bytes
        self._drop_leased(items, leased)

    def _drop_leased(self, items: list[Appended[PartitionLog]], leased: int) -> None:
        tail, tails = self.tail, self._parts.tails
        tail.written += len(items)
        if leased:
            last = items[leased - 1]
            while True:
                oldest = tail.pop_oldest()
                tails.drop(oldest)
                if oldest is last:
                    return

    def _finish(self, segment: Segment | None) -> None:
        if segment is not None:
            segment.close_index()
            self._parts.changes.of(self).add(segment)
            self._parts.segment_files.indexes.used(segment)

    @property
    def written_offset(self) -> int:
        unwritten = self.tail.unwritten()
        return unwritten[0].base_offset if unwritten else self.log_end_offset

    def current_recovery_point(self) -> RecoveryPoint:
        """Return the recovery point for a checkpoint that syncs the files now."""
        if not self._loaded or self.damage is not None:
            return self.recovery_point._replace(log_start_offset=self.log_start_offset)
        written = self.written_offset
        segment = self.segments[segment_place(self.segments, written)]
        return RecoveryPoint(
            self.log_start_offset,
            written,
            segment.base_offset,
            segment.written_bytes,
            sum([part.written_bytes for part in self.segments]),
            self.leader_epoch,
            self.producer_states.flags | aborted_flags(self.segments),
        )

    def set_recovery_point(self, recovery_point: RecoveryPoint) -> None:
        self.recovery_point = recovery_point
        self.recovery_point_bytes = encode_recovery_point(self.key, recovery_point)

    def when_written(self) -> tuple[int, ProducerStates, EpochHistory]:
        """Return the first offset that is not in a file, the producers at it, and the epochs."""
        undos = [undo for item in self.tail.unwritten() for undo in item.undo or ()]
        return self.written_offset, self.producer_states.before(undos), self.epochs

    def move_start(self, offset: int) -> None:
        self.log_start_offset = offset
        self.owner.log_moved()
        if self.epochs.cut_start(offset):
            self.epochs_dirty = True
        self.set_recovery_point(self.recovery_point._replace(log_start_offset=offset))
        self._parts.changes.of(self)

    def roll(self) -> None:
        self.load()
        if self.segments[-1].end_position:
            self._roll(self.log_end_offset)

    # -- details -----------------------------------------------------------------------------

    def _written(self) -> Written:
        bounds = self.log_start_offset, self.written_offset, self.config.index_interval_bytes
        return Written(self.segments, *bounds, self.damage, self.epochs, self.has_holes)

    def _roll(self, base_offset: int) -> Segment:
        self._roll_due = False
        active = self.segments[-1]
        if active.base_offset == base_offset:
            return active
        if len(self.producer_states):
            last, batches = self.producer_states.snapshot()
            self.due_snapshots.append(encoded_snapshots(base_offset, last, batches))
        segment = Segment(self.directory, base_offset)
        self.segments.append(segment)
        self._parts.counters.rolled_segments += 1
        return segment

    def _duplicate(self, original: ProducerBatch) -> AppendResult:
        append_time = self.config.message_timestamp_type != "CreateTime"
        time_ms = original.timestamp if append_time else -1
        return AppendResult(original.first_offset, time_ms, self.log_start_offset, duplicate=True)

    def _refuse(self) -> None:
        error = self.closed or self._queue.failed or self.fence
        if error is not None:
            raise error
        self.skip_lost_end()

    def skip_lost_end(self) -> None:
        """Continue behind a damaged end, if the log can; see `RepairableLog`."""

    def _backlog(self, waiting: int) -> PenstockError:
        if self._queue.write_error is not None:
            return self._queue.write_error
        return AppendBacklog(
            f"{waiting} bytes would wait for the journal or their segments, "
            f"pending.bytes.max = {self._queue.limit_bytes}"
        )
