"""Port through which a leader verifies transactional batches with the transaction coordinator.

A leader appends the first batch of a transaction only if the coordinator confirms that the
transaction includes the partition. Without this check the partition might never get a marker for
the transaction (KIP-890).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from penstock.base.errors import PenstockError
from penstock.base.ids import TopicPartition


class Verifier(Protocol):
    """Client of transaction coordinators, on this or other brokers."""

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
        """Return the result of `verify` without `add` if it is known immediately, else None."""
        ...
