"""State of one idempotent producer, and the check of its next batch: pure functions.

The state is the epoch and the last five batches, oldest first, because a client may have five in
flight and retry any of them. It is an immutable value that each append replaces, so that a failed
append is undone by restoring the old value. Logs on disk and the batch index of diskless topics
both use it.

| batch's epoch | batch's sequence                       | answer                             |
|---------------|----------------------------------------|------------------------------------|
| older         | any                                    | INVALID_PRODUCER_EPOCH             |
| same          | one of the last five, same first, last | duplicate: the original's offset   |
| same          | the last one plus one, wrapping        | append                             |
| same          | any other                              | OUT_OF_ORDER_SEQUENCE_NUMBER       |
| newer         | 0                                      | append                             |
| newer         | any other                              | OUT_OF_ORDER_SEQUENCE_NUMBER       |
| no such id    | any                                    | append: its state may have expired |

After a marker with a newer epoch, without batches yet, the next sequence is 0. While a transaction
is open, a batch outside of it is rejected with INVALID_TXN_STATE.

Source: Kafka's `ProducerAppendInfo` and `ProducerStateManager`; KIP-98, KIP-360, KIP-890.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from penstock.records.aborted import OFFSET_MAX
from penstock.records.errors import (
    InvalidProducerEpoch,
    InvalidTxnState,
    OutOfOrderSequence,
    TransactionCoordinatorFenced,
    VerificationOutdated,
)
from penstock.records.limits import PRODUCER_BATCHES_MAX
from penstock.records.transactions import EPOCH_VERSION, Marker

SEQUENCES: Final = 2**31
"""Number of sequences of a producer; after the last one comes 0."""


class ProducerBatch(NamedTuple):
    """Batch in a producer's state."""

    first_sequence: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta


NO_BATCH: Final = ProducerBatch(-1, -1, -1, 0, -1)
"""Last batch of a producer whose epoch has a marker only."""


class Producer(NamedTuple):
    """State of a producer. `seen_ms` is the broker's time of its last append.

    `batches` is empty after a marker of a newer epoch. `coordinator_epoch` is of the last marker,
    `txn_first_offset` the first offset of its open transaction; -1 for none. `guard_offset` is for
    diskless partitions: while a transaction is open, the partition's end when it was verified; else
    the end of the last one of this epoch, -1 if none has ended, or with transaction version 2,
    whose markers raise the epoch.
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
    """Return the original if a batch is a duplicate, None if it may be appended.

    Raises:
        InvalidProducerEpoch, OutOfOrderSequence: as in the table.
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
            f"the partition has seen epoch {producer.epoch}"
        )
    if first_sequence != 0:
        raise OutOfOrderSequence(
            f"producer {producer_id} begins epoch {epoch} with sequence {first_sequence}, not 0"
        )
    return None


def check_transaction(producer: Producer, producer_id: int, *, transactional: bool) -> None:
    """Check that a new batch belongs to its producer's open transaction.

    Raises:
        InvalidTxnState: the producer has a transaction open, and the batch belongs to none.
    """
    if producer.txn_first_offset >= 0 and not transactional:
        raise InvalidTxnState(
            f"producer {producer_id} has had a transaction open since offset"
            f" {producer.txn_first_offset}: a batch outside of it is rejected"
        )


remembered: Final[Callable[[tuple[int, int, int, int, int]], ProducerBatch]] = partial(
    tuple.__new__, ProducerBatch
)
"""`ProducerBatch._make` in C, as one is made for each append of an idempotent producer."""

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
    """Return a producer's state after a checked batch.

    `txn_offset` is the batch's first offset if it belongs to a transaction, else -1; `guard_offset`
    becomes the producer's if it begins one.
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
    """Check that a batch continues its transaction or was verified, if several brokers append.

    `verified_from` is the partition's end, or a lower offset, when the transaction's coordinator
    was asked; -1 without a verification. A marker at or behind it has ended what was verified.

    Raises:
        InvalidTxnState: it would begin a transaction without verification.
        VerificationOutdated: the transaction has ended since.
    """
    known = before is not None and before.epoch == epoch
    if known and before is not None and before.txn_first_offset >= 0:
        return
    if verified_from < 0:
        raise InvalidTxnState(
            f"a batch of producer {producer_id} of epoch {epoch} was not part of an ongoing"
            " transaction, and was not verified to begin one"
        )
    if known and before is not None and before.guard_offset >= verified_from:
        raise VerificationOutdated(
            f"the transaction of producer {producer_id} of epoch {epoch} that was verified at"
            f" offset {verified_from} has ended at {before.guard_offset}: verify it again"
        )


def check_marker(producer: Producer | None, marker: Marker, made_at: int = OFFSET_MAX) -> bool:
    """Whether a marker exists already; else it is to be appended.

    `made_at` is the partition's end, or a lower offset, when the marker was made after its whole
    transaction was verified. A marker older than the producer's open transaction exists already.
    With transaction version 2, a marker exists once its epoch does. Before, a marker that ends
    nothing is appended, which does no harm.

    Raises:
        InvalidProducerEpoch, TransactionCoordinatorFenced: the existing one is newer.
    """
    if producer is None:
        return False
    if marker.producer_epoch < producer.epoch:
        raise InvalidProducerEpoch(
            f"marker of producer {marker.producer_id} has epoch {marker.producer_epoch}, "
            f"the partition has seen epoch {producer.epoch}"
        )
    if marker.coordinator_epoch < producer.coordinator_epoch:
        raise TransactionCoordinatorFenced(
            f"marker of producer {marker.producer_id} has coordinator epoch"
            f" {marker.coordinator_epoch}, the partition has seen {producer.coordinator_epoch}"
        )
    if marker.producer_epoch != producer.epoch:
        return False
    is_late = producer.txn_first_offset >= 0 and producer.guard_offset > made_at
    return marker.transaction_version >= EPOCH_VERSION or is_late


def decided(
    before: Producer | None, marker: Marker, seen_ms: int, guard_offset: int = -1
) -> Producer:
    """Return a producer's state after a marker: no transaction is open.

    `guard_offset` is the marker's, if it is to be stored (`check_verified`).
    """
    epoch = marker.producer_epoch
    batches = before.batches if before is not None and before.epoch == epoch else ()
    ended = guard_offset if marker.transaction_version < EPOCH_VERSION else -1
    return Producer(epoch, batches, seen_ms, marker.coordinator_epoch, -1, ended)
