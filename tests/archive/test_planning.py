"""Trimming of extents to batches, and merging of close ranges of an object."""

from __future__ import annotations

import random
from struct import pack

import pytest

from penstock.archive.planning import (
    Piece,
    layout_of,
    merge,
    newest_timestamp,
    trim,
    trimmed,
)
from penstock.records.extents import file_extent
from tests.diskless.reading.extents import extent

TWO = [extent(10, [(100, 5), (200, 5), (300, 10)]), extent(30, [(400, 1)], key="o2")]


def shapes(pieces: list[Piece]) -> list[tuple[str, int, int, int, int]]:
    return [
        (piece.extent.key, piece.start, piece.size_bytes, piece.base_offset, piece.next_offset)
        for piece in pieces
    ]


@pytest.mark.parametrize(
    ("offset", "max_bytes", "first", "expected"),
    [
        (10, 1000, True, [("o1", 32, 600, 10, 30), ("o2", 32, 400, 30, 31)]),
        (14, 1000, True, [("o1", 32, 600, 10, 30), ("o2", 32, 400, 30, 31)]),
        (15, 1000, True, [("o1", 132, 500, 15, 30), ("o2", 32, 400, 30, 31)]),
        (15, 899, True, [("o1", 132, 500, 15, 30)]),
        (15, 499, True, [("o1", 132, 200, 15, 20)]),
        (29, 1, True, [("o1", 332, 300, 20, 30)]),
        (29, 1, False, []),
        (29, 300, False, [("o1", 332, 300, 20, 30)]),
        (30, 0, True, [("o2", 32, 400, 30, 31)]),
        (31, 1000, True, []),
    ],
)
def test_trims_to_whole_batches(
    offset: int, max_bytes: int, first: bool, expected: list[tuple[str, int, int, int, int]]
) -> None:
    assert shapes(trim(TWO, offset, max_bytes=max_bytes, at_least_one=first)) == expected


def test_trimming_ends_at_a_gap() -> None:
    apart = [extent(0, [(100, 10)]), extent(11, [(100, 10)])]
    assert shapes(trim(apart, 0, max_bytes=1000, at_least_one=True)) == [("o1", 32, 100, 0, 10)]


def test_ranges_of_one_object_that_are_close_become_one() -> None:
    pieces = [
        *trim([extent(0, [(100, 1)], byte_offset=1000)], 0, max_bytes=500, at_least_one=True),
        *trim([extent(0, [(50, 1)], key="o2")], 0, max_bytes=500, at_least_one=True),
        *trim([extent(0, [(100, 1)], byte_offset=32)], 0, max_bytes=500, at_least_one=True),
        *trim([extent(0, [(100, 1)], byte_offset=9000)], 0, max_bytes=500, at_least_one=True),
    ]
    plan = merge(pieces, gap_bytes=900)
    assert [tuple(part) for part in plan.ranges] == [
        ("o1", 32, 1068),
        ("o1", 9000, 100),
        ("o2", 32, 50),
    ]
    assert [tuple(place) for place in plan.locations] == [(0, 968), (2, 0), (0, 0), (1, 0)]


def test_random_plans_cover_their_pieces() -> None:
    dice = random.Random(11)
    for _ in range(300):
        extents = [
            extent(
                base,
                [(dice.randrange(61, 500), 1) for _ in range(dice.randrange(1, 5))],
                key=f"o{dice.randrange(3)}",
                byte_offset=dice.randrange(32, 5000),
            )
            for base in range(0, 100, 10)
        ]
        pieces = [
            piece
            for extent in extents
            for piece in trim(
                [extent], extent.base_offset, max_bytes=dice.randrange(2000), at_least_one=True
            )
        ]
        plan = merge(pieces, gap_bytes=dice.randrange(1000))
        for piece, (index, offset) in zip(pieces, plan.locations, strict=True):
            found = plan.ranges[index]
            assert found.key == piece.extent.key
            assert found.start + offset == piece.start
            assert offset + piece.size_bytes <= found.size_bytes
        for left in plan.ranges:
            for right in plan.ranges:
                if left is not right and left.key == right.key:
                    assert left.start + left.size_bytes < right.start or (
                        right.start + right.size_bytes < left.start
                    )


def test_random_trims_are_what_a_walk_over_all_batches_gives() -> None:
    dice = random.Random(3)
    for _ in range(500):
        base = dice.randrange(50)
        extents = []
        for number in range(dice.randrange(1, 5)):
            shape = [
                (dice.randrange(61, 300), dice.randrange(1, 4)) for _ in range(dice.randrange(1, 6))
            ]
            extents.append(extent(base, shape, key=f"o{number}"))
            base = extents[-1].next_offset
        offset = dice.randrange(extents[0].base_offset, extents[-1].next_offset)
        limit, first = dice.randrange(1500), dice.random() < 0.5
        expected: list[tuple[int, int]] = []
        left, ended = limit, False
        for span in extents:
            at = span.base_offset
            for size, count in layout_of(span):
                if at + count > offset and not ended:
                    if size <= left or (first and not expected):
                        expected.append((at, size))
                        left -= size
                    else:
                        ended = True
                at += count
        got = []
        for piece in trim(extents, offset, max_bytes=limit, at_least_one=first):
            at = piece.base_offset
            for size, count in piece.batches:
                got.append((at, size))
                at += count
            assert at == piece.next_offset
        assert got == expected


def test_the_newest_timestamp_counts_the_append_time() -> None:
    pieces = trim([extent(0, [(100, 1)], max_timestamp=500)], 0, max_bytes=1, at_least_one=True)
    later = trim(
        [extent(0, [(100, 1)], max_timestamp=3, append_time_ms=900)],
        0,
        max_bytes=1,
        at_least_one=True,
    )
    assert newest_timestamp(pieces) == 500
    assert newest_timestamp([*pieces, *later]) == 900
    assert newest_timestamp([]) == -1


def test_extents_are_trimmed_to_the_batches_that_are_wanted() -> None:
    whole = extent(100, [(10, 5), (20, 5), (30, 5)])
    assert trimmed(whole, 0, 1_000) == whole
    middle = trimmed(whole, 106, 108)
    assert middle is not None
    assert (middle.byte_offset, middle.size_bytes) == (42, 20)
    assert (middle.base_offset, middle.next_offset) == (105, 110)
    assert middle.layout == pack("<ii", 20, 5)
    assert trimmed(whole, 114, 115) == extent(110, [(30, 5)], byte_offset=62)
    for start, end in ((0, 100), (115, 200), (107, 107)):
        assert trimmed(whole, start, end) is None


def test_extents_of_files_are_left_whole() -> None:
    whole = file_extent("/x", byte_offset=0, size_bytes=60, base_offset=100, next_offset=115)
    assert trimmed(whole, 106, 108) == whole
    for start, end in ((0, 100), (115, 200), (107, 107)):
        assert trimmed(whole, start, end) is None
