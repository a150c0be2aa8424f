"""Log of a replicated partition: appends of a leader's batches, truncation, promise and limbo.

`append` accepts batches as their leader stamped them, and then stores them like any append. If the
leader's log was compacted, offsets may lack a batch here as well.

`truncate` queues a control row for the journal (`Control`). In memory the log is truncated at once,
so that appends continue at the new end. The files are truncated once the row is durable: until
then, recovery after a crash must find everything that was durable. Later appends are written to the
files only afterwards. If the row cannot be written, the log is restored in memory.

`start_at` discards the whole log in the same way, and restarts it at an offset. The producer state
below the offset comes from another replica (`producers_below`).

`promise` and `set_limbo` queue control rows too. A checkpoint contains only their durable values,
because a limbo that ended too early would hide a loss.

Source: `UnifiedLog.appendAsFollower`, `truncateTo` and `truncateFullyAndStartAt` of Kafka; KIP-101.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from operator import attrgetter
from typing import Final

from penstock.base.errors import BugError
from penstock.base.settings import INT_MAX
from penstock.records import HEADER_BYTES, BatchHeader, decode_header, empty_batch
from penstock.storage.files.appended import Control
from penstock.storage.files.checkpoint import HAS_PRODUCERS, RecoveryPoint
from penstock.storage.files.epochs import EpochHistory
from penstock.storage.files.errors import CARRIED_BATCHES_MAX
from penstock.storage.files.index import SparseIndex
from penstock.storage.files.journal import STARTS
from penstock.storage.files.producers import (
    BATCHES_VERSION,
    ProducerStates,
    decode_snapshot,
    encode_snapshot,
)
from penstock.storage.files.segment import Segment, segment_place
from penstock.storage.files.settings import LogConfig
from penstock.storage.files.transaction_index import TransactionIndex
from penstock.storage.files.values import Lease, Standing
from penstock.storage.log.loading import producers_at
from penstock.storage.log.reading import part_of
from penstock.storage.log.replaying import clear_files, cut_files
from penstock.storage.log.state import Before, LogState
from penstock.storage.log.validation import stamped_runs

_WAITS_MAX: Final = 8
"""Maximum number of times that a truncation waits for running work. It waits more than once only
if callbacks append."""


NOWHERE: Final = Segment("", -1)
"""Segment of journal rows that concern no segment, such as promises."""


class LogReplica:
    """Operations of a log that only replicated partitions use."""

    __slots__ = ("_state", "standing")

    def __init__(self, state: LogState) -> None:
        self._state = state
        self.standing = state.durable_standing
        """Current promise, limbo and loss; durable once a later flush completes."""
        if self.promised >= 0:  # the owner does not have the committed offset yet
            state.committed_offset = 0

    def append(
        self,
        batches: memoryview,
        *,
        now_ms: int,
        lease: Lease | None = None,
        epochs: Sequence[tuple[int, int]] = (),
    ) -> int:
        """Queue complete batches of a leader unchanged; durable once a later flush completes.

        Either all batches are queued or none. Returns the new end offset. Offsets must rise from
        the log's end on, and epochs must not fall; a new epoch begins a segment. The caller
        guarantees that the leader has no batches at skipped offsets. If the first batch begins
        below the log's end and has no records, it is shortened.

        `lease` is as for `PartitionLog.append`. `now_ms` is recorded as the time of the producers'
        last activity. `epochs` has the leader's epochs and start offsets; an epoch may begin below
        its first remaining batch.

        Raises:
            CorruptBatch, InvalidRecord, BatchesTooLarge: the batches cannot be stored.
            ReplicaOverlap, ReplicaEpochFell: offsets or epochs do not follow the log.
            AppendBacklog: too many bytes wait for the journal.
            StorageError, CorruptLog: the log accepts no appends.
            PenstockError: the error of the fence, if one is set.
        """
        state = self._state
        self._check_policy()
        state.check_appendable()
        queue = state.queue
        waiting = queue.pending_bytes + queue.unwritten_bytes + len(batches)
        if waiting > queue.limit_bytes:
            raise state.backlog(waiting)
        end = state.log_end_offset
        if len(batches) >= HEADER_BYTES and int.from_bytes(batches[:8]) < end:
            batches, lease = _shortened(batches, end), None
        newest = state.epochs.epoch_at(end - 1) if end else -1
        runs = stamped_runs(batches, state.topic_partition, end, newest)
        config = state.config
        position = 0
        for headers in runs:
            taken = sum([header.last_offset_delta for header in headers]) + len(headers)
            if taken != headers[-1].next_offset - state.log_end_offset:
                state.has_holes = True
                self._hold_begin(headers, config, epochs)
            self._begin_epoch(headers[0].partition_leader_epoch, headers[0].base_offset, epochs)
            size_bytes = sum([header.size_bytes for header in headers])
            data = batches[position : position + size_bytes]
            state.accept(data, headers, config, now_ms, lease, stamped=True)
            position += size_bytes
        return state.log_end_offset

    def _hold_begin(
        self, headers: list[BatchHeader], config: LogConfig, epochs: Sequence[tuple[int, int]]
    ) -> None:
        """Append an empty batch if the active segment is empty and cannot hold the given batches.

        It cannot if their offsets are too far above its base offset, so that a new segment
        begins. The empty batch keeps the old segment, and with it the start of the log.
        """
        state = self._state
        segment, end, first = state.segments[-1], state.log_end_offset, headers[0]
        if segment.end_position or first.base_offset == end:
            return
        if headers[-1].last_offset - segment.base_offset > INT_MAX:
            begun = [epoch for epoch, start in epochs if start <= end]
            epoch = max(begun, default=first.partition_leader_epoch)
            self._begin_epoch(epoch, end, epochs)
            filler = empty_batch(end, end + 1, epoch)
            header = decode_header(filler)
            state.accept(memoryview(filler), [header], config, -1, None, stamped=True)

    def _check_policy(self) -> None:
        state = self._state
        if state.parts.settings.log_flush_policy != "group":
            raise BugError(
                f"{state.topic_partition} is used as a replica with log.flush.policy ="
                f" {state.parts.settings.log_flush_policy}: it would acknowledge unsynced appends"
            )

    def _begin_epoch(self, epoch: int, offset: int, begun: Sequence[tuple[int, int]]) -> None:
        """Begin a leader epoch at an offset; `begun` has older epochs with their start offsets."""
        state = self._state
        end = state.log_end_offset
        if epoch == state.leader_epoch and state.epochs.latest_start < end:
            return
        state.leader_epoch = epoch
        # An epoch that begins at the end has no record here: it was only opened.
        changed = state.epochs.cut_end(end)
        for older, start in (*begun, (epoch, offset)):
            if older <= epoch and state.epochs.assign(older, min(max(start, end), offset)):
                changed = True
        state.roll_when_due()
        state.epochs_dirty = state.epochs_dirty or changed
        state.owner.log_moved()
        state.parts.changes.of(state)

    # -- promise and limbo -----------------------------------------------------------------------

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
        if self._state.damage is not None:
            return str(self._state.damage)
        return "synced batches may be lost" if self.standing.lost else None

    def note_loss(self) -> None:
        """Record that synced batches may be lost; durable once a later flush completes.

        Raises:
            StorageError, LogDeleted: the log accepts no writes.
        """
        self._keep(self.standing._replace(lost=True))

    def promise(self, epoch: int) -> None:
        """Reject epochs below `epoch` from now on; durable once a later flush completes.

        Raises:
            BugError: a higher epoch was promised already.
            StorageError, LogDeleted: the log accepts no writes.
        """
        if epoch < self.promised:
            raise BugError(
                f"{self._state.topic_partition} cannot promise epoch {epoch}: it has promised the"
                f" higher epoch {self.promised}"
            )
        self._keep(self.standing._replace(promised=epoch))

    def set_limbo(self, epoch: int) -> None:
        """Set the limbo epoch, -1 for none, and clear the recorded loss.

        Durable once a later flush completes.

        Raises:
            StorageError, LogDeleted: the log accepts no writes.
        """
        self._keep(self.standing._replace(limbo=epoch, lost=False))

    def _keep(self, standing: Standing) -> None:
        state = self._state
        self._check_policy()
        error = state.closed or state.queue.failed
        if error is not None:
            raise error
        before, self.standing = self.standing, standing
        if standing == before:
            return
        state.queue.add_control(
            Control(
                state, NOWHERE, int(standing.lost), standing.promised, standing.limbo, 0, [], b"",
                perform=partial(self._keep_durably, standing),
                take_back=partial(setattr, self, "standing", before),
            )
        )  # fmt: skip

    def _keep_durably(self, standing: Standing) -> None:
        state = self._state
        state.durable_standing = standing
        state.parts.changes.of(state)

    # -- truncation ------------------------------------------------------------------------------

    def truncate(self, offset: int, *, floor: int) -> int:
        """Remove everything from `offset` on; durable once a later flush completes.

        The batch that holds `offset` is removed too. Returns the new end offset, which is also the
        durable offset if that was higher. The call waits for running work of the store, so
        callbacks of `flush` may run. Queued appends above the new end are undone; their callbacks
        run as usual. `floor` is the committed offset, below which nothing may be removed.

        Raises:
            BugError: the new end would be below the floor, or below the log's start.
            StorageError, CorruptLog: the log cannot be changed.
            PenstockError: the error of the fence, if one is set.
        """
        state = self._state
        self._check_policy()
        for _ in range(_WAITS_MAX):
            state.check_appendable()
            end = self.boundary(offset)
            if end < max(floor, state.log_start_offset):
                raise BugError(
                    f"{state.topic_partition} would be truncated to offset {end}, below its"
                    f" committed offset {floor} or its start {state.log_start_offset}"
                )
            self._take_back(end)
            if state.log_end_offset <= end:
                return state.log_end_offset
            if self._is_idle():
                self._cut(end)
                return end
        raise BugError(f"{state.topic_partition} is truncated while callbacks append to it")

    def start_at(self, offset: int, *, producers: bytes, floor: int) -> None:
        """Discard the whole log, and restart it at `offset`; durable once a later flush completes.

        `producers` is the result of `producers_below` of another replica. `floor` is as for
        `truncate`.

        Raises:
            BugError: `offset` is below the floor, or below the log's start.
            CorruptFile: `producers` is damaged.
            StorageError, CorruptLog: the log cannot be changed.
            PenstockError: the error of the fence, if one is set.
        """
        state = self._state
        states = ProducerStates()
        if producers:
            states.load(decode_snapshot(producers, BATCHES_VERSION))
        self._check_policy()
        for _ in range(_WAITS_MAX):
            state.check_appendable()
            if offset < max(floor, state.log_start_offset):
                raise BugError(
                    f"{state.topic_partition} would restart at offset {offset}, below its"
                    f" committed offset {floor} or its start {state.log_start_offset}"
                )
            self._take_back(-1)
            if self._is_idle():
                self._begin(offset, producers, states)
                return
        raise BugError(f"{state.topic_partition} restarts while callbacks append to it")

    def producers_below(self, offset: int) -> bytes:
        """Return the newest producers' batches below an offset, encoded as `.batches`, or b""."""
        self._state.load()
        _, batches = self._state.producer_states.snapshot()
        below = [
            batch
            if batch.current_txn_first_offset < offset
            else batch._replace(current_txn_first_offset=-1)
            for batch in batches
            if batch.last_offset < offset
        ]
        below.sort(key=attrgetter("timestamp"))
        return encode_snapshot(below[-CARRIED_BATCHES_MAX:], BATCHES_VERSION) if below else b""

    def boundary(self, offset: int) -> int:
        """Return the base offset of the batch that holds `offset`.

        Returns `offset` itself if no batch with records holds it, and the log's end if `offset` is
        above that.
        """
        state = self._state
        if offset >= state.log_end_offset:
            return state.log_end_offset
        base_offset, header = state.batch_at(offset)
        return offset if header is None or header.is_filler else min(offset, base_offset)

    def _is_idle(self) -> bool:
        """Write the log to its files if it is durable and no truncation or swap is running.

        Returns True if so. Otherwise waits until the store's running writes have ended, and returns
        False: the caller must check again.
        """
        state = self._state
        if state.durable_offset == state.log_end_offset and state.may_swap:
            state.write_segments()
            return True
        state.calls.wait_idle()
        return False

    def _take_back(self, end: int) -> None:
        state = self._state
        waiting = [item for item in state.queue.separated() if item.log is state]
        while waiting and state.log_end_offset > end:
            item = waiting.pop()
            if isinstance(item, Control):
                if item.segment is not NOWHERE:
                    state.queue.drop(item)
                    item.take_back()
                continue
            kept = bytes(item.data) if item.base_offset < end else b""
            state.queue.drop(item)
            state.undo(item)
            if kept:
                # Keep the batches below the end, as an append of their own.
                part, _ = part_of(kept, item.base_offset, len(kept), end, at_least_one=False)
                if part:
                    self.append(part, now_ms=state.parts.clock.now_ms())

    def _cut(self, end: int) -> None:
        """Truncate the log in memory, and queue the control row.

        The whole log must be in its files.
        """
        state = self._state
        files, interval_bytes = state.parts.segment_files, state.config.index_interval_bytes
        place = segment_place(state.segments, end)
        old = state.segments[place]
        found = files.locate(old, end, interval_bytes) if end > old.base_offset else None
        position = 0
        if end > old.base_offset:
            position = old.written_bytes if found is None else found.position
        point = state.current_recovery_point().cut(end, old.base_offset, position)
        state.calls.lower_clean_offset(state.topic_partition, end)
        before = self._remember(begins=False)
        segment = self._cut_segment(old, end, position)
        state.segments = [*state.segments[:place], segment]
        if len(state.producer_states):
            point = point._replace(flags=HAS_PRODUCERS)
            now_ms = state.parts.clock.now_ms()
            state.producer_states = producers_at(
                files, state.directory, point, state.segments, now_ms=now_ms
            )
        state.due_snapshots = [due for due in state.due_snapshots if due[0] <= end]
        state.epochs = EpochHistory(state.epochs.entries)
        state.epochs.cut_end(end)
        self._write_into(segment)
        state.end_at(end)
        state.queue.add_control(
            Control(
                state, segment, position, end, end, 0, [], b"",
                perform=partial(self._perform_cut, before, segment, end, position),
                take_back=self._take_back_cut,
            )
        )  # fmt: skip
        state.owner.log_moved()

    def _begin(self, offset: int, producers: bytes, states: ProducerStates) -> None:
        """Restart the log in memory, and queue the control row."""
        state = self._state
        state.calls.lower_clean_offset(state.topic_partition, 0)
        before = self._remember(begins=True)
        segment = state.growing = Segment(state.directory, offset)
        state.segments = [segment]
        state.producer_states = states
        state.due_snapshots = []
        state.epochs = EpochHistory()
        state.log_start_offset = offset
        state.end_at(offset)
        state.queue.add_control(
            Control(
                state, segment, STARTS, offset, offset, len(producers), [], producers,
                perform=partial(self._perform_start, before, segment, producers),
                take_back=self._take_back_start,
            )
        )  # fmt: skip
        state.owner.log_moved()

    def _remember(self, *, begins: bool) -> Before:
        state = self._state
        state.before = Before(
            state.segments, state.epochs, state.producer_states, state.due_snapshots,
            state.log_start_offset, state.log_end_offset, state.leader_epoch, state.roll_due,
            state.growing, state.current_recovery_point(), begins,
        )  # fmt: skip
        return state.before

    def _cut_segment(self, old: Segment, end: int, position: int) -> Segment:
        """Return a new, truncated `Segment`; the old object stays unchanged."""
        state = self._state
        segment = Segment(state.directory, old.base_offset, position)
        if position:
            files, interval_bytes = state.parts.segment_files, state.config.index_interval_bytes
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
        state = self._state
        growing = state.growing
        if growing is not None and growing.base_offset < segment.base_offset:
            state.finish(growing)
        state.growing = segment

    def _perform_cut(self, before: Before, segment: Segment, end: int, position: int) -> None:
        state = self._state
        base, files = segment.base_offset, state.parts.segment_files
        self._release([old for old in before.segments if old.base_offset >= base])
        cut_files(
            files.files, state.directory, segment_base=base, position=position, end_offset=end,
            forget=files.descriptors.forget,
        )  # fmt: skip
        segment.saved_offsets = segment.saved_times = 0
        state.parts.changes.of(state).add(segment)
        self._changed_files(state.recovery_point.cut(end, base, position))

    def _perform_start(self, before: Before, segment: Segment, producers: bytes) -> None:
        state = self._state
        self._release(before.segments)
        files, offset = state.parts.segment_files, segment.base_offset
        forget = files.descriptors.forget
        clear_files(files.files, state.directory, offset=offset, producers=producers, forget=forget)
        self._changed_files(state.recovery_point.begun(offset, producers=bool(producers)))

    def _release(self, segments: list[Segment]) -> None:
        """Close files of segments that are about to change or be removed."""
        state = self._state
        state.calls.wait_idle()
        for segment in segments:
            state.parts.segment_files.forget(segment)
        state.parts.changes.forget(state, segments)

    def _changed_files(self, point: RecoveryPoint) -> None:
        state = self._state
        changes = state.parts.changes
        changes.of(state)
        changes.directories.add(state.directory)
        state.epochs_dirty = True
        state.set_recovery_point(point)
        state.before = None
        state.owner.became_durable(state.durable_offset)

    def _take_back_cut(self) -> None:
        state = self._state
        before = state.before
        if before is None:
            raise BugError(f"{state.topic_partition} has no truncation to undo")
        first = state.segments[0].base_offset  # retention may have removed older ones
        state.segments = [old for old in before.segments if old.base_offset >= first]
        state.epochs, state.producer_states = before.epochs, before.producers
        state.due_snapshots = before.due_snapshots
        state.log_end_offset = state.durable_offset = before.end_offset
        state.roll_due = before.roll_due
        state.leader_epoch = max(before.leader_epoch, state.leader_epoch)
        if state.epochs.assign(state.leader_epoch, state.log_end_offset):
            state.roll_when_due()
        state.growing = before.growing
        state.before = None
        state.owner.log_moved()

    def _take_back_start(self) -> None:
        state = self._state
        if state.before is not None:
            state.segments = state.before.segments
            state.log_start_offset = state.before.start_offset
        self._take_back_cut()


def _shortened(batches: memoryview, end: int) -> memoryview:
    """Return batches without the offsets below `end`, if only an empty first batch has these.

    Other batches are returned unchanged.
    """
    header = decode_header(batches)
    if not header.is_filler or header.next_offset <= end:
        return batches
    filler = empty_batch(end, header.next_offset, header.partition_leader_epoch)
    return memoryview(bytearray(filler) + batches[header.size_bytes :])
