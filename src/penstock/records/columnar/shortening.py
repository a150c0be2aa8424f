"""Shortening of records that are too large for a batch of their topic.

A dead letter or a replayed record gets additional headers and may then exceed the topic's
`max.message.bytes`. If it does not fit even when compressed, it is shortened. `Pointer` cuts it to
a record that names the original's location; `WithoutHeaders` drops the additional headers again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from msgspec import Struct

from penstock.records.columnar.arrays import Column, Flags, Headers, Input, Ints
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


def fit(rows: Input, *, limit_bytes: int) -> Flags:
    """Return a flag for each row: whether it fits alone into a batch, if needed compressed."""
    found: Flags = record_sizes(rows) <= limit_bytes - HEADER_BYTES
    for row in np.flatnonzero(~found).tolist():
        found[row] = _fits(rows.select(slice(row, row + 1)), limit_bytes)
    return found


def record_sizes(rows: Input) -> Ints:
    """Return an upper bound of the bytes of each row's record in a batch."""
    sizes = np.full(rows.timestamps.size, _NUMBERS_BYTES, np.int64)
    for column in (rows.key, rows.value):
        if column.starts.size:
            sizes += column.lengths()
    bounds, keys, values = rows.headers
    if bounds.size:
        total = np.zeros(keys.starts.size + 1, np.int64)
        each = keys.lengths() + _HEADER_BYTES
        np.cumsum(each + values.lengths() if values.starts.size else each, out=total[1:])
        sizes += np.diff(total[bounds])
    return sizes if rows.order is None else sizes[rows.order]


def shortened(rows: Input, index: int, *, limit_bytes: int, shorten: Shorten) -> Input:
    """Return one of the rows, shortened to fit alone into a batch of the limit."""
    place = index if rows.order is None else int(rows.order[index])
    bounds, keys, values = rows.headers
    pairs = range(*bounds[place : place + 2].tolist()) if bounds.size else ()
    headers = [
        {"key": (keys.item(pair) or b"").decode("utf-8", "replace"), "value": values.item(pair)}
        for pair in pairs
    ]
    row = {"key": rows.key.item(place), "value": rows.value.item(place), "headers": headers}
    kept = shorten(row, limit_bytes - HEADER_BYTES)
    return Input(
        key=Column.of([kept["key"]]),
        value=Column.of([kept["value"]]),
        timestamps=rows.timestamps[place : place + 1],
        headers=Headers(
            np.array([0, len(kept["headers"])], np.int32),
            Column.of([header["key"].encode() for header in kept["headers"]]),
            Column.of([header["value"] for header in kept["headers"]]),
        ),
    )


def record_bytes(row: Row) -> int:
    """Return an upper bound of the bytes of one record in a batch."""
    size = _NUMBERS_BYTES + len(row["key"] or b"") + len(row["value"] or b"")
    return size + _headers_bytes(row["headers"] or ())


def _headers_bytes(headers: Sequence[dict[str, Any]]) -> int:
    return sum(
        len(header["key"].encode()) + len(header["value"] or b"") + _HEADER_BYTES
        for header in headers
    )


def _fits(rows: Input, limit_bytes: int) -> bool:
    try:
        encode_batches(rows, now_ms=0, max_batch_bytes=limit_bytes, compress_large=True)
    except RecordTooLarge:
        return False
    return True
