"""What consumers may read, by what is committed and which transactions are open. No I/O.

The high watermark is where what is committed ends: what is durable here, of a partition with one
replica; the commit mark of the replicas, of one with several. The last stable offset is the high
watermark, or the first offset of a transaction below it that is open, or whose marker is not
committed.

Source: KIP-98 (the last stable offset); `ReplicaState` of Kafka's `Partition`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.storage.transactions import OpenTransactions


class ReplicaState:
    """See the module's text: the state of the replica that serves its partition."""

    __slots__ = ("_start", "_transactions", "high_watermark", "last_stable_offset")

    def __init__(self, committed_offset: int, transactions: OpenTransactions) -> None:
        self._transactions = transactions
        self._start = 0
        self.high_watermark = self.last_stable_offset = committed_offset

    def committed_to(self, offset: int) -> bool:
        """Everything below an offset is committed; true if consumers may read more."""
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
        """The log has other transactions, or another start: nothing below it is waited for."""
        self._transactions, self._start = transactions, start_offset
        self.committed_to(self.high_watermark)
