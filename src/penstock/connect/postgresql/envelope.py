"""Envelopes of changes, as Debezium writes them: before, after, source, op and times.

Differences from Debezium: a column whose value was not sent (TOAST) is null in `after`, and its
name is in the field `unchanged`; with replica identity full it has its value. Truncations are
written. `source.version` is Penstock's.

An update that changes the key becomes a delete of the old key, a tombstone and a create. The ranks
in the column `order` keep the order of the log across tables.

Source: Debezium's documentation of the PostgreSQL connector, "Data change events".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock import __version__
from penstock.connect.postgresql.catalog import Catalog
from penstock.connect.postgresql.pgoutput import Moments, Relation, Rows, Truncation
from penstock.connect.postgresql.values import Convert, ValueRules, converter
from penstock.formats.json.writing import json_values
from penstock.records.columnar.schema import HEADERS_TYPE

RANKS: Final = 4
"""Ranks of one message: its row, its tombstone, and the create of a changed key."""
_TOMBSTONE, _CREATE = 1, 2
_US_PER_MS: Final = 1_000
_INSERT, _UPDATE, _DELETE = (ord(letter) for letter in "IUD")
_OLD_ROW: Final = ord("O")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Conversion of one version of a table.

    Attributes:
        names: columns of rows, with their indexes in the relation; columns of composite types are
            left out.
        key: names of the primary key's columns; empty if there is none.
    """

    relation: Relation
    names: tuple[tuple[int, str], ...]
    converters: tuple[Convert, ...]
    key: tuple[str, ...]

    def rows(self, texts: Sequence[Any]) -> Any:
        """Return columns of text as rows (a struct array)."""
        columns = [
            convert(texts[index])
            for (index, _), convert in zip(self.names, self.converters, strict=True)
        ]
        return pa.StructArray.from_arrays(columns, [name for _, name in self.names])

    def keys(self, rows: Any) -> Any:
        """Return the keys of rows as structs; null if the table has no primary key."""
        if not self.key:
            return pa.nulls(len(rows))
        return pa.StructArray.from_arrays([rows.field(name) for name in self.key], list(self.key))


