"""Logs of replicated partitions: appends of a leader's batches, truncation, standings.

`append_replica` accepts batches as their leader stamped them; from there they are stored like any
append. If the leader's log was compacted, offsets may lack a batch here as well.

`truncate` queues a control in the journal. In memory the log is cut at once, so that appends
continue at the new end. Its files are cut when the journal has the control: not before, because a
crash must find everything that was durable, and before later appends overwrite the bytes. If the
control fails, the log is restored.

`start_at` restarts a log at an offset, like a cut of everything. The state of producers below the
offset comes from a replica (`producers_below`).

`promise` and `set_limbo` queue controls too. The checkpoint contains only their durable values: a
limbo that ended too early would hide a loss.

Source: `UnifiedLog.appendAsFollower`, `truncateTo` and `truncateFullyAndStartAt` of Kafka; KIP-101.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Final, NamedTuple

from penstock.base.errors import BugError
from penstock.base.ids import TopicPartition
from penstock.base.settings import INT_MAX
from penstock.records import HEADER_BYTES, BatchHeader, decode_header, empty_batch
from penstock.storage.appended import Control
from penstock.storage.batch_validation import stamped_runs
from penstock.storage.compaction.log import CompactedLog
from penstock.storage.config import LogConfig
from penstock.storage.cutting import clear_files, cut_files
from penstock.storage.epochs import EpochHistory
from penstock.storage.formats.checkpoint import HAS_HOLES, HAS_PRODUCERS, RecoveryPoint
from penstock.storage.formats.index import SparseIndex
from penstock.storage.formats.journal_entry import STARTS
from penstock.storage.formats.snapshot import BATCHES_VERSION, decode_snapshot, encode_snapshot
from penstock.storage.formats.transaction_index import TransactionIndex
from penstock.storage.gapped import shortened
from penstock.storage.limits import CARRIED_BATCHES_MAX
from penstock.storage.loading import producers_at
from penstock.storage.names import SEGMENT_SUFFIXES
from penstock.storage.producers import ProducerStates
from penstock.storage.reading import part_of
from penstock.storage.replaying import LogReplay
from penstock.storage.segment import Segment, segment_place
from penstock.storage.values import Lease, Standing

_WAITS_MAX: Final = 8
"""Maximum number of times that a truncation waits for running work; one, unless callbacks append.
"""


NOWHERE: Final = Segment("", -1)
"""Segment of control rows without batches."""


class Before(NamedTuple):
    """State of a log before a cut that its files do not have yet."""

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
    """Whether the log restarts, so that nothing is kept."""


class ReplicaLog(CompactedLog):
    """Log with the operations of a replica; the class of every log of a store."""

    __slots__ = ("_before", "_durable_standing", "_lower_clean_offset", "_wait_idle", "standing")

    def __init__(
        self,
        *arguments: Any,
        wait_idle: Callable[[], None],
        lower_clean_offset: Callable[[TopicPartition, int], None],
        **options: Any,
    ) -> None:
        """Create a log; `wait_idle` waits for running groups, checkpoints and swaps;
        `lower_clean_offset` informs compaction of a lower end offset."""
        super().__init__(*arguments, **options)
        self._wait_idle = wait_idle
        self._lower_clean_offset = lower_clean_offset
        self._before: Before | None = None
        self.standing = self._durable_standing = self.recovery_point.standing
        """Current standing; durable once a later flush is."""
        if self.promised >= 0:  # the owner does not have the committed offset yet
            self.committed_offset = 0

    def recovers(self, replay: LogReplay) -> None:
        """Take over the journal's state of the log; the files are replayed at load."""
        self.replay = replay
        self.leader_epoch = max(self.leader_epoch, replay.leader_epoch)
        self.written_bytes_total += replay.size_bytes
        if replay.end_offset is not None:
            self.log_end_offset = self.durable_offset = replay.end_offset

    def append_replica(
        self,
        batches: memoryview,
        *,
        now_ms: int,
        lease: Lease | None = None,
        epochs: Sequence[tuple[int, int]] = (),
    ) -> int:
        """Queue whole batches of a leader unchanged; durable once a later flush is.

        All or nothing. Offsets must rise from the log's end or above, and epochs must not fall; a
        new epoch begins a segment. The caller guarantees that the leader has no batches at skipped
        offsets. A batch without records that begins below the log's end is shortened. Returns the
        new end offset. `lease` is as for `append`; `now_ms` is the time at which producers were
        active. `epochs` lists the start offsets of epochs, which may be below the first remaining
        batch.

        Raises:
            CorruptBatch, InvalidRecord, BatchesTooLarge: the batches cannot be stored.
            ReplicaOverlap, ReplicaEpochFell: offsets or epochs do not follow the log.
            AppendBacklog: too many bytes wait for the journal.
            StorageError, CorruptLog: the log accepts no appends; or the fence.
        """
        self._check_policy()
        self._check_appendable()
        queue = self._queue
        waiting = queue.pending_bytes + queue.unwritten_bytes + len(batches)
        if waiting > queue.limit_bytes:
            raise self._backlog(waiting)
        end = self.log_end_offset
        if len(batches) >= HEADER_BYTES and int.from_bytes(batches[:8]) < end:
            batches, lease = shortened(batches, end), None
        newest = self.epochs.epoch_at(end - 1) if end else -1
        runs = stamped_runs(batches, self.topic_partition, end, newest)
        config = self.config
        position = 0
        for headers in runs:
            taken = sum([header.last_offset_delta for header in headers]) + len(headers)
            if taken != headers[-1].next_offset - self.log_end_offset:
                self.has_holes = True
                self._hold_begin(headers, config, epochs)
            self._begin_epoch(headers[0].partition_leader_epoch, headers[0].base_offset, epochs)
            size_bytes = sum([header.size_bytes for header in headers])
            data = batches[position : position + size_bytes]
            self._accept(data, headers, config, now_ms, lease, stamped=True)
            position += size_bytes
        return self.log_end_offset

    def _hold_begin(
        self, headers: list[BatchHeader], config: LogConfig, epochs: Sequence[tuple[int, int]]
    ) -> None:
        """Append a filler to an empty segment too far below the next batch, to record the start."""
        segment, end, first = self.segments[-1], self.log_end_offset, headers[0]
        if segment.end_position or first.base_offset == end:
            return
        if headers[-1].last_offset - segment.base_offset > INT_MAX:
            begun = [epoch for epoch, start in epochs if start <= end]
            epoch = max(begun, default=first.partition_leader_epoch)
            self._begin_epoch(epoch, end, epochs)
            filler = empty_batch(end, end + 1, epoch)
            header = decode_header(filler)
            self._accept(memoryview(filler), [header], config, -1, None, stamped=True)

    def _check_policy(self) -> None:
        if self._parts.settings.log_flush_policy != "group":
            raise BugError(
                f"{self.topic_partition} is used as a replica with log.flush.policy ="
                f" {self._parts.settings.log_flush_policy}: it would acknowledge before the sync"
            )

    def _begin_epoch(self, epoch: int, offset: int, begun: Sequence[tuple[int, int]]) -> None:
        """Begin the epoch of the next batches at an offset."""
        end = self.log_end_offset
        if epoch == self.leader_epoch and self.epochs.latest_start < end:
            return
        self.leader_epoch = epoch
        # An epoch that begins at the end has no record here: it was only opened.
        changed = self.epochs.cut_end(end)
        for older, start in (*begun, (epoch, offset)):
            if older <= epoch and self.epochs.assign(older, min(max(start, end), offset)):
                changed = True
        self._roll_when_due()
        self.epochs_dirty = self.epochs_dirty or changed
        self.owner.log_moved()
        self._parts.changes.of(self)

    # -- promise and limbo -------------------------------------------------------------------

    @property
    def promised(self) -> int:
        """Epoch below which the replica rejects requests, -1 for none."""
        return self.standing.promised

    @property
    def limbo(self) -> int:
        """Highest epoch of which the replica may lack acknowledged batches, -1 for none."""
        return self.standing.limbo

    @property
    def lost(self) -> str | None:
        """Reason why the replica may lack synced batches, or None; see `LogStore.lost`."""
        if self.damage is not None:
            return str(self.damage)
        return "synced batches may be lost" if self.standing.lost else None

    def note_loss(self) -> None:
        """Record a possible loss, durable once a later flush is; raises StorageError,
        LogDeleted."""
        self._keep(self.standing._replace(lost=True))

    def promise(self, epoch: int) -> None:
        """Reject lower epochs from now on; durable once a later flush is.

        Raises:
            BugError: a higher epoch was promised already.
            StorageError, LogDeleted: the log accepts no writes.
        """
        if epoch < self.promised:
            raise BugError(
                f"{self.topic_partition} has promised epoch {self.promised}, not {epoch}"
            )
        self._keep(self.standing._replace(promised=epoch))

    def set_limbo(self, epoch: int) -> None:
        """Set the limbo epoch, -1 for none, and clear the loss; durable once a later flush is.

        Raises:
            StorageError, LogDeleted: the log accepts no writes any more.
        """
        self._keep(self.standing._replace(limbo=epoch, lost=False))

    def _keep(self, standing: Standing) -> None:
        self._check_policy()
        error = self.closed or self._queue.failed
        if error is not None:
            raise error
        before, self.standing = self.standing, standing
        if standing == before:
            return
        self._queue.add_control(
            Control(
                self, NOWHERE, int(standing.lost), standing.promised, standing.limbo,
                perform=partial(self._keep_durably, standing),
                take_back=partial(setattr, self, "standing", before),
            )
        )  # fmt: skip

    def _keep_durably(self, standing: Standing) -> None:
        self._durable_standing = standing
        self._parts.changes.of(self)

    # -- truncation --------------------------------------------------------------------------

    def truncate(self, offset: int, *, floor: int) -> int:
        """Cut everything at and above `offset`; durable once a later flush is.

        A batch that holds `offset` is cut too. Returns the new end offset, which bounds the durable
        offset from now on. Running work of this log is awaited, so callbacks of `flush` may run;
        queued appends are taken back, and their callbacks run as usual. `floor` is the committed
        offset.

        Raises:
            BugError: the new end would be below the floor, or below the log's start.
            StorageError, CorruptLog: the log cannot be changed; and whatever the fence is.
        """
        self._check_policy()
        for _ in range(_WAITS_MAX):
            self._check_appendable()
            end = self.boundary(offset)
            if end < max(floor, self.log_start_offset):
                raise BugError(
                    f"{self.topic_partition} would be cut to offset {end}, below its committed"
                    f" offset {floor} or its start {self.log_start_offset}"
                )
            self._take_back(end)
            if self.log_end_offset <= end:
                return self.log_end_offset
            if self._is_idle():
                self._cut(end)
                return end
        raise BugError(f"{self.topic_partition} is cut while callbacks append to it")

    def start_at(self, offset: int, *, producers: bytes, floor: int) -> None:
        """Discard everything, and restart at `offset`; durable and bounded like a cut.

        `producers` is the result of `producers_below` of another replica.

        Raises:
            BugError: `offset` is below the floor, or below the log's start.
            CorruptFile: the producers are damaged.
            StorageError, CorruptLog: the log cannot be changed; and whatever the fence is.
        """
        states = ProducerStates()
        if producers:
            states.load(decode_snapshot(producers, BATCHES_VERSION))
        self._check_policy()
        for _ in range(_WAITS_MAX):
            self._check_appendable()
            if offset < max(floor, self.log_start_offset):
                raise BugError(
                    f"{self.topic_partition} would begin at offset {offset}, below its committed"
                    f" offset {floor} or its start {self.log_start_offset}"
                )
            self._take_back(-1)
            if self._is_idle():
                self._begin(offset, producers, states)
                return
        raise BugError(f"{self.topic_partition} restarts while callbacks append to it")

    def producers_below(self, offset: int) -> bytes:
        """Return the newest producers' batches below an offset, encoded as `.batches`, or b""."""
        self.load()
        _, batches = self.producer_states.snapshot()
        below = [
            batch
            if batch.current_txn_first_offset < offset
            else batch._replace(current_txn_first_offset=-1)
            for batch in batches
            if batch.last_offset < offset
        ]
        below.sort(key=attrgetter("timestamp"))
        return encode_snapshot(below[-CARRIED_BATCHES_MAX:], BATCHES_VERSION) if below else b""

    def _is_idle(self) -> bool:
        """Return whether all of the log is in its files; otherwise wait for running work."""
        if self.durable_offset == self.log_end_offset and self.may_swap:
            self.write_segments()
            return True
        self._wait_idle()
        return False

    @property
    def may_swap(self) -> bool:
        return super().may_swap and self._before is None

    def _take_back(self, end: int) -> None:
        waiting = [item for item in self._queue.pending if item.log is self]
        while waiting and self.log_end_offset > end:
            item = waiting.pop()
            if isinstance(item, Control):
                if item.segment is not NOWHERE:
                    self._queue.drop(item)
                    item.take_back()
                continue
            kept = bytes(item.data) if item.base_offset < end else b""
            self._queue.drop(item)
            self.undo(item)
            if kept:
                # Keep the batches below the end, as an append of their own.
                part, _ = part_of(kept, item.base_offset, len(kept), end, at_least_one=False)
                if part:
                    self.append_replica(part, now_ms=self._parts.clock.now_ms())

    def _cut(self, end: int) -> None:
        """Cut the log, which is completely in its files, in memory, and queue the control."""
        files, interval_bytes = self._parts.segment_files, self.config.index_interval_bytes
        place = segment_place(self.segments, end)
        old = self.segments[place]
        found = files.locate(old, end, interval_bytes) if end > old.base_offset else None
        position = 0
        if end > old.base_offset:
            position = old.written_bytes if found is None else found.position
        point = self.current_recovery_point().cut(end, old.base_offset, position)
        self._lower_clean_offset(self.topic_partition, end)
        before = self._remember(begins=False)
        segment = self._cut_segment(old, end, position)
        self.segments = [*self.segments[:place], segment]
        if len(self.producer_states):
            point = point._replace(flags=HAS_PRODUCERS)
            now_ms = self._parts.clock.now_ms()
            self.producer_states = producers_at(
                files, self.directory, point, self.segments, now_ms=now_ms
            )
        self.due_snapshots = [due for due in self.due_snapshots if due[0] <= end]
        self.epochs = EpochHistory(self.epochs.entries)
        self.epochs.cut_end(end)
        self._write_into(segment)
        self._end_at(end)
        self._queue.add_control(
            Control(
                self, segment, position, end, end,
                perform=partial(self._perform_cut, before, segment, end, position),
                take_back=self._take_back_cut,
            )
        )  # fmt: skip
        self.owner.log_moved()

    def _begin(self, offset: int, producers: bytes, states: ProducerStates) -> None:
        """Restart the log in memory, and queue the control."""
        self._lower_clean_offset(self.topic_partition, 0)
        before = self._remember(begins=True)
        segment = self._growing = Segment(self.directory, offset)
        self.segments = [segment]
        self.producer_states = states
        self.due_snapshots = []
        self.epochs = EpochHistory()
        self.log_start_offset = offset
        self._end_at(offset)
        self._queue.add_control(
            Control(
                self, segment, STARTS, offset, offset, data=producers,
                perform=partial(self._perform_start, before, segment, producers),
                take_back=self._take_back_start,
            )
        )  # fmt: skip
        self.owner.log_moved()

    def _remember(self, *, begins: bool) -> Before:
        self._before = Before(
            self.segments, self.epochs, self.producer_states, self.due_snapshots,
            self.log_start_offset, self.log_end_offset, self.leader_epoch, self._roll_due,
            self._growing, self.current_recovery_point(), begins,
        )  # fmt: skip
        return self._before

    def _end_at(self, end: int) -> None:
        """Set the log's end; segments and epochs already match it."""
        self.leader_epoch = self.epochs.latest
        self.log_end_offset = self.durable_offset = end
        self._roll_due = False
        while len(self.tail):
            self._parts.tails.drop(self.tail.pop_oldest())

    def _cut_segment(self, old: Segment, end: int, position: int) -> Segment:
        """Return the cut version of a segment; the old one stays unchanged."""
        segment = Segment(self.directory, old.base_offset, position)
        if position:
            files, interval_bytes = self._parts.segment_files, self.config.index_interval_bytes
            whole = files.index_of(old, interval_bytes)
            index = SparseIndex(old.base_offset, bytes(whole.offsets), bytes(whole.times))
            index.cut(end, position)
            files.resume_index(segment, index, interval_bytes, end=position)
            segment.saved_offsets = segment.saved_times = 0
            aborted = TransactionIndex(bytes(files.transactions_of(old).entries))
            aborted.cut(end)
            segment.transactions = aborted
            segment.saved_transactions = min(old.saved_transactions, len(aborted.entries))
        return segment

    def _write_into(self, segment: Segment) -> None:
        growing = self._growing
        if growing is not None and growing.base_offset < segment.base_offset:
            self._finish(growing)
        self._growing = segment

    def _perform_cut(self, before: Before, segment: Segment, end: int, position: int) -> None:
        base = segment.base_offset
        self._release([old for old in before.segments if old.base_offset >= base])
        parts = self._parts
        cut_files(
            parts.segment_files.files,
            self.directory,
            segment_base=segment.base_offset,
            position=position,
            end_offset=end,
            forget=parts.segment_files.descriptors.forget,
        )
        segment.saved_offsets = segment.saved_times = 0
        self._parts.changes.of(self).add(segment)
        self._changed_files(self.recovery_point.cut(end, segment.base_offset, position))

    def _perform_start(self, before: Before, segment: Segment, producers: bytes) -> None:
        self._release(before.segments)
        files, offset = self._parts.segment_files, segment.base_offset
        forget = files.descriptors.forget
        clear_files(files.files, self.directory, offset=offset, producers=producers, forget=forget)
        self._changed_files(self.recovery_point.begun(offset, producers=bool(producers)))

    def _release(self, segments: list[Segment]) -> None:
        """Close files of segments that are about to change or be removed."""
        self._wait_idle()
        parts = self._parts
        for segment in segments:
            parts.segment_files.indexes.forget(segment)
            for suffix in SEGMENT_SUFFIXES:
                parts.segment_files.descriptors.forget(segment.sibling(suffix))
        parts.changes.forget(self, segments)

    def _changed_files(self, point: RecoveryPoint) -> None:
        changes = self._parts.changes
        changes.of(self)
        changes.directories.add(self.directory)
        self.epochs_dirty = True
        self.set_recovery_point(point)
        self._before = None
        self.owner.became_durable(self.durable_offset)

    def _take_back_cut(self) -> None:
        before = self._before
        if before is None:
            raise BugError(f"{self.topic_partition} has no cut to take back")
        first = self.segments[0].base_offset  # retention may have removed older ones
        self.segments = [old for old in before.segments if old.base_offset >= first]
        self.epochs, self.producer_states = before.epochs, before.producers
        self.due_snapshots = before.due_snapshots
        self.log_end_offset = self.durable_offset = before.end_offset
        self._roll_due = before.roll_due
        self.leader_epoch = max(before.leader_epoch, self.leader_epoch)
        if self.epochs.assign(self.leader_epoch, self.log_end_offset):
            self._roll_when_due()
        self._growing = before.growing
        self._before = None
        self.owner.log_moved()

    def _take_back_start(self) -> None:
        if self._before is not None:
            self.segments = self._before.segments
            self.log_start_offset = self._before.start_offset
        self._take_back_cut()

    def current_recovery_point(self) -> RecoveryPoint:
        """Return the recovery point; before the files are cut, the previous one."""
        point = super().current_recovery_point()
        before = self._before
        if before is not None:
            start = before.start_offset if before.begins else self.log_start_offset
            point = before.recovery_point._replace(log_start_offset=start)
        if self.has_holes:
            point = point._replace(flags=point.flags | HAS_HOLES)
        return point.with_standing(self._durable_standing)

    def when_written(self) -> tuple[int, ProducerStates, EpochHistory]:
        before = self._before
        if before is not None:
            return before.end_offset, before.producers, before.epochs
        return super().when_written()
