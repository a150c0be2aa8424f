"""High watermark and last stable offset of a partition. No I/O.

The high watermark is the end of committed records: the durable offset of the log if the partition
has one replica, otherwise the offset that a quorum of replicas has. The last stable offset is the
first offset of a transaction that is open or whose marker is not committed, or the high watermark
if that is lower.

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
        """Set the high watermark; return whether consumers may read more."""
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
        """Set the log's transactions and start offset; transactions below it do not count."""
        self._transactions, self._start = transactions, start_offset
        self.committed_to(self.high_watermark)
