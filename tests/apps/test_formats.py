"""Format strings and positions as kcat has them."""

from __future__ import annotations

import json
from typing import Any

import click
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.apps.log.formats import At, parse_format, parse_position, render, render_json
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
    lines = bytes(render_json(batch(), "orders", {3: 9})).splitlines()
    first, second = (json.loads(line) for line in lines)
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


_BYTES = st.one_of(st.none(), st.binary(max_size=5), st.text(max_size=5).map(str.encode))
_RECORD = st.fixed_dictionaries(
    {
        "partition": st.integers(0, 2),
        "offset": st.integers(0, 2**63 - 1),
        "timestamp": st.integers(-1, 2**62),
        "timestamp_type": st.sampled_from([0, 1]),
        "key": _BYTES,
        "value": _BYTES,
        "headers": st.lists(
            st.fixed_dictionaries({"key": st.text(max_size=3), "value": _BYTES}), max_size=3
        ),
    }
)
_SCHEMA = batch().schema


def _plainly(record: dict[str, Any]) -> tuple[bytes, dict[str, Any]]:
    """A record as `%t %p %o %T %k %K %s %S %h\\n` and as an envelope, without any column."""

    def text(value: bytes | None) -> str | None:
        return None if value is None else value.decode("utf-8", "replace")

    fields: list[bytes | int] = [b"orders", record["partition"], record["offset"]]
    fields.append(record["timestamp"])
    for name in ("key", "value"):
        value = record[name]
        fields += [value or b"", -1 if value is None else len(value)]
    headers = [(header["key"], header["value"]) for header in record["headers"]]
    pairs = [key.encode() + b"=" + (b"NULL" if v is None else v) for key, v in headers]
    fields.append(b",".join(pairs))
    printed = b" ".join([f if isinstance(f, bytes) else str(f).encode() for f in fields]) + b"\n"
    envelope = {
        "topic": "orders",
        "partition": record["partition"],
        "offset": record["offset"],
        "tstype": ["create", "logappend"][record["timestamp_type"]],
        "ts": record["timestamp"],
        "broker": {0: 4, 1: 5}.get(record["partition"], -1),
        **({"headers": [text(w) for pair in headers for w in _words(pair)]} if headers else {}),
        "key": text(record["key"]),
        "payload": text(record["value"]),
    }
    return printed, envelope


def _words(pair: tuple[str, bytes | None]) -> tuple[bytes, bytes | None]:
    return pair[0].encode(), pair[1]


@given(st.lists(_RECORD, max_size=6), st.data())
def test_columns_print_as_records_one_by_one_would(
    records: list[dict[str, Any]], data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(records)))
    part = pa.RecordBatch.from_pylist(records, schema=_SCHEMA).slice(start)
    plain = [_plainly(record) for record in records[start:]]
    layout = parse_format("%t %p %o %T %k %K %s %S %h\\n")
    assert bytes(render(part, layout, "orders")) == b"".join(printed for printed, _ in plain)
    lines = [
        json.dumps(envelope, ensure_ascii=False, separators=(",", ":")) + "\n"
        for _, envelope in plain
    ]
    assert str(render_json(part, "orders", {0: 4, 1: 5}), "utf-8") == "".join(lines)


def test_reads_only_the_columns_named() -> None:
    assert parse_format("%k %s").columns == ("key", "value")
    assert parse_format("%t").columns == ("offset",)


@pytest.mark.parametrize("text", ["%x", "100%", "%"])
def test_refuses_unknown_field_characters(text: str) -> None:
    with pytest.raises(click.UsageError, match="unknown field"):
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
