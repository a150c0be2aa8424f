"""Transactions of a log: appends of markers, and the index of aborted transactions.

Transactional batches are appended like all others, with a guard of
`ProducerStates.begin_verification`. A marker is a batch that the leader makes and appends. An
aborted transaction is indexed once its marker is in the segment's file; the next checkpoint saves
the index.

Source: Kafka's `UnifiedLog` (`appendAsLeader` for the coordinator, `collectAbortedTransactions`).
"""

from __future__ import annotations

from operator import attrgetter

from penstock.records import decode_header
from penstock.records.appends import AppendResult
from penstock.records.transactions import AbortedTransaction, Marker, encode_marker
from penstock.storage.errors import CorruptLog
from penstock.storage.loading import mend_transactions
from penstock.storage.log.state import LogState
from penstock.storage.segment import segment_place


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
