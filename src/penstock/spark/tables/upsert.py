"""Exactly-once upserts into a Delta table: aggregates in `update` mode, and changes of a database.

The table has one row per key, the latest one. Each batch is merged in one commit, with the same
transaction identifiers as an append (see `append.py`). The batch passes through the driver as Arrow
data. Its size is therefore limited: in rows here, in bytes by Spark's `spark.driver.maxResultSize`.

With `order_by`, only the greatest row of each key in a batch is merged. There are three ways to
find it. Each is used if the one before exceeds its limit or does not support a type:

1. In a local session the driver reads all rows and reduces them (`newest.py`). A task fails if it
   has more than `WHOLE_ROWS_MAX` rows or a row with more than `WHOLE_ROW_BYTES_MAX` bytes of texts.
2. Each task reduces its own rows, and the driver reduces the rows of all tasks. The job fails if
   the tasks return more than `spark.driver.maxResultSize`.
3. Spark moves the rows of a key to one task, which returns the greatest.

A merged row replaces the stored row unless it is older. With `delete_when`, the merged row may
delete the stored row.

A deleted key leaves no trace in the table. If a *later batch* has an older row of the key, that row
would be inserted again. This cannot happen if `order_by` is the log's offset and each key has one
partition, as with Kafka's partitioners. With any other order, mark deleted rows in a column instead
of using `delete_when`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from operator import add
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, Schema, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.table import TableMerger
from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
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
from penstock.spark.schema import quoted
from penstock.spark.staged import Staged, query_of, runs_locally
from penstock.spark.tables.append import DeltaSink, Written
from penstock.spark.tables.commits import Commit, in_table
from penstock.spark.tables.files import checked, delta_properties
from penstock.spark.tables.location import absolute, check_writable
from penstock.spark.tables.newest import Newest, distinct, in_tasks, is_flat
from penstock.spark.tables.rules import (
    CONSTRAINT,
    Rule,
    check_merged,
    complaints,
    generated,
    lengths_of,
    merged_rules,
    observed,
    rules_of,
    with_null_texts,
)
from penstock.spark.tables.schemas import (
    added_columns,
    check_names,
    check_partitions,
    fitted,
    schema_of,
    valid_text,
    with_nulls,
    with_one_nan,
)
from penstock.spark.tables.statistics import bounded, is_local, property_of, unlisted

BATCH_ROWS_MAX: Final = 5_000_000
MERGE_ATTEMPTS_MAX: Final = 5
WHOLE_ROWS_MAX: Final = 1 << 20
"""Most rows of a task that the driver reads without a reduction in the task."""
WHOLE_ROW_BYTES_MAX: Final = 256
"""Most bytes of texts and binary values in such a row."""
INVALID_ROWS: Final = "Invalid data found"
"""Part of the message that `deltalake` raises for rows that break a constraint."""
REMOVES: Final = "_penstock_removes"
_UNORDERED: Final = (CalendarIntervalType, MapType, NullType, VariantType)
_RESULT_BOUND: Final = "spark.driver.maxResultSize"
_TOO_LARGE: Final = "the rows of a task are too large for the driver"
_BOUNDS: Final = (_RESULT_BOUND, _TOO_LARGE)
"""Parts of the errors of tasks whose rows exceed a limit."""
LARGE: Final = "spark.penstock.upsert.large"
"""Setting of a query's session after the driver could not read all rows of a batch."""
_ROW_NUMBER_BITS: Final = 33
"""Low bits of Spark's `monotonically_increasing_id`, which number the rows of a task."""

_LOG: Final = logging.getLogger(__name__)


