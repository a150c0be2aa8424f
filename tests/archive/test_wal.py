"""The write-ahead object: whole, cut at every position, with bytes too many, damaged, hostile."""

from __future__ import annotations

from struct import pack, pack_into
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.archive.errors import CorruptObject, CutFooter
from penstock.archive.wal import (
    FOOTER_PARTITIONS_MAX,
    HEADER_BYTES,
    OBJECT_BATCHES_MAX,
    TRAILER_BYTES,
    WalFooter,
    WalHeader,
    WalRange,
    decode_footer,
    decode_header,
    encode_footer,
    encode_header,
)
from penstock.base.crc import crc32c
from penstock.base.errors import BugError

ONE, TWO = UUID(int=1), UUID(int=2**127 + 5)


def ranges_of(*partitions: tuple[UUID, int, list[tuple[int, int]]]) -> list[WalRange]:
    """Adjacent bodies, each of batches of (bytes, offsets)."""
    ranges: list[WalRange] = []
    at = HEADER_BYTES
    for topic_id, partition, batches in partitions:
        size_bytes = sum(batch[0] for batch in batches)
        layout = b"".join(pack("<ii", *batch) for batch in batches)
        ranges.append(WalRange(topic_id, partition, at, size_bytes, layout))
        at += size_bytes
    return ranges


def whole(ranges: list[WalRange], filling: bytes = b"\x07") -> bytes:
    bodies = b"".join(filling * item.size_bytes for item in ranges)
    return encode_header(WalHeader(9, 3)) + bodies + encode_footer(ranges)


RANGES = ranges_of((ONE, 0, [(61, 1), (70, 12)]), (TWO, 5, [(100, 3)]), (ONE, 1, [(99, 2**31 - 1)]))
OBJECT = whole(RANGES)


def test_a_header_names_the_writer() -> None:
    header = WalHeader(2**63 - 1, 2**31 - 1)
    assert decode_header(encode_header(header)) == header
    assert decode_header(encode_header(header) + b"bodies") == header
    assert len(encode_header(header)) == HEADER_BYTES


def test_a_cut_or_damaged_header_is_refused() -> None:
    data = encode_header(WalHeader(77, 1))
    for size in range(len(data)):
        with pytest.raises(CorruptObject):
            decode_header(data[:size])
    for bit in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptObject):
            decode_header(damaged)


def test_a_header_of_another_version_is_refused_by_its_version() -> None:
    head = bytearray(encode_header(WalHeader(77, 1)))
    pack_into("<I", head, 8, 2)
    pack_into("<I", head, 24, crc32c(memoryview(head)[:24]))
    with pytest.raises(CorruptObject, match="version 2"):
        decode_header(head)


def test_a_footer_comes_back_from_the_whole_object_and_from_its_end() -> None:
    assert decode_footer(OBJECT) == WalFooter(tuple(RANGES), len(OBJECT))
    footer_bytes = len(encode_footer(RANGES))
    assert decode_footer(OBJECT[-footer_bytes:]) == WalFooter(tuple(RANGES), len(OBJECT))
    assert [item.batches for item in RANGES] == [2, 1, 1]


def test_a_short_tail_reports_the_needed_bytes() -> None:
    footer_bytes = len(encode_footer(RANGES))
    for size in range(TRAILER_BYTES, footer_bytes):
        with pytest.raises(CutFooter) as caught:
            decode_footer(OBJECT[-size:])
        assert caught.value.needed_bytes == footer_bytes
    for size in range(TRAILER_BYTES):
        with pytest.raises(CorruptObject, match=f"there are {size}"):
            decode_footer(OBJECT[len(OBJECT) - size :])


def test_an_object_that_is_cut_anywhere_is_refused() -> None:
    for size in range(len(OBJECT)):
        with pytest.raises(CorruptObject):
            decode_footer(OBJECT[:size])


@pytest.mark.parametrize("trailing", [b"\0", b"PNSTKEND", bytes(32), OBJECT[:31], b"\xff" * 200])
def test_bytes_too_many_are_refused(trailing: bytes) -> None:
    with pytest.raises(CorruptObject):
        decode_footer(OBJECT + trailing)


def test_every_flipped_bit_of_the_footer_is_refused() -> None:
    footer = encode_footer(RANGES)
    for bit in range(len(footer) * 8):
        damaged = bytearray(footer)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptObject):
            decode_footer(damaged)


def resealed(footer: bytearray) -> bytearray:
    """With the checksum that it has to have."""
    at = len(footer) - TRAILER_BYTES + 20
    pack_into("<I", footer, at, crc32c(memoryview(footer)[:at]))
    return footer


