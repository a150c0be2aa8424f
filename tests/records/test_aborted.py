"""Aborted transactions are left out by ranges of offsets, batch by batch, never in part."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.records.columnar import decode_batches
from penstock.records.transactions import OFFSET_MAX, AbortedRange, ranges_until
from tests.records import reference
from tests.records.reference import Batch, Record


def batch(offset: int, producer: int, *, codec: int = 0, control: bool = False) -> Batch:
    return Batch(
        offset,
        tuple(Record(offset + place, 1, None, b"v") for place in range(1 if control else 2)),
        codec=codec,
        control=control,
        transactional=producer >= 0,
        producer=(producer, 0 if producer >= 0 else -1, -1),
    )


@st.composite
def logs(draw: st.DrawFn) -> tuple[list[Batch], list[tuple[int, int]], set[int]]:
    """A log of transactions: its batches, where aborted ones begin, and the offsets that count."""
    batches: list[Batch] = []
    begun: dict[int, int] = {}
    brought: dict[int, set[int]] = {}
    aborted: list[tuple[int, int]] = []
    counting: set[int] = set()
    offset = draw(st.integers(0, 3))
    for _ in range(draw(st.integers(1, 25))):
        producer = draw(st.sampled_from([-1, 0, 1, 2**40]))
        decision = draw(st.sampled_from([None, None, "commit", "abort"]))
        if decision is None or producer not in begun:
            made = batch(offset, producer, codec=draw(st.sampled_from([0, 1])))
            if producer >= 0:
                begun.setdefault(producer, offset)
                brought.setdefault(producer, set()).update(record.offset for record in made.records)
            else:
                counting.update(record.offset for record in made.records)
        else:
            made = batch(offset, producer, control=True)
            first, records = begun.pop(producer), brought.pop(producer)
            if decision == "commit":
                counting |= records
            else:
                aborted.append((producer, first))
        batches.append(made)
        offset += len(made.records) + draw(st.integers(0, 2))
    for producer, first in begun.items():  # whose markers come later
        if draw(st.booleans()):
            aborted.append((producer, first))
        else:
            counting |= brought[producer]
    return batches, sorted(aborted, key=lambda one: one[1]), counting


@settings(max_examples=100, deadline=None)
@given(log=logs(), data=st.data())
def test_only_what_counts_is_read(
    log: tuple[list[Batch], list[tuple[int, int]], set[int]], data: st.DataObject
) -> None:
    batches, aborted, counting = log
    markers = [(batch.producer[0], batch.base_offset) for batch in batches if batch.control]
    ranges = ranges_until(aborted, markers)
    first = data.draw(st.integers(0, len(batches) - 1))
    part = batches[first : data.draw(st.integers(first + 1, len(batches)))]
    decoded = decode_batches(
        b"".join(map(reference.encode, part)),
        columns=["offset"],
        aborted=data.draw(st.permutations(ranges)),
    )
    there = {record.offset for batch in part if not batch.control for record in batch.records}
    assert decoded.column("offset").to_pylist() == sorted(there & counting)


def test_other_batches_of_the_producer_are_read() -> None:
    plain = replace(batch(2, 5), transactional=False)
    data = b"".join(map(reference.encode, [batch(0, 5), plain]))
    decoded = decode_batches(data, columns=["offset"], aborted=[AbortedRange(5, 0, 9)])
    assert decoded.column("offset").to_pylist() == [2, 3]


@pytest.mark.parametrize("damaged", [50, 61 + 3])
def test_batches_that_are_left_out_are_not_opened(damaged: int) -> None:
    data = bytearray(b"".join(map(reference.encode, [batch(0, 5), batch(2, 6)])))
    data[damaged] ^= 1
    ranges = [AbortedRange(data[50], 0, 1)]
    decoded = decode_batches(data, columns=["offset"], aborted=ranges)
    assert decoded.column("offset").to_pylist() == [2, 3]


def test_where_ranges_end() -> None:
    markers = [(7, 4), (8, 5), (7, 9)]
    assert ranges_until([(7, 0), (8, 1), (7, 5), (7, 10), (9, 2)], markers) == (
        (7, 0, 4),
        (8, 1, 5),
        (7, 5, 9),
        (7, 10, OFFSET_MAX),
        (9, 2, OFFSET_MAX),
    )
    assert ranges_until([], markers) == ()