class KeyedRows:
    """Reader of a batch's newest row of every key; arguments are those of `DeltaUpsert`."""

    def __init__(
        self,
        name: str,
        *,
        keys: Sequence[str],
        order_by: str | None = None,
        delete_when: str | None = None,
        leave_out: Sequence[str] = (),
        batch_rows_max: int = BATCH_ROWS_MAX,
    ) -> None:
        if not keys:
            raise InvalidOption("keys", keys, "must name at least one column")
        if order_by in keys:
            raise InvalidOption("order_by", order_by, "must not be one of the key columns")
        self._name = name
        self._keys = tuple(keys)
        self._order_by = order_by
        self._delete_when = delete_when
        self._leave_out = tuple(leave_out)
        self._batch_rows_max = batch_rows_max

    def gather(
        self, batch: DataFrame, rules: Sequence[Rule] = (), partitions: Sequence[str] = ()
    ) -> tuple[pa.Table, bool]:
        """Return the rows to merge, one per key, each with its column `REMOVES`.

        The second result is whether Spark read each row of the batch only once.

        Args:
            rules: rules that rows must meet unless they delete their key.
            partitions: partition columns, in which some texts become null.

        Raises:
            TableMismatch: some rows break a rule.
        """
        # A limit in Spark would move all rows into one task first.
        marked = self.marked(batch, partitions)
        if self._order_by is None:
            return self._checked(marked, rules, DataFrame.toArrow), True
        once = True
        for read in self._reductions(marked):
            try:
                return self._checked(marked, rules, read), once
            except Exception as error:
                if not any(bound in str(error) for bound in _BOUNDS):
                    raise
                once = False
        if not once:
            _LOG.warning(
                "table %s: the rows of all tasks exceed %s. Reading the batch again, grouped by "
                "key in Spark. Lower the trigger's limit of records to avoid this",
                self._name, _RESULT_BOUND,
            )  # fmt: skip
        newest = partial(self._sorted, order=_column(self._order_by))
        return self._checked(marked, rules, lambda rows: newest(rows).toArrow()), False

    def _reductions(self, marked: DataFrame) -> Iterator[Callable[[DataFrame], pa.Table]]:
        """Yield the functions that read the newest rows with Arrow, each if those before failed."""
        order = str(self._order_by)
        if not in_tasks(marked.schema, keys=self._keys, order=order):
            return
        settings = marked.sparkSession.conf
        if runs_locally() and is_flat(marked.schema) and settings.get(LARGE, "false") == "false":
            yield partial(_whole, keys=self._keys, order=(order, REMOVES))
            settings.set(LARGE, "true")
        yield partial(_reduced, keys=self._keys, order=(order, REMOVES))

    def _checked(
        self, marked: DataFrame, rules: Sequence[Rule], read: Callable[[DataFrame], pa.Table]
    ) -> pa.Table:
        """Read rows, and check the rules for those that do not delete their key.

        Raises:
            TableMismatch: some rows break a rule.
        """
        if not rules:
            return read(marked)
        kept = [replace(rule, broken=f"not {REMOVES} and ({rule.broken})") for rule in rules]
        counted = Observation()
        rows = read(marked.observe(counted, *map(F.expr, observed(kept))))
        # If there are no rows, Spark may not run the observation.
        if rows.num_rows and (broken := complaints(kept, counted.get)):
            raise TableMismatch(f"table {self._name}: {broken[0]}. Drop or correct these rows")
        return rows

    def marked(self, batch: DataFrame, partitions: Sequence[str] = ()) -> DataFrame:
        """Return the batch with valid texts and the column `REMOVES`, without `leave_out`."""
        removes = F.lit(False) if self._delete_when is None else F.expr(self._delete_when)
        text = valid_text(with_null_texts(batch, partitions), self._keys)
        marked = text.withColumn(REMOVES, F.coalesce(removes, F.lit(False)))
        if not isinstance(marked.schema[REMOVES].dataType, BooleanType):
            raise InvalidOption("delete_when", self._delete_when, "must be a boolean expression")
        return with_nulls(marked.drop(*self._leave_out))

    def _sorted(self, marked: DataFrame, order: Column) -> DataFrame:
        row = F.struct(*(_column(name) for name in marked.columns))
        rank = F.struct(order.isNull(), order, F.col(REMOVES))
        return (
            marked.groupBy(*(_column(name) for name in self._keys))
            .agg(F.max_by(row, rank).alias("_penstock_row"))
            .select("_penstock_row.*")
        )

    def check(self, rows: pa.Table, batch_id: int) -> None:
        """Check gathered rows.

        Raises:
            TableMismatch: there are too many rows, a key or an order column is null, or (without
                `order_by`) a key has several rows.
        """
        what = f"table {self._name}: batch {batch_id}"
        if rows.num_rows > self._batch_rows_max:
            raise TableMismatch(
                f"{what} has more than {self._batch_rows_max} rows to merge. Lower the trigger's "
                "limit of records"
            )
        if null := [name for name in self._keys if rows[name].null_count]:
            raise TableMismatch(
                f"{what} has rows whose key column {null[0]} is null. Drop these rows, or set a "
                "value"
            )
        if self._order_by is not None:  # there is one row of each key
            if not rows[self._order_by].null_count:
                return
            raise TableMismatch(
                f"{what} has rows whose order column {self._order_by} is null. Drop these rows, or "
                "set a value"
            )
        if twice := len(rows) - distinct(rows.select(self._keys)):
            raise TableMismatch(
                f"{what} has {twice} more rows than distinct keys. Set order_by to a column in "
                "which a later row of a key is greater"
            )


