"""Pointers: bytes, fields, records, and the bulk decoder against the single one."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.outbox.errors import InvalidPayload, InvalidPointer
from penstock.outbox.layout import AT_MS_MAX, data_path
from penstock.outbox.pointer import (
    COUNT_MAX,
    POINTER_BYTES_MAX,
    Inline,
    Pointer,
    check_codec,
    check_event_count,
    decode_pointer,
    decode_record,
    encode_pointer,
    inline_record,
    message_id,
    pointer_record,
)
from penstock.outbox.pointer_table import POINTER_SCHEMA, decode_pointers
from tests.outbox.test_layout import batch_ids, partition_ids

PATH = "p/year=2026/month=05/day=24/hour=14/batch-b/data.bin"
POINTER = Pointer(
    file_path=PATH,
    batch_id="b",
    partition_id="p",
    size_bytes=524_288,
    crc32c=0x03C19A2B,
    codec="zstd",
    event_count=12,
)
TEXT = (
    b'{"file_path":"p/year=2026/month=05/day=24/hour=14/batch-b/data.bin","batch_id":"b",'
    b'"partition_id":"p","size_bytes":524288,"crc32c":"03c19a2b","codec":"zstd","event_count":12}'
)
counts = st.integers(0, COUNT_MAX)


@st.composite
def pointers(draw: st.DrawFn) -> Pointer:
    partition_id, batch_id = draw(partition_ids), draw(batch_ids)
    return Pointer(
        file_path=data_path(partition_id, batch_id, draw(st.integers(0, AT_MS_MAX))),
        batch_id=batch_id,
        partition_id=partition_id,
        size_bytes=draw(counts),
        crc32c=draw(st.integers(0, 2**32 - 1)),
        codec=draw(st.from_regex(r"[A-Za-z0-9._+\-]{1,32}", fullmatch=True)),
        event_count=draw(counts),
    )


def test_the_bytes() -> None:
    assert encode_pointer(POINTER) == TEXT
    assert decode_pointer(TEXT) == POINTER
    assert decode_pointer(memoryview(TEXT)) == POINTER


@given(pointers())
def test_round_trips(pointer: Pointer) -> None:
    data = encode_pointer(pointer)
    assert decode_pointer(data) == pointer
    assert len(data) <= POINTER_BYTES_MAX // 4


@given(st.lists(pointers(), max_size=20))
@settings(max_examples=40)
def test_tables_are_what_single_ones_are(rows: list[Pointer]) -> None:
    values = pa.array([encode_pointer(pointer) for pointer in rows], pa.binary())
    table = decode_pointers(values)
    assert table.schema == POINTER_SCHEMA
    assert [Pointer(**row) for row in table.to_pylist()] == rows


def test_keys_that_are_not_known_are_tolerated() -> None:
    fields = json.loads(TEXT) | {"later": [1, {"deep": None}], "z": "ü"}
    data = json.dumps(fields, indent=2).encode()
    assert decode_pointer(data) == POINTER
    mixed = decode_pointers(pa.array([TEXT, b" " + data + b"\r\n", TEXT]))
    assert [Pointer(**row) for row in mixed.to_pylist()] == [POINTER] * 3


def test_tables_of_all_shapes() -> None:
    assert decode_pointers(pa.array([], pa.binary())).num_rows == 0
    chunks = pa.chunked_array([[TEXT], [], [TEXT, TEXT]], pa.binary())
    assert decode_pointers(chunks).num_rows == 3
    assert decode_pointers(pa.array([TEXT.decode()] * 2)).num_rows == 2
    assert decode_pointers(pa.array([TEXT] * 5).slice(2, 2)).num_rows == 2
    many = decode_pointers(pa.array([TEXT] * 30_000))
    assert many.num_rows == 30_000
    assert many["crc32c"].unique().to_pylist() == [POINTER.crc32c]


def changed(**fields: Any) -> bytes:
    kept = {**json.loads(TEXT), **fields}
    return json.dumps({key: value for key, value in kept.items() if value is not ...}).encode()


BAD = [
    b"",
    b" ",
    b"null",
    b"[]",
    b"{}",
    b'"text"',
    TEXT[:-1],
    TEXT + b"}",
    TEXT + TEXT,
    TEXT + b"\n" + TEXT,
    b"\xff" + TEXT,
    TEXT.replace(b'"b"', b'"\xff"'),
    b"{" * 4000,
    b" " * POINTER_BYTES_MAX + TEXT,
    changed(filler="x" * POINTER_BYTES_MAX),
    changed(crc32c=...),
    changed(crc32c=""),
    changed(crc32c="3c19a2b"),
    changed(crc32c="003c19a2b"),
    changed(crc32c="0x3c19a2"),
    changed(crc32c="03c19a2g"),
    changed(crc32c=63019563),
    changed(crc32c=None),
    changed(size_bytes=...),
    changed(size_bytes=-1),
    changed(size_bytes=2**63),
    changed(size_bytes=1.5),
    changed(size_bytes="1"),
    changed(size_bytes=True),
    changed(size_bytes=None),
    changed(event_count=-1),
    changed(event_count=[]),
    changed(codec=...),
    changed(codec=""),
    changed(codec="a b"),
    changed(codec="x" * 33),
    changed(batch_id=...),
    changed(batch_id="c"),
    changed(partition_id="q"),
    changed(partition_id=None),
    changed(file_path=...),
    changed(file_path="/" + PATH),
    changed(file_path="../" + PATH),
    changed(file_path=PATH.replace("data.bin", "other.bin")),
    changed(file_path=PATH.replace("p/", "../"), partition_id=".."),
    changed(file_path=PATH + "\n"),
    changed(file_path={"path": PATH}),
]


@pytest.mark.parametrize("data", BAD, ids=range(len(BAD)))
def test_what_is_no_pointer_is_refused_by_both(data: bytes) -> None:
    with pytest.raises(InvalidPointer) as caught:
        decode_pointer(data)
    assert len(str(caught.value)) < 500, "a hostile value must not fill the log"
    for values in ([data], [TEXT, data], [data, TEXT], [TEXT, data, TEXT]):
        with pytest.raises(InvalidPointer) as caught:
            decode_pointers(pa.array(values, pa.binary()))
        assert len(str(caught.value)) < 500


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    with pytest.raises(InvalidPointer):
        decode_pointer(data)
    with pytest.raises(InvalidPointer):
        decode_pointers(pa.array([data], pa.binary()))


@given(st.integers(0, len(TEXT) - 1), st.integers(0, 255))
@settings(max_examples=100)
def test_one_changed_byte_never_splits_the_decoders(position: int, byte: int) -> None:
    data = TEXT[:position] + bytes([byte]) + TEXT[position + 1 :]
    try:
        expected = decode_pointer(data)
    except InvalidPointer:
        with pytest.raises(InvalidPointer):
            decode_pointers(pa.array([data], pa.binary()))
    else:
        assert Pointer(**decode_pointers(pa.array([data], pa.binary())).to_pylist()[0]) == expected


def test_truncated_at_every_position() -> None:
    for length in range(len(TEXT)):
        with pytest.raises(InvalidPointer):
            decode_pointer(TEXT[:length])


def test_a_missing_value_names_its_row() -> None:
    with pytest.raises(InvalidPointer, match="row 1: the value is null"):
        decode_pointers(pa.array([TEXT, None], pa.binary()))


def test_records() -> None:
    record = pointer_record(POINTER)
    assert (record.key, record.value) == (b"p", TEXT)
    assert record.headers == (("penstock-outbox", b"pointer"), ("message-id", b"outbox-b"))
    assert record.size_bytes == 1 + len(TEXT)
    assert decode_record(record.key, record.value, record.headers) == POINTER
    assert message_id("b") == b"outbox-b"


def test_inline_records() -> None:
    inline = Inline(batch_id="b", partition_id="p", crc32c=7, codec="none", event_count=3)
    record = inline_record(inline, b"payload")
    assert record.value == b"payload"
    assert record.headers == (
        ("penstock-outbox", b"inline"),
        ("message-id", b"outbox-b"),
        ("batch-id", b"b"),
        ("codec", b"none"),
        ("event-count", b"3"),
        ("crc32c", b"00000007"),
    )
    assert decode_record(record.key, record.value, record.headers) == inline


def inline_with(**headers: bytes | None) -> list[tuple[str, bytes | None]]:
    inline = Inline(batch_id="b", partition_id="p", crc32c=7, codec="none", event_count=3)
    named = dict(inline_record(inline, b"").headers)
    named.update({name.replace("_", "-"): value for name, value in headers.items()})  # type: ignore[misc]
    return list(named.items())


@pytest.mark.parametrize(
    ("key", "value", "headers"),
    [
        (b"p", b"x", []),
        (b"p", TEXT, [("penstock-outbox", b"other")]),
        (b"p", TEXT, [("penstock-outbox", None)]),
        (b"q", TEXT, [("penstock-outbox", b"pointer")]),
        (None, TEXT, [("penstock-outbox", b"pointer")]),
        (b"p", None, [("penstock-outbox", b"pointer")]),
        (b"p", None, inline_with()),
        (b"../p", b"x", inline_with()),
        (b"\xff", b"x", inline_with()),
        (None, b"x", inline_with()),
        (b"p", b"x", inline_with(crc32c=b"7")),
        (b"p", b"x", inline_with(crc32c=b"\xff" * 8)),
        (b"p", b"x", inline_with(event_count=b"-1")),
        (b"p", b"x", inline_with(event_count=b"99999999999999999999")),
        (b"p", b"x", inline_with(event_count=b"9999999999999999999")),
        (b"p", b"x", inline_with(event_count=None)),
        (b"p", b"x", inline_with(batch_id=b"a/b")),
        (b"p", b"x", inline_with(codec=b"")),
    ],
)
def test_records_that_are_none_of_ours(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]]
) -> None:
    with pytest.raises(InvalidPointer):
        decode_record(key, value, headers)


@pytest.mark.parametrize("codec", ["", "a b", "x" * 33, "é", None, b"zstd"])
def test_codecs_that_are_none(codec: object) -> None:
    with pytest.raises(InvalidPayload, match="codec"):
        check_codec(codec)


@pytest.mark.parametrize("count", [-1, 2**63, 1.0, True, None, "1"])
def test_event_counts_that_are_none(count: object) -> None:
    with pytest.raises(InvalidPayload, match="event count"):
        check_event_count(count)
