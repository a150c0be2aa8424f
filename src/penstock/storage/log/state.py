"""State of one log that its parts share: segments, ends, epochs, tail and producers.

`accept` assigns offsets to an append and queues it. The committer makes it durable and raises the
durable offset. The segment writer writes the same bytes to the segment.

A log is loaded lazily: before its first append or read, it has only the checkpoint's state, and
none of its files is touched.

Source: Kafka's `LocalLog`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Final, NamedTuple
from uuid import UUID
from zlib import crc32

from msgspec import Struct

from penstock.base.errors import PenstockError
from penstock.base.ids import TopicPartition
from penstock.base.settings import LONG_MAX
from penstock.base.system import Clock
from penstock.records import BatchHeader, stamp
from penstock.records.appends import AppendResult, placed
from penstock.records.header import newest_timestamp
from penstock.records.transactions import AbortedTransaction, decode_marker
from penstock.storage.files.appended import Appended, AppendQueue, Tail, TailCache
from penstock.storage.files.checkpoint import HAS_HOLES, RecoveryPoint, encode_recovery_point
from penstock.storage.files.epochs import EpochHistory
from penstock.storage.files.errors import (
    COPIED_APPEND_BYTES_MAX,
    AppendBacklog,
    CorruptLog,
    StorageError,
)
from penstock.storage.files.index import OFFSET_ENTRY_BYTES
from penstock.storage.files.journal import encode_key
from penstock.storage.files.producers import ProducerStates, Undo, encoded_snapshots
from penstock.storage.files.segment import UNKNOWN, Segment, aborted_flags, segment_place
from penstock.storage.files.segment_files import SegmentFiles
from penstock.storage.files.settings import LogConfig, StorageSettings
from penstock.storage.files.values import UNOWNED, Buffer, Lease, LogOwner, directory_name
from penstock.storage.files.walk import RELATIVE_OFFSET_MAX
from penstock.storage.files.worker import Counters
from penstock.storage.log.loading import load_log
from penstock.storage.log.reading import Written
from penstock.storage.log.replaying import LogReplay
from penstock.storage.log.validation import stamp_times

# Decision of which segments retention removes: a pure core.
#
# For a tiered topic, `local.retention.ms` and `local.retention.bytes` replace the topic's
# retention, which applies to the archive; -2 means the same as the topic's. Local segments stay
# until they are archived. The owner of the log sets the offset up to which they are
# (`tiered_offset`).
#
# Source: Kafka's `LogSegment.shouldRoll`, `UnifiedLog.deleteOldSegments` and `deletableSegments`,
# and `LogConfig.localRetentionMs`; KIP-405.


AS_WHOLE: Final = -2
"""Value of a local retention setting that means the topic's retention."""


class Facts(NamedTuple):
    """Properties of a segment that determine whether retention removes it."""

    next_offset: int
    size_bytes: int
    newest: Callable[[], int]
    """Highest timestamp, read on demand; -1 for none."""


def jitter_ms(segment: Segment, config: LogConfig) -> int:
    """Return by how many milliseconds `segment.jitter.ms` reduces a segment's age limit."""
    if config.segment_jitter_ms == 0:
        return 0
    spread = min(config.segment_jitter_ms, config.segment_ms)
    return crc32(segment.path.encode()) % (spread + 1)


def segment_facts(
    segments: Sequence[Segment], end_offset: int, files: SegmentFiles, interval_bytes: int
) -> Iterator[Facts]:
    for place, segment in enumerate(segments):
        last = place + 1 == len(segments)
        after = end_offset if last else segments[place + 1].base_offset
        newest = partial(_newest, segment, files, interval_bytes, last=last)
        yield Facts(after, segment.end_position, newest)


def _newest(segment: Segment, files: SegmentFiles, interval_bytes: int, *, last: bool) -> int:
    if segment.end_position > segment.written_bytes:
        return LONG_MAX
    if segment.max_timestamp == UNKNOWN and last:
        files.index_of(segment, interval_bytes)
    return segment.max_timestamp if last else files.newest_timestamp(segment, interval_bytes)


