"""What is remembered of one idempotent producer, and what its next batch is: pure functions.

Per producer id: its epoch, and its last five batches, oldest first, because a client may have
five in flight and retry any of them. A producer's state is an immutable value that is replaced
by each append, so that an append that did not become durable is undone by putting the old value
back. Logs on disk and the batch index of diskless topics both decide by it.

| batch's epoch | batch's sequence                       | answer                             |
|---------------|----------------------------------------|------------------------------------|
| older         | any                                    | INVALID_PRODUCER_EPOCH             |
| same          | one of the last five, same first, last | duplicate: the original's offset   |
| same          | the last one plus one, wrapping        | append                             |
| same          | any other                              | OUT_OF_ORDER_SEQUENCE_NUMBER       |
| newer         | 0                                      | append                             |
| newer         | any other                              | OUT_OF_ORDER_SEQUENCE_NUMBER       |
| no such id    | any                                    | append: its state may have expired |

Source: Kafka's `ProducerAppendInfo` and `ProducerStateManager`; KIP-98, KIP-360.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from penstock.records.errors import InvalidProducerEpoch, OutOfOrderSequence
from penstock.records.limits import PRODUCER_BATCHES_MAX

SEQUENCES: Final = 2**31
"""Sequences of a producer; after the last one comes 0."""


class ProducerBatch(NamedTuple):
    """A remembered batch."""

    first_sequence: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta


class Producer(NamedTuple):
    """A producer's state. `seen_ms` is the broker's time of its last append."""

    epoch: int
    batches: tuple[ProducerBatch, ...]
    seen_ms: int


class ProducerState(NamedTuple):
    """What a partition remembers of an idempotent producer, for DescribeProducers."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    last_offset: int


def described(producer_id: int, producer: Producer) -> ProducerState:
    """A producer's state as DescribeProducers tells it."""
    last = producer.batches[-1]
    return ProducerState(
        producer_id, producer.epoch, last.last_sequence, producer.seen_ms, last.last_offset
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
        InvalidProducerEpoch, OutOfOrderSequence: as the table says.
    """
    if producer is None:
        return None
    if epoch == producer.epoch:
        expected = (producer.batches[-1].last_sequence + 1) % SEQUENCES
        if first_sequence == expected:
            return None
        for batch in producer.batches:
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


def appended(before: Producer | None, epoch: int, batch: ProducerBatch, seen_ms: int) -> Producer:
    """A producer's state after a batch that was checked."""
    if before is None or before.epoch != epoch:
        return Producer(epoch, (batch,), seen_ms)
    return Producer(epoch, (*before.batches[1 - PRODUCER_BATCHES_MAX :], batch), seen_ms)
