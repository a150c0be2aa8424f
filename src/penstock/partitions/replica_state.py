"""What consumers may read, by what is durable where and which transactions are open. No I/O.

The high watermark is the highest offset up to which a quorum of replicas is durable; it never
falls while other replicas count. The last stable offset is the high watermark, or the first offset
of an open transaction below it.

Source: KIP-98 (the last stable offset); `ReplicaState` of Kafka's `Partition`.
"""

from __future__ import annotations


class ReplicaState:
    """See the module's text: the state of the replica that leads its partition."""

    __slots__ = (
        "_alone", "_durable_offset", "_others", "_quorum", "_transactions", "high_watermark",
        "last_stable_offset",
    )  # fmt: skip

    def __init__(self, durable_offset: int, *, quorum: int = 1) -> None:
        """`quorum` is how many replicas make an offset readable, this one among them."""
        self._quorum = quorum
        self._durable_offset = durable_offset
        self._others: dict[int, int] = {}
        self._transactions: dict[int, int] = {}
        self._alone = quorum == 1
        self.high_watermark = self.last_stable_offset = durable_offset

    def became_durable(self, offset: int) -> bool:
        """This replica has everything below an offset; true if consumers may read more."""
        if self._alone:  # and no transaction is open: called for each append
            self.high_watermark = self.last_stable_offset = self._durable_offset = offset
            return True
        self._durable_offset = offset
        return self._advance()

    def replica_became_durable(self, replica: int, offset: int) -> bool:
        """Another replica has everything below an offset; true if consumers may read more."""
        self._others[replica] = max(offset, self._others.get(replica, 0))
        return self._advance()

    def transaction_began(self, producer_id: int, offset: int) -> None:
        """A producer's first record of a transaction has an offset."""
        self._transactions.setdefault(producer_id, offset)
        self._alone = False

    def transaction_ended(self, producer_id: int) -> bool:
        """It is decided; true if consumers may read more."""
        self._transactions.pop(producer_id, None)
        self._alone = self._quorum == 1 and not self._transactions
        return self._advance()

    def _advance(self) -> bool:
        before = self.high_watermark, self.last_stable_offset
        if self._quorum == 1:
            self.high_watermark = self._durable_offset
        else:
            offsets = sorted([self._durable_offset, *self._others.values()], reverse=True)
            if len(offsets) >= self._quorum:
                self.high_watermark = max(self.high_watermark, offsets[self._quorum - 1])
        self.last_stable_offset = min([self.high_watermark, *self._transactions.values()])
        return before < (self.high_watermark, self.last_stable_offset)
