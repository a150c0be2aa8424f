"""Vectorised partitioner compared with a plain one, and with hashes of Kafka's tests."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.partitioning import groups, murmur2, partitions_of_keys


def plain_murmur2(data: bytes) -> int:
    """Return Kafka's `Utils.murmur2`, byte by byte."""
    mask, multiplier = 0xFFFFFFFF, 0x5BD1E995
    hashed = 0x9747B28C ^ len(data)
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * multiplier & mask
        word = (word ^ word >> 24) * multiplier & mask
        hashed = hashed * multiplier & mask ^ word
    rest = data[whole:]
    if rest:
        hashed = (hashed ^ int.from_bytes(rest, "little")) * multiplier & mask
    hashed = (hashed ^ hashed >> 13) * multiplier & mask
    return hashed ^ hashed >> 15


@pytest.mark.parametrize(
    ("key", "signed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_known_hashes(key: bytes, signed: int) -> None:
    assert murmur2(pa.array([key])).astype(np.int32).tolist() == [signed]
    assert plain_murmur2(key) == signed & 0xFFFFFFFF


@given(
    keys=st.lists(st.binary(max_size=40), max_size=50),
    large=st.booleans(),
    skip=st.integers(0, 5),
)
def test_hashes_of_columns(keys: list[bytes], large: bool, skip: int) -> None:
    column = pa.array(keys, pa.large_binary() if large else pa.binary()).slice(skip)
    assert murmur2(column).tolist() == [plain_murmur2(key) for key in keys[skip:]]


def test_text_nulls_and_dictionaries() -> None:
    words = ["a", None, "bb", "a", "cccccc"]
    expected = [
        9 if word is None else (plain_murmur2(word.encode()) & 0x7FFFFFFF) % 7 for word in words
    ]
    column = pa.array(words)
    assert partitions_of_keys(column, 7, unkeyed=9).tolist() == expected
    assert partitions_of_keys(column.dictionary_encode(), 7, unkeyed=9).tolist() == expected
    nothing = pa.array([None, None], pa.string())
    assert partitions_of_keys(nothing, 7, unkeyed=3).tolist() == [3, 3]
    assert partitions_of_keys(nothing.dictionary_encode(), 7, unkeyed=3).tolist() == [3, 3]


def test_groups_keep_order_within_a_partition() -> None:
    partitions = np.array([2, 0, 2, 1, 0], np.int32)
    order, bounds = groups(partitions, 4)
    assert order.tolist() == [1, 4, 3, 0, 2]
    assert bounds == [0, 2, 3, 5, 5]
