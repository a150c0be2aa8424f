"""State of one idempotent producer in a partition, and the check of its next batch.

All functions are pure. The state is the producer's epoch and its last five batches, oldest first.
A client may have five batches in flight and retry any of them. Each append replaces the
immutable state, so a failed append is undone by restoring the old value. Logs on disk and the batch
index of diskless topics both use this module.

| batch's epoch | batch's sequence                       | answer                             |
|---------------|----------------------------------------|------------------------------------|
| older         | any                                    | INVALID_PRODUCER_EPOCH             |
| same          | one of the last five, same first, last | duplicate: the original's offset   |
| same          | the last one plus one, wrapping        | append                             |
| same          | any other                              | OUT_OF_ORDER_SEQUENCE_NUMBER       |
| newer         | 0                                      | append                             |
| newer         | any other                              | OUT_OF_ORDER_SEQUENCE_NUMBER       |
| no such id    | any                                    | append: its state may have expired |

If a marker has raised the epoch and no batch has followed, the next sequence is 0. While a
transaction is open, a batch that is not part of it is rejected with INVALID_TXN_STATE.

Source: Kafka's `ProducerAppendInfo` and `ProducerStateManager`; KIP-98, KIP-360, KIP-890.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from penstock.records.errors import (
    InvalidProducerEpoch,
    InvalidTxnState,
    OutOfOrderSequence,
    TransactionCoordinatorFenced,
    VerificationOutdated,
)
from penstock.records.header import PRODUCER_BATCHES_MAX
from penstock.records.transactions import EPOCH_VERSION, OFFSET_MAX, Marker

SEQUENCES: Final = 2**31
"""Number of different sequences; 0 follows the last one."""


class ProducerBatch(NamedTuple):
    """Batch in a producer's state; `offset_delta` is the last offset minus the first."""

    first_sequence: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta


NO_BATCH: Final = ProducerBatch(-1, -1, -1, 0, -1)
"""Last batch of a producer that has only a marker in its present epoch."""


class Producer(NamedTuple):
    """State of a producer in a partition.

    `batches` is empty if a marker has raised the epoch and no batch has followed. `seen_ms` is the
    broker's time of the last append. `coordinator_epoch` is that of the last marker.
    `txn_first_offset` is the first offset of the open transaction; -1 for none.

    `guard_offset` is used for diskless partitions only. While a transaction is open, it is the
    partition's end offset when the transaction was verified. Otherwise it is the offset of the
    marker that ended this epoch's last transaction, or -1 if there is none. It is also -1 with
    transaction version 2, whose markers raise the epoch.
    """

    epoch: int
    batches: tuple[ProducerBatch, ...]
    seen_ms: int
    coordinator_epoch: int = -1
    txn_first_offset: int = -1
    guard_offset: int = -1


