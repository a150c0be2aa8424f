"""Open transactions of a partition while an object's entries are placed: a pure core.

The transaction that has locked a partition's row places entries one after the other, whichever
object and broker they come from. So a marker's decision is final: a later batch of that transaction
finds the producer's epoch raised (version 2), or its verification expired
(`records.idempotence.check_verified`), and is rejected.

The last stable offset never falls: transactions begin at the log's end, and a marker raises it in
the transaction that makes the marker readable.

Source: KIP-98; Kafka's `ProducerStateManager` (`ongoingTxns`).
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.control.batch_index.rules import PartitionRow
from penstock.records.transactions import AbortedTransaction, Marker


class PlacedTransactions:
    """First offset of the first open transaction of a partition, and newly aborted ones."""

    __slots__ = ("_begun", "aborted", "aborted_offset", "open_offset")

    def __init__(self, row: PartitionRow, begun: Mapping[int, int]) -> None:
        """`begun` has the first offsets of open ones by producer; only markers need it."""
        self._begun = dict(begun)
        self.open_offset = row.open_offset
        self.aborted_offset = row.aborted_offset
        self.aborted: list[AbortedTransaction] = []

    def begins(self, producer_id: int, offset: int) -> None:
        """Record the first batch of a transaction, at the end of the log."""
        self._begun[producer_id] = offset
        if self.open_offset < 0:
            self.open_offset = offset

    def ends(self, marker: Marker, first_offset: int, offset: int) -> None:
        del self._begun[marker.producer_id]
        self.open_offset = next(iter(self._begun.values()), -1)
        if not marker.commit:
            stable = offset + 1 if self.open_offset < 0 else self.open_offset
            self.aborted.append(
                AbortedTransaction(marker.producer_id, first_offset, offset, stable)
            )
            self.aborted_offset = offset
