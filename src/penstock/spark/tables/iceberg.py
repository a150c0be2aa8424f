"""Exactly-once writes to an Iceberg table from `foreachBatch`, without Iceberg's runtime for Spark.

Spark's tasks pass their rows as Arrow batches to a writer of `penstock.lake`, which writes Parquet
files and returns their entries. The driver adds the entries of all tasks in one snapshot, together
with the batch number (`penstock.lake.commits`). A repeated batch finds its number and writes
nothing.

An upsert reads the newest row of each key into the driver, as for Delta tables (`upsert.py`), and
replaces the files that have one of these keys (`penstock.lake.upsert`). Change events are merged as
in Delta tables (`changes.py`). Their deletes are remembered in a second table beside this one.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import pyarrow as pa
from pyiceberg.expressions import BooleanExpression, GreaterThanOrEqual, IsNull, Or, Reference
from pyiceberg.table import Table
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType, VariantType

from penstock.lake.commits import Change, LakeTable, Mark, appended
from penstock.lake.files import FILE_BYTES, FileWriter, check_visible
from penstock.lake.schemas import storable
from penstock.lake.target import LakeMismatch
from penstock.lake.upsert import Upsert, check_keys, rows_with_keys
from penstock.spark.staged import Staged, query_of
from penstock.spark.tables.append import Written
from penstock.spark.tables.changes import (
    DELETED,
    OWN_NAMES,
    REWRITE_VERSIONS,
    SEQUENCE,
    ChangeReader,
    Changes,
    with_remembered,
)
from penstock.spark.tables.commits import QueryChanged
from penstock.spark.tables.schemas import check_names, valid_text, with_nulls
from penstock.spark.tables.upsert import BATCH_ROWS_MAX, REMOVES, KeyedRows

_ENTRY: Final = "entry"


class IcebergAppend:
    """Sink that appends each batch of a query to an Iceberg table exactly once."""

    def __init__(self, table: LakeTable, application: str) -> None:
        self._table = table
        self._batches = _Batches(table, application)

    def stage(self, batch: DataFrame, batch_id: int) -> Staged[Written]:
        """Write a batch's files; they stay invisible until the returned `Staged` is committed.

        Raises:
            LakeMismatch: the table does not accept the columns, or a value has no equal value in
                the table's type.
            QueryChanged: the table has batches of this application from another checkpoint.
        """
        mark = Mark(batch=batch_id, query=query_of(batch))
        if not self._batches.is_next(self._table.mark(), mark):
            return _replayed(batch_id)
        table = self._table.prepare(arrow_of(batch.schema))
        files = _written(valid_text(with_nulls(batch)), self._table.writer())
        check_visible(table, files)
        rows = sum(file.record_count for file in files)

        def commit() -> Written:
            if not files:
                return _result(batch_id, 0, 0, replayed=False)
            found = self._table.commit(mark, self._batches.proceed(mark), appended(files))
            return _result(batch_id, rows, len(files), replayed=found is None)

        def discard() -> None:
            for file in files:
                with suppress(FileNotFoundError):
                    table.io.delete(file.file_path)

        return Staged(rows=rows, commit=commit, discard=discard)

    def check(self, batch: DataFrame) -> None:
        """Check that the table accepts batches with these columns; no row is read.

        Raises:
            LakeMismatch: the table rejects the columns.
        """
        self._table.check(arrow_of(batch.schema))


class IcebergUpsert:
    """Sink that stores the latest row of every key in an Iceberg table exactly once."""

    def __init__(
        self,
        table: LakeTable,
        application: str,
        *,
        keys: Sequence[str],
        order_by: str | None = None,
        delete_when: str | None = None,
        leave_out: Sequence[str] = (),
    ) -> None:
        """Args: `keys` and the following are those of `DeltaUpsert`."""
        self._table = table
        self._batches = _Batches(table, application)
        self._keys = tuple(keys)
        self._order_by = order_by
        self._leave_out = tuple(leave_out)
        self._newest = KeyedRows(
            table.name, keys=keys, order_by=order_by, delete_when=delete_when, leave_out=leave_out
        )

    def stage(self, batch: DataFrame, batch_id: int) -> Staged[Written]:
        """Read the rows to merge into memory; the errors are those of `DeltaUpsert.stage`."""
        mark = Mark(batch=batch_id, query=query_of(batch))
        if not self._batches.is_next(self._table.mark(), mark):
            return _replayed(batch_id)
        schema = self._columns(batch)
        rows, once = self._newest.gather(batch)
        self._newest.check(rows, batch_id)
        removes = rows[REMOVES].to_numpy()
        rows = rows.drop_columns([REMOVES])

        def commit() -> Written:
            if not rows.num_rows:
                return _result(batch_id, 0, 0, replayed=False)
            self._table.prepare(schema)
            upsert = Upsert(
                name=self._table.name, rows=rows, keys=self._keys, order_by=self._order_by,
                removes=removes, keep_others=True,
            )  # fmt: skip
            change = upsert.change(self._table.writer())
            found = self._table.commit(mark, self._batches.proceed(mark), change)
            return _result(batch_id, rows.num_rows, 0, replayed=found is None)

        return Staged(rows=rows.num_rows, commit=commit, once=once)

    def check(self, batch: DataFrame) -> None:
        """Check that batches with these columns can be merged; no row is read.

        Raises:
            LakeMismatch: the table rejects the columns, or a key cannot be compared.
            AnalysisException, ParseException: Spark rejects `delete_when`.
        """
        self._table.check(self._columns(batch))
        self._newest.marked(batch)

    def _columns(self, batch: DataFrame) -> pa.Schema:
        schema = arrow_of(batch.drop(*self._leave_out).schema)
        check_keys(self._table.name, storable(self._table.name, schema), self._keys, self._order_by)
        return schema


class IcebergChanges:
    """Sink that applies change events to an Iceberg table; arguments are those of `DeltaChanges`.

    The table of deletes has the name of the table with the suffix `_penstock_deleted`.
    """

    def __init__(
        self,
        table: LakeTable,
        application: str,
        *,
        keys: Sequence[str],
        history: bool = False,
        leave_out: Sequence[str] = (),
        batch_rows_max: int = BATCH_ROWS_MAX,
        rewrite_versions: int = REWRITE_VERSIONS,
    ) -> None:
        self._table = table
        deleted = replace(table.target, table=f"{table.name}{DELETED}")
        self._deleted = LakeTable(deleted, application=application)
        self._batches = _Batches(table, application)
        self._deleted_batches = _Batches(self._deleted, application)
        self._history = history
        self._rewrite_versions = rewrite_versions
        self._read = ChangeReader(
            table.name, keys=keys, history=history, leave_out=leave_out,
            batch_rows_max=batch_rows_max,
        )  # fmt: skip

    def stage(self, batch: DataFrame, batch_id: int) -> Staged[Written]:
        """Load the changes into memory; the errors are those of `DeltaChanges.stage`."""
        mark = Mark(batch=batch_id, query=query_of(batch))
        proceed = self._batches.proceed(mark)
        if not proceed(self._table.mark()):
            return _replayed(batch_id)
        schema = self._columns(batch)
        changes = self._read(batch, batch_id)

        def commit() -> Written:
            if not changes.rows.num_rows and changes.last_cut is None:
                return _result(batch_id, 0, 0, replayed=False)
            self._remember(changes, mark)
            self._table.prepare(schema)
            change = partial(self._change, self._table.writer(), changes)
            found = self._table.commit(mark, proceed, change)
            return _result(batch_id, changes.rows.num_rows, 0, replayed=found is None)

        return Staged(rows=changes.rows.num_rows, commit=commit)

    def check(self, batch: DataFrame) -> None:
        """Check that change events with these columns can be applied; no row is read.

        Raises:
            InvalidOption: a column's type cannot be a key.
            LakeMismatch: the table rejects the columns.
        """
        self._table.check(self._columns(batch))

    def _columns(self, batch: DataFrame) -> pa.Schema:
        schema = arrow_of(self._read.columns(batch), own=OWN_NAMES)
        check_keys(self._table.name, storable(self._table.name, schema), self._read.row_keys, None)
        return schema

    def _change(self, writer: FileWriter, changes: Changes, table: Table) -> Change:
        deleted = self._deleted.open()
        remembered = None if deleted is None else _LakeRows(deleted)
        rows = changes.applied(_LakeRows(table), remembered)
        cut = None if self._history or changes.last_cut is None else (SEQUENCE, changes.last_cut)
        upsert = Upsert(
            name=self._table.name, rows=rows.drop_columns([REMOVES]), keys=self._read.row_keys,
            removes=rows[REMOVES].to_numpy(), cut=cut, keep_others=True,
        )  # fmt: skip
        return upsert.change(writer)(table)

    def _remember(self, changes: Changes, mark: Mark) -> None:
        """Add a batch's deletes and truncations to the table of deletes, unless it has them."""
        added = changes.deletes()
        proceed = self._deleted_batches.proceed(mark)
        if not added.num_rows or not proceed(self._deleted.mark()):
            return
        self._deleted.prepare(added.schema)
        writer = self._deleted.writer()

        def change(table: Table) -> Change:
            snapshot = table.current_snapshot()
            number = 0 if snapshot is None else snapshot.sequence_number or 0
            if not number or number % self._rewrite_versions:
                return writer.write(added), ()
            old = [task.file for task in table.scan().plan_files()]
            return writer.write(with_remembered(added, table.scan().to_arrow())), old

        self._deleted.commit(mark, proceed, change)


