"""Decoding by columns against the plain reference, and against damage of every kind."""

from __future__ import annotations

import contextlib
import random
import struct
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.records import (
    HEADER_BYTES,
    CorruptBatch,
    InvalidRecord,
    LegacyBatch,
    RecordTooLarge,
    UnsupportedCodec,
    decode_header,
    seal,
)
from penstock.records.columnar import RECORD_SCHEMA, decode_batches
from tests.records import reference
from tests.records.reference import Batch, Record
from tests.records.strategies import batches, visible

Decode = Callable[..., Any]

BOTH = pytest.mark.parametrize("decode", [decode_batches, partial(decode_batches, views=True)])
"""Keys and values are copied, or views of the buffer; the results are the same."""


def rows(decoded: Any) -> list[Record]:
    """A decoded Arrow batch as records."""
    decoded.validate(full=True)
    return [
        Record(
            row["offset"],
            row["timestamp"],
            row["key"],
            row["value"],
            tuple((header["key"], header["value"]) for header in row["headers"]),
        )
        for row in decoded.to_pylist()
    ]


def encoded(drawn: list[Batch]) -> bytes:
    return b"".join(reference.encode(batch) for batch in drawn)


def some_records(count: int, seed: int, *, headers: bool = False) -> tuple[Record, ...]:
    dice = random.Random(seed)
    tags = (("trace", b"0123"), ("none", None)) if headers else ()
    return tuple(
        Record(index, 1_000 + index, dice.randbytes(3), dice.randbytes(dice.randint(0, 90)), tags)
        for index in range(count)
    )


@BOTH
@settings(max_examples=100, deadline=None)
@given(drawn=batches(), control=st.booleans())
def test_equals_the_reference(decode: Decode, drawn: list[Batch], control: bool) -> None:
    decoded = decode(encoded(drawn), include_control=control)
    assert decoded.schema.names == RECORD_SCHEMA.names
    assert rows(decoded) == visible(drawn, control=control)


@BOTH
@settings(max_examples=60, deadline=None)
@given(drawn=batches(), data=st.data())
def test_offsets_out_of_the_range_are_left_out(
    decode: Decode, drawn: list[Batch], data: st.DataObject
) -> None:
    everything = visible(drawn)
    around = [record.offset + step for record in everything[:50] for step in (-1, 0, 1)] + [0]
    start = data.draw(st.sampled_from([None, *around]))
    end = data.draw(st.sampled_from([None, *around]))
    decoded = decode(encoded(drawn), start_offset=start, end_offset=end)
    assert rows(decoded) == [
        record
        for record in everything
        if (start is None or record.offset >= start) and (end is None or record.offset < end)
    ]


@pytest.mark.parametrize(("codec", "headers"), [(codec, codec % 2 == 0) for codec in range(5)])
def test_many_records(codec: int, headers: bool) -> None:
    content = some_records(40_000, codec, headers=headers)
    drawn = [Batch(0, content, codec=codec)]
    assert rows(decode_batches(encoded(drawn))) == list(content)


@pytest.mark.parametrize("codec", [0, 3])
@pytest.mark.parametrize("count", [1, 2, 10])
def test_many_small_batches(count: int, codec: int) -> None:
    content = some_records(2_000, 7)
    drawn = [
        Batch(start, content[start : start + count], codec=codec)
        for start in range(0, len(content), count)
    ]
    assert rows(decode_batches(memoryview(bytearray(encoded(drawn))))) == list(content)


@pytest.mark.parametrize("value", [bytes(50), b"\0\1" * 40, b"x" * 100, b"", bytes(9_000)])
def test_values_that_look_like_records(value: bytes) -> None:
    dice = random.Random(1)
    content = tuple(
        Record(index, 5, value[: dice.randint(0, 9)], value[: dice.randint(0, len(value))])
        for index in range(1_500)
    )
    assert rows(decode_batches(encoded([Batch(0, content)]))) == list(content)
    inside = reference.encode(Batch(0, content[:40]))
    content = tuple(Record(index, 5, None, inside[: index * 3]) for index in range(300))
    assert rows(decode_batches(encoded([Batch(0, content)]))) == list(content)


def test_columns_are_what_was_asked_for() -> None:
    data = encoded([Batch(0, some_records(3, 1)), Batch(3, (Record(3, 9, None, b"v"),), 0, 55)])
    decoded = decode_batches(data, columns=["timestamp_type", "value", "timestamp"])
    assert decoded.schema.names == ["timestamp_type", "value", "timestamp"]
    assert decoded.column(0) == pa.array([0, 0, 0, 1], pa.int8())
    assert decoded.column(2).to_pylist() == [1_000, 1_001, 1_002, 55]
    assert decode_batches(b"", columns=["key"]).num_rows == 0
    with pytest.raises(InvalidRecord, match="no column 'partition'"):
        decode_batches(data, columns=["partition"])