@pytest.mark.parametrize(
    ("partitions", "batches", "size_bytes", "footer_bytes"),
    [
        (0, 0, 64, 0),
        (2**32 - 1, 2**32 - 1, 2**63, 2**32 - 1),
        (FOOTER_PARTITIONS_MAX + 1, FOOTER_PARTITIONS_MAX + 1, 2**40, 2**31),
        (1, OBJECT_BATCHES_MAX + 1, 2**40, 40 + 8 * (OBJECT_BATCHES_MAX + 1)),
        (3, 2, len(OBJECT), 136),
        (3, 4, len(OBJECT), 153),
        (3, 4, 2**64 - 1, 2**32 - 1),
        (1, 1, 64 + 48 + 60, 48),
    ],
)
def test_hostile_counts_are_refused_before_memory_is_taken(
    partitions: int, batches: int, size_bytes: int, footer_bytes: int
) -> None:
    footer = bytearray(encode_footer(RANGES))
    pack_into("<IIQI", footer, len(footer) - 32, partitions, batches, size_bytes, footer_bytes)
    with pytest.raises(CorruptObject) as caught:
        decode_footer(resealed(footer))
    assert not isinstance(caught.value, CutFooter)


def test_the_largest_footer_that_may_be_asked_for_is_bounded() -> None:
    footer = bytearray(encode_footer(RANGES))
    counts = (FOOTER_PARTITIONS_MAX, OBJECT_BATCHES_MAX)
    footer_bytes = counts[0] * 40 + counts[1] * 8
    pack_into("<IIQI", footer, len(footer) - 32, *counts, 2**40, footer_bytes)
    with pytest.raises(CutFooter) as caught:
        decode_footer(resealed(footer))
    assert caught.value.needed_bytes == footer_bytes + 32 < 5 << 20


ROWS = [0, 40, 80]


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize(
    ("at", "field", "value"),
    [
        (16, "<i", -1),
        (20, "<I", 0),
        (20, "<I", 3),
        (20, "<I", 2**32 - 1),
        (24, "<Q", 0),
        (24, "<Q", 2**64 - 1),
        (32, "<Q", 0),
        (32, "<Q", 2**64 - 1),
    ],
)
def test_rows_that_cannot_be_are_refused_whatever_their_checksum(
    row: int, at: int, field: str, value: int
) -> None:
    footer = bytearray(encode_footer(RANGES))
    pack_into(field, footer, row + at, value)
    with pytest.raises(CorruptObject):
        decode_footer(resealed(footer))


@pytest.mark.parametrize(("at", "value"), [(0, 60), (0, -61), (0, 62), (4, 0), (4, -1)])
def test_layouts_that_cannot_be_are_refused_whatever_their_checksum(at: int, value: int) -> None:
    footer = bytearray(encode_footer(RANGES))
    pack_into("<i", footer, 120 + at, value)
    with pytest.raises(CorruptObject):
        decode_footer(resealed(footer))


def test_a_partition_is_in_a_footer_once() -> None:
    footer = encode_footer(ranges_of((ONE, 0, [(61, 1)]), (ONE, 0, [(61, 1)])))
    with pytest.raises(CorruptObject):
        decode_footer(footer)


def test_a_size_that_leaves_a_gap_is_refused() -> None:
    footer = bytearray(encode_footer(RANGES))
    pack_into("<Q", footer, len(footer) - 24, len(OBJECT) + 1)
    with pytest.raises(CorruptObject, match="bodies end"):
        decode_footer(resealed(footer))


def test_bodies_with_a_gap_between_them_are_not_written() -> None:
    first, second = ranges_of((ONE, 0, [(61, 1)]), (ONE, 1, [(61, 1)]))
    with pytest.raises(BugError):
        encode_footer([first, second._replace(byte_offset=second.byte_offset + 1)])


batches = st.lists(
    st.tuples(st.integers(61, 500), st.integers(1, 2**31 - 1)), min_size=1, max_size=4
)
keys = st.tuples(st.uuids(), st.integers(0, 2**31 - 1))


@given(st.dictionaries(keys, batches, min_size=1, max_size=8), st.integers(0, 3000))
def test_any_object_comes_back(
    parts: dict[tuple[UUID, int], list[tuple[int, int]]], more_bytes: int
) -> None:
    ranges = ranges_of(*((topic_id, index, rows) for (topic_id, index), rows in parts.items()))
    data = whole(ranges)
    tail = data[-len(encode_footer(ranges)) - more_bytes :]
    assert decode_footer(tail) == WalFooter(tuple(ranges), len(data))
