"""Upserts into an Iceberg table by replacing files: the newest row of every key is kept.

Files whose bounds exclude all keys of the batch are not read. Of other files the key columns are
read, and files that have a key of the batch are written again without the replaced rows. So an
upsert costs as much as the files that it touches: partition the table such that a batch touches few
files. pyiceberg cannot write delete files, which would defer this work to readers.

A batch is one snapshot with the operation `overwrite`. Its rows must have different keys.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import (
    AlwaysTrue,
    And,
    BooleanExpression,
    GreaterThanOrEqual,
    In,
    LessThanOrEqual,
    Reference,
)
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.manifest import DataFile
from pyiceberg.table import FileScanTask, Table

from penstock.lake.commits import Change
from penstock.lake.files import FileWriter
from penstock.lake.schemas import arrow_schema, fitted
from penstock.lake.target import LakeMismatch

LISTED_KEYS_MAX: Final = 200
"""Distinct values of a key column up to which a scan compares files with each of them."""
_STORED: Final = "_penstock_stored"
_NEW: Final = "_penstock_new"
Indexes = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Upsert:
    """Rows that replace the stored rows with their keys.

    Attributes:
        rows: rows with different keys, which are not null.
        keys: columns of the key.
        order_by: column by which a stored row may be newer; None means that all rows are newer.
        removes: for each row, whether it deletes its key; None means that no row does.
        cut: column and value; all stored rows whose value is null or less are deleted.
        keep_others: whether columns that the rows lack keep the values of replaced rows; otherwise
            they become null.
    """

    name: str
    rows: pa.Table
    keys: tuple[str, ...]
    order_by: str | None = None
    removes: Any = None
    cut: tuple[str, str] | None = None
    keep_others: bool = False

    def change(self, writer: FileWriter) -> Callable[[Table], Change]:
        """Return the function that `LakeTable.commit` calls for the table's current snapshot."""

        def changed(table: Table) -> Change:
            rows = fitted(self.name, self.rows, table.schema())
            added: list[DataFile] = []
            removed: list[DataFile] = []
            news = np.ones(rows.num_rows, dtype=bool)
            whole_table = self.cut is not None and table.current_snapshot() is not None
            for task in (
                table.scan().plan_files() if whole_table else _candidates(table, rows, self.keys)
            ):
                kept, here, new, stale = self._matches(table, task, rows)
                news[stale] = False
                if not kept.all():
                    whole = _read(table, task, None)
                    if self.keep_others:
                        rows = _completed(rows, new, whole.take(here), self.rows.column_names)
                    added += writer.write(whole.filter(pa.array(kept)))
                    removed.append(task.file)
            if self.removes is not None:
                news &= ~np.asarray(self.removes, dtype=bool)
            added += writer.write(rows.filter(pa.array(news)))
            return added, removed

        return changed

    def _matches(
        self, table: Table, task: FileScanTask, rows: pa.Table
    ) -> tuple[Indexes, Indexes, Indexes, Indexes]:
        """Return which rows of a file stay, and indexes of rows of the file and of the batch.

        These are the replaced rows, the rows that replace them, and older rows of the batch.
        """
        extra = (self.order_by, None if self.cut is None else self.cut[0])
        stored = _read(table, task, (*self.keys, *filter(None, extra)))
        left = _numbered(stored.select(self.keys), _STORED)
        found = left.join(
            _numbered(rows.select(self.keys), _NEW), list(self.keys), join_type="inner"
        )
        here, new = found[_STORED].to_numpy(), found[_NEW].to_numpy()
        stale = new[:0]
        if self.order_by is not None:
            newer = _newer(rows[self.order_by].take(new), stored[self.order_by].take(here))
            here, new, stale = here[newer], new[newer], new[~newer]
        kept = np.ones(len(stored), dtype=bool)
        kept[here] = False
        if self.cut is not None:
            column, value = self.cut
            kept &= pc.fill_null(pc.greater_equal(stored[column], value), False).to_numpy()
        return kept, here, new, stale


def _completed(rows: pa.Table, new: Indexes, old: pa.Table, known: Sequence[str]) -> pa.Table:
    """Return rows whose columns that are not known have values of the rows that they replace."""
    source = np.arange(len(rows))
    source[new] = len(rows) + np.arange(len(old))
    for at, name in enumerate(rows.column_names):
        if name not in known and name in old.column_names:
            values = old[name].cast(rows.schema.field(at).type)
            joined = pa.chunked_array([*rows[name].chunks, *values.chunks], values.type)
            rows = rows.set_column(at, rows.schema.field(at), joined.take(pa.array(source)))
    return rows


