"""Transforms of headers, and the predicate that selects rows by a header.

Headers are bytes: text as UTF-8, other values as the text that `Cast` makes, structs and lists as
JSON.
"""

from __future__ import annotations

from dataclasses import MISSING
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.base.errors import InvalidError, InvalidSetting
from penstock.base.settings import setting
from penstock.connect.converting import whole
from penstock.connect.paths import FieldPath, with_column
from penstock.connect.plugins import HEADERS, Records
from penstock.connect.steps import Predicate, Transform
from penstock.connect.transforms.casting import to_text
from penstock.connect.transforms.transform import FIELDS, ColumnTransform, need_struct
from penstock.formats.json.writing import json_values
from penstock.kernels import texts as kernels
from penstock.records.columnar.arrays import NO_HEADERS, Column
from penstock.records.columnar.inputs import column_of_bytes, headers_of
from penstock.records.columnar.schema import HEADERS_TYPE

_BYTES_MAX: Final = 2**31 - 1
"""Most bytes of an Arrow array with 32-bit offsets."""


class DropHeaders(Transform):
    """Remove headers by name."""

    headers: tuple[str, ...] = setting(MISSING, "Required: names of the headers.")

    def apply(self, records: Records) -> list[Records]:
        if HEADERS not in records.rows.column_names:
            return [records]
        column = whole(records.rows.column(HEADERS))
        entries = column.flatten()
        kept = pc.invert(pc.is_in(entries.field("key"), pa.array(self.headers)))
        parents = pc.list_parent_indices(column).filter(kept).to_numpy()
        return [_with_entries(records, entries.filter(kept), parents)]


class InsertHeader(Transform):
    """Add a header with a fixed text."""

    header: str = setting(MISSING, "Required: name of the header.")
    value_literal: str = setting(MISSING, "Required: text of the header.")

    def apply(self, records: Records) -> list[Records]:
        text, count = np.frombuffer(self.value_literal.encode(), np.uint8), records.count
        starts, ends = np.zeros(count, np.int32), np.full(count, text.size, np.int32)
        return [_added(records, self.header, Column(text, starts, ends))]


class HeaderFrom(ColumnTransform):
    """Copy or move fields to headers. A null key or value has no fields, and is rejected."""

    fields: tuple[FieldPath, ...] = setting(
        MISSING, "Required: fields to copy or move.", kind=FIELDS
    )
    headers: tuple[str, ...] = setting(
        MISSING, "Required: names of the headers, in the order of `fields`."
    )
    operation: str = setting(
        MISSING, "Required: `copy`, or `move` to remove the fields.", choices=("move", "copy")
    )

    def __post_init__(self) -> None:
        if len(self.headers) != len(self.fields):
            raise InvalidSetting("headers", self.headers, "must have as many names as fields")

    def apply(self, records: Records) -> list[Records]:
        found: list[Any] = []
        after = self.changed(records, lambda column: self._taken(column, found))
        for name, values in zip(self.headers, found, strict=False):
            binary = pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type)
            if not binary:
                nested = pa.types.is_nested(values.type)
                values = json_values(values) if nested else to_text(values)
            after = _added(after, name, column_of_bytes(HEADERS, values))
        return [after]

    def _taken(self, column: Any, found: list[Any]) -> Any:
        if not need_struct(column, nulls=False):
            return column
        found += [self.value_of(path, column) for path in self.fields]
        if self.operation == "copy":
            return column
        return self.each(self.fields, column, lambda values, path: None)


class HasHeaderKey(Predicate):
    """Rows that have a header."""

    name: str = setting(MISSING, "Required: name of the header.")

    def matches(self, records: Records) -> Any:
        flags = np.zeros(records.count, np.bool_)
        if HEADERS in records.rows.column_names:
            column = whole(records.rows.column(HEADERS))
            same = pc.equal(column.flatten().field("key"), self.name)
            flags[pc.list_parent_indices(column).filter(same).to_numpy()] = True
        return flags


def _added(records: Records, name: str, values: Column) -> Records:
    """Return rows with one more header each."""
    count, word = records.count, np.frombuffer(name.encode(), np.uint8)
    old = NO_HEADERS
    if HEADERS in records.rows.column_names:
        old = headers_of(whole(records.rows.column(HEADERS)))
    parts = (old.values, values) if old.bounds.size else (values,)
    starts = old.bounds if old.bounds.size else np.zeros(count + 1, np.int32)
    entries = int(starts[-1]) + count
    values_bytes = int(values.lengths().sum())
    sizes = old.keys.bytes_max() + word.size * count, old.values.bytes_max() + values_bytes
    if max(sizes) > _BYTES_MAX:
        raise InvalidError(f"the headers of {count} rows exceed {_BYTES_MAX} bytes. Use fewer rows")
    keys, contents = (np.empty(size + kernels.ROOM_BYTES, np.uint8) for size in sizes)
    lists, bounds = np.empty(count + 1, np.int32), np.empty((2, entries + 1), np.int32)
    nulls = any(not part.starts.size or part.valid.size for part in parts)
    valid = np.empty(entries if nulls else 0, np.bool_)
    kernels.append_headers(
        starts, tuple(old.keys), tuple(old.values), word, tuple(values), lists, keys,
        bounds[0], contents, bounds[1], valid,
    )  # fmt: skip
    flags = pa.py_buffer(np.packbits(valid, bitorder="little")) if nulls else None
    columns = [
        pa.Array.from_buffers(kind, entries, [mask, pa.py_buffer(ends), pa.py_buffer(data)])
        for kind, mask, ends, data in (
            (pa.string(), None, bounds[0], keys), (pa.binary(), flags, bounds[1], contents),
        )
    ]  # fmt: skip
    kind = HEADERS_TYPE.value_type
    return _with_lists(
        records, pa.Array.from_buffers(kind, entries, [None], children=columns), lists
    )


def _with_entries(records: Records, entries: Any, parents: Any) -> Records:
    """Return rows with headers, given the row of each header, ascending."""
    ends = np.searchsorted(parents, np.arange(records.count), "right")
    lists = np.concatenate(([0], ends)).astype(np.int32)
    return _with_lists(records, entries.cast(HEADERS_TYPE.value_type), lists)


def _with_lists(records: Records, entries: Any, lists: Any) -> Records:
    """Return rows with headers, given the start of each row's headers, and their total number."""
    buffers = [None, pa.py_buffer(lists)]
    column = pa.Array.from_buffers(HEADERS_TYPE, records.count, buffers, children=[entries])
    return records.with_rows(with_column(records.rows, HEADERS, column))
