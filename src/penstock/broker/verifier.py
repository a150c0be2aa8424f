"""Port for verification of transactional batches by the transaction's coordinator.

A leader appends a transaction's first batch only if the coordinator has the partition in it;
otherwise the transaction would never get its marker there (KIP-890).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from penstock.base.errors import PenstockError
from penstock.base.ids import TopicPartition


class Verifier(Protocol):
    """Client of the coordinator of a transactional id, on any broker."""

    async def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        *,
        add: bool,
    ) -> Sequence[PenstockError | None]:
        """Verify that a producer's open transaction has these partitions; `add` adds them first.

        Returns None or the coordinator's error for each partition, in order:
        `InvalidProducerEpoch`, `InvalidTxnState`, or Kafka's codes `transaction_abortable`,
        `concurrent_transactions`, `not_coordinator` and so on. Never raises a PenstockError; an
        unreachable coordinator is an error of each partition.
        """
        ...

    def verify_now(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
    ) -> Sequence[PenstockError | None] | None:
        """Verify without `add` and without waiting; None if waiting is necessary."""
        ...