@BOTH
@pytest.mark.parametrize("append_time", [None, 77])
@pytest.mark.parametrize("start", [None, 0, 1])
def test_one_batch_has_a_timestamp_type_for_each_record(
    decode: Decode, append_time: int | None, start: int | None
) -> None:
    data = encoded([Batch(0, some_records(3, 1), append_time=append_time)])
    kinds = [0 if append_time is None else 1] * (3 - (start or 0))
    alone = decode(data, columns=["timestamp_type"], start_offset=start)
    alone.validate(full=True)
    assert alone.column(0).to_pylist() == kinds
    names = [*RECORD_SCHEMA.names, "timestamp_type"]
    for columns in (names, names[::-1]):
        whole = decode(data, columns=columns, start_offset=start)
        whole.validate(full=True)
        assert whole.column("timestamp_type").to_pylist() == kinds
        assert whole.select(RECORD_SCHEMA.names) == decode(data, start_offset=start)


PLAIN = st.lists(
    st.tuples(
        st.integers(-1, 2**41) | st.sampled_from([2**61, -(2**61), 2**62 - 1, 2**31, 2**32]),
        st.none() | st.binary(max_size=90),
        st.none() | st.binary(max_size=9_000),
    ),
    min_size=1,
    max_size=40,
)


@BOTH
@settings(max_examples=100, deadline=None)
@given(drawn=st.lists(PLAIN, min_size=1, max_size=3), append=st.booleans(), start=st.integers(0, 9))
def test_a_few_plain_records(
    decode: Decode,
    drawn: list[list[tuple[int, bytes | None, bytes | None]]],
    append: bool,
    start: int,
) -> None:
    made: list[Batch] = []
    offset = 7
    for parts in drawn:
        content = tuple(Record(offset + index, *part) for index, part in enumerate(parts))
        made.append(Batch(offset, content, append_time=77 if append else None))
        offset += len(parts)
    decoded = decode(encoded(made), start_offset=start)
    assert rows(decoded) == [record for record in visible(made) if record.offset >= start]


def test_bytes_are_copied_or_views_of_what_was_given() -> None:
    kinds = {name: RECORD_SCHEMA.field(name).type for name in RECORD_SCHEMA.names}
    content = some_records(5, 3, headers=True)
    data = bytearray(encoded([Batch(0, content)]))
    copied, viewed = decode_batches(data), decode_batches(data, views=True)
    assert dict(zip(copied.schema.names, copied.schema.types, strict=True)) == kinds
    for name in ("key", "value"):
        kinds[name] = pa.binary_view()
    assert dict(zip(viewed.schema.names, viewed.schema.types, strict=True)) == kinds
    data[:] = bytes(len(data))
    assert rows(copied) == list(content)
    seen = viewed.column("value").to_pylist()
    assert any(seen)
    assert all(not any(value[4:]) for value in seen if len(value) > 12)


@pytest.mark.parametrize("size", [4, 5, 6, 9, 10, 11])
@pytest.mark.parametrize("field", range(5))
@pytest.mark.parametrize("last", [b"\0", b"\1", b"\2", b"\x7f"])
def test_varints_may_be_long_but_not_too_long(field: int, size: int, last: bytes) -> None:
    """A delta, length or count with more bytes than it needs, or may have."""
    fields = [b"\0", b"\0", b"\1", b"\1", b"\0"]
    fields[field] = b"\x80" * (size - 1) + last
    body = b"\0" + b"".join(fields)
    data = bytearray(encoded([Batch(0, (Record(0, 1, None, None),))])[:HEADER_BYTES])
    data += reference.varint(len(body)) + body
    struct.pack_into(">i", data, 8, len(data) - 12)
    seal(data)
    fits = size <= (10 if field == 0 else 5)
    if fits and last == b"\0":
        assert decode_batches(data).num_rows == 1
    elif not fits:
        with pytest.raises(CorruptBatch, match="varint"):
            decode_batches(data)


def test_a_batch_cut_at_the_end_is_ignored() -> None:
    first, second = (encoded([Batch(start, (Record(start, 1, b"k", b"v"),))]) for start in (0, 1))
    for end in range(len(second)):
        assert decode_batches(first + second[:end]).num_rows == 1


def test_legacy_message_sets_are_named() -> None:
    data = bytearray(encoded([Batch(0, some_records(5, 1))]))
    data[16] = 1
    with pytest.raises(LegacyBatch, match="magic 1"):
        decode_batches(data)
    with pytest.raises(LegacyBatch):
        decode_batches(data[:30])