class ProducerState(NamedTuple):
    """State of an idempotent producer in a partition, for DescribeProducers."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    last_offset: int
    coordinator_epoch: int = -1
    txn_start_offset: int = -1


def described(producer_id: int, producer: Producer) -> ProducerState:
    last = producer.batches[-1] if producer.batches else NO_BATCH
    return ProducerState(
        producer_id,
        producer.epoch,
        last.last_sequence,
        producer.seen_ms,
        last.last_offset,
        producer.coordinator_epoch,
        producer.txn_first_offset,
    )


def original(
    producer: Producer | None,
    producer_id: int,
    epoch: int,
    first_sequence: int,
    last_sequence: int,
) -> ProducerBatch | None:
    """Return the original of a duplicate batch; None if the batch may be appended.

    Raises:
        InvalidProducerEpoch, OutOfOrderSequence: the batch is rejected, as in the module's table.
    """
    if producer is None:
        return None
    if epoch == producer.epoch:
        batches = producer.batches
        expected = (batches[-1].last_sequence + 1) % SEQUENCES if batches else 0
        if first_sequence == expected:
            return None
        for batch in batches:
            if batch.first_sequence == first_sequence and batch.last_sequence == last_sequence:
                return batch
        raise OutOfOrderSequence(
            f"producer {producer_id} of epoch {epoch} sent sequence {first_sequence}, "
            f"expected {expected}"
        )
    if epoch < producer.epoch:
        raise InvalidProducerEpoch(
            f"producer {producer_id} has epoch {epoch}, "
            f"but the partition has seen epoch {producer.epoch}"
        )
    if first_sequence != 0:
        raise OutOfOrderSequence(
            f"producer {producer_id} begins epoch {epoch} with sequence {first_sequence}, "
            "expected 0"
        )
    return None


def check_transaction(producer: Producer, producer_id: int, *, transactional: bool) -> None:
    """Check that a new batch is transactional if its producer has an open transaction.

    Raises:
        InvalidTxnState: a transaction is open, but the batch is not transactional.
    """
    if producer.txn_first_offset >= 0 and not transactional:
        raise InvalidTxnState(
            f"producer {producer_id} sent a batch without the transactional flag, but it has had an"
            f" open transaction since offset {producer.txn_first_offset}"
        )


remembered: Final[Callable[[tuple[int, int, int, int, int]], ProducerBatch]] = partial(
    tuple.__new__, ProducerBatch
)
"""Fast form of `ProducerBatch._make`; every append of an idempotent producer creates a batch."""

_State = tuple[int, tuple[ProducerBatch, ...], int, int, int, int]
_state: Final[Callable[[_State], Producer]] = partial(tuple.__new__, Producer)


def appended(
    before: Producer | None,
    epoch: int,
    batch: ProducerBatch,
    seen_ms: int,
    txn_offset: int = -1,
    guard_offset: int = -1,
) -> Producer:
    """Return a producer's state after a batch that was checked and appended.

    `txn_offset` is the batch's first offset if it is transactional, else -1. If the batch begins a
    transaction, `guard_offset` becomes the producer's `guard_offset`.
    """
    if before is None:
        return _state((epoch, (batch,), seen_ms, -1, txn_offset, guard_offset))
    known, batches, _, coordinator, open_from, guard = before
    if known == epoch:
        batches = (*batches[1 - PRODUCER_BATCHES_MAX :], batch)
    else:
        batches, guard = (batch,), -1
    if open_from < 0:
        open_from = txn_offset
        guard = guard_offset if txn_offset >= 0 else guard
    return _state((epoch, batches, seen_ms, coordinator, open_from, guard))


def check_verified(
    before: Producer | None, producer_id: int, epoch: int, verified_from: int
) -> None:
    """Check that a transactional batch continues an open transaction, or was verified to begin one.

    Diskless partitions use this, because several brokers append to them. `verified_from` is the
    partition's end offset when the coordinator was asked (or a lower offset); -1 without a
    verification. If a marker has been appended at this offset or later, the verified transaction
    has ended.

    Raises:
        InvalidTxnState: the batch would begin a transaction without a verification.
        VerificationOutdated: the transaction has ended since it was verified.
    """
    known = before is not None and before.epoch == epoch
    if known and before is not None and before.txn_first_offset >= 0:
        return
    if verified_from < 0:
        raise InvalidTxnState(
            f"producer {producer_id} of epoch {epoch} sent a transactional batch, but it has no"
            " open transaction, and its coordinator has not verified that the batch begins one"
        )
    if known and before is not None and before.guard_offset >= verified_from:
        raise VerificationOutdated(
            f"the transaction of producer {producer_id} of epoch {epoch} was verified at offset"
            f" {verified_from}, but has ended at offset {before.guard_offset}. Verify it again"
        )


def check_marker(producer: Producer | None, marker: Marker, made_at: int = OFFSET_MAX) -> bool:
    """Whether a marker is already in the partition; if not, it has to be appended.

    A marker that is older than the producer's open transaction counts as present. To detect this,
    `made_at` is the partition's end offset when the marker was made (or a lower offset), after its
    whole transaction had been verified. With transaction version 2, a marker is present if its
    epoch is. With older versions, a repeated marker that ends no transaction is appended again,
    which does no harm.

    Raises:
        InvalidProducerEpoch, TransactionCoordinatorFenced: the partition has seen a newer epoch of
            the producer or of the coordinator.
    """
    if producer is None:
        return False
    if marker.producer_epoch < producer.epoch:
        raise InvalidProducerEpoch(
            f"marker of producer {marker.producer_id} has epoch {marker.producer_epoch}, "
            f"but the partition has seen epoch {producer.epoch}"
        )
    if marker.coordinator_epoch < producer.coordinator_epoch:
        raise TransactionCoordinatorFenced(
            f"marker of producer {marker.producer_id} has coordinator epoch"
            f" {marker.coordinator_epoch}, but the partition has seen {producer.coordinator_epoch}"
        )
    if marker.producer_epoch != producer.epoch:
        return False
    is_late = producer.txn_first_offset >= 0 and producer.guard_offset > made_at
    return marker.transaction_version >= EPOCH_VERSION or is_late


def decided(
    before: Producer | None, marker: Marker, seen_ms: int, guard_offset: int = -1
) -> Producer:
    """Return a producer's state after a marker, which ends the open transaction.

    `guard_offset` is the marker's offset if it is to be stored for `check_verified`, else -1.
    """
    epoch = marker.producer_epoch
    batches = before.batches if before is not None and before.epoch == epoch else ()
    ended = guard_offset if marker.transaction_version < EPOCH_VERSION else -1
    return Producer(epoch, batches, seen_ms, marker.coordinator_epoch, -1, ended)
