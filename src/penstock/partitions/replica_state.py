"""High watermark and last stable offset of a partition. No I/O.

The high watermark is the end of committed records: with one replica the local durable offset, with
several the committed offset of the replicas. The last stable offset is the high watermark, or the
first offset below it of a transaction that is open or whose marker is not committed.

Source: KIP-98 (the last stable offset); `ReplicaState` of Kafka's `Partition`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.storage.producers import OpenTransactions


class ReplicaState:
    """Readable offsets of the replica that serves its partition."""

    __slots__ = ("_start", "_transactions", "high_watermark", "last_stable_offset")

    def __init__(self, committed_offset: int, transactions: OpenTransactions) -> None:
        self._transactions = transactions
        self._start = 0
        self.high_watermark = self.last_stable_offset = committed_offset

    def committed_to(self, offset: int) -> bool:
        """Commit everything below an offset; return whether consumers may read more."""
        self.high_watermark = offset
        transactions = self._transactions
        if transactions.first_unstable_offset >= offset:  # nearly always
            self.last_stable_offset = offset
            return True
        transactions.committed_to(offset)
        stable = min(offset, transactions.first_unstable_offset)
        self.last_stable_offset = max(stable, min(self._start, offset))
        return True

    def holds(self, transactions: OpenTransactions, start_offset: int) -> None:
        """Take over the log's transactions and start offset, below which no transaction counts."""
        self._transactions, self._start = transactions, start_offset
        self.committed_to(self.high_watermark)