def expired_count(
    segments: Iterable[Facts],
    *,
    size_bytes: int,
    config: LogConfig,
    now_ms: int,
    log_start_offset: int,
    committed_offset: int,
    most: int,
) -> int:
    """Return how many of the oldest segments retention removes, at most `most`.

    `size_bytes` is the size of all segments. A segment is removed when it is completely below the
    log's start, or is committed and too old or beyond the retained size. The first segment that
    stays ends the search, so that the log gets no gap. A segment without timestamps, as compaction
    may leave one, is removed only together with a later segment.
    """
    deletes = "delete" in config.cleanup_policy and not config.link_source
    retention_ms, surplus = config.retention_ms, size_bytes - config.retention_bytes
    count = 0
    for place, (next_offset, size, newest) in enumerate(islice(segments, most), 1):
        if next_offset > log_start_offset:
            if not deletes or next_offset > committed_offset:
                break
            too_much = config.retention_bytes >= 0 and surplus >= size > 0
            time = LONG_MAX if retention_ms < 0 or too_much else newest()
            if not too_much and time >= now_ms - retention_ms:
                break
            if time < 0:
                surplus -= size
                continue
        surplus -= size
        count = place
    return count


def kept_here(
    config: LogConfig, committed_offset: int, tiered_offset: int
) -> tuple[LogConfig, int]:
    """Return the configuration of local retention, and the offset below which it may remove
    segments."""
    if not config.remote_storage_enable:
        return config, committed_offset
    local_ms, local_bytes = config.local_retention_ms, config.local_retention_bytes
    kept = replace(
        config,
        retention_ms=config.retention_ms if local_ms == AS_WHOLE else local_ms,
        retention_bytes=config.retention_bytes if local_bytes == AS_WHOLE else local_bytes,
    )
    return kept, min(committed_offset, tiered_offset)


logger = logging.getLogger(__name__)


class Changes:
    """Changed segments by log, and directories with new files, for the next checkpoint to sync."""

    def __init__(self) -> None:
        self.logs: dict[LogState, set[Segment]] = {}
        self.directories: set[str] = set()

    def of(self, log: LogState) -> set[Segment]:
        """Mark a log as changed, and return the set of its changed segments."""
        return self.logs.setdefault(log, set())

    def take(self) -> Changes:
        taken = Changes()
        taken.logs, self.logs = self.logs, taken.logs
        taken.directories, self.directories = self.directories, taken.directories
        return taken

    def give_back(self, taken: Changes) -> None:
        for log, segments in taken.logs.items():
            self.of(log).update(segments)
        self.directories |= taken.directories

    def forget(self, log: LogState, segments: Iterable[Segment]) -> None:
        self.logs.get(log, set()).difference_update(segments)


class StoreParts(Struct, frozen=True, kw_only=True):
    """Objects shared by the logs of one store and their maintenance."""

    root: str
    settings: StorageSettings
    clock: Clock
    config_of: Callable[[str], LogConfig]
    segment_files: SegmentFiles
    queue: AppendQueue[LogState]
    tails: TailCache[LogState]
    changes: Changes
    counters: Counters


class StoreCalls(NamedTuple):
    """Operations of the store that its logs call."""

    write_segments: Callable[[LogState], None]
    """Writes a log's durable appends before returning; raises StorageError."""
    save_recovery_points: Callable[[Callable[[StorageError | None], None] | None], None]
    """Writes the recovery points before returning or, with a callback, before calling that."""
    wait_idle: Callable[[], None]
    """Waits for running groups, checkpoints and swaps."""
    lower_clean_offset: Callable[[TopicPartition, int], None]
    """Lowers the clean offset of a log before its truncation."""
    write_through: Callable[
        [LogState, memoryview, list[BatchHeader], LogConfig, int, Lease | None, bool],
        AppendResult | None,
    ]
    """Writes an append at once (`Committer.write_through`)."""


class Before(NamedTuple):
    """State of a log before a truncation that is done in memory, but not yet in the log's files.

    It is restored if the truncation cannot be written to the journal. Until the files are
    truncated, checkpoints save it.
    """

    segments: list[Segment]
    epochs: EpochHistory
    producers: ProducerStates
    due_snapshots: list[tuple[int, bytes, bytes]]
    start_offset: int
    end_offset: int
    leader_epoch: int
    roll_due: bool
    growing: Segment | None
    recovery_point: RecoveryPoint
    begins: bool
    """Whether the truncation discards the whole log, which restarts at another offset."""