@dataclass(frozen=True, slots=True)
class _LakeRows:
    """`StoredRows` of an Iceberg table."""

    table: Table

    def with_keys(self, keys: pa.Table) -> pa.Table:
        return rows_with_keys(self.table, keys)

    def open_since(self, columns: Sequence[str], column: str, since: Any = None) -> pa.Table:
        condition: BooleanExpression = IsNull(term=Reference(column))
        if since is not None:
            condition = Or(
                condition, GreaterThanOrEqual(term=Reference(column), value=since.isoformat())
            )
        return self.table.scan(row_filter=condition, selected_fields=tuple(columns)).to_arrow()


@dataclass(frozen=True, slots=True)
class _Batches:
    """Comparison of a batch with the last one of an application."""

    table: LakeTable
    application: str

    def is_next(self, last: Mark | None, mark: Mark) -> bool:
        """Whether the table lacks a batch.

        Raises:
            QueryChanged: a query with another id committed batches of the application.
        """
        if last is None:
            return True
        if None not in (last.query, mark.query) and last.query != mark.query:
            raise QueryChanged(self.table.name, self.application, last.batch, str(mark.query))
        return last.batch < mark.batch

    def proceed(self, mark: Mark) -> Any:
        return lambda last: self.is_next(last, mark)


def arrow_of(schema: StructType, own: Sequence[str] = ()) -> pa.Schema:
    """Return the Arrow schema of a batch.

    Args:
        own: columns of this package, whose names are reserved for it.

    Raises:
        LakeMismatch: Arrow has no type for a column.
        TableMismatch: a name is reserved, or two names differ only in case.
    """
    check_names([name for name in schema.names if name not in own])
    for field in schema:
        if isinstance(field.dataType, VariantType):
            raise LakeMismatch(f"column {field.name} is a variant, which Iceberg does not have")
    return to_arrow_schema(schema, timezone="UTC")