def rows_with_keys(table: Table, keys: pa.Table) -> pa.Table:
    """Return the rows of a table whose keys are in a table of distinct keys."""
    name, columns = table.name()[-1], keys.column_names
    wanted = fitted(name, keys, table.schema().select(*columns))
    found = [arrow_schema(table.schema()).empty_table()]
    for task in _candidates(table, wanted, columns):
        there = _numbered(_read(table, task, columns), _STORED)
        rows = there.join(wanted, columns, join_type="left semi")[_STORED]
        if len(rows):
            whole = _read(table, task, None).take(rows.combine_chunks())
            found.append(fitted(name, whole, table.schema()))
    return pa.concat_tables(found)


def _numbered(rows: pa.Table, column: str) -> pa.Table:
    return rows.append_column(column, pa.array(np.arange(len(rows))))


def check_keys(name: str, rows: pa.Schema, keys: Sequence[str], order_by: str | None) -> None:
    """Check that columns can be keys and order of an upsert.

    Raises:
        LakeMismatch: a column is missing, or its type is nested, or a key is floating-point.
    """
    for column in (*keys, *((order_by,) if order_by else ())):
        if column not in rows.names:
            raise LakeMismatch(f"table {name}: column {column} is not in the rows")
        kind = rows.field(column).type
        if pa.types.is_nested(kind) or (column in keys and pa.types.is_floating(kind)):
            raise LakeMismatch(
                f"table {name}: column {column} has type {kind}, whose values cannot be compared."
                " Cast it to a whole number, decimal, text, date or timestamp"
            )


def newest(name: str, rows: pa.Table, keys: Sequence[str], order_by: str | None) -> Indexes:
    """Return the indexes of the newest row of each key, ascending.

    Of rows that are equal in `order_by`, the last one is the newest.

    Raises:
        LakeMismatch: a key or an order is null.
    """
    for column in (*keys, *((order_by,) if order_by else ())):
        if rows[column].null_count:
            raise LakeMismatch(
                f"table {name}: column {column}, a key or the order, is null in some rows. Drop"
                " these rows, or set a value"
            )
    rank = np.arange(len(rows))
    if order_by is not None:
        ordered = pa.table({"order": rows[order_by], "row": rank})
        order = pc.sort_indices(ordered, [("order", "ascending"), ("row", "ascending")])
        rank = np.empty(len(rows), dtype=np.int64)
        rank[order.to_numpy()] = np.arange(len(rows))
    names = [str(number) for number in range(len(keys))]
    table = pa.table([*(rows[column] for column in keys), rank], names=[*names, "rank"])
    last = table.group_by(names).aggregate([("rank", "max")])["rank_max"].to_numpy()
    chosen = np.zeros(len(rows), dtype=bool)
    chosen[last] = True
    return np.flatnonzero(chosen[rank])


def _newer(new: Any, stored: Any) -> Indexes:
    newer = pc.or_kleene(pc.greater_equal(new, stored), pc.is_null(stored))
    if pa.types.is_floating(new.type):
        newer = pc.or_kleene(newer, pc.is_nan(new))
    return pc.fill_null(newer, False).to_numpy()  # type: ignore[no-any-return]


def _candidates(table: Table, rows: pa.Table, keys: Sequence[str]) -> list[FileScanTask]:
    """Return the files that may have a key of the rows."""
    if not rows.num_rows or table.current_snapshot() is None:
        return []
    condition: BooleanExpression = AlwaysTrue()
    for column in keys:
        kind, values = rows.schema.field(column).type, rows[column]
        if not (pa.types.is_integer(kind) or pa.types.is_large_string(kind)
                or pa.types.is_date(kind) or pa.types.is_decimal(kind)):  # fmt: skip
            continue
        term, distinct = Reference(column), pc.unique(values)
        if len(distinct) <= LISTED_KEYS_MAX:
            condition = And(condition, In(term=term, values=distinct.to_pylist()))
        else:
            bounds = pc.min_max(values).as_py()
            condition = And(
                condition,
                GreaterThanOrEqual(term=term, value=bounds["min"]),
                LessThanOrEqual(term=term, value=bounds["max"]),
            )
    return list(table.scan(row_filter=condition).plan_files())


def _read(table: Table, task: FileScanTask, columns: Sequence[str] | None) -> pa.Table:
    schema = table.schema()
    projected = schema if columns is None else schema.select(*dict.fromkeys(columns))
    found = ArrowScan(table.metadata, table.io, projected, AlwaysTrue()).to_table([task])
    return found if columns is None else fitted(table.name()[-1], found, projected)
