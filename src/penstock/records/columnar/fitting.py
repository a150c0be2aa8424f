"""Shortening of records that are too large for a batch of their topic.

A dead letter or a replayed record gets additional headers and may then exceed the topic's
`max.message.bytes`. If it does not fit even when compressed, it is shortened. `Pointer` cuts it to
a record that names the original's location; `WithoutHeaders` drops the additional headers again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from penstock.records.columnar.encode import encode_batches
from penstock.records.errors import RecordTooLarge
from penstock.records.header import HEADER_BYTES

TRUNCATED: Final = "truncated"
"""Name of the header, after its prefix, that lists the parts that were cut and their bytes."""
_NUMBERS_BYTES: Final = 64
"""Upper bound of a record's bytes in addition to key, value and headers."""
_HEADER_BYTES: Final = 10
"""Upper bound of a header's bytes in addition to its key and value."""

Row = dict[str, Any]
Shorten = Callable[[Row, int], Row]
"""Function that shortens a record to a number of bytes."""


class Pointer(Struct, frozen=True, kw_only=True):
    """Shortener that cuts first the value, then headers without the prefix, then the key.

    It adds a header `<prefix>truncated`, such as `value=1048000,headers=512`: the parts that were
    cut, and their bytes. Headers with the prefix are kept, because they name the original's
    location.
    """

    prefix: str

    def __call__(self, row: Row, room: int) -> Row:
        value, key, headers = row["value"], row["key"], row["headers"] or []
        own = [header for header in headers if header["key"].startswith(self.prefix)]
        others = [header for header in headers if not header["key"].startswith(self.prefix)]
        cut = {"value": len(value or b"")}
        kept = {**row, "headers": [*headers, self._note(cut)], "value": b""}
        if record_bytes(kept) > room and others:
            cut["headers"] = _headers_bytes(others)
            kept["headers"] = [*own, self._note(cut)]
        if (excess := record_bytes(kept) - room) > 0 and key:
            cut["key"] = len(key)
            kept["headers"] = [*kept["headers"][:-1], self._note(cut)]
            excess = record_bytes(kept) - room
            kept["key"] = key[: max(0, len(key) - excess)]
        left = room - record_bytes(kept)
        kept["value"] = None if value is None else value[: max(0, left)]
        return kept

    def _note(self, cut: dict[str, int]) -> dict[str, Any]:
        text = ",".join(f"{part}={size}" for part, size in cut.items())
        return {"key": self.prefix + TRUNCATED, "value": text.encode()}


class WithoutHeaders(Struct, frozen=True, kw_only=True):
    """Shortener that drops the headers whose key begins with the prefix."""

    prefix: str

    def __call__(self, row: Row, room: int) -> Row:
        headers = row["headers"] or []
        kept = [header for header in headers if not header["key"].startswith(self.prefix)]
        return {**row, "headers": kept}


def fitting(rows: Any, *, limit_bytes: int, shorten: Shorten) -> Any:
    """Return the rows; those that exceed the limit even alone in a batch are shortened.

    Args:
        rows: table or record batch with the columns `key`, `value` and `headers`; other columns do
            not change.
        limit_bytes: largest batch of the topic; a record also fits if it does so when compressed.
        shorten: function that shortens one row.
    """
    room = limit_bytes - HEADER_BYTES
    found: list[Any] = []
    at = 0
    for row in np.flatnonzero(~fit(rows, limit_bytes=limit_bytes)).tolist():
        kept = shorten(rows.slice(row, 1).to_pylist()[0], room)
        found += _tables(rows.slice(at, row - at))
        found += _tables(type(rows).from_pylist([kept], schema=rows.schema))
        at = row + 1
    if not found:
        return rows
    table = pa.concat_tables([*found, *_tables(rows.slice(at))])
    if isinstance(rows, pa.RecordBatch):
        return table.combine_chunks().to_batches()[0]
    return table


def fit(rows: Any, *, limit_bytes: int) -> npt.NDArray[np.bool_]:
    """Return a flag for each row: whether it fits alone into a batch, if needed compressed."""
    found = record_sizes(rows) <= limit_bytes - HEADER_BYTES
    for row in np.flatnonzero(~found).tolist():
        found[row] = _fits(rows.slice(row, 1), limit_bytes)
    return found


def record_sizes(rows: Any) -> npt.NDArray[np.int64]:
    """Return an upper bound of the bytes of each row's record in a batch."""

    def lengths(column: Any) -> Any:
        return np.asarray(pc.fill_null(pc.binary_length(column), 0).to_numpy(), np.int64)

    sizes = np.full(rows.num_rows, _NUMBERS_BYTES, np.int64)
    names = rows.schema.names
    for name in ("key", "value"):
        if name in names and not pa.types.is_null(rows.schema.field(name).type):
            sizes += lengths(_whole(rows.column(name)))
    if "headers" not in names or pa.types.is_null(rows.schema.field("headers").type):
        return sizes
    headers = _whole(rows.column("headers"))
    pairs = headers.flatten()
    each = lengths(pc.struct_field(pairs, "key")) + lengths(pc.struct_field(pairs, "value"))
    total = np.zeros(len(each) + 1, np.int64)
    np.cumsum(each + _HEADER_BYTES, out=total[1:])
    counts = pc.fill_null(pc.list_value_length(headers), 0)
    ends = np.cumsum(counts.to_numpy(), dtype=np.int64)
    return sizes + np.diff(total[ends], prepend=0)


def record_bytes(row: Row) -> int:
    """Return an upper bound of the bytes of one record in a batch."""
    size = _NUMBERS_BYTES + len(row["key"] or b"") + len(row["value"] or b"")
    return size + _headers_bytes(row["headers"] or ())


def _headers_bytes(headers: Sequence[dict[str, Any]]) -> int:
    return sum(
        len(header["key"].encode()) + len(header["value"] or b"") + _HEADER_BYTES
        for header in headers
    )


def _whole(column: Any) -> Any:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _tables(rows: Any) -> list[Any]:
    if not rows.num_rows:
        return []
    return [pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows]


def _fits(rows: Any, limit_bytes: int) -> bool:
    try:
        encode_batches(rows, now_ms=0, max_batch_bytes=limit_bytes, compress_large=True)
    except RecordTooLarge:
        return False
    return True
