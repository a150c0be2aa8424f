"""Check of a producer's next batch: every state against every batch, and the state afterwards."""

from __future__ import annotations

import itertools

import pytest

from penstock.records.errors import InvalidProducerEpoch, OutOfOrderSequence
from penstock.records.header import PRODUCER_BATCHES_MAX
from penstock.records.idempotence import SEQUENCES, Producer, ProducerBatch, appended, original

LAST = SEQUENCES - 1


def fed(epoch: int, *sequences: tuple[int, int]) -> Producer:
    """A producer after batches of (first, last), one offset each."""
    producer: Producer | None = None
    for offset, (first, last) in enumerate(sequences):
        batch = ProducerBatch(first, last, offset, 0, 0)
        producer = appended(producer, epoch, batch, offset)
    if producer is None:
        raise ValueError("no batches")
    return producer


STATES = {
    "nothing": None,
    "one": fed(3, (0, 4)),
    "two": fed(3, (0, 4), (5, 5)),
    "six": fed(3, *((n, n) for n in range(6))),
    "at the end": fed(3, (LAST - 1, LAST)),
    "across it": fed(3, (LAST, 1)),
}
BATCHES = [(2, 0, 4), (3, 0, 4), (3, 0, 0), (3, 1, 1), (3, 5, 5), (3, 6, 6), (3, 2, 2), (3, 7, 7),
           (3, LAST, 1), (3, LAST - 1, LAST), (4, 0, 9), (4, 1, 1)]  # fmt: skip
FRESH = {
    "one": {(5, 5)}, "two": {(6, 6)}, "six": {(6, 6)}, "at the end": {(0, 4), (0, 0)},
    "across it": {(2, 2)},
}  # fmt: skip


@pytest.mark.parametrize(("state", "batch"), list(itertools.product(STATES, BATCHES)))
def test_every_state_meets_every_batch(state: str, batch: tuple[int, int, int]) -> None:
    producer, (epoch, first, last) = STATES[state], batch
    if producer is None or (epoch == 4 and first == 0):
        assert original(producer, 9, epoch, first, last) is None
    elif epoch < 3:
        with pytest.raises(InvalidProducerEpoch, match="has epoch 2, but the partition has seen"):
            original(producer, 9, epoch, first, last)
    elif epoch == 3 and (first, last) in FRESH[state]:
        assert original(producer, 9, epoch, first, last) is None
    elif epoch == 3 and (first, last) in [batch[:2] for batch in producer.batches]:
        found = original(producer, 9, epoch, first, last)
        assert found is not None
        assert found[:2] == (first, last)
    else:
        with pytest.raises(OutOfOrderSequence, match="producer 9"):
            original(producer, 9, epoch, first, last)


def test_only_so_many_batches_are_remembered() -> None:
    producer = fed(3, *((n, n) for n in range(9)))
    assert [batch.first_sequence for batch in producer.batches] == [4, 5, 6, 7, 8]
    assert len(producer.batches) == PRODUCER_BATCHES_MAX
    assert producer.seen_ms == 8


def test_a_new_epoch_replaces_the_batches() -> None:
    before = fed(3, (0, 4), (5, 5))
    batch = ProducerBatch(0, 1, 8, 1, 70)
    assert appended(before, 4, batch, 99) == Producer(4, (batch,), 99)
    assert batch.first_offset == 7
