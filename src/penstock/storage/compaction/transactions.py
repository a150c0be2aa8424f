"""Transactions of a compaction pass: aborted batches, and markers that may be removed.

A marker stays as long as its transaction has a batch, even an empty one, because readers need the
marker to recognise aborted transactions.

Source: Kafka's `CleanedTransactionMetadata`; KIP-98.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from penstock.records.transactions import AbortedTransaction
from penstock.storage.formats.transaction_index import TransactionIndex


class PassedTransactions:
    """Transactions of one pass, which visits batches and markers in log order."""

    __slots__ = ("_coming", "_open", "_seen", "index")

    def __init__(self, aborted: Sequence[AbortedTransaction]) -> None:
        """Create the state; `aborted` has the aborted transactions of the pass, by first offset."""
        self._coming = deque(aborted)
        self._open: dict[int, AbortedTransaction] = {}
        self._seen: set[int] = set()
        self.index = TransactionIndex()
        """Aborted transactions whose markers were visited since the last `take_index`."""

    def met_batch(self, producer_id: int, last_offset: int) -> bool:
        """Return whether a transactional batch is of an aborted transaction."""
        self._begin(last_offset)
        self._seen.add(producer_id)
        one = self._open.get(producer_id)
        return one is not None and last_offset < one.last_offset

    def met_marker(self, producer_id: int, offset: int) -> bool:
        """Return whether a marker may be removed, because its transaction has no batch left."""
        self._begin(offset)
        one = self._open.pop(producer_id, None)
        empty = producer_id not in self._seen
        self._seen.discard(producer_id)
        if one is not None and not empty and one.last_offset == offset:
            self.index.add(one)
        return empty

    def take_index(self) -> bytes:
        """Return the index entries since the last call."""
        index, self.index = self.index, TransactionIndex()
        return bytes(index.entries)

    def _begin(self, offset: int) -> None:
        while self._coming and self._coming[0].first_offset <= offset:
            one = self._coming.popleft()
            self._open[one.producer_id] = one
