"""Shortening of the rows of Arrow tables that are too large for a batch of their topic."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from penstock.records.columnar.inputs import read_input
from penstock.records.columnar.shortening import Shorten, fit
from penstock.records.header import HEADER_BYTES


def fitting(rows: Any, *, limit_bytes: int, shorten: Shorten) -> Any:
    """Return the rows; those that exceed the limit even alone in a batch are shortened.

    Args:
        rows: table or record batch with the columns `key`, `value` and `headers`; other columns do
            not change.
        limit_bytes: largest batch of the topic; a record also fits if it does so when compressed.
        shorten: function that shortens one row.
    """
    room = limit_bytes - HEADER_BYTES
    too_large = np.flatnonzero(~fit(read_input(rows, 0), limit_bytes=limit_bytes)).tolist()
    found: list[Any] = []
    at = 0
    for row in too_large:
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


def _tables(rows: Any) -> list[Any]:
    if not rows.num_rows:
        return []
    return [pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows]
