"""Records acquired by a member of a queue: masks, gaps and acknowledgements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.errors import InvalidArgument
from penstock.client.protocol import TopicAndPartition
from penstock.client.share_member import (
    AckRange,
    Acquired,
    Kind,
    LocksLost,
    Taken,
    piece_of,
    ranges_of,
)
from penstock.records import columnar


def log(offsets: Sequence[int]) -> bytes:
    """Return a log with these offsets, one batch each."""
    return b"".join(
        batch.data
        for offset in offsets
        for batch in columnar.encode_batches(
            pa.table({"value": [b"%d" % offset]}), now_ms=1, base_offset=offset
        )
    )


@given(
    st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=20),
    st.lists(st.integers(1, 3), max_size=20),
)
def test_masks_are_ranges_of_offsets(rows: list[tuple[int, bool]], steps: list[int]) -> None:
    rows = rows[: len(steps)]
    places = np.sort(np.array([place for place, _ in rows], np.int64))
    offsets = np.cumsum(np.array(steps[: len(rows)], np.int64))
    marks = np.array([mark for _, mark in rows], np.bool_)
    found = ranges_of(places, offsets, marks, Kind.ACK)
    selected = {
        (place, at)
        for place, ranges in found.items()
        for ack in ranges
        for at in range(ack.first, ack.last + 1)
    }
    assert selected == set(zip(places[marks].tolist(), offsets[marks].tolist(), strict=True))
    for ranges in found.values():
        assert all(first.last + 1 < second.first for first, second in pairwise(ranges))


@given(st.sets(st.integers(0, 15)), st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_acquired_offsets_are_records_or_gaps(there: set[int], sizes: list[int]) -> None:
    acquired, at = [], 1
    for number, size in enumerate(sizes):
        acquired.append(Acquired(at, at + size - 1, number + 1))
        at += size + number % 2
    piece = piece_of(("t", 3), log(sorted(there)), acquired)
    wanted = {
        offset: run.deliveries for run in acquired for offset in range(run.first, run.last + 1)
    }
    rows = piece.batch.to_pylist()
    assert {row["offset"]: row["deliveries"] for row in rows} == {
        offset: count for offset, count in wanted.items() if offset in there
    }
    assert all(row["value"] == b"%d" % row["offset"] for row in rows)
    gaps = [offset for gap in piece.gaps for offset in range(gap.first, gap.last + 1)]
    assert gaps == sorted(wanted.keys() - there)
    assert all(gap.kind == Kind.GAP for gap in piece.gaps)


class Brokers:
    """Accepts acknowledgements, except of the partitions in `refuse`."""

    def __init__(self) -> None:
        self.sent: list[Mapping[TopicAndPartition, Sequence[AckRange]]] = []
        self.refuse: dict[TopicAndPartition, str] = {}

    def __call__(
        self, acks: Mapping[TopicAndPartition, Sequence[AckRange]]
    ) -> Mapping[TopicAndPartition, str]:
        self.sent.append(acks)
        return {place: why for place, why in self.refuse.items() if place in acks}


def taken(brokers: Brokers) -> Taken:
    """Return offsets 0, 1, 3 and 4 of partition 0 with gap 2, and 7 and 8 of partition 1."""
    pieces = [
        piece_of(("t", 0), log([0, 1, 3, 4]), [Acquired(0, 4, 1)]),
        piece_of(("t", 1), log([7, 8]), [Acquired(7, 8, 2)]),
    ]
    return Taken(pieces, brokers, lock_ms=30_000)


def test_records_are_acknowledged_once_and_gaps_with_them() -> None:
    brokers = Brokers()
    found = taken(brokers)
    assert len(found) == 6
    found.renew(found.table["partition"].to_numpy() == 1)
    found.reject([3, 4])
    found.ack()
    assert brokers.sent == [
        {("t", 1): [AckRange(7, 8, Kind.RENEW)]},
        {
            ("t", 0): [AckRange(2, 2, Kind.GAP), AckRange(4, 4, Kind.REJECT)],
            ("t", 1): [AckRange(7, 7, Kind.REJECT)],
        },
        {
            ("t", 0): [AckRange(0, 1, Kind.ACK), AckRange(3, 3, Kind.ACK)],
            ("t", 1): [AckRange(8, 8, Kind.ACK)],
        },
    ]
    assert not found.open.any()
    found.ack()
    assert len(brokers.sent) == 3, "no open row is left"


def test_a_refusal_names_its_rows() -> None:
    brokers = Brokers()
    brokers.refuse = {("t", 1): "the lock has ended"}
    found = taken(brokers)
    with pytest.raises(LocksLost, match=r"1 records .* t-1: the lock has ended") as caught:
        found.ack(pa.array([True, False, False, False, True, False]))
    assert caught.value.rows.tolist() == [False] * 4 + [True, False]
    with pytest.raises(LocksLost):
        found.renew([5])
    assert found.open.tolist() == [False, True, True, True, False, False]


def test_invalid_rows_are_rejected_before_anything_is_sent() -> None:
    brokers = Brokers()
    found = taken(brokers)
    for rows in ([True], [6], [-1], [0.5], ["a"]):
        with pytest.raises(InvalidArgument, match="rows"):
            found.ack(rows)
    assert not brokers.sent
    found.ack([0])
    with pytest.raises(InvalidArgument, match="1 of the selected rows were acknowledged"):
        found.reject([0, 1])


def test_single_records_are_acknowledged() -> None:
    brokers = Brokers()
    first, *_, last = taken(brokers)
    assert (first.topic, first.partition, first.offset, first.value) == ("t", 0, 0, b"0")
    assert last.deliveries == 2
    first.ack()
    last.release()
    assert list(brokers.sent[1].values()) == [[AckRange(8, 8, Kind.RELEASE)]]