class DeltaUpsert:
    """Sink that stores the latest row of every key in a Delta table; pass it to `foreachBatch`."""

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
        own: Sequence[str] = (),
        codec: str | None = None,
        storage_options: Mapping[str, str] | None = None,
        batch_rows_max: int = BATCH_ROWS_MAX,
    ) -> None:
        """Args:
        table: directory or URI of the table. The first batch that has rows creates it.
        application: permanent name of the query; a query with a new checkpoint needs a new
            name.
        keys: columns of the key; they must not be null.
        order_by: column in which a later row of a key is greater. It must not be null; of two
            rows of a key with equal values, either may win. With None, a batch must have at
            most one row per key, and a later batch wins.
        delete_when: SQL condition on a batch's row; if it is true, the key's stored row is
            deleted.
        add_columns: whether new columns of a batch are added to the table's schema. If false, a
            batch with new columns is rejected.
        leave_out: columns of a batch that only `delete_when` uses; they are not written.
        own: columns of this package, whose names are reserved for it.
        codec: Parquet compression: none, gzip, snappy, lz4 or zstd; None means snappy.
        storage_options: options of an object store, as `deltalake` names them.
        batch_rows_max: most rows to merge; a batch with more keys is rejected.
        """
        self._newest = KeyedRows(
            absolute(table),
            keys=keys,
            order_by=order_by,
            delete_when=delete_when,
            leave_out=leave_out,
            batch_rows_max=batch_rows_max,
        )
        self.application = application
        self._sink = DeltaSink(table, application=application, storage_options=storage_options)
        self._own = frozenset(own)
        self._keys = tuple(keys)
        self._order_by = order_by
        self._add_columns = add_columns
        self._leave_out = tuple(leave_out)
        self._codec = checked(codec)
        self._storage_options = dict(storage_options or {}) or None

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        self.write(batch, batch_id)

    def write(self, batch: DataFrame, batch_id: int) -> Written:
        """Merge a batch unless the table already has it; errors are those of `stage`.

        The result's `rows` counts the merged rows.
        """
        return self.stage(batch, batch_id).commit()

    def stage(self, batch: DataFrame, batch_id: int) -> Staged[Written]:
        """Load the rows to merge into memory; the table does not change until the result is
        committed.

        Raises:
            TableMismatch: the columns differ from the table's, a row breaks a rule of the table,
                there are too many rows, a key or an order column is null, or (without `order_by`) a
                key has several rows.
            QueryChanged: the table has batches of this application from another checkpoint.
        """
        commit = Commit(application=self.application, batch_id=batch_id, query=query_of(batch))
        table = self._sink.open()
        if in_table(table, commit):
            return Staged(rows=0, commit=partial(_done, batch_id), replayed=True)
        batch = generated(batch, table)
        schema = self.schema(table, batch.drop(*self._leave_out).schema)
        partitions = partitions_of(table, batch.columns)
        rules = [*lengths_of(table), *merged_rules(batch.schema, partitions)]
        rows, once = self._newest.gather(batch, rules, partitions)
        self._newest.check(rows, batch_id)
        rows = self.fitted_rows(rows, schema)
        return Staged(rows=rows.num_rows, commit=partial(self._finish, rows, commit), once=once)

    def check(self, batch: DataFrame) -> None:
        """Check that batches with these columns can be merged; no row is read.

        Raises:
            InvalidOption: a column's type cannot be a key or an order; the error names the option.
            TableMismatch: the table rejects the columns.
            UnwritableTable: the table has features that this sink cannot write.
            AnalysisException, ParseException: Spark rejects `delete_when`.
        """
        table = self._sink.open()
        batch = generated(batch, table)
        self.schema(table, batch.drop(*self._leave_out).schema)
        self._newest.marked(batch, partitions_of(table, batch.columns))

    def _finish(self, rows: pa.Table, commit: Commit) -> Written:
        if not rows.num_rows:
            return _done(commit.batch_id, replayed=False)
        version = self.commit(lambda _: rows, commit)
        if version is None:
            return _done(commit.batch_id)
        return Written(
            batch_id=commit.batch_id, rows=rows.num_rows, files=0, version=version, replayed=False
        )

    def schema(self, table: DeltaTable | None, batch: StructType) -> Schema:
        """Return the table's schema including the batch's new columns; raise as `check` does."""
        needed = {"keys": self._keys, "order_by": (self._order_by,) if self._order_by else ()}
        for option, names in needed.items():
            for name in names:
                if name not in batch.names:
                    raise TableMismatch(
                        f"table {self._sink.table}: column {name} is not in the batch"
                    )
                if why := _incomparable(batch[name].dataType):
                    raise InvalidOption(
                        option, name, f"{why}, whose values cannot be compared. Cast it"
                    )
        check_names([name for name in batch.names if name not in self._own])
        columns = schema_of(batch)
        if table is None:
            return columns
        check_writable(table, self._sink.table, removes=True)
        check_merged(self._sink.table, table, rules_of(table))
        check_partitions(partitions_of(table, batch.names), batch)
        there = table.schema()
        added = added_columns(self._sink.table, there, columns, allowed=self._add_columns)
        unlisted(self._sink.table, table, bounded(pa.table({}), table))
        return Schema([*there.fields, *added])

    def fitted_rows(self, rows: pa.Table, schema: Schema) -> pa.Table:
        """Return the rows converted to the table's types, as `deltalake` merges them.

        Rows that delete a key keep only their key, order and `REMOVES`; other columns become null.
        """
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

    def commit(
        self,
        rows: Callable[[DeltaTable | None], pa.Table],
        commit: Commit,
        *,
        beside: Callable[[TableMerger], TableMerger] | None = None,
    ) -> int | None:
        """Merge rows, and return the table's new version.

        Return None if another attempt committed the batch, or if there is nothing to do.

        Args:
            rows: returns the rows to merge into a version of the table (None: it does not exist),
                as `fitted_rows` returns them.
            beside: adds clauses to the merge.
        """
        for attempt in range(1, MERGE_ATTEMPTS_MAX + 1):
            table = self._sink.open()
            if in_table(table, commit):
                return None
            try:
                found = rows(table)
                if table is None:
                    self._create(found, commit)
                    return 0
                if not found.num_rows and beside is None:
                    return None
                self._merge(table, found, commit, beside)
                return table.version()
            except (CommitFailedError, DeltaError) as error:
                if INVALID_ROWS in str(error):
                    raise self._unfit(table, error) from error
                # Another writer, such as a compaction, committed first: merge again.
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
            f"table {self._sink.table}: rows of the batch break a constraint of the table. It has "
            f"{listed or 'generated columns or invariants'}. deltalake reports: {error}"
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

    def _merge(
        self,
        table: DeltaTable,
        rows: pa.Table,
        commit: Commit,
        beside: Callable[[TableMerger], TableMerger] | None,
    ) -> None:
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
            # A merge that added these columns would omit their feature from the table's protocol,
            # and the table would be unreadable.
            table.alter.add_columns(Schema.from_arrow(pa.schema(local)).fields)
        partitions = table.metadata().partition_columns
        merging = table.merge(
            rows,
            same,
            source_alias="new",
            target_alias="kept",
            merge_schema=len(added) > len(local),
            # Without streaming, deltalake first reads the keys to merge, and skips files whose
            # bounds exclude all of these keys.
            streamed_exec=not set(self._keys).issubset((*bounds, *partitions)),
            writer_properties=delta_properties(self._codec, bounds),
            commit_properties=commit.properties(),
        )
        if beside is not None:
            merging = beside(merging)
        if pc.any(rows[REMOVES]).as_py():
            merging = merging.when_matched_delete(" AND ".join(filter(None, (removes, later))))
        merging.when_matched_update(values, predicate=later).when_not_matched_insert(
            values, predicate=f"NOT {removes}"
        ).execute()


