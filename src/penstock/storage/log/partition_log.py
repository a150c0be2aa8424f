"""Log of one partition: append and read. Its parts do everything else, and share a `LogState`.

`append` assigns offsets and queues the batches. Reads return durable batches; the partition that
owns the log determines which of them consumers may read.

Offsets may lack a batch after compaction here or at the leader. A read at such an offset continues
at the next batch. If there is no batch up to the end of the readable range, the read returns an
empty batch that is in no file, so that the consumer reaches the end.

Source: Kafka's `UnifiedLog`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final
from uuid import UUID

from penstock.base.errors import PenstockError
from penstock.base.ids import TopicPartition
from penstock.records import (
    HEADER_BYTES,
    BatchHeader,
    OffsetOutOfRange,
    decode_header,
    empty_batch,
)
from penstock.records.appends import AppendResult, IdReader, Opening
from penstock.records.extents import Extent
from penstock.records.header import EMPTY_OFFSETS_MAX
from penstock.records.idempotence import ProducerBatch, ProducerState
from penstock.records.transactions import Guard
from penstock.storage.files.checkpoint import RecoveryPoint
from penstock.storage.files.errors import StorageError
from penstock.storage.files.producers import ProducerStates
from penstock.storage.files.segment import segment_place
from penstock.storage.files.settings import LogConfig
from penstock.storage.files.values import Buffer, Lease, OffsetAndTimestamp, Read
from penstock.storage.files.walk import Damage, DamagedRecords
from penstock.storage.log import reading
from penstock.storage.log.compaction import Compaction
from penstock.storage.log.damage import Repair
from penstock.storage.log.reading import read_files, read_tail
from penstock.storage.log.replica import LogReplica
from penstock.storage.log.state import LogState, StoreCalls, StoreParts
from penstock.storage.log.tiering import Tiering, Transactions
from penstock.storage.log.validation import prepared

EMPTY_READS_MAX: Final = 1_000
"""Maximum number of reads that one call combines while they return no record."""


class PartitionLog:
    """Append-only log of one partition, made by `LogStore`; used on the event loop's thread."""

    __slots__ = (
        "compaction", "repair", "replica", "state", "tiering", "topic_id", "topic_partition",
        "transactions",
    )  # fmt: skip

    def __init__(
        self,
        parts: StoreParts,
        calls: StoreCalls,
        topic_partition: TopicPartition,
        topic_id: UUID,
        recovery_point: RecoveryPoint,
    ) -> None:
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.state = LogState(parts, calls, topic_partition, topic_id, recovery_point)
        self.transactions = Transactions(self.state)
        self.repair = Repair(self.state)
        self.tiering = Tiering(self.state, self.transactions)
        self.compaction = Compaction(self.state)
        self.replica = LogReplica(self.state)

    def __repr__(self) -> str:
        offsets = f"[{self.log_start_offset}, {self.log_end_offset})"
        return f"<PartitionLog {self.topic_partition} {offsets}>"

    @property
    def config(self) -> LogConfig:
        return self.state.config

    @property
    def log_start_offset(self) -> int:
        return self.state.log_start_offset

    @property
    def log_end_offset(self) -> int:
        return self.state.log_end_offset

    @property
    def durable_offset(self) -> int:
        return self.state.durable_offset

    @property
    def leader_epoch(self) -> int:
        return self.state.leader_epoch

    @property
    def closed(self) -> PenstockError | None:
        """Error that all calls raise once the log is deleted or its store closed; None before."""
        return self.state.closed

    @property
    def producer_states(self) -> ProducerStates:
        return self.state.producer_states

    @property
    def size_bytes(self) -> int:
        return self.state.size_bytes

    @property
    def segment_count(self) -> int:
        self.state.load()
        return len(self.state.segments)

    def load(self) -> None:
        """Load the log from its files, unless it is loaded; see `loading`."""
        self.state.load()

    # -- append ----------------------------------------------------------------------------------

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
        ids: IdReader | None = None,
        through: bool = False,
    ) -> AppendResult:
        """Assign offsets to batches and queue them; they are durable once a later flush completes.

        With `through`, one batch is written at once if that suffices (`Committer.write_through`):
        then `durable_offset` is above its offset at return.

        Either all batches are queued or none. Offsets and leader epoch are stamped into `batches`,
        which must be writable. With a lease, the batches stay in its receive buffer until they are
        in the segment; without one, the tail cache keeps `batches`. With a guard the batches belong
        to a transaction. For the other parameters see `prepared`.

        Raises:
            CorruptBatch, InvalidRecord, TransactionalBatch, UnsupportedCodec, RecordTooLarge,
            BatchesTooLarge, InvalidTimestamp: the batches cannot be stored.
            OutOfOrderSequence, InvalidProducerEpoch, InvalidTxnState: the producer's state differs.
            AppendBacklog: too many bytes wait for the journal.
            NeedsOpening: as `prepared`.
            StorageError, CorruptLog: the log accepts no appends.
            PenstockError: the error of the fence, if one is set.
        """
        state = self._open_for(len(batches))
        if config is None:
            config = state.config
        transactional = guard is not None
        ready, headers = prepared(
            batches, config, now_ms, internal=internal, single=single,
            transactional=transactional, opening=opening, ids=ids,
        )  # fmt: skip
        if ready is not batches:
            batches, lease = ready, None
        for header in headers:
            if header.producer_id >= 0:
                original = state.producer_states.check_all(headers, guard)
                if original is not None:
                    state.parts.counters.duplicates += 1
                    return self._duplicate(original)
                break
        if through:
            written = state.calls.write_through(
                state, batches, headers, config, now_ms, lease, False
            )
            if written is not None:
                return written
        return state.accept(batches, headers, config, now_ms, lease)

    def _open_for(self, size_bytes: int) -> LogState:
        """Load the log, and return its state; raises the errors of a log that accepts no append."""
        state = self.state
        queue = state.queue
        if not state.loaded:
            state.load()
        if (
            state.closed is not None
            or state.fence is not None
            or state.damage is not None
            or queue.failed is not None
        ):
            state.refuse()
        waiting = queue.pending_bytes + queue.unwritten_bytes + size_bytes
        if waiting > queue.limit_bytes:
            raise state.backlog(waiting)
        return state

    def append_checked(
        self, batch: memoryview, header: BatchHeader, *, config: LogConfig, now_ms: int
    ) -> AppendResult | None:
        """Append an ordinary batch, which the caller has checked (`plain_limits`), if it can be
        written at once; otherwise return None, without an effect.

        Raises:
            PenstockError: as `append`.
        """
        state = self._open_for(len(batch))
        headers = [header]
        if header.producer_id >= 0 and state.producer_states.check_all(headers) is not None:
            return None
        return state.calls.write_through(state, batch, headers, config, now_ms, None, False)

    def append_joined(
        self, batches: memoryview, headers: list[BatchHeader], *, now_ms: int
    ) -> int | None:
        """Append ordinary batches of several requests, and return the log's start offset.

        The caller has checked them (`plain_limits`), and has stamped offsets from `log_end_offset`
        on and the leader epoch. Return None, without an effect, for batches that are duplicates, do
        not fit into a segment, or have other offsets. Either all batches are queued or none.

        Raises:
            PenstockError: as `append`.
        """
        state = self._open_for(len(batches))
        config = state.config
        if (
            len(batches) > config.segment_bytes
            or state.log_end_offset != headers[0].base_offset
            or state.producer_states.check_all(headers) is not None
        ):
            return None
        stamped = batches, headers, config, now_ms, None, True
        result = state.calls.write_through(state, *stamped) or state.accept(*stamped)
        return result.log_start_offset

    def _duplicate(self, original: ProducerBatch) -> AppendResult:
        state = self.state
        append_time = state.config.message_timestamp_type != "CreateTime"
        time_ms = original.timestamp if append_time else -1
        return AppendResult(original.first_offset, time_ms, state.log_start_offset, duplicate=True)

    # -- read ------------------------------------------------------------------------------------

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

        Batches without records are returned together with later ones, if there are any: a client
        (librdkafka) that receives several responses without a record assumes that its records are
        too large.

        Raises:
            OffsetOutOfRange: `offset` is below the log start or above the readable end.
            DamagedRecords: the records at `offset` cannot be read, although other records can.
            CorruptLog: the log's end is lost from `offset` on.
        """
        read = self._read(offset, max_bytes, end_offset, at_least_one, appended)
        if not self.state.has_holes:
            return read
        end = min(end_offset, self.state.log_end_offset if appended else self.state.durable_offset)
        for _ in range(EMPTY_READS_MAX):
            if not read.size_bytes or _has_records(read) or read.next_offset >= end:
                break
            left = max(0, max_bytes - read.size_bytes)
            more = self._read(read.next_offset, left, end_offset, at_least_one, appended)
            if not more.size_bytes:
                break
            buffers = [*read.buffers, *more.buffers]
            read = Read(buffers, read.size_bytes + more.size_bytes, more.next_offset)
        return read

    def _read(
        self, offset: int, max_bytes: int, end_offset: int, at_least_one: bool, appended: bool
    ) -> Read:
        state = self.state
        if not state.loaded:
            state.load()
        if state.closed is not None:
            raise state.closed
        limit = state.log_end_offset if appended else state.durable_offset
        end_offset = min(end_offset, limit)
        if not state.log_start_offset <= offset <= limit:
            raise OffsetOutOfRange(state.topic_partition, offset, state.log_start_offset, limit)
        if offset >= end_offset:
            return Read([], 0, offset)
        place = state.tail.from_offset(offset)
        if place is not None:
            state.parts.counters.tail_reads += 1
            read = read_tail(state.tail, place, offset, max_bytes, end_offset, at_least_one)
        else:
            files, log = state.parts.segment_files, state.written()
            try:
                read = read_files(files, log, offset, max_bytes, end_offset, at_least_one)
            except DamagedRecords as error:
                self.repair.report(error)
                raise
        if read.size_bytes or not at_least_one or not state.has_holes:
            return read
        end = min(end_offset, self._next_base(offset), offset + EMPTY_OFFSETS_MAX)
        if end <= offset:
            return read
        filler = empty_batch(offset, end, max(0, state.epochs.epoch_at(offset)))
        return Read([filler], len(filler), end)

    def _next_base(self, offset: int) -> int:
        """Return the base offset of the next batch after a gap."""
        state = self.state
        base_offset, header = state.batch_at(offset)
        if header is not None:
            return base_offset
        later = state.segments[segment_place(state.segments, offset) + 1 :]
        ends = [state.log_end_offset, *[segment.base_offset for segment in later[:1]]]
        first = state.tail.first_offset
        return min([*ends, first] if first is not None and first > offset else ends)

    def damage_in(self, start: int, end: int) -> Damage | None:
        """Return the first damage within the offsets [start, end), after reading all of them."""
        offset = max(start, self.log_start_offset)
        try:
            while offset < min(end, self.durable_offset):
                found = self.read(offset, max_bytes=1 << 20, end_offset=end).next_offset
                if found == offset:
                    break
                offset = found
        except DamagedRecords as error:
            return error.damage
        return None

    def mend(self, damage: Damage, batches: Buffer) -> bool:
        """Repair a damaged range as `Repair.replace`, unless compaction has replaced the range.

        Raises:
            StorageError: the batches cannot be written.
        """
        state = self.state
        if state.swapping:
            return False
        if state.has_holes and self.damage_in(damage.first_offset, damage.next_offset) != damage:
            return False
        return self.repair.replace(damage, batches)

    def offset_for_timestamp(self, timestamp_ms: int) -> OffsetAndTimestamp | None:
        """Return the first record at or after a timestamp, or None."""
        state = self.state
        state.write_segments()
        return reading.first_at_or_after(state.parts.segment_files, state.written(), timestamp_ms)

    def offset_of_max_timestamp(self) -> OffsetAndTimestamp | None:
        """Return the first record with the highest timestamp; None for an empty log."""
        state = self.state
        state.write_segments()
        return reading.of_highest_timestamp(state.parts.segment_files, state.written())

    def extents(self, start: int, end: int) -> list[Extent]:
        """Return file extents of the whole batches that hold [start, min(end, durable offset))."""
        state = self.state
        state.write_segments()
        if state.damage is not None:
            raise state.damage
        end = min(end, state.durable_offset)
        return reading.extents(state.parts.segment_files, state.written(), start, end)

    # -- epochs, start offset, producers ---------------------------------------------------------

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """Return the largest epoch not above `epoch` and its end offset; (-1, -1) if unknown."""
        self.state.load()
        return self.state.epochs.end_offset_for(epoch, self.state.log_end_offset)

    def latest_epoch_at(self, offset: int) -> int:
        self.state.load()
        return self.state.epochs.epoch_at(offset)

    def set_leader_epoch(self, epoch: int) -> None:
        state = self.state
        self.state.load()
        if epoch <= state.leader_epoch and state.epochs.latest >= 0:
            return
        state.leader_epoch = epoch
        state.owner.log_moved()
        if state.epochs.assign(epoch, state.log_end_offset):
            state.epochs_dirty = True
            state.roll_when_due()
        state.parts.changes.of(state)

    def delete_records(
        self, before_offset: int, saved: Callable[[StorageError | None], None] | None = None
    ) -> int:
        """Move the log start to `before_offset`, or to the durable offset if that is -1.

        Returns the new start. Without `saved` it is on disk at return; otherwise it is on disk when
        `saved` is called.

        Raises:
            OffsetOutOfRange: `before_offset` is beyond the durable offset.
            PenstockError: the error of the fence, if one is set.
        """
        state = self.state
        self.state.load()
        if state.fence is not None:
            raise state.fence
        if before_offset == -1:
            before_offset = state.durable_offset
        if not 0 <= before_offset <= state.durable_offset:
            raise OffsetOutOfRange(
                state.topic_partition, before_offset, state.log_start_offset, state.durable_offset
            )
        if before_offset > state.log_start_offset:
            state.move_start(before_offset)
            state.calls.save_recovery_points(saved)
        elif saved is not None:
            saved(None)
        return state.log_start_offset

    def producers(self) -> list[ProducerState]:
        self.state.load()
        return self.state.producer_states.describe()


def _has_records(read: Read) -> bool:
    """Return whether any batch has records; a batch without records is a bare header."""
    if read.size_bytes % HEADER_BYTES:
        return True
    data = memoryview(b"".join(read.buffers))
    positions = range(0, len(data), HEADER_BYTES)
    return any(decode_header(data, at).size_bytes > HEADER_BYTES for at in positions)
