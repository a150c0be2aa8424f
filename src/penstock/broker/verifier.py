"""The port by which a partition's leader asks a transaction's coordinator before it takes a batch.

The first batch of a transaction is taken only if the coordinator knows that the partition is part
of it, so that none stays open for ever because its marker is sent elsewhere.

Source: KIP-890.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from penstock.base.errors import PenstockError
from penstock.base.ids import TopicPartition


class Verifier(Protocol):
    """Asks the coordinator of a transactional id, on whatever broker it is."""

    async def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        *,
        add: bool,
    ) -> Sequence[PenstockError | None]:
        """Whether a producer's open transaction has these partitions; with `add` it has them then.

        One answer for each partition, in their order: None where it has, else the coordinator's
        error (`InvalidProducerEpoch`, `InvalidTxnState`, those of Kafka's codes
        `transaction_abortable`, `concurrent_transactions`, `not_coordinator` and so on). Does not
        raise a PenstockError: where the coordinator cannot be asked, that is each one's answer.
        """
        ...

    def verify_now(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
    ) -> Sequence[PenstockError | None] | None:
        """As `verify` without `add`, where nobody has to be waited for; None where it is so."""
        ...
