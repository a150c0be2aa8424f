"""Reading what clients push."""

from __future__ import annotations

import pytest

from penstock.broker.telemetry.otlp import (
    ATTRIBUTES_MAX,
    POINTS_MAX,
    InvalidMetrics,
    points,
)
from penstock.broker.telemetry.series import TEXT_CHARACTERS_MAX, Point
from tests.broker.telemetry.pushes import field, gauge, point, pushed, total


def test_gauges_and_sums_are_read() -> None:
    data = pushed(
        gauge("g", point(1.5), point(0, {"b": "x", "a": "ü"})),
        total("s", point(7)),
        total("t", point(0.0), delta=False, monotonic=False),
    )
    assert list(points(data)) == [
        Point("g", (), 1.5, False, False),
        Point("g", (("a", "ü"), ("b", "x")), 0.0, False, False),
        Point("s", (), 7.0, True, True),
        Point("t", (), 0.0, False, False),
    ]


def test_other_kinds_and_points_without_a_value_are_left_out() -> None:
    histogram = field(1, b"h") + field(9, field(1, b"\x21" + bytes(8)))
    assert list(points(pushed(histogram, gauge("g", b"\x40\x00"), gauge("k", point(3))))) == [
        Point("k", (), 3.0, False, False)
    ]
    assert list(points(b"")) == []


def test_what_is_read_is_bounded() -> None:
    many = {f"k{number}": "v" * 1000 for number in range(20)}
    (one,) = points(pushed(gauge("n" * 1000, point(1, many))))
    assert len(one.name) == TEXT_CHARACTERS_MAX
    assert len(one.attributes) == ATTRIBUTES_MAX
    assert {len(text) for _, text in one.attributes} == {TEXT_CHARACTERS_MAX}
    data = pushed(*[gauge(f"g{number}", point(1)) for number in range(POINTS_MAX + 5)])
    assert len(list(points(data))) == POINTS_MAX


def test_cut_off_anywhere_it_is_refused_or_has_fewer_points() -> None:
    data = pushed(gauge("g", point(1.5, {"a": "b"})), total("s", point(7)))
    for size in range(len(data)):
        try:
            found = list(points(data[:size]))
        except InvalidMetrics:
            continue
        assert size == 0
        assert found == []


def test_other_bytes_are_no_metrics() -> None:
    with pytest.raises(InvalidMetrics, match="4 bytes are not OTLP metrics"):
        list(points(b"\xff\xff\xff\xff"))
