"""Transforms of headers, and the predicate that selects rows by a header.

Headers are bytes: text as UTF-8, other values as the text that `Cast` makes, structs and lists as
JSON.
"""

from __future__ import annotations

from dataclasses import MISSING
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.base.errors import InvalidSetting
from penstock.base.settings import setting
from penstock.connect.converting import whole
from penstock.connect.paths import FieldPath, with_column
from penstock.connect.plugins import HEADERS, Records
from penstock.connect.steps import Predicate, Transform
from penstock.connect.transforms.casting import to_text
from penstock.connect.transforms.transform import FIELDS, ColumnTransform, need_struct
from penstock.formats.json.writing import json_values
from penstock.records.columnar.schema import HEADERS_TYPE


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
        return [_added(records, self.header, pa.repeat(self.value_literal, records.count))]


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
            after = _added(after, name, values)
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


def _added(records: Records, name: str, values: Any) -> Records:
    """Return rows with one more header each."""
    count = records.count
    binary = pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type)
    if not binary:
        nested = pa.types.is_nested(values.type)
        values = json_values(values) if nested else to_text(values)
    parts, rows = [pa.repeat(name, count), values.cast(pa.binary())], np.arange(count)
    if HEADERS not in records.rows.column_names:
        return _with_ends(records, _entries(parts), rows + 1)
    column = whole(records.rows.column(HEADERS)).cast(HEADERS_TYPE)
    old = column.flatten()
    sizes = pc.list_value_length(column).fill_null(0).to_numpy()
    numbers, added = np.arange(len(old)), np.arange(len(old), len(old) + count)
    if (sizes == sizes[:1]).all():
        size = len(old) // max(count, 1)
        ends = (rows + 1) * (size + 1)
        order = np.column_stack((numbers.reshape(count, size), added)).ravel()
    else:
        ends = np.cumsum(sizes) + rows + 1
        order = np.empty(len(old) + count, np.int64)
        order[numbers + pc.list_parent_indices(column).to_numpy()] = numbers
        order[ends - 1] = added
    taken = pa.array(order)
    parts = [
        pc.take(pa.concat_arrays(pair), taken, boundscheck=False)
        for pair in zip(old.flatten(), parts, strict=True)
    ]
    return _with_ends(records, _entries(parts), ends)


def _entries(parts: list[Any]) -> Any:
    return pa.StructArray.from_arrays(parts, fields=list(HEADERS_TYPE.value_type))


def _with_entries(records: Records, entries: Any, parents: Any) -> Records:
    """Return rows with headers, given the row of each header, ascending."""
    return _with_ends(records, entries, np.searchsorted(parents, np.arange(records.count), "right"))


def _with_ends(records: Records, entries: Any, ends: Any) -> Records:
    """Return rows with headers, given the number of headers up to the end of each row."""
    offsets = pa.array(np.concatenate(([0], ends)), pa.int32())
    column = pa.ListArray.from_arrays(offsets, entries)
    return records.with_rows(with_column(records.rows, HEADERS, column.cast(HEADERS_TYPE)))
