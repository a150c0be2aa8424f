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
from penstock.lake.schemas import fitted
from penstock.lake.target import LakeMismatch

LISTED_KEYS_MAX: Final = 200
"""Distinct values of a key column up to which a scan compares files with each of them."""
_STORED: Final = "_penstock_stored"
_NEW: Final = "_penstock_new"


@dataclass(frozen=True, slots=True, kw_only=True)
class Upsert:
    """Rows that replace the stored rows with their keys.

    Attributes:
        rows: rows with different keys, which are not null.
        keys: columns of the key.
        order_by: column by which a stored row may be newer; None means that all rows are newer.
        removes: for each row, whether it deletes its key; None means that no row does.
    """

    name: str
    rows: pa.Table
    keys: tuple[str, ...]
    order_by: str | None = None
    removes: Any = None

    def change(self, writer: FileWriter) -> Callable[[Table], Change]:
        """Return the function that `LakeTable.commit` calls for the table's current snapshot."""

        def changed(table: Table) -> Change:
            rows = fitted(self.name, self.rows, table.schema())
            added: list[DataFile] = []
            removed: list[DataFile] = []
            news = np.ones(rows.num_rows, dtype=bool)
            for task in _candidates(table, rows, self.keys):
                stored, replaced, stale = self._matches(table, task, rows)
                news[stale] = False
                if len(replaced):
                    kept = np.ones(stored, dtype=bool)
                    kept[replaced] = False
                    whole = _read(table, task, None)
                    added += writer.write(whole.filter(pa.array(kept)))
                    removed.append(task.file)
            if self.removes is not None:
                news &= ~np.asarray(self.removes, dtype=bool)
            added += writer.write(rows.filter(pa.array(news)))
            return added, removed

        return changed

    def _matches(
        self, table: Table, task: FileScanTask, rows: pa.Table
    ) -> tuple[int, np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Return a file's number of rows, its replaced rows, and the older rows of the batch."""
        columns = (*self.keys, *((self.order_by,) if self.order_by else ()))
        stored = _read(table, task, columns)
        left = stored.select(self.keys).append_column(_STORED, pa.array(np.arange(len(stored))))
        right = rows.select(self.keys).append_column(_NEW, pa.array(np.arange(len(rows))))
        found = left.join(right, list(self.keys), join_type="inner")
        here, new = found[_STORED].to_numpy(), found[_NEW].to_numpy()
        if self.order_by is None:
            return len(stored), here, new[:0]
        newer = _newer(rows[self.order_by].take(new), stored[self.order_by].take(here))
        return len(stored), here[newer], new[~newer]


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


def newest(
    name: str, rows: pa.Table, keys: Sequence[str], order_by: str | None
) -> np.ndarray[Any, Any]:
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


def _newer(new: Any, stored: Any) -> np.ndarray[Any, Any]:
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
