"""What a queue's member has, by columns: masks, gaps, and what is said of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.errors import InvalidArgument
from penstock.client.share_member import Acquired, Place, Said
from penstock.client.taken import Kind, LocksLost, Taken, piece_of, runs_of
from penstock.records import columnar


def log(offsets: Sequence[int]) -> bytes:
    """A log that has these offsets, a batch each."""
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
def test_masks_are_runs_of_offsets(rows: list[tuple[int, bool]], steps: list[int]) -> None:
    rows = rows[: len(steps)]
    places = np.sort(np.array([place for place, _ in rows], np.int64))
    offsets = np.cumsum(np.array(steps[: len(rows)], np.int64))
    marks = np.array([mark for _, mark in rows], np.bool_)
    found = runs_of(places, offsets, marks, Kind.ACK)
    told = {
        (place, at) for place, runs in found.items() for one in runs for at in range(*one[:2])
    } | {(place, one.last) for place, runs in found.items() for one in runs}
    assert told == set(zip(places[marks].tolist(), offsets[marks].tolist(), strict=True))
    for runs in found.values():
        assert all(one.last + 1 < two.first for one, two in pairwise(runs))


@given(st.sets(st.integers(0, 15)), st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_what_was_acquired_is_there_or_a_gap(there: set[int], sizes: list[int]) -> None:
    acquired, at = [], 1
    for number, size in enumerate(sizes):
        acquired.append(Acquired(at, at + size - 1, number + 1))
        at += size + number % 2
    piece = piece_of(("t", 3), log(sorted(there)), acquired)
    wanted = {
        offset: one.deliveries for one in acquired for offset in range(one.first, one.last + 1)
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
    """Takes what is said, but of places that refuse."""

    def __init__(self) -> None:
        self.said: list[Mapping[Place, Sequence[Said]]] = []
        self.refuse: dict[Place, str] = {}

    def __call__(self, said: Mapping[Place, Sequence[Said]]) -> Mapping[Place, str]:
        self.said.append(said)
        return {place: why for place, why in self.refuse.items() if place in said}


def taken(brokers: Brokers) -> Taken:
    """Offsets 0 to 4 without 2 of partition 0, and 7 and 8 of partition 1."""
    pieces = [
        piece_of(("t", 0), log([0, 1, 3, 4]), [Acquired(0, 4, 1)]),
        piece_of(("t", 1), log([7, 8]), [Acquired(7, 8, 2)]),
    ]
    return Taken(pieces, brokers, lock_ms=30_000)


def test_everything_is_said_once_and_gaps_with_it() -> None:
    brokers = Brokers()
    found = taken(brokers)
    assert len(found) == 6
    found.renew(found.table["partition"].to_numpy() == 1)
    found.reject([3, 4])
    found.ack()
    assert brokers.said == [
        {("t", 1): [Said(7, 8, Kind.RENEW)]},
        {
            ("t", 0): [Said(2, 2, Kind.GAP), Said(4, 4, Kind.REJECT)],
            ("t", 1): [Said(7, 7, Kind.REJECT)],
        },
        {
            ("t", 0): [Said(0, 1, Kind.ACK), Said(3, 3, Kind.ACK)],
            ("t", 1): [Said(8, 8, Kind.ACK)],
        },
    ]
    assert not found.open.any()
    found.ack()
    assert len(brokers.said) == 3, "there is nothing left to say"


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


def test_rows_that_cannot_be_are_refused_before_anything_is_said() -> None:
    brokers = Brokers()
    found = taken(brokers)
    for rows in ([True], [6], [-1], [0.5], ["a"]):
        with pytest.raises(InvalidArgument, match="rows"):
            found.ack(rows)
    assert not brokers.said
    found.ack([0])
    with pytest.raises(InvalidArgument, match="1 of them were acknowledged"):
        found.reject([0, 1])


def test_records_say_it_one_by_one() -> None:
    brokers = Brokers()
    first, *_, last = taken(brokers)
    assert (first.topic, first.partition, first.offset, first.value) == ("t", 0, 0, b"0")
    assert last.deliveries == 2
    first.ack()
    last.release()
    assert list(brokers.said[1].values()) == [[Said(8, 8, Kind.RELEASE)]]