def _written(batch: DataFrame, writer: FileWriter) -> list[Any]:
    names = tuple(batch.columns)
    # PySpark parses column names as SQL when rows pass through Arrow.
    numbered = batch.toDF(*(f"c{number}" for number in range(len(names))))
    entries = numbered.mapInArrow(partial(_files_of, writer, names), f"{_ENTRY} binary").toArrow()
    # Tasks of this session made the bytes.
    return [pickle.loads(entry) for entry in entries[_ENTRY].to_pylist()]  # noqa: S301


def _files_of(
    writer: FileWriter, names: tuple[str, ...], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Write the rows of a task; yield the entries of the files."""
    for rows in _gathered(batches):
        files = writer.write(rows.rename_columns(names))
        yield pa.record_batch(
            {_ENTRY: pa.array([pickle.dumps(file) for file in files], pa.binary())}
        )


def _gathered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    kept: list[pa.RecordBatch] = []
    kept_bytes = 0
    for batch in batches:
        kept.append(batch)
        kept_bytes += batch.nbytes
        if kept_bytes >= FILE_BYTES:
            yield pa.Table.from_batches(kept)
            kept, kept_bytes = [], 0
    if kept:
        yield pa.Table.from_batches(kept)


def _replayed(batch_id: int) -> Staged[Written]:
    return Staged(rows=0, commit=lambda: _result(batch_id, 0, 0, replayed=True), replayed=True)


def _result(batch_id: int, rows: int, files: int, *, replayed: bool) -> Written:
    return Written(
        batch_id=batch_id, rows=0 if replayed else rows, files=files, version=None,
        replayed=replayed,
    )  # fmt: skip