def partitions_of(table: DeltaTable | None, names: Sequence[str]) -> list[str]:
    known = () if table is None else table.metadata().partition_columns
    return [name for name in known if name in names]


def _done(batch_id: int, *, replayed: bool = True) -> Written:
    return Written(batch_id=batch_id, rows=0, files=0, version=None, replayed=replayed)


def _whole(rows: DataFrame, keys: Sequence[str], order: Sequence[str]) -> pa.Table:
    number = F.monotonically_increasing_id().bitwiseAND((1 << _ROW_NUMBER_BITS) - 1)
    sizes = [
        F.coalesce(F.octet_length(_column(field.name)).cast("long"), F.lit(0))
        for field in rows.schema
        if isinstance(field.dataType, (StringType, BinaryType))
    ]
    fits = (number < WHOLE_ROWS_MAX) & (reduce(add, sizes, F.lit(0)) <= WHOLE_ROW_BYTES_MAX)
    failure = F.raise_error(F.lit(_TOO_LARGE)).cast("boolean")
    found = rows.withColumn(REMOVES, F.when(fits, F.col(REMOVES)).otherwise(failure)).toArrow()
    return Newest(keys=tuple(keys), order=tuple(order)).of(found)


def _reduced(rows: DataFrame, keys: Sequence[str], order: Sequence[str]) -> pa.Table:
    # PySpark parses column names as SQL when rows pass through Arrow.
    names = {name: f"c{number}" for number, name in enumerate(rows.columns)}
    numbered = rows.toDF(*names.values())
    newest = Newest(
        keys=tuple(names[name] for name in keys), order=tuple(names[name] for name in order)
    )
    fields = [StructField(field.name, field.dataType) for field in numbered.schema]
    found = numbered.mapInArrow(newest, StructType(fields)).toArrow()
    return newest.of(found).rename_columns(rows.columns)


def _incomparable(kind: DataType) -> str:
    """Return the reason why values of a type cannot be keys or orders; empty if they can."""
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