def shape_of(relation: Relation, catalog: Catalog, rules: ValueRules) -> Shape:
    """Return the conversion of a relation's rows."""
    names, converters = [], []
    for index, column in enumerate(relation.columns):
        kind = catalog.type_of(column)
        if kind is not None:
            names.append((index, column.name))
            converters.append(converter(kind, rules))
    there = {name for _, name in names}
    key = catalog.key(relation.schema, relation.name)
    return Shape(
        relation=relation,
        names=tuple(names),
        converters=tuple(converters),
        key=key if there.issuperset(key) else (),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Facts of `source` that all rows of a run share."""

    connector: str
    database: str


def changed(rows: Rows, shape: Shape, origin: Origin, now_us: int) -> list[Any]:
    """Return changes as tables with the columns key, value, headers and order."""
    old, new, unchanged = _halves(rows, shape)
    letters = rows.letters
    deletes, updates = letters == _DELETE, letters == _UPDATE
    moved = _moved(rows, shape, old, new)
    gone = deletes | moved
    order = rows.moments.index * RANKS
    source = _sources(rows.relation, rows.moments, origin)
    whole = deletes | (updates & (rows.olds == _OLD_ROW)) | moved
    ops = np.where(gone, "d", np.where(updates, "u", "c"))
    parts = _Parts(
        before=_where(whole, old), after=_where(~gone, new), source=source,
        unchanged=None if unchanged is None else pc.if_else(pa.array(gone), None, unchanged),
    )  # fmt: skip
    keys = _choose(gone, shape.keys(old), shape.keys(new)) if gone.any() else shape.keys(new)
    headers = _key_headers(moved, "__debezium.newkey", shape.keys(new))
    tables = [_table(keys, parts.values(ops, now_us), headers, order)]
    if gone.any() and shape.key:
        at = pa.array(np.flatnonzero(gone))
        tombstones = pa.nulls(len(at), pa.struct([]))
        named = None if headers is None else headers.take(at)
        tables.append(_table(keys.take(at), tombstones, named, order[gone] + _TOMBSTONE))
    if moved.any():
        at = pa.array(np.flatnonzero(moved))
        created = _Parts(
            before=pa.nulls(len(at), old.type), after=new.take(at), source=source.take(at),
            unchanged=None if unchanged is None else unchanged.take(at),
        )  # fmt: skip
        headers = _key_headers(
            np.ones(len(at), bool), "__debezium.oldkey", shape.keys(old).take(at)
        )
        values = created.values(np.full(len(at), "c"), now_us)
        ranks = order[moved] + _CREATE
        tables.append(_table(shape.keys(new).take(at), values, headers, ranks))
    return tables


def snapshotted(
    texts: Sequence[Any], shape: Shape, origin: Origin, moments: Moments, now_us: int
) -> Any:
    """Return rows of a snapshot as a table with the columns key and value."""
    rows = shape.rows(texts)
    parts = _Parts(
        before=pa.nulls(len(rows), rows.type), after=rows,
        source=_sources(shape.relation, moments, origin, snapshot="true"), unchanged=None,
    )  # fmt: skip
    values = parts.values(np.full(len(rows), "r"), now_us)
    return _table(shape.keys(rows), values, None, moments.index)


def truncated(truncation: Truncation, shape: Shape, origin: Origin, now_us: int) -> Any:
    """Return a truncation as a table with one row; its key is null."""
    kind = shape.rows([pa.array([], pa.large_string())] * len(shape.relation.columns)).type
    source = _sources(truncation.relation, truncation.moments, origin)
    nothing = pa.nulls(1, kind)
    parts = _Parts(before=nothing, after=nothing, source=source, unchanged=None)
    order = truncation.moments.index * RANKS
    return _table(pa.nulls(1), parts.values(np.full(1, "t"), now_us), None, order)


# Parts of envelopes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    before: Any
    after: Any
    source: Any
    unchanged: Any | None

    def values(self, ops: Any, now_us: int) -> Any:
        """Return envelopes as structs."""
        count = len(ops)
        columns = {
            "before": self.before,
            "after": self.after,
            "source": self.source,
            "transaction": pa.nulls(count),
            "op": pa.array(ops, pa.string()),
            **_times(np.full(count, now_us, np.int64)),
        }
        if self.unchanged is not None:
            columns["unchanged"] = self.unchanged
        return pa.StructArray.from_arrays(list(columns.values()), list(columns))


def _times(micros: Any) -> dict[str, Any]:
    return {
        "ts_ms": pa.array(micros // _US_PER_MS),
        "ts_us": pa.array(micros),
        "ts_ns": pa.array(micros * _US_PER_MS),
    }


def _sources(
    relation: Relation, moments: Moments, origin: Origin, *, snapshot: str = "false"
) -> Any:
    count = len(moments.index)

    def same(text: str) -> Any:
        return pa.repeat(pa.scalar(text), count)

    before, lsn = pa.array(moments.before), pa.array(moments.lsn)
    known = pc.not_equal(before, 0)
    first = pc.if_else(
        known, pc.binary_join_element_wise('"', before.cast(pa.string()), '"', ""), "null"
    )
    sequence = pc.binary_join_element_wise("[", first, ',"', lsn.cast(pa.string()), '"]', "")
    times = _times(moments.commit_us)
    columns = {
        "version": same(__version__),
        "connector": same("postgresql"),
        "name": same(origin.connector),
        "ts_ms": times.pop("ts_ms"),
        "snapshot": same(snapshot),
        "db": same(origin.database),
        "sequence": sequence,
        **times,
        "schema": same(relation.schema),
        "table": same(relation.name),
        "txId": pa.array(moments.xid),
        "lsn": lsn,
        "xmin": pa.nulls(count, pa.int64()),
        "origin": pa.nulls(count, pa.string()),
        "origin_lsn": pa.nulls(count, pa.int64()),
    }
    return pa.StructArray.from_arrays(list(columns.values()), list(columns))


def _halves(rows: Rows, shape: Shape) -> tuple[Any, Any, Any | None]:
    """Return the old rows, the new rows, and the names of the new rows' unknown columns."""
    fresh = list(rows.new)
    lacking: list[tuple[str, Any]] = []
    for index, name in shape.names:
        mask = rows.unchanged[index]
        if mask is None:
            continue
        old = rows.old[index]
        fresh[index] = pc.if_else(pa.array(mask), old, fresh[index])
        unknown = mask & (rows.olds != _OLD_ROW)
        if unknown.any():
            lacking.append((name, unknown))
    new = shape.rows(fresh)
    if rows.olds.any():
        return shape.rows(rows.old), new, _names(lacking, len(new))
    return pa.nulls(len(new), new.type), new, _names(lacking, len(new))


def _names(lacking: list[tuple[str, Any]], count: int) -> Any | None:
    """Return for each row the list of the columns that it lacks; null if it lacks none."""
    if not lacking:
        return None
    masks = np.stack([mask for _, mask in lacking], axis=1)
    sizes = masks.sum(axis=1)
    names = pa.array([name for name, _ in lacking])
    values = names.take(pa.array(np.nonzero(masks)[1]))
    offsets = np.concatenate(([0], np.cumsum(sizes))).astype(np.int32)
    lists = pa.ListArray.from_arrays(pa.array(offsets), values)
    return pc.if_else(pa.array(sizes > 0), lists, None)


def _moved(rows: Rows, shape: Shape, old: Any, new: Any) -> Any:
    """Return a mask of the updates that change the key.

    A replica identity without the primary key does not show that.
    """
    updates = (rows.letters == _UPDATE) & (rows.olds != 0)
    if not shape.key or not updates.any():
        return np.zeros(len(new), bool)
    places = {name: index for index, name in shape.names}
    differs = np.zeros(len(new), bool)
    for name in shape.key:
        index = places[name]
        if not rows.relation.columns[index].identity:
            return np.zeros(len(new), bool)
        same = pc.equal(rows.old[index], rows.new[index]).fill_null(False)
        mask = rows.unchanged[index]
        differs |= ~same.to_numpy(zero_copy_only=False) & (True if mask is None else ~mask)
    return updates & differs


def _where(mask: Any, rows: Any) -> Any:
    """Return rows, null where the mask is false."""
    if mask.all():
        return rows
    if not mask.any():
        return pa.nulls(len(rows), rows.type)
    nulls = pa.array(~mask)
    return pa.StructArray.from_arrays(
        [rows.field(index) for index in range(rows.type.num_fields)],
        fields=list(rows.type),
        mask=nulls,
    )


def _choose(mask: Any, there: Any, otherwise: Any) -> Any:
    return (
        otherwise
        if pa.types.is_null(otherwise.type)
        else pc.if_else(pa.array(mask), there, otherwise)
    )


def _key_headers(mask: Any, name: str, keys: Any) -> Any | None:
    """Return a header with the other key for the rows of a mask; None if there are none."""
    if not mask.any():
        return None
    texts = json_values(keys).cast(pa.binary()).filter(pa.array(mask))
    offsets = np.concatenate(([0], np.cumsum(mask))).astype(np.int32)
    items = pa.StructArray.from_arrays(
        [pa.repeat(pa.scalar(name), len(texts)), texts], fields=list(HEADERS_TYPE.value_type)
    )
    return pa.ListArray.from_arrays(pa.array(offsets), items)


def _table(keys: Any, values: Any, headers: Any | None, order: Any) -> Any:
    if headers is None:
        headers = pa.ListArray.from_arrays(
            pa.array(np.zeros(len(values) + 1, np.int32)), pa.array([], HEADERS_TYPE.value_type)
        )
    columns: Mapping[str, Any] = {
        "key": keys, "value": values, "headers": headers,
        "order": pa.array(np.asarray(order, np.int64)),
    }  # fmt: skip
    return pa.table(columns)
