"""The encoder of plain values writes what the column encoder writes, byte for byte."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.records.columnar import EncodedBatch, decode_batches, encode_batches
from penstock.records.columnar.plain import (
    PLAIN_RECORDS_MAX,
    PLAIN_VALUE_BYTES_MAX,
    encode_plain,
)

NOW_MS = 1_700_000_000_000


def plain(values: list[bytes], gap: int = 0, sequence: int = 0) -> EncodedBatch | None:
    lengths = np.array([len(value) for value in values], np.int64)
    memory = np.frombuffer(b"".join(b"." * gap + value for value in values) + b".", np.uint8)
    return encode_plain(
        memory,
        np.cumsum(lengths + gap) - lengths,
        lengths,
        now_ms=NOW_MS,
        producer_id=5,
        producer_epoch=2,
        base_sequence=sequence,
    )


def by_columns(values: list[bytes], sequence: int = 0) -> EncodedBatch:
    (batch,) = encode_batches(
        pa.table({"value": pa.array(values, pa.binary())}),
        now_ms=NOW_MS,
        producer_id=5,
        producer_epoch=2,
        base_sequence=sequence,
        max_batch_bytes=256 << 20,
        records_per_batch=len(values),
    )
    return batch


def assert_same(values: list[bytes], gap: int = 0, sequence: int = 0) -> None:
    found, wanted = plain(values, gap, sequence), by_columns(values, sequence)
    assert found is not None
    assert found.header == wanted.header
    assert bytes(found.data) == bytes(wanted.data)


@settings(max_examples=300, deadline=None)
@given(
    sizes=st.lists(
        st.one_of(st.integers(0, 80), st.integers(8100, 8300), st.integers(16_000, 16_352)),
        min_size=1,
        max_size=200,
    ),
    gap=st.integers(0, 3),
    sequence=st.integers(0, 2**31 - 1),
)
def test_the_same_bytes_for_any_lengths(sizes: list[int], gap: int, sequence: int) -> None:
    assert_same([bytes([index % 256]) * size for index, size in enumerate(sizes)], gap, sequence)


@pytest.mark.parametrize("count", [1, 63, 64, 65, PLAIN_RECORDS_MAX])
@pytest.mark.parametrize("size", [0, 1, 57, 58, 63, 64, 8183, 8184, 8191, 8192])
def test_the_same_bytes_where_a_varint_grows(count: int, size: int) -> None:
    values = [bytes([index % 256]) * size for index in range(min(count, (32 << 20) // (size + 1)))]
    assert_same(values)
    found = plain(values)
    assert found is not None
    assert decode_batches(found.data, columns=("value",)).column("value").to_pylist() == values


def test_what_its_tables_do_not_hold_is_left_to_the_column_encoder() -> None:
    assert plain([]) is None
    assert plain([b""] * (PLAIN_RECORDS_MAX + 1)) is None
    assert plain([bytes(PLAIN_VALUE_BYTES_MAX + 1)]) is None
    assert_same([bytes(PLAIN_VALUE_BYTES_MAX)] * 3)
