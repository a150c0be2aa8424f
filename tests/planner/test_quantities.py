"""Numbers with units."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.planner.quantities import NoQuantity, format_quantity, parse_quantity


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("1408", "bytes", 1408),
        ("128k", "bytes", 131072),
        ("128KiB", "bytes", 131072),
        ("128 kB", "bytes", 128_000),
        ("100TB", "bytes/day", 1e14),
        ("10TiB/s", "bytes/day", 10 * 2**40 * 86_400),
        ("1TB/h", "bytes/day", 24e12),
        ("10TB/day", "bytes/day", 1e13),
        ("86.4GB/day", "bytes/s", 1e6),
        ("60k/min", "messages/s", 1000),
        ("300/h", "files/s", 1 / 12),
        ("5 messages/s", "messages/s", 5),
        ("2e6 bytes/s", "bytes/s", 2e6),
        ("7", "bytes/s", 7),
        ("700MB/s", "bytes/s", 7e8),
        ("10Gbit", "bit/s", 1e10),
        ("10Gbit/s", "bit/s", 1e10),
        ("100", "us", 100),
        ("100us", "ms", 0.1),
        ("1.5 ms", "us", 1500),
        ("7d", "h", 168),
        ("2M", "messages/s", 2e6),
        ("1e6", "messages/s", 1e6),
        (".5", "", 0.5),
        ("1_000", "packets", 1000),
    ],
)
def test_reads(text: str, unit: str, value: float) -> None:
    assert parse_quantity(text, unit) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(
    ("text", "unit", "why"),
    [
        ("", "bytes", "must be a number of bytes, alone or with one of b k m g"),
        ("ten", "ms", "must be a number of ms"),
        ("10 parsecs", "ms", "has the unknown suffix parsecs of ms"),
        ("10MB/s", "bytes", "is a rate, but a number of bytes is required"),
        ("5/s", "ms", "is a rate"),
        ("5k/s", "", "is a rate"),
        ("10TB", "bytes/s", "is a size, but a rate is required, such as 10TB/s or 10TB/day"),
        ("1.25GB", "bytes/s", "is a size"),
        ("10MB/week", "bytes/s", "per week; the period must be one of s min h d day month"),
        ("10Gb/s", "bytes/s", "has the suffix Gb, which may mean bits or bytes"),
        ("10Gib", "bytes", "has the suffix Gib, which may mean bits or bytes"),
        ("10GB/s", "bit/s", "unknown suffix GB"),
        ("10Gbit/s", "bytes/s", "unknown suffix Gbit"),
        ("1e", "bytes", "unknown suffix e"),
        ("--5", "", "must be a number"),
    ],
)
def test_refuses(text: str, unit: str, why: str) -> None:
    with pytest.raises(NoQuantity, match=why):
        parse_quantity(text, unit)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (131072, "bytes", "128 KiB"),
        (1408, "bytes", "1,408 bytes"),
        (15_360, "bytes", "15 KiB"),
        (15_000, "bytes", "15 kB"),
        (100, "bytes", "100 bytes"),
        (1_250_000_000.0, "bytes/s", "1.25 GB/s"),
        (1e14, "bytes/day", "100 TB/day"),
        (1e10, "bit/s", "10 Gbit/s"),
        (820_000, "packets/s", "820,000 packets/s"),
        (1.2, "ms", "1.2 ms"),
        (0.0005, "ms", "500 ns"),
        (90, "s", "90 s"),
        (36, "h", "36 h"),
        (72, "h", "3 d"),
        (True, "", "yes"),
        ("8192", "bytes", "8192 bytes"),
        (None, "ms", "-"),
        (0, "ms", "0 ns"),
    ],
)
def test_writes(value: float | str | None, unit: str, text: str) -> None:
    assert format_quantity(value, unit) == text


@given(
    st.floats(1e-6, 1e15), st.sampled_from(["bytes", "bytes/s", "ms", "us", "packets/s", "bit/s"])
)
def test_any_number_is_read_as_it_stands(value: float, unit: str) -> None:
    assert parse_quantity(repr(value), unit) == value
    assert format_quantity(value, unit)
