"""Closed segments of a log that may be copied to the archive, and readers for the copies.

A closed segment is never written again, and its committed part is never truncated, so its file can
be read while the log grows.

Every batch is verified before it is copied, so that damage is not archived. The indexes are built
from the copy instead of being copied. A damaged index therefore does no harm, and a copy may begin
within a segment, which happens if an earlier leader closed its segments at other offsets. Offset
gaps, which a compaction left before the topic was tiered, are filled with batches without records,
so that the archive has every offset.

Source: KIP-405; Kafka's `RemoteLogManager.candidateLogSegments`, and `LogSegment.append` and
`recover`.
"""

from __future__ import annotations

from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Final, NamedTuple

from penstock.base.crc import crc32c
from penstock.base.files import Buffer, Files, read_range
from penstock.records import (
    HEADER_BYTES,
    BatchHeader,
    CorruptBatch,
    decode_header,
    empty_batches,
    verify_crc,
)
from penstock.records.appends import AppendResult
from penstock.records.transactions import AbortedTransaction, Marker, encode_marker
from penstock.storage.files.errors import CorruptLog
from penstock.storage.files.index import SparseIndex
from penstock.storage.files.segment import Segment, not_loaded, segment_place
from penstock.storage.files.transaction_index import TransactionIndex
from penstock.storage.log.loading import mend_transactions
from penstock.storage.log.state import LogState

# Transactions of a log: appends of markers, and the index of aborted transactions.
#
# Transactional batches are appended like all others, with a guard of
# `ProducerStates.begin_verification`. A marker is a batch that the leader makes and appends. An
# aborted transaction is indexed once its marker is in the segment's file; the next checkpoint saves
# the index.
#
# Source: Kafka's `UnifiedLog` (`appendAsLeader` for the coordinator, `collectAbortedTransactions`).


class Transactions:
    """Markers and aborted transactions of one log."""

    __slots__ = ("_state",)

    def __init__(self, state: LogState) -> None:
        self._state = state

    def append_marker(self, marker: Marker, *, now_ms: int) -> AppendResult:
        """Queue the marker that ends a transaction; it is durable once a later flush completes.

        If the log already has the marker, the result is a duplicate with offset -1.

        Raises:
            InvalidProducerEpoch, TransactionCoordinatorFenced: the log has newer epochs.
            StorageError, CorruptLog: the log accepts no appends.
            PenstockError: the error of the fence, if one is set.
        """
        state = self._state
        state.load()
        if state.closed or state.fence or state.damage or state.queue.failed:
            state.refuse()
        if state.producer_states.check_marker(marker):
            return AppendResult(-1, -1, state.log_start_offset, duplicate=True)
        batch = encode_marker(marker, now_ms)
        return state.accept(memoryview(batch), [decode_header(batch)], state.config, now_ms, None)

    def aborted(self, start: int, end: int) -> list[AbortedTransaction]:
        """Return the aborted transactions with batches in [start, end), by first offset.

        The list is complete if `end` is not above the last stable offset.

        Raises:
            CorruptLog: the transaction indexes are damaged.
        """
        self._state.load()
        for _ in self._state.segments:
            try:
                return self._find(start, end)
            except CorruptLog as error:
                self._mend(start, error)
        return self._find(start, end)

    def _find(self, start: int, end: int) -> list[AbortedTransaction]:
        state, found = self._state, list[AbortedTransaction]()
        for segment in state.segments[segment_place(state.segments, start) :]:
            index = segment.transactions
            if index is None:
                index = state.parts.segment_files.transactions_of(segment)
            if index.entries:
                some, complete = index.find(start, end)
                found += some
                if complete:
                    break
        else:
            found += [
                txn
                for txn in state.unindexed
                if txn.last_offset >= start and txn.first_offset < end
            ]
        found.sort(key=attrgetter("first_offset"))
        return found

    def _mend(self, start: int, damage: CorruptLog) -> None:
        state = self._state
        files = state.parts.segment_files
        for segment in state.segments[segment_place(state.segments, start) :]:
            try:
                files.transactions_of(segment)
            except CorruptLog:
                break
        else:
            raise damage
        point = state.current_recovery_point()
        mend_transactions(files, state.directory, point, state.segments, segment, damage)


PIECE_BYTES: Final = 4 << 20
"""Bytes of a segment that are read at once."""


class ClosedSegment(NamedTuple):
    """Closed segment; `epoch` is the leader epoch of its first record."""

    path: str
    base_offset: int
    next_offset: int
    size_bytes: int
    epoch: int


class Tiering:
    """Closed segments of one log, which may be archived."""

    __slots__ = ("_state", "_transactions")

    def __init__(self, state: LogState, transactions: Transactions) -> None:
        self._state = state
        self._transactions = transactions

    @property
    def files(self) -> Files:
        return self._state.parts.segment_files.files

    def closed_segments(self, offset: int) -> list[ClosedSegment]:
        """Return the closed segments that reach beyond an offset, oldest first."""
        state = self._state
        state.load()
        place = segment_place(state.segments, offset)
        return [
            ClosedSegment(
                segment.path,
                segment.base_offset,
                after.base_offset,
                segment.end_position,
                state.epochs.epoch_at(segment.base_offset),
            )
            for segment, after in pairwise(state.segments[place:])
            if after.base_offset > offset and segment.end_position
        ]

    @property
    def newest_timestamp(self) -> int:
        """Highest timestamp of the active segment; -1 without one."""
        state = self._state
        state.write_segments()
        segment = state.segments[-1]
        if segment.end_position:
            state.parts.segment_files.index_of(segment, state.config.index_interval_bytes)
        return segment.max_timestamp

    def position_in(self, segment: ClosedSegment, offset: int) -> int:
        """Return the byte position of the batch that holds `offset` in a segment.

        Raises:
            CorruptLog: the segment is damaged.
        """
        state = self._state
        state.write_segments()
        if offset <= segment.base_offset:
            return 0
        found = state.segments[segment_place(state.segments, offset)]
        files = state.parts.segment_files
        place = files.locate(found, offset, state.config.index_interval_bytes)
        files.indexes.used(found)
        return segment.size_bytes if place is None else place.position

    def aborted_within(self, start: int, end: int) -> bytes:
        """Return the `.txnindex` of the aborted transactions with markers in [start, end).

        Raises:
            CorruptLog: the transaction indexes are damaged.
        """
        index = TransactionIndex()
        for txn in sorted(self._transactions.aborted(start, end), key=attrgetter("last_offset")):
            if start <= txn.last_offset < end:
                index.add(txn)
        return bytes(index.entries)