class LogState:
    """State of one log, and the steps that keep it consistent.

    Used on the event loop's thread.
    """

    __slots__ = (
        "appended_config", "before", "calls", "closed", "committed_offset", "damage", "directory",
        "due_snapshots", "durable_offset", "durable_standing", "end_before", "epochs",
        "epochs_dirty", "fence", "growing", "has_holes", "key", "leader_epoch", "loaded",
        "log_end_offset", "log_start_offset", "owner", "parts", "producer_states", "queue",
        "recovery_point", "recovery_point_bytes", "replay", "roll_due", "segments", "swapping",
        "tail", "tiered_offset", "topic_id", "topic_partition", "unflushed_records", "unindexed",
        "unwritten_bytes", "written_bytes_total",
    )  # fmt: skip

    def __init__(
        self,
        parts: StoreParts,
        calls: StoreCalls,
        topic_partition: TopicPartition,
        topic_id: UUID,
        recovery_point: RecoveryPoint,
    ) -> None:
        self.parts = parts
        self.calls = calls
        self.queue = parts.queue
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.directory = os.path.join(parts.root, directory_name(topic_partition))
        self.key = encode_key(topic_id, topic_partition.topic, topic_partition.partition)
        self.leader_epoch = recovery_point.leader_epoch
        self.log_start_offset = recovery_point.log_start_offset
        self.log_end_offset = self.durable_offset = self.end_before = recovery_point.recovery_offset
        self.written_bytes_total = recovery_point.size_bytes
        self.segments: list[Segment] = []
        self.tail: Tail[LogState] = Tail(self)
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
        """Partition of the log, which is notified first when the durable offset rises."""
        self.committed_offset, self.tiered_offset = LONG_MAX, 0
        """Offsets at and above which retention keeps segments, set by the owner of replicas or
        tiers."""
        self.unwritten_bytes = self.unflushed_records = 0
        self.appended_config: LogConfig | None = None
        """Configuration of the last append, because a look-up takes a microsecond."""
        self.replay: LogReplay | None = None
        """Journal rows to replay when the log is loaded; None afterwards."""
        self.loaded = False
        self.before: Before | None = None
        """State before the last truncation; None once the files are truncated."""
        self.durable_standing = recovery_point.standing
        self.swapping = False
        """Whether compaction replaces segments, so that nothing else may change the files."""
        self.growing: Segment | None = None
        self.set_recovery_point(recovery_point)

    @property
    def config(self) -> LogConfig:
        return self.parts.config_of(self.topic_partition.topic)

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments, including bytes in memory."""
        if not self.loaded:
            return self.written_bytes_total
        return sum([segment.end_position for segment in self.segments])

    # -- appends ---------------------------------------------------------------------------------

    def refuse(self) -> None:
        """Raise the error that makes the log reject appends.

        Without such an error the reason is that the log's end is lost: then continue at the former
        end offset (`skip_lost_end`), and return.
        """
        error = self.closed or self.queue.failed or self.fence
        if error is not None:
            raise error
        self.skip_lost_end()

    def check_appendable(self) -> None:
        self.load()
        error = self.closed or self.fence or self.queue.failed
        if error is None and self.damage is not None:
            error = StorageError(f"{self.topic_partition} accepts no appends: {self.damage}")
        if error is not None:
            raise error

    def backlog(self, waiting: int) -> PenstockError:
        if self.queue.write_error is not None:
            return self.queue.write_error
        return AppendBacklog(
            f"{waiting} bytes would wait for the journal or their segments, more than"
            f" pending.bytes.max = {self.queue.limit_bytes}"
        )

    def accept(
        self,
        batches: memoryview,
        headers: list[BatchHeader],
        config: LogConfig,
        now_ms: int,
        lease: Lease | None,
        stamped: bool = False,
    ) -> AppendResult:
        """Queue validated batches; if they are `stamped`, keep offsets, epoch and timestamps."""
        size_bytes = len(batches)
        base_offset = self.log_end_offset
        segment = self.segments[-1]
        if self._needs_segment(segment, headers, size_bytes, config, stamped):
            segment = self.begin_segment(headers[0].base_offset if stamped else base_offset)
        append_time = config.message_timestamp_type != "CreateTime" and not stamped
        if append_time:
            headers = stamp_times(batches, headers, now_ms)
        next_offset, undo = self.stamp_batches(batches, headers, now_ms, stamped)
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
        self.appended_config = config
        tail = self.tail
        tail.items.append(item)
        tail.bases.append(base_offset)
        self.parts.tails.add(item)
        self.queue.add(item)
        time_ms = now_ms if append_time else -1
        return placed((base_offset, time_ms, self.log_start_offset, False, None, None))

    def _needs_segment(
        self,
        segment: Segment,
        headers: list[BatchHeader],
        size_bytes: int,
        config: LogConfig,
        stamped: bool,
    ) -> bool:
        """Return whether a new segment must begin before these batches are appended.

        As in Kafka, a segment's age is measured by the records' timestamps, not by the clock, so
        that a replay of old records makes the same segments as the original.
        """
        last, index, end = headers[-1], segment.index, segment.end_position
        last_base = last.base_offset if stamped else self.log_end_offset + len(headers)
        if last_base + last.last_offset_delta - segment.base_offset > RELATIVE_OFFSET_MAX:
            return True
        if not end:
            return False
        if (
            self.roll_due
            or end + size_bytes > config.segment_bytes
            or (
                index is not None
                and len(index.offsets) + OFFSET_ENTRY_BYTES > config.segment_index_bytes
            )
        ):
            return True
        first = segment.first_timestamp
        if first == UNKNOWN:
            first = self.parts.segment_files.first_timestamp(segment)
        age_ms, limit_ms = last.max_timestamp - first, config.segment_ms
        if first < 0 or age_ms <= limit_ms - config.segment_jitter_ms:
            return False
        return age_ms > limit_ms - jitter_ms(segment, config)

    def stamp_batches(
        self, batches: memoryview, headers: list[BatchHeader], now_ms: int, stamped: bool
    ) -> tuple[int, list[Undo] | None]:
        """Write offsets and leader epoch into the batches, and record their producers.

        Return the next offset, and the `Undo`s of the producer states or None.
        """
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

    def may_write_through(
        self, headers: list[BatchHeader], size_bytes: int, config: LogConfig, stamped: bool
    ) -> bool:
        """Return whether a write to the segment completes an append of these batches.

        It does not if earlier batches are unwritten, a segment must begin, or the topic demands
        syncs or append times.
        """
        segment = self.segments[-1]
        return (
            segment is self.growing
            and segment.index is not None
            and 0 < segment.end_position == segment.written_bytes
            and config.flush_messages == config.flush_ms == LONG_MAX
            and config.message_timestamp_type == "CreateTime"
            and not self._needs_segment(segment, headers, size_bytes, config, stamped)
        )

    def wrote_through(
        self, item: Appended[LogState], headers: list[BatchHeader], config: LogConfig, *, kept: bool
    ) -> None:
        """Record an append that is in its segment; if it is `kept`, add it to the tail."""
        segment, tail, tails = item.segment, self.tail, self.parts.tails
        segment.end_position += item.size_bytes
        base_offset = None if item.stamped else item.base_offset
        segment.add_batches(headers, config.index_interval_bytes, base_offset)
        self.appended_config = config
        self.log_end_offset = self.durable_offset = item.next_offset
        self.parts.changes.of(self).add(segment)
        self.parts.counters.written_bytes += item.size_bytes
        if not kept:
            while len(tail):
                tails.drop(tail.pop_oldest())
            return
        tail.items.append(item)
        tail.bases.append(item.base_offset)
        tail.written += 1
        tails.add(item)
        if tails.crowded:
            tails.shrink()

    def undo(self, item: Appended[LogState]) -> None:
        """Undo an append that did not become durable; appends are undone newest first."""
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
            self.roll_when_due()
        self.parts.tails.drop(item)

    # -- load and write --------------------------------------------------------------------------

    def load(self) -> None:
        """Load the log from its files, unless it is loaded; see `loading`."""
        if self.loaded:
            return
        if self.closed is not None:
            raise self.closed
        loaded = load_log(
            self.parts.segment_files,
            self.directory,
            self.recovery_point,
            interval_bytes=self.config.index_interval_bytes,
            now_ms=self.parts.clock.now_ms(),
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
        self.growing = self.segments[-1]
        self.loaded = True
        self.leader_epoch = max(self.leader_epoch, self.epochs.latest)
        self.owner.became_durable(self.durable_offset)
        self.owner.log_moved()
        if loaded.damage is not None:
            self.parts.counters.corruptions += 1
        if self.leader_epoch >= 0 and self.epochs.assign(self.leader_epoch, self.log_end_offset):
            self.epochs_dirty = True
        self.roll_when_due()
        if loaded.changed or self.epochs_dirty:
            self.parts.changes.of(self).update(loaded.changed)
            self.parts.changes.directories.add(self.directory)

    def recovers(self, replay: LogReplay) -> None:
        """Set the journal rows that `load` will replay; use the end offset that they state until
        then."""
        self.replay = replay
        self.leader_epoch = max(self.leader_epoch, replay.leader_epoch)
        self.written_bytes_total += replay.size_bytes
        if replay.end_offset is not None:
            self.log_end_offset = self.durable_offset = replay.end_offset

    def write_segments(self) -> None:
        self.load()
        if self.tail.written < len(self.tail):
            self.calls.write_segments(self)

    @property
    def written_offset(self) -> int:
        first = self.tail.first_unwritten_offset
        return self.log_end_offset if first is None else first

    def written(self) -> Written:
        bounds = self.log_start_offset, self.written_offset, self.config.index_interval_bytes
        return Written(self.segments, *bounds, self.damage, self.epochs, self.has_holes)

    def batch_at(self, offset: int) -> tuple[int, BatchHeader | None]:
        """Return base offset and header of the batch that holds `offset`.

        If no batch holds it, return those of the next batch in the same append or segment, or
        (-1, None) without one. The base offset in the header itself may be unset.
        """
        place = self.tail.from_offset(offset)
        item = None if place is None else self.tail.at(place)
        if item is not None and item.headers:
            base_offset = item.base_offset
            for header in item.headers:
                base_offset = header.base_offset if item.stamped else base_offset
                next_offset = base_offset + header.last_offset_delta + 1
                if offset < next_offset:
                    return base_offset, header
                base_offset = next_offset
        segment = self.segments[segment_place(self.segments, offset)]
        interval_bytes = self.config.index_interval_bytes
        found = self.parts.segment_files.locate(segment, offset, interval_bytes)
        return (-1, None) if found is None else (found.header.base_offset, found.header)

    def note_written(self, items: list[Appended[LogState]]) -> None:
        """Record that these appends, the oldest unwritten ones, are in segments; index them."""
        config = self.appended_config or self.config
        interval_bytes = config.index_interval_bytes
        index_bytes_max = config.segment_index_bytes
        parts = self.parts
        changed = parts.changes.of(self)
        leased = written_bytes = 0
        indexed = None
        for place, item in enumerate(items, 1):
            segment = item.segment
            if segment is not indexed:
                if segment is not self.growing:
                    self.finish(self.growing)
                    self.growing = segment
                changed.add(segment)
                index = segment.index or parts.segment_files.index_of(segment, interval_bytes)
                indexed = segment
            full = len(index.offsets) + OFFSET_ENTRY_BYTES > index_bytes_max
            apart_bytes = RELATIVE_OFFSET_MAX if full else interval_bytes
            size_bytes = item.size_bytes
            written_bytes += size_bytes
            if item.wide is not None:
                item.wide.unwritten -= 1
                newest = newest_timestamp(item.data)
                segment.add(item.next_offset - 1, newest, size_bytes, apart_bytes)
                continue
            base_offset = None if item.stamped else item.base_offset
            segment.add_batches(item.headers, apart_bytes, base_offset)
            item.known_headers = []
            item.undo = None
            if item.lease is not None:
                leased = place
        if self.unindexed:
            self._index_aborted(items[-1].next_offset)
        self.unwritten_bytes -= written_bytes
        self.queue.unwritten_bytes -= written_bytes
        parts.counters.written_bytes += written_bytes
        self.tail.written += len(items)
        if leased:
            self._drop_leased(items[leased - 1])

    def _index_aborted(self, written_offset: int) -> None:
        """Index the aborted transactions with markers below `written_offset`; raises CorruptLog."""
        for place, transaction in enumerate(self.unindexed):
            if transaction.last_offset >= written_offset:
                self.unindexed = self.unindexed[place:]
                return
            segment = self.segments[segment_place(self.segments, transaction.last_offset)]
            self.parts.segment_files.transactions_of(segment).add(transaction)
        self.unindexed = []

    def _drop_leased(self, last: Appended[LogState]) -> None:
        oldest = None
        while oldest is not last:
            oldest = self.tail.pop_oldest()
            self.parts.tails.drop(oldest)

    def finish(self, segment: Segment | None) -> None:
        if segment is not None:
            segment.close_index()
            self.parts.changes.of(self).add(segment)
            self.parts.segment_files.indexes.used(segment)

    # -- segments and ends -----------------------------------------------------------------------

    def roll(self) -> None:
        self.load()
        if self.segments[-1].end_position:
            self.begin_segment(self.log_end_offset)

    def begin_segment(self, base_offset: int) -> Segment:
        self.roll_due = False
        active = self.segments[-1]
        if active.base_offset == base_offset:
            return active
        if len(self.producer_states):
            last, batches = self.producer_states.snapshot()
            self.due_snapshots.append(encoded_snapshots(base_offset, last, batches))
        segment = Segment(self.directory, base_offset)
        self.segments.append(segment)
        self.parts.counters.rolled_segments += 1
        return segment

    def roll_when_due(self) -> None:
        begins = self.epochs.latest_start >= self.log_end_offset
        self.roll_due = begins and self.segments[-1].end_position > 0

    def move_start(self, offset: int) -> None:
        self.log_start_offset = offset
        self.owner.log_moved()
        if self.epochs.cut_start(offset):
            self.epochs_dirty = True
        self.set_recovery_point(self.recovery_point._replace(log_start_offset=offset))
        self.parts.changes.of(self)

    def end_at(self, end: int) -> None:
        """Set the log end offset, to which segments and epochs are truncated; empty the tail."""
        self.leader_epoch = self.epochs.latest
        self.log_end_offset = self.durable_offset = end
        self.roll_due = False
        while self.tail.first_offset is not None:
            self.parts.tails.drop(self.tail.pop_oldest())

    def skip_lost_end(self) -> None:
        """Continue a log whose end is lost at its former end offset."""
        damage, self.damage = self.damage, None
        end = max(self.log_end_offset, self.end_before)  # of checkpoint and journal
        logger.error(
            "%s: continuing at offset %d after lost records: %s", self.topic_partition, end, damage
        )  # fmt: skip
        if self.segments[-1].base_offset < end:
            self.segments.append(Segment(self.directory, end))
        self.end_at(end)

    @property
    def may_swap(self) -> bool:
        """Whether neither a swap nor a truncation is about to change the log's files."""
        return not self.swapping and self.before is None

    # -- checkpoints -----------------------------------------------------------------------------

    def set_recovery_point(self, recovery_point: RecoveryPoint) -> None:
        self.recovery_point = recovery_point
        self.recovery_point_bytes = encode_recovery_point(self.key, recovery_point)

    def current_recovery_point(self) -> RecoveryPoint:
        """Return the recovery point for a checkpoint that syncs the files now.

        After a truncation that the files do not have yet, return the point before the truncation.
        """
        point, before = self._written_point(), self.before
        if before is not None:
            start = before.start_offset if before.begins else self.log_start_offset
            point = before.recovery_point._replace(log_start_offset=start)
        if self.has_holes:
            point = point._replace(flags=point.flags | HAS_HOLES)
        return point.with_standing(self.durable_standing)

    def _written_point(self) -> RecoveryPoint:
        if not self.loaded or self.damage is not None:
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

    def when_written(self) -> tuple[int, ProducerStates, EpochHistory]:
        """Return the state that the segment files have, for snapshots of a checkpoint.

        It consists of the end offset of the files, the producer states at it, and the epochs.
        """
        before = self.before
        if before is not None:
            return before.end_offset, before.producers, before.epochs
        undos = [undo for item in self.tail.unwritten() for undo in item.undo or ()]
        return self.written_offset, self.producer_states.before(undos), self.epochs