@pytest.mark.parametrize(
    "garbage",
    [
        b"TWFuIGlzIGRpc3Rpbmd1aXNoZWQsIG5vdCBvbmx5IGJ5IGhpcyByZWFzb24sIGJ1dCBieSB0aGlz" * 3,
        b"\xff" * 500,
        bytes(20) + b"\x07" + bytes(100),
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
)
def test_garbage(garbage: bytes) -> None:
    with pytest.raises(CorruptBatch):
        decode_batches(garbage)


def test_checksums_are_verified_by_default() -> None:
    data = bytearray(encoded([Batch(0, (Record(0, 1, None, b"value"),))]))
    data[-2] ^= 1
    with pytest.raises(CorruptBatch, match="checksum"):
        decode_batches(data)
    assert decode_batches(data, check_crc=False).column("value").to_pylist() == [b"valud"]
    assert decode_batches(data, start_offset=1).num_rows == 0


def test_unpacking_is_bounded_in_sum() -> None:
    content = (Record(0, 1, None, bytes(100_000)),)
    data = encoded([Batch(0, content, codec=codec) for codec in (1, 2, 3, 4)])
    assert decode_batches(data, max_decompressed_bytes=400_200).num_rows == 4
    with pytest.raises(RecordTooLarge):
        decode_batches(data, max_decompressed_bytes=400_000)


def test_counts_that_cannot_be() -> None:
    def claim(count: int, codec: int) -> bytes:
        data = bytearray(encoded([Batch(0, some_records(9, 1), codec=codec)]))
        struct.pack_into(">i", data, 23, count - 1)
        struct.pack_into(">i", data, 57, count)
        seal(data)
        return bytes(data)

    for codec in range(5):
        assert decode_batches(claim(9, codec)).num_rows == 9
        for count in (1, 8, 10, 11, 2**31 - 1):
            with pytest.raises(CorruptBatch):
                decode_batches(claim(count, codec))
    data = bytearray(encoded([Batch(0, some_records(9, 1))]))
    data[22] = 7
    seal(data)
    with pytest.raises(UnsupportedCodec, match="codec 7"):
        decode_batches(data)


def test_an_offset_outside_its_batch_is_refused() -> None:
    data = bytearray(encoded([Batch(0, some_records(9, 1))]))
    struct.pack_into(">i", data, 23, 7)
    seal(data)
    with pytest.raises(CorruptBatch, match="offset is outside"):
        decode_batches(data)


def test_header_keys_that_are_no_text_are_replaced() -> None:
    data = bytearray(encoded([Batch(0, (Record(0, 1, None, None, (("kk", b"v"),)),))]))
    data[data.index(b"kk")] = 0xFF
    seal(data)
    assert decode_batches(data).column("headers").to_pylist() == [[{"key": "�k", "value": b"v"}]]


def test_a_record_of_very_many_headers() -> None:
    tags = tuple((str(index), None) for index in range(30_000))
    content = (Record(0, 1, None, None, tags), Record(1, 1, None, b"", tags[:2]))
    assert rows(decode_batches(encoded([Batch(0, content)]))) == list(content)


def damaged(data: bytes, dice: random.Random) -> bytearray:
    """Change one to four bytes behind the header, and correct the checksum."""
    result = bytearray(data)
    for _ in range(dice.randint(1, 4)):
        position = dice.randrange(HEADER_BYTES - 38, len(result))
        result[position] = dice.choice([0, 1, 0x7F, 0x80, 0xFF, dice.randrange(256)])
    seal(result)
    return result


@pytest.mark.parametrize("headers", [False, True])
@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize("count", [1, 9, 400])
def test_damage_is_refused_or_read_in_bounds(count: int, codec: int, headers: bool) -> None:
    content = some_records(count, 3, headers=headers)
    if count == 400:
        content = tuple(Record(r.offset, 5, None, b"v" * 90, r.headers) for r in content)
    data = encoded([Batch(0, content, codec=codec)])
    dice = random.Random(count * 10 + codec)
    for _ in range(250):
        try:
            decoded = decode_batches(damaged(data, dice), max_decompressed_bytes=1 << 22)
        except (CorruptBatch, RecordTooLarge, UnsupportedCodec):
            continue
        decoded.validate(full=True)


def test_every_cut_section_is_refused() -> None:
    for headers in (False, True):
        for count in (5, 300):
            data = encoded([Batch(0, some_records(count, 3, headers=headers))])
            for end in range(HEADER_BYTES, len(data) - 1, 1 if count == 5 else 37):
                short = bytearray(data[:end])
                struct.pack_into(">i", short, 8, end - 12)
                seal(short)
                with pytest.raises(CorruptBatch):
                    decode_batches(short)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 40), st.binary(max_size=400))
def test_any_bytes_as_records(count: int, payload: bytes) -> None:
    data = bytearray(encoded([Batch(0, (Record(0, 1, None, None),))])[:HEADER_BYTES]) + payload
    struct.pack_into(">i", data, 8, len(data) - 12)
    struct.pack_into(">i", data, 23, max(count - 1, 0))
    struct.pack_into(">i", data, 57, count)
    seal(data)
    assert decode_header(data).record_count == count
    with contextlib.suppress(CorruptBatch):
        decode_batches(data).validate(full=True)


def test_input_may_be_any_buffer() -> None:
    data = encoded([Batch(0, some_records(5, 1))])
    for buffer in (bytearray(data), memoryview(data), np.frombuffer(data, np.int8).data):
        assert decode_batches(buffer).num_rows == 5
