"""Exactly-once upserts into a Delta table: aggregates in `update` mode, and changes of a database.

The table has one row per key, the latest: each batch is merged in one commit with the identifiers
of an append (see `append.py`). The batch passes through the driver as Arrow and is therefore
bounded, in rows here and in bytes by Spark (`spark.driver.maxResultSize`).

With `order_by` the greatest of a batch's rows of one key remains: each task reduces its rows, and
the driver those of all tasks (`newest.py`); for unsupported types, or if tasks return more than
`spark.driver.maxResultSize`, Spark moves the rows of a key to one task. A row replaces the stored
row unless it is older. With `delete_when` the remaining row removes its key.

A removed key leaves no trace, so an older row of it in a *later batch* would be stored as new. That
cannot happen if `order_by` is the log's offset and a key has one partition, as with Kafka's
partitioners. With any other order use a column that marks the row as removed, not `delete_when`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, Schema, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError
from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    CalendarIntervalType,
    DataType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    VariantType,
)

from penstock.spark.errors import InvalidOption, TableMismatch
from penstock.spark.query_id import query_of
from penstock.spark.schema import quoted
from penstock.spark.staged import Staged
from penstock.spark.tables.append import DeltaSink, Written
from penstock.spark.tables.bounds import bounded, is_local, property_of, unlisted
from penstock.spark.tables.codecs import checked, delta_properties
from penstock.spark.tables.commits import Commit, in_table
from penstock.spark.tables.features import check_writable
from penstock.spark.tables.newest import Newest, distinct, in_tasks
from penstock.spark.tables.partitions import merged_rules, with_null_texts
from penstock.spark.tables.rules import (
    CONSTRAINT,
    Rule,
    check_merged,
    complaints,
    generated,
    lengths_of,
    observed,
    rules_of,
)
from penstock.spark.tables.schemas import (
    added_columns,
    check_names,
    check_partitions,
    fitted,
    schema_of,
    with_nulls,
    with_one_nan,
)
from penstock.spark.tables.text import valid_text

BATCH_ROWS_MAX: Final = 5_000_000
MERGE_ATTEMPTS_MAX: Final = 5
INVALID_ROWS: Final = "Invalid data found"
"""Message of `deltalake` about rows that break a constraint."""
REMOVES: Final = "_penstock_removes"
_UNORDERED: Final = (CalendarIntervalType, MapType, NullType, VariantType)
_RESULT_BOUND: Final = "spark.driver.maxResultSize"

_LOG: Final = logging.getLogger(__name__)


class DeltaUpsert:
    """Sink that keeps the latest row of every key; pass it to `foreachBatch`."""

    def __init__(
        self,
        table: str,
        *,
        application: str,
        keys: Sequence[str],
        order_by: str | None = None,
        delete_when: str | None = None,
        add_columns: bool = False,
        leave_out: Sequence[str] = (),
        codec: str | None = None,
        storage_options: Mapping[str, str] | None = None,
        batch_rows_max: int = BATCH_ROWS_MAX,
    ) -> None:
        """Args:
        table: directory or URI of the table; made by the first batch that has rows.
        application: permanent name of the query, as its checkpoint is.
        keys: columns of the key; never null.
        order_by: column by which a later row of a key is greater; never null, and different for
            two rows of a key, or either may win. None: a batch holds each key at most once
            and a later batch wins.
        delete_when: SQL condition on a batch's row; where it holds, the key's row is removed.
        add_columns: add new columns of a batch to the table's schema; rejected otherwise.
        leave_out: columns of a batch that `delete_when` may name and the table does not have.
        codec: of the files that it writes: none, gzip, snappy, lz4 or zstd. None: snappy.
        storage_options: for object stores, as `deltalake` names them.
        batch_rows_max: a batch with more keys is rejected.
        """
        if not keys:
            raise InvalidOption("keys", keys, "name the columns of the key")
        if order_by in keys:
            raise InvalidOption("order_by", order_by, "is one of the keys, which do not change")
        self._sink = DeltaSink(table, application=application, storage_options=storage_options)
        self._keys = tuple(keys)
        self._order_by = order_by
        self._delete_when = delete_when
        self._add_columns = add_columns
        self._leave_out = tuple(leave_out)
        self._codec = checked(codec)
        self._batch_rows_max = batch_rows_max
        self._storage_options = dict(storage_options or {}) or None

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        self.write(batch, batch_id)

    def write(self, batch: DataFrame, batch_id: int) -> Written:
        """Merge a batch unless the table has it; `rows` of the result are those merged.

        Errors are those of `stage`.
        """
        return self.stage(batch, batch_id).commit()

    def stage(self, batch: DataFrame, batch_id: int) -> Staged[Written]:
        """Load the rows to merge into memory; nothing is changed yet.

        Raises:
            TableMismatch: the columns differ from the table's, the batch is too large, or its keys
                or order are not unique.
            QueryChanged: the table has batches of this application from another checkpoint.
        """
        commit = Commit(
            application=self._sink.application, batch_id=batch_id, query=query_of(batch)
        )
        table = self._sink.open()
        if in_table(table, commit):
            return Staged(rows=0, commit=partial(_done, batch_id), replayed=True)
        batch = generated(batch, table)
        schema = self._schema(table, batch.drop(*self._leave_out).schema)
        rows, once = self._gather(batch, table)
        self._check_rows(rows, batch_id)
        rows = self._fitted(rows, schema)
        return Staged(rows=rows.num_rows, commit=partial(self._finish, rows, commit), once=once)

    def check(self, batch: DataFrame) -> None:
        """Check that batches with the columns of this one can be merged; no row is read.

        Raises:
            InvalidOption: a column cannot be a key or an order, as the option's name says.
            TableMismatch: the table rejects them.
            UnwritableTable: the table has features that this sink cannot write.
            AnalysisException, ParseException: Spark rejects `delete_when`.
        """
        table = self._sink.open()
        batch = generated(batch, table)
        self._schema(table, batch.drop(*self._leave_out).schema)
        self._marked(batch, _partitions(table, batch.columns))

    def _finish(self, rows: pa.Table, commit: Commit) -> Written:
        if not rows.num_rows:
            return _done(commit.batch_id, replayed=False)
        version = self._commit(rows, commit)
        if version is None:
            return _done(commit.batch_id)
        return Written(
            batch_id=commit.batch_id, rows=rows.num_rows, files=0, version=version, replayed=False
        )

    def _gather(self, batch: DataFrame, table: DeltaTable | None) -> tuple[pa.Table, bool]:
        """Return one row per key with its action, and whether each row was read once."""
        # A limit in Spark would move all rows into one task first.
        partitions = _partitions(table, batch.columns)
        marked = self._marked(batch, partitions)
        rules = [*lengths_of(table), *merged_rules(batch.schema, partitions)]
        if self._order_by is None:
            return self._checked(marked, rules, DataFrame.toArrow), True
        if in_tasks(marked.schema, keys=self._keys, order=self._order_by):
            reduced = partial(_reduced, keys=self._keys, order=(self._order_by, REMOVES))
            try:
                return self._checked(marked, rules, reduced), True
            except Exception as error:
                if _RESULT_BOUND not in str(error):
                    raise
                _LOG.warning(
                    "table %s: tasks have more rows of the same keys than %s allows; reading "
                    "the batch again, sorted by keys. Lower the trigger's limit to avoid this",
                    self._sink.table, _RESULT_BOUND,
                )  # fmt: skip
        newest = partial(self._sorted, order=_column(self._order_by))
        return self._checked(marked, rules, lambda rows: newest(rows).toArrow()), False

    def _checked(
        self, marked: DataFrame, rules: Sequence[Rule], read: Callable[[DataFrame], pa.Table]
    ) -> pa.Table:
        """Read rows, and check those that do not remove their keys.

        Raises:
            TableMismatch: some break a rule.
        """
        if not rules:
            return read(marked)
        kept = [replace(rule, broken=f"not {REMOVES} and ({rule.broken})") for rule in rules]
        counted = Observation()
        rows = read(marked.observe(counted, *map(F.expr, observed(kept))))
        # Without rows Spark may leave the counting out.
        if rows.num_rows and (broken := complaints(kept, counted.get)):
            raise TableMismatch(
                f"table {self._sink.table}: {broken[0]}. Drop these rows, or fix them"
            )
        return rows

    def _marked(self, batch: DataFrame, partitions: Sequence[str]) -> DataFrame:
        removes = F.lit(False) if self._delete_when is None else F.expr(self._delete_when)
        text = valid_text(with_null_texts(batch, partitions), self._keys)
        marked = text.withColumn(REMOVES, F.coalesce(removes, F.lit(False)))
        if not isinstance(marked.schema[REMOVES].dataType, BooleanType):
            raise InvalidOption("delete_when", self._delete_when, "must be true or false")
        return with_nulls(marked.drop(*self._leave_out))

    def _sorted(self, marked: DataFrame, order: Column) -> DataFrame:
        row = F.struct(*(_column(name) for name in marked.columns))
        rank = F.struct(order.isNull(), order, F.col(REMOVES))
        return (
            marked.groupBy(*(_column(name) for name in self._keys))
            .agg(F.max_by(row, rank).alias("_penstock_row"))
            .select("_penstock_row.*")
        )

    def _schema(self, table: DeltaTable | None, batch: StructType) -> Schema:
        """Return the table's schema once it has the batch; raise as `check` does."""
        needed = {"keys": self._keys, "order_by": (self._order_by,) if self._order_by else ()}
        for option, names in needed.items():
            for name in names:
                if name not in batch.names:
                    raise TableMismatch(
                        f"table {self._sink.table}: column {name} is not in the batch"
                    )
                if why := _incomparable(batch[name].dataType):
                    raise InvalidOption(option, name, f"{why}, which is not compared; cast it")
        check_names(batch.names)
        columns = schema_of(batch)
        if table is None:
            return columns
        check_writable(table, self._sink.table, removes=True)
        check_merged(self._sink.table, table, rules_of(table))
        check_partitions(_partitions(table, batch.names), batch)
        there = table.schema()
        added = added_columns(self._sink.table, there, columns, allowed=self._add_columns)
        unlisted(self._sink.table, table, bounded(pa.table({}), table))
        return Schema([*there.fields, *added])

    def _fitted(self, rows: pa.Table, schema: Schema) -> pa.Table:
        """Return the rows as the table has them; those that remove a key have only the key."""
        for name in filter(None, (*self._keys, self._order_by)):
            at = rows.schema.get_field_index(name)
            rows = rows.set_column(at, name, with_one_nan(rows[name]))
        stays = rows.filter(pc.invert(rows[REMOVES]))
        found = fitted(self._sink.table, stays, schema)
        if len(stays) == len(rows):
            return found
        goes = rows.filter(rows[REMOVES])
        needed = (*self._keys, self._order_by, REMOVES)
        columns = [
            goes[field.name].cast(field.type)
            if field.name in needed
            else pa.nulls(len(goes), field.type)
            for field in found.schema
        ]
        return pa.concat_tables([found, pa.table(columns, schema=found.schema)])

    def _check_rows(self, rows: pa.Table, batch_id: int) -> None:
        what = f"table {self._sink.table}: batch {batch_id}"
        if rows.num_rows > self._batch_rows_max:
            raise TableMismatch(
                f"{what} has more than {self._batch_rows_max} rows to merge; lower the trigger's "
                "limit"
            )
        if null := [name for name in self._keys if rows[name].null_count]:
            raise TableMismatch(
                f"{what} has rows whose key column {null[0]} is null, and null is no key; drop "
                "them or fill the column in"
            )
        if self._order_by is not None:  # there is one row of each key
            if not rows[self._order_by].null_count:
                return
            raise TableMismatch(
                f"{what} has rows whose order column {self._order_by} is null; drop them or fill "
                "the column in"
            )
        if twice := len(rows) - distinct(rows.select(self._keys)):
            raise TableMismatch(
                f"{what} has {twice} rows more than keys; set order_by to the "
                "column by which a later row of a key is greater"
            )

    def _commit(self, rows: pa.Table, commit: Commit) -> int | None:
        """Return the version that has the batch; None if another attempt had committed it."""
        for attempt in range(1, MERGE_ATTEMPTS_MAX + 1):
            table = self._sink.open()
            if in_table(table, commit):
                return None
            try:
                if table is None:
                    self._create(rows, commit)
                    return 0
                self._merge(table, rows, commit)
                return table.version()
            except (CommitFailedError, DeltaError) as error:
                if INVALID_ROWS in str(error):
                    raise self._unfit(table, error) from error
                # Compaction, or another attempt, was faster; the merge is repeated on its table.
                if attempt == MERGE_ATTEMPTS_MAX:
                    raise
                _LOG.info("table %s: batch %s: %s", self._sink.table, commit.batch_id, error)
        return None

    def _unfit(self, table: DeltaTable | None, error: Exception) -> TableMismatch:
        """Return the error for rows that break a constraint of the table."""
        facts = {} if table is None else table.metadata().configuration
        rules = {name.removeprefix(CONSTRAINT): text for name, text in facts.items()
                 if name.startswith(CONSTRAINT)}  # fmt: skip
        listed = ", ".join(f"{name} ({text})" for name, text in rules.items())
        return TableMismatch(
            f"table {self._sink.table}: the batch has rows that the table's constraints reject: "
            f"{listed or 'those of generated columns or invariants'}; {error}"
        )

    def _create(self, rows: pa.Table, commit: Commit) -> None:
        kept = rows.filter(pc.invert(rows[REMOVES])).drop_columns([REMOVES])
        bounds = bounded(kept, None)
        write_deltalake(
            self._sink.table,
            kept,
            mode="error",
            configuration=property_of(bounds),
            writer_properties=delta_properties(self._codec, bounds),
            storage_options=self._storage_options,
            commit_properties=commit.properties(),
        )

    def _merge(self, table: DeltaTable, rows: pa.Table, commit: Commit) -> None:
        kept, new = (partial(_of, side) for side in ("kept", "new"))
        same = " AND ".join(f"{kept(key)} = {new(key)}" for key in self._keys)
        values = {_named(name): new(name) for name in rows.column_names if name != REMOVES}
        later = None
        if self._order_by is not None:
            order = self._order_by
            later = f"({kept(order)} IS NULL OR {new(order)} >= {kept(order)})"
        removes = new(REMOVES)
        there = {field.name for field in table.schema().fields}
        added = [field for field in rows.schema if field.name not in there | {REMOVES}]
        bounds = bounded(rows, table)
        if unlisted(self._sink.table, table, bounds):
            table.alter.set_table_properties(property_of(bounds))
        if local := [field for field in added if is_local(field.type)]:
            # A merge that adds them leaves the table without their feature, unreadable.
            table.alter.add_columns(Schema.from_arrow(pa.schema(local)).fields)
        partitions = table.metadata().partition_columns
        merging = table.merge(
            rows,
            same,
            source_alias="new",
            target_alias="kept",
            merge_schema=len(added) > len(local),
            # Rows that are not streamed are looked at first: files that cannot have a key of theirs
            # are not read.
            streamed_exec=not set(self._keys).issubset((*bounds, *partitions)),
            writer_properties=delta_properties(self._codec, bounds),
            commit_properties=commit.properties(),
        )
        if self._delete_when is not None:
            merging = merging.when_matched_delete(" AND ".join(filter(None, (removes, later))))
        merging.when_matched_update(values, predicate=later).when_not_matched_insert(
            values, predicate=f"NOT {removes}"
        ).execute()


