"""Decoding of records to rows: by columns, with the same result as record by record."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.base.crc import crc32c
from penstock.base.errors import InvalidError
from penstock.outbox.errors import InvalidPath, InvalidPointer
from penstock.outbox.layout import data_path, parse_path
from penstock.outbox.pointer import (
    Inline,
    OutboxRecord,
    Pointer,
    decode_record,
    inline_record,
    pointer_record,
)
from penstock.outbox.reader.decoding import DECODED_SCHEMA, decode_records
from penstock.records.columnar import HEADERS_TYPE

AT_MS = 1_779_580_800_000
Row = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]] | None]


def a_pointer(number: int, **more: Any) -> Pointer:
    batch = f"b{number}"
    given: dict[str, Any] = {
        "file_path": data_path("p", batch, AT_MS),
        "batch_id": batch,
        "partition_id": "p",
        "size_bytes": number,
        "crc32c": number * 7919 % 2**32,
        "codec": "none",
        "event_count": 1,
    }
    return Pointer(**(given | more))


def row_of(record: OutboxRecord) -> Row:
    return record.key, record.value, list(record.headers)


def good_rows(count: int) -> list[Row]:
    rows = []
    for number in range(count):
        if number % 3:
            rows.append(row_of(pointer_record(a_pointer(number))))
        else:
            payload = b"x" * number
            inline = Inline(
                batch_id=f"i{number}",
                partition_id="p",
                crc32c=crc32c(payload),
                codec="zstd",
                event_count=number,
            )
            rows.append(row_of(inline_record(inline, payload)))
    return rows


def decoded(rows: list[Row]) -> list[dict[str, Any]]:
    headers = [
        None if pairs is None else [{"key": name, "value": value} for name, value in pairs]
        for _, _, pairs in rows
    ]
    table = decode_records(
        pa.array([row[0] for row in rows], pa.binary()),
        pa.array([row[1] for row in rows], pa.binary()),
        pa.array(headers, HEADERS_TYPE),
    )
    assert table.schema == DECODED_SCHEMA
    result: list[dict[str, Any]] = table.to_pylist()
    return result


def agree(rows: list[Row]) -> None:
    """Check that decoding by columns and record by record agree."""
    for row, found in zip(rows, decoded(rows), strict=True):
        try:
            expected = decode_record(row[0], row[1], row[2] or [])
        except InvalidPointer:
            if found["problem"] is None:
                # Dates that no calendar has, or before 1970, are left to the reader.
                with pytest.raises(InvalidPath):
                    parse_path(found["file_path"])
                continue
            assert found["problem"]
            assert all(found[name] is None for name in DECODED_SCHEMA.names if name != "problem")
            continue
        assert found["problem"] is None, found
        assert found["kind"] == ("pointer" if isinstance(expected, Pointer) else "inline")
        for name in ("batch_id", "partition_id", "crc32c", "codec", "event_count"):
            assert found[name] == getattr(expected, name)
        if isinstance(expected, Pointer):
            assert (found["file_path"], found["size_bytes"]) == (
                expected.file_path,
                expected.size_bytes,
            )
        else:
            assert (found["file_path"], found["size_bytes"]) == (None, len(row[1] or b""))


@pytest.mark.parametrize("count", [0, 1, 2, 100, 1_000])
def test_good_records(count: int) -> None:
    agree(good_rows(count))


def bomb(text: str) -> bytes:
    return f'{{"file_path":"x","more":{text}}}'.encode()


BAD_VALUES: list[bytes | None] = [
    None,
    b"",
    b"{}",
    b"null",
    b"[]",
    b"\xff\xfe",
    b"{" * 4_000,
    bomb("[" * 1_900 + "]" * 1_900),
    bomb('{"a":' * 700 + "1" + "}" * 700),
    bomb("9" * 4_000),
    bomb("1e999999999"),
    bomb("-" + "9" * 400),
    b'{"a":1}{"a":2}',
    b'{"a":1}\n{"a":2}',
    b'"' + b"x" * 100_000 + b'"',
]


def changed(**fields: Any) -> bytes:
    fine = json.loads(pointer_record(a_pointer(5)).value)
    return json.dumps(fine | fields).encode()


CHANGED = [
    {"file_path": "../../etc/passwd"},
    {"file_path": "/etc/passwd"},
    {"file_path": "p/../p/year=2026/month=05/day=24/hour=00/batch-b5/data.bin"},
    {"file_path": data_path("p", "b5", AT_MS) + "\0"},
    {"file_path": "p/" * 500 + "data.bin"},
    {"file_path": data_path("p", "b6", AT_MS)},
    {"file_path": data_path("q", "b5", AT_MS)},
    {"file_path": None},
    {"file_path": ["x"]},
    {"batch_id": "x" * 65},
    {"partition_id": ".."},
    {"size_bytes": -1},
    {"size_bytes": 2**63},
    {"size_bytes": 10**400},
    {"size_bytes": 1.5},
    {"size_bytes": "7"},
    {"size_bytes": True},
    {"crc32c": "xyz"},
    {"crc32c": "123456789"},
    {"crc32c": 5},
    {"file_path": data_path("p", "b5", AT_MS).replace("2026", "1026")},
    {"file_path": data_path("p", "b5", AT_MS).replace("month=05/day=24", "month=02/day=30")},
    {"codec": ""},
    {"codec": "a b"},
    {"event_count": -5},
]


@pytest.mark.parametrize("value", BAD_VALUES, ids=lambda value: repr(value)[:20])
def test_values_that_are_no_pointers(value: bytes | None) -> None:
    row: Row = (b"p", value, [("penstock-outbox", b"pointer")])
    agree([row])
    agree([*good_rows(40), row, *good_rows(40)])


@pytest.mark.parametrize("fields", CHANGED, ids=lambda fields: repr(fields)[:40])
def test_pointers_that_cannot_be(fields: dict[str, Any]) -> None:
    row: Row = (b"p", changed(**fields), [("penstock-outbox", b"pointer")])
    agree([row])
    agree([*good_rows(20), row, *good_rows(20)])


@pytest.mark.parametrize(
    "pairs",
    [
        None,
        [],
        [("penstock-outbox", None)],
        [("penstock-outbox", b"other")],
        [("penstock-outbox", b"inline")],
        [("penstock-outbox", b"pointer"), ("penstock-outbox", b"inline")],
    ],
)
def test_headers_that_say_nothing(pairs: list[tuple[str, bytes | None]] | None) -> None:
    agree([*good_rows(3), (b"p", pointer_record(a_pointer(5)).value, pairs)])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("batch-id", b"a/b"),
        ("batch-id", b"\xff"),
        ("batch-id", b"x" * 5_000),
        ("codec", b""),
        ("event-count", b"-1"),
        ("event-count", b"9" * 40),
        ("crc32c", b"0"),
        ("crc32c", None),
    ],
)
def test_inline_headers_that_cannot_be(name: str, value: bytes | None) -> None:
    rows = good_rows(4)
    key, payload, pairs = rows[3]
    agree([*rows, (key, payload, [*(pairs or []), (name, value)])])
    agree([(None, payload, pairs), (b"..", payload, pairs), (b"\xff", payload, pairs)])


def test_a_key_that_is_another_partition() -> None:
    _, value, pairs = row_of(pointer_record(a_pointer(5)))
    agree([(b"q", value, pairs), (None, value, pairs), (b"p", value, pairs)])


def test_all_of_a_thousand_are_bad() -> None:
    rows: list[Row] = [(b"p", b"{}", [("penstock-outbox", b"pointer")])] * 1_000
    assert all(row["problem"] for row in decoded(rows))


def test_unequal_columns_are_refused() -> None:
    with pytest.raises(InvalidError, match="equal length"):
        decode_records(pa.array([b"p"]), pa.array([b"v", b"w"]), pa.array([None], HEADERS_TYPE))


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=300), st.integers(0, 20))
def test_random_bytes(value: bytes, place: int) -> None:
    rows = good_rows(20)
    rows.insert(place, (b"p", value, [("penstock-outbox", b"pointer")]))
    agree(rows)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_pointers_with_one_byte_changed(data: Any) -> None:
    fine = pointer_record(a_pointer(12)).value
    at = data.draw(st.integers(0, len(fine) - 1))
    byte = data.draw(st.integers(0, 255))
    value = fine[:at] + bytes([byte]) + fine[at + 1 :]
    agree([*good_rows(5), (b"p", value, [("penstock-outbox", b"pointer")])])
