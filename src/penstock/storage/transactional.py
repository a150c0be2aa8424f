"""Logs with transactions: appends of markers, and the index of aborted transactions.

Batches of transactions are appended like all others, with a guard. A marker is a batch that the
leader makes and appends. An abort is indexed once its marker is in the segment's file, and saved
with the next checkpoint.

Source: Kafka's `UnifiedLog` (`appendAsLeader` for the coordinator, `collectAbortedTransactions`).
"""

from __future__ import annotations

from penstock.records import decode_header
from penstock.records.appends import AppendResult
from penstock.records.transactions import AbortedTransaction, Marker, encode_marker
from penstock.storage.errors import CorruptLog, StorageError
from penstock.storage.loading import mend_transactions
from penstock.storage.repairable import RepairableLog
from penstock.storage.segment import segment_place
from penstock.storage.transactions import aborted_in


class TransactionalLog(RepairableLog):
    """Log with transactions; a base of every log of a store."""

    __slots__ = ()

    def append_marker(self, marker: Marker, *, now_ms: int) -> AppendResult:
        """Queue the marker that ends a transaction; durable once a later flush is.

        Returns a duplicate with offset -1 if the log already has the marker.

        Raises:
            InvalidProducerEpoch, TransactionCoordinatorFenced: the log has newer epochs.
            StorageError, CorruptLog: the log accepts no appends; or the fence.
        """
        self.load()
        if self.closed or self.fence or self.damage or self._queue.failed:
            self._refuse()
        if self.producer_states.check_marker(marker):
            return AppendResult(-1, -1, self.log_start_offset, duplicate=True)
        batch = encode_marker(marker, now_ms)
        return self._accept(memoryview(batch), [decode_header(batch)], self.config, now_ms, None)

    def aborted(self, start: int, end: int) -> list[AbortedTransaction]:
        """Return the aborted transactions with batches in [start, end), by first offset.

        Complete if `end` is not above the last stable offset.

        Raises:
            CorruptLog: the transaction indexes are damaged.
        """
        self.load()
        files = self._parts.segment_files
        for _ in self.segments:
            try:
                return aborted_in(files, self.segments, self.unindexed, start, end)
            except CorruptLog as error:
                self._mend(start, error)
        return aborted_in(files, self.segments, self.unindexed, start, end)

    def _mend(self, start: int, damage: CorruptLog) -> None:
        files = self._parts.segment_files
        for segment in self.segments[segment_place(self.segments, start) :]:
            try:
                files.transactions_of(segment)
            except CorruptLog:
                break
        else:
            raise damage
        point = self.current_recovery_point()
        mend_transactions(files, self.directory, point, self.segments, segment, damage)

    def _check_appendable(self) -> None:
        self.load()
        error = self.closed or self.fence or self._queue.failed
        if error is None and self.damage is not None:
            error = StorageError(f"{self.topic_partition} accepts no appends: {self.damage}")
        if error is not None:
            raise error