def _partitions(table: DeltaTable | None, names: Sequence[str]) -> list[str]:
    known = () if table is None else table.metadata().partition_columns
    return [name for name in known if name in names]


def _done(batch_id: int, *, replayed: bool = True) -> Written:
    return Written(batch_id=batch_id, rows=0, files=0, version=None, replayed=replayed)


def _reduced(rows: DataFrame, keys: Sequence[str], order: Sequence[str]) -> pa.Table:
    # PySpark reads the names of columns that go through Arrow as SQL.
    names = {name: f"c{number}" for number, name in enumerate(rows.columns)}
    numbered = rows.toDF(*names.values())
    newest = Newest(
        keys=tuple(names[name] for name in keys), order=tuple(names[name] for name in order)
    )
    fields = [StructField(field.name, field.dataType) for field in numbered.schema]
    found = numbered.mapInArrow(newest, StructType(fields)).toArrow()
    return newest.of(found).rename_columns(rows.columns)


def _incomparable(kind: DataType) -> str:
    """Return why values of a type, or within it, cannot be keys or orders; else empty."""
    if isinstance(kind, StringType) and not kind.isUTF8BinaryCollation():
        return f"is {kind.simpleString()}"
    if isinstance(kind, ArrayType):
        return _incomparable(kind.elementType)
    if isinstance(kind, StructType):
        return next(filter(None, (_incomparable(field.dataType) for field in kind)), "")
    return f"is or has a {kind.simpleString()}" if isinstance(kind, _UNORDERED) else ""


def _of(side: str, name: str) -> str:
    return f"{side}.{_named(name)}"


def _named(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _column(name: str) -> Column:
    return F.col(quoted(name))
