"""Format strings and positions as kcat has them."""

from __future__ import annotations

import json

import click
import pyarrow as pa
import pytest

from penstock.apps.log.formats import parse_format, render, render_json
from penstock.apps.log.positions import At, parse_position
from penstock.records.columnar import HEADERS_TYPE


def batch() -> pa.RecordBatch:
    headers = [[{"key": "a", "value": b"1"}, {"key": "b", "value": None}], []]
    return pa.RecordBatch.from_pydict(
        {
            "partition": pa.array([3, 3], pa.int32()),
            "offset": [7, 8],
            "timestamp": [1000, -1],
            "timestamp_type": pa.array([0, 1], pa.int8()),
            "key": pa.array([b"k", None]),
            "value": pa.array(["wört".encode(), b"\xff"]),
            "headers": pa.array(headers, HEADERS_TYPE),
        }
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("%s\\n", b"w\xc3\xb6rt\n\xff\n"),
        ("%t %p %o %T|", b"orders 3 7 1000|orders 3 8 -1|"),
        ("%k:%h;", b"k:a=1,b=NULL;:;"),
        ("%K,%S%%\\x41\\t", b"1,5%A\t-1,1%A\t"),
        ("x", b"xx"),
        ("", b""),
    ],
)
def test_formats(text: str, expected: bytes) -> None:
    assert render(batch(), parse_format(text), "orders") == expected


def test_json_has_the_keys_of_kcat() -> None:
    first, second = (json.loads(line) for line in render_json(batch(), "orders", {3: 9}))
    assert first == {
        "topic": "orders",
        "partition": 3,
        "offset": 7,
        "tstype": "create",
        "ts": 1000,
        "broker": 9,
        "headers": ["a", "1", "b", None],
        "key": "k",
        "payload": "wört",
    }
    assert second["tstype"] == "logappend"
    assert second["key"] is None
    assert second["payload"] == "\ufffd"
    assert "headers" not in second


def test_reads_only_the_columns_named() -> None:
    assert parse_format("%k %s").columns == ("key", "value")
    assert parse_format("%t").columns == ("offset",)


@pytest.mark.parametrize("text", ["%x", "100%", "%"])
def test_refuses_letters_that_mean_nothing(text: str) -> None:
    with pytest.raises(click.UsageError, match="means nothing"):
        parse_format(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("beginning", At("beginning")),
        ("end", At("end")),
        ("42", At("offset", 42)),
        ("-5", At("before_end", 5)),
        ("s@123", At("time", 123)),
        ("@123", At("time", 123)),
        ("e@123", At("end_time", 123)),
    ],
)
def test_positions(text: str, expected: At) -> None:
    assert parse_position(text) == expected


@pytest.mark.parametrize("text", ["", "soon", "s@", "1.5", "--3"])
def test_refuses_other_positions(text: str) -> None:
    with pytest.raises(click.UsageError, match="offset"):
        parse_position(text)
