"""The trace context of a batch's first record is found, wherever its headers are."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.traces import parse_traceparent
from penstock.records import HEADER_BYTES, Codec
from penstock.records.columnar import encode_batches, read_input
from penstock.records.trace_headers import SEARCHED_BYTES, find_parent, first_trace

PARENT = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
OTHER = PARENT.replace(b"00f067aa0ba902b7", b"1111111111111111")
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
Row = list[tuple[str, bytes]]


def encoded(*rows: tuple[bytes, Row], key: bytes | None = None, codec: Codec = Codec.NONE) -> Any:
    table = pa.table({
        "value": pa.array([value for value, _ in rows], pa.binary()),
        "key": pa.array([key] * len(rows), pa.binary()),
        "headers": pa.array(
            [[{"key": name, "value": value} for name, value in row] for _, row in rows], HEADERS
        ),
    })  # fmt: skip
    [batch] = encode_batches(read_input(table, 1_000), now_ms=1_000, codec=codec)
    return memoryview(bytearray(batch.data))


OTHERS = st.lists(
    st.tuples(st.text("abc", min_size=1, max_size=5), st.binary(max_size=20)), max_size=3
)


@given(st.binary(max_size=20_000), st.none() | st.binary(max_size=300), OTHERS, OTHERS)
def test_the_context_of_the_first_record(
    value: bytes, key: bytes | None, before: Row, after: Row
) -> None:
    rows = ((value, [*before, ("traceparent", PARENT), *after]), (b"", [("traceparent", OTHER)]))
    assert first_trace(encoded(*rows, key=key)) == parse_traceparent(PARENT.decode())
    assert find_parent(encoded(*rows, key=key), HEADER_BYTES)
    plain = ((value, [*before, *after]), (b"", [("traceparent", OTHER)]))
    assert first_trace(encoded(*plain, key=key)) is None


@given(st.text("abc=,1", min_size=0, max_size=300), st.booleans())
def test_the_state_of_the_context(state: str, first: bool) -> None:
    pair = [("traceparent", PARENT), ("tracestate", state.encode())]
    found = first_trace(encoded((b"value", pair if first else pair[::-1])))
    assert found is not None
    assert found.state == state


def test_a_context_far_from_the_end_is_not_found() -> None:
    far = ("a", b"x" * SEARCHED_BYTES)
    assert first_trace(encoded((b"", [("traceparent", PARENT), far]))) is None


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.ZSTD, Codec.LZ4, Codec.SNAPPY])
def test_compressed_batches_are_not_searched(codec: Codec) -> None:
    assert first_trace(encoded((b"", [("traceparent", PARENT)]), codec=codec)) is None


@given(st.data())
def test_malformed_batches_raise_nothing(data: st.DataObject) -> None:
    batch = encoded((b"value", [("traceparent", PARENT)]))
    cut = data.draw(st.integers(0, len(batch)))
    assert first_trace(batch[:cut]) is None or cut > 61
    changed = bytearray(batch)
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(57, len(batch) - 1))] = data.draw(st.integers(0, 255))
    first_trace(memoryview(changed))
