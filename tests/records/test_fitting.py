"""Records of any size, which their topic takes whole, compressed, or shortened."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.records import columnar
from penstock.records.columnar.fitting import fitting
from penstock.records.columnar.inputs import read_input
from penstock.records.columnar.shortening import Pointer, WithoutHeaders, fit, record_sizes
from tests.records import reference

LIMIT = 2_000
OWN = "x.error."
SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", columnar.HEADERS_TYPE),
        ("other", pa.int64()),
    ]
)
EXAMPLES = int(os.environ.get("PENSTOCK_EXAMPLES", "100"))


@st.composite
def rows(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Rows around the limit: bytes that shrink and bytes that do not, of any part."""
    random = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    sizes = st.one_of(st.integers(0, 300), st.integers(LIMIT - 300, LIMIT + 300), st.just(9_000))

    def content() -> bytes | None:
        size = draw(st.one_of(st.none(), sizes))
        if size is None:
            return None
        return bytes(size) if draw(st.booleans()) else random.bytes(size)

    return [
        {
            "key": content() if draw(st.integers(0, 9)) == 0 else b"k",
            "value": content(),
            "headers": [
                *({"key": "own", "value": content()} for _ in range(draw(st.integers(0, 2)))),
                {"key": OWN + "offset", "value": b"17"},
            ],
            "other": number,
        }
        for number in range(draw(st.integers(1, 12)))
    ]


def encoded(table: pa.Table) -> list[dict[str, Any]]:
    """The rows as they are read back from batches of the limit."""
    batches = columnar.encode_batches(
        table, now_ms=0, max_batch_bytes=LIMIT, aim_bytes=900, compress_large=True
    )
    assert all(batch.size_bytes <= LIMIT for batch in batches)
    data = b"".join(bytes(batch.data) for batch in batches)
    found: list[dict[str, Any]] = columnar.decode_batches(data).to_pylist()
    return found


@given(rows())
@settings(max_examples=EXAMPLES)
def test_every_record_is_written_whole_or_as_a_pointer(given_rows: list[dict[str, Any]]) -> None:
    table = pa.Table.from_pylist(given_rows, schema=SCHEMA)
    fits = fit(read_input(table, 0), limit_bytes=LIMIT)
    shortened = fitting(table, limit_bytes=LIMIT, shorten=Pointer(prefix=OWN))
    assert shortened.column("other").to_pylist() == list(range(len(given_rows)))
    written = encoded(shortened)
    for row, whole, found in zip(given_rows, fits, written, strict=True):
        headers = {header["key"]: header["value"] for header in found["headers"]}
        if whole:
            assert {name: found[name] for name in ("key", "value")} == {
                name: row[name] for name in ("key", "value")
            }
            assert found["headers"] == row["headers"]
            continue
        assert headers[OWN + "offset"] == b"17"
        cut = dict(part.split("=") for part in headers[OWN + "truncated"].decode().split(","))
        assert int(cut["value"]) == len(row["value"] or b"")
        assert (row["value"] or b"").startswith(found["value"] or b"")
        assert (row["key"] or b"").startswith(found["key"] or b"")
        assert ("own" in headers) <= ("headers" not in cut)


@given(rows())
@settings(max_examples=EXAMPLES)
def test_whether_a_record_fits_is_so_by_another_encoder(given_rows: list[dict[str, Any]]) -> None:
    """The oracle writes records one by one, by the text of the protocol."""
    table = pa.Table.from_pylist(given_rows, schema=SCHEMA)
    columns = read_input(table, 0)
    fits, sizes = fit(columns, limit_bytes=LIMIT), record_sizes(columns)
    for row, whole, size in zip(given_rows, fits, sizes, strict=True):
        plain = reference_size(row)
        assert plain <= size
        assert whole or plain > LIMIT - 61


def reference_size(row: dict[str, Any]) -> int:
    headers = tuple((item["key"], item["value"]) for item in row["headers"])
    record = reference.Record(0, 0, row["key"], row["value"], headers)
    return len(reference.encode_record(record, 0, 0))


def test_headers_of_the_way_back_are_left_out_where_only_they_are_too_much() -> None:
    value = np.random.default_rng(1).bytes(LIMIT - 120)
    plain = {"key": b"k", "value": value, "headers": [{"key": "h", "value": b"1"}], "other": 1}
    stamp = {"key": "way.back", "value": np.random.default_rng(2).bytes(90)}
    headers = [*plain["headers"], stamp]  # type: ignore[misc]
    table = pa.Table.from_pylist([{**plain, "headers": headers}], schema=SCHEMA)
    assert fit(read_input(table, 0), limit_bytes=LIMIT).tolist() == [False]
    fitted = fitting(table, limit_bytes=LIMIT, shorten=WithoutHeaders(prefix="way."))
    assert fitted.to_pylist() == [plain]
    assert fit(read_input(fitted, 0), limit_bytes=LIMIT).tolist() == [True]