class SegmentCopy:
    """Reader of the batches of one leader epoch in a segment, which returns them in pieces.

    Only one thread may use it at a time.
    """

    def __init__(
        self,
        files: Files,
        path: str,
        *,
        position: int,
        end: int,
        base_offset: int,
        next_offset: int,
        interval_bytes: int,
    ) -> None:
        """Open a segment file, whose bytes [position, end) hold [base_offset, next_offset).

        Raises:
            OSError: the file cannot be opened.
        """
        self._files = files
        self._path = path
        self._descriptor = files.open(path)
        self._position, self._end = position, end
        self._interval_bytes = interval_bytes
        self._made = Segment("", base_offset)
        self._last_offset: int | None = next_offset
        self.next_offset = base_offset
        self.leader_epoch = -1
        self.checksum = 0
        self._fillers: list[tuple[int, bytes]] = []

    @property
    def size_bytes(self) -> int:
        """Bytes of the pieces so far, including filled gaps."""
        return self._made.written_bytes

    @property
    def max_timestamp(self) -> int:
        return self._made.max_timestamp

    def piece(self) -> memoryview | None:
        """Return the next batches; None at the end, or before a batch of another leader epoch.

        Raises:
            CorruptLog: the segment is damaged.
        """
        wanted = min(PIECE_BYTES, self._end - self._position)
        while wanted:
            data = memoryview(read_range(self._files, self._descriptor, wanted, self._position))
            if len(data) < wanted:
                raise self._damaged(f"the file is {wanted - len(data)} bytes too short")
            taken, needed = self._take(data)
            if taken:
                self._position += taken
                return self._checked(data[:taken])
            if needed <= wanted or wanted == self._end - self._position:
                break
            wanted = min(needed, self._end - self._position)
        end, self._last_offset = self._last_offset, None
        if end is None or end <= self.next_offset or self.leader_epoch < 0:
            return None
        self._fill(0, end)
        self.next_offset = end
        return self._checked(memoryview(b""))

    def _checked(self, data: memoryview) -> memoryview:
        if self._fillers:
            parts, begun = list[Buffer](), 0
            for at, filler in self._fillers:
                parts += [data[begun:at], filler]
                begun = at
            data, self._fillers = memoryview(b"".join([*parts, data[begun:]])), []
        self.checksum = crc32c(data, self.checksum)
        return data

    def _fill(self, at: int, offset: int) -> None:
        """Fill the gap up to `offset` with batches without records, at byte `at` of the piece."""
        for filler in empty_batches(self.next_offset, offset, self.leader_epoch):
            self._fillers.append((at, filler))
            header = decode_header(filler)
            self._made.add_batches((header,), self._interval_bytes)

    def indexes(self) -> tuple[bytes, bytes]:
        self._made.close_index()
        index = self._index()
        return bytes(index.offsets), bytes(index.times)

    def close(self) -> None:
        self._files.close(self._descriptor)

    def _take(self, data: memoryview) -> tuple[int, int]:
        """Verify and index the complete batches of `data`.

        Return their size, and the size of the next batch as far as it is known, both in bytes.
        """
        at = 0
        while len(data) - at >= HEADER_BYTES:
            header = self._header(data, at)
            if header.size_bytes > len(data) - at:
                if header.size_bytes > self._end - self._position - at:
                    raise self._damaged("a batch reaches beyond the end of the segment")
                return at, header.size_bytes
            try:
                verify_crc(data, header, at)
            except CorruptBatch as error:
                raise self._damaged(str(error)) from None
            if self.leader_epoch < 0:
                self.leader_epoch = header.partition_leader_epoch
            elif header.partition_leader_epoch != self.leader_epoch:
                self._end, self._last_offset = self._position + at, None
                return at, 0
            if header.base_offset > self.next_offset:
                self._fill(at, header.base_offset)
            self._made.add_batches((header,), self._interval_bytes)
            self.next_offset = header.next_offset
            at += header.size_bytes
        if len(data) > at and self._position + len(data) == self._end:
            raise self._damaged(f"the last {len(data) - at} bytes are not a batch")
        return at, HEADER_BYTES

    def _header(self, data: memoryview, at: int) -> BatchHeader:
        try:
            header = decode_header(data, at)
        except CorruptBatch as error:
            raise self._damaged(str(error)) from None
        if header.base_offset < self.next_offset:
            raise self._damaged(
                f"a batch begins at offset {header.base_offset}, expected at least"
                f" {self.next_offset}"
            )
        return header

    def _index(self) -> SparseIndex:
        if self._made.index is None:
            raise not_loaded(self._made)
        return self._made.index

    def _damaged(self, reason: str) -> CorruptLog:
        return CorruptLog(Path(self._path), self._position, reason)
