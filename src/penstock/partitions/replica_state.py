"""What consumers may read, by what is committed and which transactions are open. No I/O.

The high watermark is where what is committed ends: what is durable here, of a partition with one
replica; the commit mark of the replicas, of one with several. The last stable offset is the high
watermark, or the first offset of an open transaction below it.

Source: KIP-98 (the last stable offset); `ReplicaState` of Kafka's `Partition`.
"""

from __future__ import annotations


class ReplicaState:
    """See the module's text: the state of the replica that serves its partition."""

    __slots__ = ("_transactions", "high_watermark", "last_stable_offset")

    def __init__(self, committed_offset: int) -> None:
        self._transactions: dict[int, int] = {}
        self.high_watermark = self.last_stable_offset = committed_offset

    def committed_to(self, offset: int) -> bool:
        """Everything below an offset is committed; true if consumers may read more."""
        if not self._transactions:  # called for each append
            self.high_watermark = self.last_stable_offset = offset
            return True
        self.high_watermark = offset
        self._advance()
        return True

    def transaction_began(self, producer_id: int, offset: int) -> None:
        """A producer's first record of a transaction has an offset."""
        self._transactions.setdefault(producer_id, offset)

    def transaction_ended(self, producer_id: int) -> bool:
        """It is decided; true if consumers may read more."""
        before = self.last_stable_offset
        self._transactions.pop(producer_id, None)
        self._advance()
        return self.last_stable_offset > before

    def _advance(self) -> None:
        self.last_stable_offset = min([self.high_watermark, *self._transactions.values()])
