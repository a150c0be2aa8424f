"""The model of the log and the product's producer state answer alike."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from sim.host.log import MODULUS, Append, ModelLog

from penstock.records import BatchHeader
from penstock.storage.files.errors import InvalidProducerEpoch, OutOfOrderSequence
from penstock.storage.files.producers import ProducerStates

LANE = ("t", 0)


def header(producer_id: int, epoch: int, sequence: int, records: int) -> BatchHeader:
    known = dict.fromkeys(BatchHeader._fields, 0) | {
        "producer_id": producer_id,
        "producer_epoch": epoch,
        "base_sequence": sequence,
        "record_count": records,
        "last_offset_delta": records - 1,
    }
    return BatchHeader(**known)


def answer_of(states: ProducerStates, batch: BatchHeader) -> Append:
    try:
        original = states.check(batch)
    except InvalidProducerEpoch:
        return Append.FENCED
    except OutOfOrderSequence:
        return Append.OUT_OF_ORDER
    if original is not None:
        return Append.DUPLICATE
    states.append(batch, 0, 0)
    return Append.WRITTEN


# Mostly what follows, sometimes what was, sometimes anything, near the place where numbers wrap.
steps = st.tuples(
    st.integers(1, 2),
    st.sampled_from([0, 0, 0, 0, 1, -1]),
    st.sampled_from(["next"] * 4 + ["again", "again", "zero", "any"]),
    st.integers(0, 7),
    st.integers(1, 3),
)


@settings(max_examples=100)
@given(st.lists(steps, max_size=60), st.sampled_from([0, MODULUS - 4]))
def test_both_answer_alike(what: list[tuple[int, int, str, int, int]], start: int) -> None:
    log, states = ModelLog(), ProducerStates()
    sent: dict[int, list[tuple[int, int]]] = {1: [(start, 0)], 2: [(start, 0)]}
    epochs = {1: 5, 2: 5}
    for producer_id, step, which, back, records in what:
        history = sent[producer_id]
        epoch = epochs[producer_id] + step
        sequence = (history[-1][0] + history[-1][1]) % MODULUS
        if which == "again":
            sequence, records = history[-1 - back % len(history)]
            records = max(records, 1)
        elif which == "zero":
            sequence = 0
        elif which == "any":
            sequence = (sequence + back) % MODULUS
        batch = header(producer_id, epoch, sequence, records)
        answer = answer_of(states, batch)
        assert log.append(LANE, producer_id, epoch, sequence, records, b"") is answer
        if answer is Append.WRITTEN:
            epochs[producer_id] = epoch
            history.append((sequence, records))
