"""Which transactions of a partition are open while an object's entries are placed: a pure core.

Whatever object an entry came in, and whoever wrote it, entries of a partition are placed one after
the other, by the transaction that has locked its row. So what was decided by a marker stays so: a
batch of the transaction that comes later finds the producer's epoch raised (version 2), or that
what was verified has ended (`records.idempotence.check_verified`), and is refused.

The last stable offset never falls: what begins does so at the end of the log, and a marker lets it
rise in the transaction that makes the marker readable.

Source: KIP-98; Kafka's `ProducerStateManager` (`ongoingTxns`).
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.control.batch_index.rules import PartitionRow
from penstock.records.transactions import AbortedTransaction, Marker


class PlacedTransactions:
    """Of one partition: where the first open one begins, and which were aborted meanwhile."""

    __slots__ = ("_begun", "aborted", "aborted_offset", "open_offset")

    def __init__(self, row: PartitionRow, begun: Mapping[int, int]) -> None:
        """`begun` are the first offsets of open ones by producer; needed only if a marker comes."""
        self._begun = dict(begun)
        self.open_offset = row.open_offset
        self.aborted_offset = row.aborted_offset
        self.aborted: list[AbortedTransaction] = []

    def begins(self, producer_id: int, offset: int) -> None:
        """The first batch of a transaction is placed, behind all that there are."""
        self._begun[producer_id] = offset
        if self.open_offset < 0:
            self.open_offset = offset

    def ends(self, marker: Marker, first_offset: int, offset: int) -> None:
        """A marker is placed that decides the transaction which begins at `first_offset`."""
        del self._begun[marker.producer_id]
        self.open_offset = next(iter(self._begun.values()), -1)
        if not marker.commit:
            stable = offset + 1 if self.open_offset < 0 else self.open_offset
            self.aborted.append(
                AbortedTransaction(marker.producer_id, first_offset, offset, stable)
            )
            self.aborted_offset = offset
