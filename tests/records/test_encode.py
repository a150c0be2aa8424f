"""Encoding by columns, read back by the plain reference and by another client's reader."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.records import (
    Codec,
    InvalidRecord,
    RecordTooLarge,
    UnsupportedCodec,
    split_batches,
    validate_batch,
    verify_crc,
)
from penstock.records.columnar import HEADERS_TYPE, decode_batches, encode_batches, read_input
from tests.records import reference
from tests.records.reference import Batch, Record
from tests.records.strategies import BLOBS, records

NOW_MS = 1_700_000_000_000


def table(content: tuple[Record, ...]) -> pa.Table:
    return pa.table(
        {
            "key": pa.array([record.key for record in content], pa.binary()),
            "value": pa.array([record.value for record in content], pa.binary()),
            "timestamp": pa.array([record.timestamp for record in content], pa.int64()),
            "headers": pa.array(
                [
                    [{"key": name, "value": value} for name, value in record.headers]
                    for record in content
                ],
                HEADERS_TYPE,
            ),
        }
    )


def joined(data: Any, **options: Any) -> bytes:
    return b"".join(batch.data for batch in encode_batches(data, now_ms=NOW_MS, **options))


@settings(max_examples=100, deadline=None)
@given(records(0, gaps=False), st.sampled_from(list(Codec)), st.integers(1, 800), st.data())
def test_equals_the_reference(
    content: tuple[Record, ...], codec: Codec, per_batch: int, data: st.DataObject
) -> None:
    content = tuple(
        Record(index, r.timestamp, r.key, r.value, r.headers) for index, r in enumerate(content)
    )
    whole = table(content)
    low = data.draw(st.integers(0, len(content) - 1))  # slices have offsets into their buffers
    encoded = encode_batches(
        whole.slice(low), now_ms=NOW_MS, codec=codec, base_offset=low, records_per_batch=per_batch
    )
    expected = [
        Batch(
            base_offset=part[0].offset,
            records=part,
            codec=codec,
            last_offset_delta=len(part) - 1,
        )
        for part in (
            content[start : start + batch.record_count]
            for start, batch in zip(
                (batch.header.base_offset for batch in encoded), encoded, strict=True
            )
        )
    ]
    assert [reference.decode(bytes(batch.data)) for batch in encoded] == [
        [batch] for batch in expected
    ]
    for batch, ours in zip(expected, encoded, strict=True):
        assert codec or reference.encode(batch) == ours.data  # minimal varints, same layout
        assert ours.size_bytes == ours.header.size_bytes
        verify_crc(ours.data, ours.header)
        if min(record.timestamp for record in batch.records) >= -1:
            validate_batch(ours.header._replace(max_timestamp=max(ours.header.max_timestamp, -1)))


STEPS_MS = st.sampled_from([-(2**31) - 7, -3_600_000, -1, 0, 1, 60_000, 2**31, 2**40])


@settings(max_examples=100, deadline=None)
@given(
    parts=st.lists(st.tuples(STEPS_MS, BLOBS, BLOBS), min_size=1, max_size=80),
    # The largest record of the strategy has a key and a value of 9,000 bytes, and has to fit.
    batch_bytes=st.sampled_from([18_500, 30_000, 1_000_000]),
    per_batch=st.sampled_from([1, 2, 7, 334]),
    cut=st.integers(0, 80),
)
def test_equals_the_reference_whatever_the_cuts_and_times(
    parts: list[tuple[int, bytes | None, bytes | None]],
    batch_bytes: int,
    per_batch: int,
    cut: int,
) -> None:
    """Times that fall and leap, tables in chunks, batches cut by bytes and by records."""
    times = accumulate((step for step, _, _ in parts), initial=NOW_MS)
    content = tuple(
        Record(index, time, key, value)
        for index, ((_, key, value), time) in enumerate(zip(parts, times, strict=False))
    )
    whole = table(content)
    middle = min(cut, len(content))
    chunked = pa.concat_tables([whole.slice(0, middle), whole.slice(middle)])
    low = 0
    for batch in encode_batches(
        chunked, now_ms=1, max_batch_bytes=batch_bytes, records_per_batch=per_batch
    ):
        part = content[low : low + batch.record_count]
        expected = Batch(base_offset=low, records=part, last_offset_delta=len(part) - 1)
        assert bytes(batch.data) == reference.encode(expected)
        low += batch.record_count
    assert low == len(content)


@settings(max_examples=100, deadline=None)
@given(records(0, gaps=False), st.sampled_from(list(Codec)))
def test_round_trip(content: tuple[Record, ...], codec: Codec) -> None:
    whole = table(content)
    decoded = decode_batches(joined(whole, codec=codec))
    assert pa.Table.from_batches([decoded]).select(whole.schema.names) == whole


@pytest.mark.parametrize("codec", list(Codec))
def test_batches_keep_to_their_limits(codec: Codec) -> None:
    sizes = [0, 10, 60, 64, 500, 8_000, 9_000, 20_000] * 300
    data = pa.table({"value": [bytes([size % 251]) * size for size in sizes]})
    encoded = encode_batches(data, now_ms=1, codec=codec, max_batch_bytes=65_536)
    assert all(batch.size_bytes <= 65_536 for batch in encoded)
    assert sum(batch.record_count for batch in encoded) == len(sizes)
    assert len(encoded) < 2 * sum(sizes) / 65_536
    headers = split_batches(b"".join(batch.data for batch in encoded))
    assert headers == [batch.header for batch in encoded]
    assert [header.base_offset for header in headers[1:]] == [h.next_offset for h in headers[:-1]]
    assert [len(decode_batches(b.data)) for b in encoded] == [b.record_count for b in encoded]
    few = encode_batches(data, now_ms=1, codec=codec, records_per_batch=7)
    assert {batch.record_count for batch in few[:-1]} == {7}


def test_a_record_too_large_is_named() -> None:
    data = pa.table({"value": [b"ok", b"x" * 2_000]})
    with pytest.raises(RecordTooLarge, match=r"of 1 records from row 1 on has .*the limit is 1000"):
        encode_batches(data, now_ms=1, max_batch_bytes=1_000)
    assert len(encode_batches(data, now_ms=1, max_batch_bytes=1_000, codec=Codec.ZSTD)) == 2


def test_idempotent_sequences_continue_and_wrap() -> None:
    data = pa.table({"value": [b"v"] * 10})
    encoded = encode_batches(
        data,
        now_ms=1,
        records_per_batch=4,
        base_offset=100,
        producer_id=7,
        producer_epoch=2,
        base_sequence=2**31 - 5,
        transactional=True,
    )
    assert [batch.header.base_sequence for batch in encoded] == [2**31 - 5, 2**31 - 1, 3]
    assert [batch.header.last_sequence for batch in encoded] == [2**31 - 2, 2, 4]
    assert [batch.header.base_offset for batch in encoded] == [100, 104, 108]
    assert all(batch.header.is_transactional for batch in encoded)
    assert {(b.header.producer_id, b.header.producer_epoch) for b in encoded} == {(7, 2)}
    for batch in encoded:
        validate_batch(batch.header._replace(attributes=0))


@given(records(0, gaps=False), st.data())
def test_selected_rows_encode_as_a_table_of_them(
    content: tuple[Record, ...], data: st.DataObject
) -> None:
    whole = table(content)
    order = np.array(data.draw(st.permutations(range(len(content)))), np.int64)
    low = data.draw(st.integers(0, len(content) - 1))
    selected = read_input(whole, NOW_MS).select(order).select(slice(low, None))
    expected = joined(whole.take(pa.array(order)).slice(low), records_per_batch=5)
    assert joined(selected, records_per_batch=5) == expected


def test_memory_grows_for_rows_that_are_selected_often() -> None:
    size = 1 << 19
    once = pa.table({"value": pa.array([b"a" * size, b"b"])})
    often = np.array([0, 1, 0, 0, 0, 1] * 3)
    expected = joined(once.take(pa.array(often)))
    assert joined(read_input(once, NOW_MS).select(often)) == expected


def test_a_record_larger_than_its_batch_is_compressed_into_it() -> None:
    values = [b"small", b"x" * (5 << 20), b"also small"]
    encoded = encode_batches(
        pa.table({"value": pa.array(values)}),
        now_ms=NOW_MS,
        codec=Codec.ZSTD,
        max_batch_bytes=9_000,
    )
    assert [batch.record_count for batch in encoded] == [1, 1, 1]
    decoded = decode_batches(b"".join(batch.data for batch in encoded))
    assert decoded.column("value").to_pylist() == values


@pytest.mark.parametrize(
    "kind",
    [pa.string(), pa.large_string(), pa.large_binary(), pa.binary(2), pa.binary_view()],
)
def test_types_of_values(kind: Any) -> None:
    data = pa.table({"value": pa.array([b"ab", None, b"cd"], pa.binary()).cast(kind)})
    assert decode_batches(joined(data)).column("value").to_pylist() == [b"ab", None, b"cd"]


def test_other_inputs() -> None:
    dictionary = pa.array(["a", "b", "a"]).dictionary_encode()
    chunked = pa.chunked_array([["x"], [], ["y", None]])
    moments = pa.array([datetime(2013, 1, 1, tzinfo=UTC)] * 2 + [None], pa.timestamp("ns", "UTC"))
    pairs = pa.array([[("k", b"v")], [], None], pa.map_(pa.string(), pa.binary()))
    data = pa.table({"key": dictionary, "value": chunked, "timestamp": moments, "headers": pairs})
    decoded = decode_batches(joined(data))
    assert decoded.column("key").to_pylist() == [b"a", b"b", b"a"]
    assert decoded.column("value").to_pylist() == [b"x", b"y", None]
    assert decoded.column("timestamp").to_pylist() == [1_356_998_400_000] * 2 + [NOW_MS]
    assert decoded.column("headers").to_pylist() == [[{"key": "k", "value": b"v"}], [], []]
    batch = pa.RecordBatch.from_pydict({"value": pa.nulls(3), "key": pa.nulls(3)})
    decoded = decode_batches(joined(batch))
    assert decoded.column("value").null_count == 3
    assert decoded.column("timestamp").to_pylist() == [NOW_MS] * 3
    assert encode_batches(pa.table({"value": pa.array([], pa.binary())}), now_ms=1) == []


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ({"key": [b"k"]}, "the column 'value' is missing"),
        ({"value": [1]}, "'value' has type int64"),
        ({"value": [b"v"], "timestamp": ["now"]}, "'timestamp' has type string"),
        ({"value": [b"v"], "headers": [3]}, "'headers' has type int64"),
        ({"value": [b"v"], "headers": [[{"key": None, "value": b""}]]}, "a null key"),
    ],
)
def test_refused_inputs(data: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidRecord, match=reason):
        encode_batches(pa.table(data), now_ms=1)


def test_refused_options() -> None:
    data = pa.table({"value": [b"v"]})
    with pytest.raises(UnsupportedCodec):
        encode_batches(data, now_ms=1, codec=6)
    with pytest.raises(UnsupportedCodec, match="zstd level 99"):
        encode_batches(data, now_ms=1, codec=Codec.ZSTD, level=99)
    with pytest.raises(InvalidRecord, match="must be at least 1"):
        encode_batches(data, now_ms=1, records_per_batch=0)
    with pytest.raises(InvalidRecord, match="must be at least 1"):
        encode_batches(data, now_ms=1, max_batch_bytes=61)
