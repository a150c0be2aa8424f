"""A log as one copy of a replicated partition: what a replica does that a lone log does not.

`append_replica` takes batches as their leader stamped them; from there on they go the way of any
append: segments, rolls, producers, the journal and the group's one sync. The leader's log may have
been compacted: then offsets have no batch, here as there.

`truncate` is one more item of the same journal. In memory the log is cut at once, so that appends
go on at the new end. Its files are cut when the journal has it: not before, because a crash must
find all that was durable until then, and before what is appended behind it is written over what
was there. If nothing becomes of it, the log is what it was before.

`start_at` begins a log anew at an offset, as a cut of everything. What its producers sent below is
not known from batches then: who has the log says it (`producers_below`).

`promise` and `set_limbo` are items too. The checkpoint has what is durable of them and no more: a
limbo that ended too early would forget that something is missing.

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
from penstock.storage.holes import shortened
from penstock.storage.limits import CARRIED_BATCHES_MAX
from penstock.storage.loading import producers_at
from penstock.storage.names import SEGMENT_SUFFIXES
from penstock.storage.producers import ProducerStates
from penstock.storage.reading import part_of
from penstock.storage.replaying import LogReplay
from penstock.storage.segment import Segment, segment_place
from penstock.storage.values import Lease, Standing

_SETTLINGS_MAX: Final = 8
"""How often a truncation waits for what is under way; once, unless callbacks append."""


NOWHERE: Final = Segment("", -1)
"""The segment of rows that are about no batches."""


class Before(NamedTuple):
    """A log as it was before a cut whose files are still to be cut."""

    segments: list[Segment]
    epochs: EpochHistory
    producers: ProducerStates
    due_snapshots: list[tuple[int, bytes, bytes]]
    start_offset: int
    end_offset: int
    leader_epoch: int
    roll_due: bool
    settling: Segment | None
    recovery_point: RecoveryPoint
    begins: bool
    """Nothing of it is kept."""


class ReplicaLog(CompactedLog):
    """See the module's text. Every log of a store is one, used as a replica or not."""

    __slots__ = ("_before", "_durable_standing", "_lower_clean_offset", "_settle", "standing")

    def __init__(
        self,
        *arguments: Any,
        settle: Callable[[], None],
        lower_clean_offset: Callable[[TopicPartition, int], None],
        **options: Any,
    ) -> None:
        """`settle` waits for groups, checkpoints and swaps that are under way; the other one has
        compaction know that the log ends at an offset."""
        super().__init__(*arguments, **options)
        self._settle = settle
        self._lower_clean_offset = lower_clean_offset
        self._before: Before | None = None
        self.standing = self._durable_standing = self.recovery_point.standing
        """What the replica keeps, as it was told; durable once a flush after that is done."""
        if self.promised >= 0:  # its owner has yet to know what is committed
            self.committed_offset = 0

    def recovers(self, replay: LogReplay) -> None:
        """Be what the journal says, whose bytes come into the files when the log is loaded."""
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
        """Queue whole batches as they are; durable once a flush after this is done.

        They must begin at the log's end or above, have offsets that rise, and epochs that do not
        fall; a new epoch begins a segment. All or nothing. Offsets that they leave out are in no
        batch of the log either; that their leader's has none there, the caller knows. A batch
        without records that begins below the log's end is shortened. Returns the new end. The lease
        is as for `append`; `now_ms` is when their producers were seen. `epochs` says of epochs in
        which offset they begin, as the first batch that is left of one may lie behind that.

        Raises:
            CorruptBatch, InvalidRecord, BatchesTooLarge: they cannot be stored.
            ReplicaOverlap, ReplicaEpochFell: they do not go there.
            AppendBacklog: too much waits for the journal.
            StorageError, CorruptLog: the log takes no appends; and whatever the fence is.
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
        """Leave a batch without records in a segment that is empty and too far below the next one:
        where a log begins, its first file must say."""
        segment, end, first = self.segments[-1], self.log_end_offset, headers[0]
        if segment.end_position or first.base_offset == end:
            return
        if headers[-1].last_offset - segment.base_offset > INT_MAX:
            begun = [epoch for epoch, start in epochs if start <= end]
            epoch = max(begun, default=first.partition_leader_epoch)
            self._begin_epoch(epoch, end, epochs)
            filler = empty_batch(end, end + 1, epoch)
            one = [decode_header(filler)]
            self._accept(memoryview(filler), one, config, -1, None, stamped=True)

    def _check_policy(self) -> None:
        if self._parts.settings.log_flush_policy != "group":
            raise BugError(
                f"{self.topic_partition} is used as a replica with log.flush.policy ="
                f" {self._parts.settings.log_flush_policy}: it would acknowledge before the sync"
            )

    def _begin_epoch(self, epoch: int, offset: int, begun: Sequence[tuple[int, int]]) -> None:
        """The batches that come next, from an offset on, are of an epoch."""
        end = self.log_end_offset
        if epoch == self.leader_epoch and self.epochs.latest_start < end:
            return
        self.leader_epoch = epoch
        # What began here has no record: it was opened, and this replica has been given none of it.
        changed = self.epochs.cut_end(end)
        for one, start in (*begun, (epoch, offset)):
            if one <= epoch and self.epochs.assign(one, min(max(start, end), offset)):
                changed = True
        self._roll_when_due()
        self.epochs_dirty = self.epochs_dirty or changed
        self.owner.log_moved()
        self._parts.changes.of(self)

    # -- promise and limbo -------------------------------------------------------------------

    @property
    def promised(self) -> int:
        """The epoch below which the replica refuses everything, -1 for none."""
        return self.standing.promised

    @property
    def limbo(self) -> int:
        """Of epochs up to this one the replica may lack what it acknowledged; -1: of none."""
        return self.standing.limbo

    @property
    def lost(self) -> str | None:
        """Why the replica may lack what was synced, if it may; see `LogStore.lost`."""
        if self.damage is not None:
            return str(self.damage)
        return "what was synced may be gone" if self.standing.lost else None

    def note_loss(self) -> None:
        """What was synced may be gone, from now on; durable, and told, as what the journal lost.

        Raises:
            StorageError, LogDeleted: nothing becomes durable any more.
        """
        self._keep(self.standing._replace(lost=True))

    def promise(self, epoch: int) -> None:
        """Refuse lower epochs from now on; durable once a flush after this is done.

        Raises:
            BugError: more was promised already.
            StorageError, LogDeleted: nothing becomes durable any more.
        """
        if epoch < self.promised:
            raise BugError(
                f"{self.topic_partition} has promised epoch {self.promised}, not {epoch}"
            )
        self._keep(self.standing._replace(promised=epoch))

    def set_limbo(self, epoch: int) -> None:
        """Be in limbo for epochs up to this one, -1 for none; durable as a promise.

        It is the answer to what was lost, which is not reported any more once this is durable.

        Raises:
            StorageError, LogDeleted: nothing becomes durable any more.
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
        """Cut everything at and above `offset`; durable once a flush after this is done.

        A batch that holds `offset` goes too. Returns the new end, where the next append begins; the
        durable offset is not above it from now on. What is under way of this log is waited for,
        so that callbacks of `flush` may be called meanwhile; what waits to begin is taken back,
        though its callbacks are called like all others. `floor` is the commit mark.

        Raises:
            BugError: the new end would be below the floor, or below the log's start.
            StorageError, CorruptLog: the log cannot be changed; and whatever the fence is.
        """
        self._check_policy()
        for _ in range(_SETTLINGS_MAX):
            self._check_appendable()
            end = self.boundary(offset)
            if end < max(floor, self.log_start_offset):
                raise BugError(
                    f"{self.topic_partition} would be cut to offset {end}, below its commit mark"
                    f" {floor} or its start {self.log_start_offset}"
                )
            self._take_back(end)
            if self.log_end_offset <= end:
                return self.log_end_offset
            if self._is_settled():
                self._cut(end)
                return end
        raise BugError(f"{self.topic_partition} is cut while its appends are being settled")

    def start_at(self, offset: int, *, producers: bytes, floor: int) -> None:
        """Forget all that there is, and begin anew at `offset`; durable and bounded as a cut.

        `producers` are those of all below, as `producers_below` of another replica says them.

        Raises:
            BugError: that is below the floor, or below the log's start.
            CorruptFile: the producers are damaged.
            StorageError, CorruptLog: the log cannot be changed; and whatever the fence is.
        """
        states = ProducerStates()
        if producers:
            states.load(decode_snapshot(producers, BATCHES_VERSION))
        self._check_policy()
        for _ in range(_SETTLINGS_MAX):
            self._check_appendable()
            if offset < max(floor, self.log_start_offset):
                raise BugError(
                    f"{self.topic_partition} would begin at offset {offset}, below its commit mark"
                    f" {floor} or its start {self.log_start_offset}"
                )
            self._take_back(-1)
            if self._is_settled():
                self._begin(offset, producers, states)
                return
        raise BugError(f"{self.topic_partition} begins anew while its appends are being settled")

    def producers_below(self, offset: int) -> bytes:
        """What is remembered of batches below an offset, as `.batches` has it; may be nothing.

        Of each producer its last batches that are there; `CARRIED_BATCHES_MAX` of all of them.
        """
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

    def _is_settled(self) -> bool:
        """Whether all of the log lies in its files, once this has returned; else try again."""
        if self.durable_offset == self.log_end_offset and self.may_swap:
            self.write_segments()
            return True
        self._settle()
        return False

    @property
    def may_swap(self) -> bool:
        return super().may_swap and self._before is None

    def _take_back(self, end: int) -> None:
        """Take back what waits for the journal above an offset, newest first."""
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
                # A run of batches: those below stay, as an append of their own.
                part, _ = part_of(kept, item.base_offset, len(kept), end, at_least_one=False)
                if part:
                    self.append_replica(part, now_ms=self._parts.clock.now_ms())

    def _cut(self, end: int) -> None:
        """Cut the log in memory, all of which lies in its files, and have the journal say so."""
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
        self._settle_into(segment)
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
        """Begin the log anew in memory, and have the journal say so."""
        self._lower_clean_offset(self.topic_partition, 0)
        before = self._remember(begins=True)
        segment = self._settling = Segment(self.directory, offset)
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
        """What the log is, before it is changed in memory."""
        self._before = Before(
            self.segments, self.epochs, self.producer_states, self.due_snapshots,
            self.log_start_offset, self.log_end_offset, self.leader_epoch, self._roll_due,
            self._settling, self.current_recovery_point(), begins,
        )  # fmt: skip
        return self._before

    def _end_at(self, end: int) -> None:
        """The log's segments and epochs are such that it ends there, all of it in its files."""
        self.leader_epoch = self.epochs.latest
        self.log_end_offset = self.durable_offset = end
        self._roll_due = False
        while len(self.tail):
            self._parts.tails.drop(self.tail.pop_oldest())

    def _cut_segment(self, old: Segment, end: int, position: int) -> Segment:
        """A segment as it is once its file has been cut; the old one is left as it is."""
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

    def _settle_into(self, segment: Segment) -> None:
        """What is written next goes to a segment; one before it is complete."""
        settling = self._settling
        if settling is not None and settling.base_offset < segment.base_offset:
            self._finish(settling)
        self._settling = segment

    def _perform_cut(self, before: Before, segment: Segment, end: int, position: int) -> None:
        """The journal has the cut: cut the files."""
        gone = [one for one in before.segments if one.base_offset >= segment.base_offset]
        self._let_go(gone)
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
        """The journal has the start: leave nothing else."""
        self._let_go(before.segments)
        files, offset = self._parts.segment_files, segment.base_offset
        forget = files.descriptors.forget
        clear_files(files.files, self.directory, offset=offset, producers=producers, forget=forget)
        self._changed_files(self.recovery_point.begun(offset, producers=bool(producers)))

    def _let_go(self, segments: list[Segment]) -> None:
        """Files of these segments are about to be changed, or to go."""
        self._settle()
        parts = self._parts
        for one in segments:
            parts.segment_files.indexes.forget(one)
            for suffix in SEGMENT_SUFFIXES:
                parts.segment_files.descriptors.forget(one.sibling(suffix))
        parts.changes.forget(self, segments)

    def _changed_files(self, point: RecoveryPoint) -> None:
        """The files are as the journal says; `point` is what is still so of the checkpoint's."""
        changes = self._parts.changes
        changes.of(self)
        changes.directories.add(self.directory)
        self.epochs_dirty = True
        self.set_recovery_point(point)
        self._before = None
        self.owner.became_durable(self.durable_offset)

    def _take_back_cut(self) -> None:
        """Nothing became of the cut: the log is as it was."""
        before = self._before
        if before is None:
            raise BugError(f"{self.topic_partition} has no cut to take back")
        first = self.segments[0].base_offset  # retention may have let older ones go
        self.segments = [one for one in before.segments if one.base_offset >= first]
        self.epochs, self.producer_states = before.epochs, before.producers
        self.due_snapshots = before.due_snapshots
        self.log_end_offset = self.durable_offset = before.end_offset
        self._roll_due = before.roll_due
        self.leader_epoch = max(before.leader_epoch, self.leader_epoch)
        if self.epochs.assign(self.leader_epoch, self.log_end_offset):
            self._roll_when_due()
        self._settling = before.settling
        self._before = None
        self.owner.log_moved()

    def _take_back_start(self) -> None:
        """Nothing became of the start: the log is as it was."""
        if self._before is not None:
            self.segments = self._before.segments
            self.log_start_offset = self._before.start_offset
        self._take_back_cut()

    def current_recovery_point(self) -> RecoveryPoint:
        """As for any log; while its files are still to be cut, they are as they were."""
        point = super().current_recovery_point()
        before = self._before
        if before is not None:
            start = before.start_offset if before.begins else self.log_start_offset
            point = before.recovery_point._replace(log_start_offset=start)
        if self.has_holes:
            point = point._replace(flags=point.flags | HAS_HOLES)
        return point.with_standing(self._durable_standing)

    def when_written(self) -> tuple[int, ProducerStates, EpochHistory]:
        """As for any log, and as `current_recovery_point`."""
        before = self._before
        if before is not None:
            return before.end_offset, before.producers, before.epochs
        return super().when_written()
