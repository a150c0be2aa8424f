"""Checksums: known values, continuing, and what a change before the rest makes of them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.base.crc import crc32c, moved


@pytest.mark.parametrize(
    ("content", "checksum"),
    [
        (b"", 0),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (b"123456789", 0xE3069283),
    ],
)
def test_the_values_of_rfc_3720(content: bytes, checksum: int) -> None:
    assert crc32c(content) == checksum


@settings(max_examples=100)
@given(st.binary(max_size=80), st.data(), st.integers(0, 200_000))
def test_a_change_before_the_rest_moves_on(before: bytes, data: st.DataObject, size: int) -> None:
    after = data.draw(st.binary(min_size=len(before), max_size=len(before)))
    rest = bytes([len(before)]) * size
    change = moved(crc32c(before) ^ crc32c(after), size)
    assert crc32c(before + rest) ^ change == crc32c(after + rest)


@pytest.mark.parametrize("size", [2**power + step for power in range(25) for step in (-1, 0, 1)])
def test_moving_on_by_any_power_of_two(size: int) -> None:
    rest = bytes(size)
    assert moved(crc32c(b"a") ^ crc32c(b"b"), size) == crc32c(b"a" + rest) ^ crc32c(b"b" + rest)
