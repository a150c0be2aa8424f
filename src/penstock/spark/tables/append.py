"""Exactly-once appends to a Delta table from `foreachBatch`.

    sink = DeltaSink("lake/orders", application="orders-to-lake")
    stream.writeStream.foreachBatch(sink).option("checkpointLocation", …).start()

Spark repeats a failed batch with the same number and the same records. Each batch is therefore one
commit, which carries (application, batch number) as a Delta transaction identifier:

1. If the table already has this batch number or a higher one of the application, nothing is
   written.
2. Spark writes Parquet files into a directory that belongs to this attempt alone (`stage`).
3. One commit adds those files and the identifier. Before that the files are invisible. The caller
   may check the batch's row counts first and discard the files.

A crash before step 3 leaves files without a commit; `remove_orphans` deletes them by age. A crash
after step 3 is harmless: the repeated batch ends at step 1. If two drivers commit the same
identifier, Delta accepts only one of the commits.

Source: the Delta transaction protocol, "Transaction Identifiers".
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from deltalake import DeltaTable, Field
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, RemoveAction, create_table_with_add_actions
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from penstock.base.system import SYSTEM_RANDOMNESS, Randomness
from penstock.spark.errors import InvalidOption, TableMismatch
from penstock.spark.staged import Staged, query_of
from penstock.spark.tables.collection import ORPHAN_AGE_HOURS_DEFAULT, remove_orphans
from penstock.spark.tables.commits import Commit, in_table
from penstock.spark.tables.files import WrittenFile, checked, spark_options, written_files
from penstock.spark.tables.location import absolute, check_writable, filesystem, open_table
from penstock.spark.tables.rules import (
    Rule,
    check_rules,
    complaints,
    completed,
    generated,
    observed,
    partition_rules,
    partition_texts,
    rules_of,
)
from penstock.spark.tables.schemas import (
    added_columns,
    check_names,
    check_partitions,
    schema_of,
    valid_text,
)
from penstock.spark.tables.statistics import configuration, indexed_columns, indexed_in

COMMIT_ATTEMPTS_MAX: Final = 5
ROWS: Final = "rows"
_WRITING: Final = {
    # The table's log lists the files, so `_SUCCESS` is not needed.
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    # Without it a column with long strings has no statistics at all.
    "parquet.statistics.truncate.length": "256",
}
"""Options of every Parquet writer."""
_FORMS: Final = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.writeLegacyFormat": "false",
}
"""Session settings for encodings that Delta's readers support; they are not writer options."""

_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """Result of writing a batch; `replayed` is true if the table already had the batch."""

    batch_id: int
    rows: int
    files: int
    version: int | None
    replayed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Made:
    directory: str
    files: list[WrittenFile]
    schema: StructType
    rules: list[Rule]

    @property
    def rows(self) -> int:
        return sum(item.rows for item in self.files)


class DeltaSink:
    """Sink that appends each batch of a query to a Delta table exactly once.

    Pass the sink to `foreachBatch`, or call `write` yourself.
    """

    def __init__(
        self,
        table: str,
        *,
        application: str,
        partition_by: Sequence[str] = (),
        add_columns: bool = False,
        codec: str | None = None,
        storage_options: Mapping[str, str] | None = None,
        randomness: Randomness = SYSTEM_RANDOMNESS,
    ) -> None:
        """Args:
        table: directory or URI of the table. The first batch that has rows creates it.
        application: permanent name of the query. Batch numbers are compared within one
            application, so a query that starts with a new checkpoint needs a new name.
        partition_by: partition columns; they cannot change once the table exists.
        add_columns: whether new columns of a batch are added to the table's schema. If false, a
            batch with new columns is rejected.
        codec: Parquet compression: none, gzip, snappy, lz4 or zstd. With None, Spark's
            `spark.sql.parquet.compression.codec` applies (default: snappy).
        storage_options: options of an object store, as `deltalake` names them.
        """
        if not application:
            raise InvalidOption("application", application, "name the query")
        self.table = absolute(table)
        self.application = application
        self._partition_by = tuple(partition_by)
        self._add_columns = add_columns
        self._codec = checked(codec)
        self._storage_options = dict(storage_options or {}) or None
        self._randomness = randomness

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        self.write(batch, batch_id)

    def write(
        self,
        batch: DataFrame,
        batch_id: int,
        *,
        app_transactions: Mapping[str, int] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Written:
        """Append a batch unless the table already has it; arguments and errors are those of
        `stage`.

        An error leaves the table unchanged, unless the connection was lost: then the commit may
        have succeeded.
        """
        return self.stage(
            batch, batch_id, app_transactions=app_transactions, metadata=metadata
        ).commit()

    def stage(
        self,
        batch: DataFrame,
        batch_id: int,
        *,
        app_transactions: Mapping[str, int] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Staged[Written]:
        """Write a batch's files; they stay invisible until the returned `Staged` is committed.

        Args:
            batch: rows to write; they are read once.
            batch_id: Spark's number of the batch.
            app_transactions: further transaction identifiers for the commit. With them, a batch
                without rows is committed too, if the table exists.
            metadata: further facts that the table's history shows for the commit.

        Raises:
            TableMismatch: the batch's columns or the partition columns differ from the table's, or
                a row breaks a rule of the table.
            QueryChanged: the table has batches of this application from another checkpoint.
        """
        commit = Commit(
            application=self.application,
            batch_id=batch_id,
            query=query_of(batch),
            app_transactions=app_transactions or {},
            metadata=metadata or {},
        )
        table = self.open()
        if in_table(table, commit):
            done = Written(batch_id=batch_id, rows=0, files=0, version=None, replayed=True)
            return Staged(rows=0, commit=lambda: done, replayed=True)
        batch = generated(batch, table)
        schema = batch.schema
        self._added(table, schema)
        directory = f"batches/{batch_id:012d}-{self._randomness.uuid().hex}"
        rules = rules_of(table)
        batch = completed(batch, table, rules)
        check_rules(self.table, batch, rules)
        try:
            files = self._stage(batch, directory, rules)
        except BaseException:
            self._discard(directory)
            raise
        made = _Made(directory=directory, files=files, schema=schema, rules=rules)
        return Staged(
            rows=made.rows,
            commit=partial(self._finish, made, table, commit),
            discard=partial(self._discard, directory),
        )

    def check(self, batch: DataFrame) -> None:
        """Check that the table accepts batches with these columns; no row is read.

        Raises:
            TableMismatch: the table rejects the columns.
            UnwritableTable: the table has features that this sink cannot write.
        """
        table = self.open()
        batch = generated(batch, table)
        self._added(table, batch.schema)
        rules = rules_of(table)
        check_rules(self.table, completed(batch, table, rules), rules)

    def has(self, batch_id: int) -> bool:
        """Whether the table has this batch of this application, or a later one."""
        return in_table(self.open(), Commit(application=self.application, batch_id=batch_id))

    def open(self) -> DeltaTable | None:
        """Return the table at its latest version; None if it does not exist yet."""
        return open_table(self.table, self._storage_options)

    def remove_orphans(self, *, older_than_hours: int = ORPHAN_AGE_HOURS_DEFAULT) -> list[str]:
        """Delete files that no commit names and that are older than `older_than_hours`.

        Returns:
            The paths of the deleted files.

        Raises:
            InvalidOption: the age is so low that files of a running attempt could be deleted.
        """
        found = remove_orphans(
            self.table, older_than_hours=older_than_hours, storage_options=self._storage_options
        )
        return list(found.files)

    def _stage(self, batch: DataFrame, directory: str, rules: Sequence[Rule]) -> list[WrittenFile]:
        rules = [*rules, *partition_rules(batch.schema, self._partition_by)]
        counted = Observation()
        facts = [F.expr(fact) for fact in (f"count(1) as {ROWS}", *observed(rules))]
        rows = valid_text(batch).observe(counted, *facts)
        if self._partition_by:
            rows = rows.selectExpr(*partition_texts(batch.schema, self._partition_by))
        writer = rows.write.mode("error").options(**_WRITING, **spark_options(self._codec))
        if self._partition_by:
            writer = writer.partitionBy(*self._partition_by)
        with _settings(batch.sparkSession, _FORMS):
            writer.parquet(f"{self.table}/{directory}")
        found = counted.get
        if broken := complaints(rules, found):
            raise TableMismatch(f"table {self.table}: {broken[0]}. Drop or correct these rows")
        system, root = filesystem(self.table)
        files = written_files(system, root, directory, self._partition_by)
        written, seen = found[ROWS], sum(item.rows for item in files)
        if written != seen:
            raise TableMismatch(
                f"table {self.table}: tasks wrote {written} rows, but the driver finds {seen} in "
                "the table's directory. Workers on other machines probably wrote to local disks. "
                "Put the table on storage that the driver and all workers share"
            )
        return files

    def _finish(self, made: _Made, table: DeltaTable | None, commit: Commit) -> Written:
        to_commit = bool(made.files) or (bool(commit.app_transactions) and table is not None)
        version = self._commit(table, made, commit) if to_commit else None
        if version is None or not made.files:
            self._discard(made.directory)
        return Written(
            batch_id=commit.batch_id,
            rows=made.rows if version is not None else 0,
            files=len(made.files) if version is not None else 0,
            version=version,
            replayed=to_commit and version is None,
        )

    def _discard(self, directory: str) -> None:
        found, root = filesystem(self.table)
        with suppress(FileNotFoundError):
            found.delete_dir(f"{root}/{directory}")

    def _commit(self, table: DeltaTable | None, made: _Made, commit: Commit) -> int | None:
        """Return the version that added the files; None if another attempt committed the batch.

        `table` is the table as it was when the batch was staged.
        """
        for attempt in range(1, COMMIT_ATTEMPTS_MAX + 1):
            if in_table(table, commit):
                return None
            if rules_of(table) != made.rules:
                raise TableMismatch(
                    f"table {self.table}: its constraints changed while batch {commit.batch_id} "
                    "was being written. Write the batch again"
                )
            try:
                if table is None:
                    self._create(made.files, made.schema, commit)
                    return 0
                if added := self._added(table, made.schema):
                    table.alter.add_columns(added)
                indexed = indexed_in(table)
                actions: list[AddAction | RemoveAction] = [
                    file.action(indexed) for file in made.files
                ]
                table.create_write_transaction(
                    actions,
                    mode="append",
                    schema=table.schema(),
                    partition_by=list(self._partition_by),
                    commit_properties=commit.properties(),
                )
                table.update_incremental()
                return table.version()
            except (CommitFailedError, DeltaError) as error:
                # Another writer committed first: check whether it committed this very batch.
                if attempt == COMMIT_ATTEMPTS_MAX:
                    raise
                _LOG.info("table %s: retrying batch %s: %s", self.table, commit.batch_id, error)
                table = self.open()
        return None

    def _create(self, files: Sequence[WrittenFile], batch: StructType, commit: Commit) -> None:
        schema = schema_of(batch)
        properties = configuration(schema, self._partition_by)
        indexed = indexed_columns(schema, properties, self._partition_by)
        create_table_with_add_actions(
            self.table,
            schema,
            [file.action(indexed) for file in files],
            mode="error",
            partition_by=list(self._partition_by),
            configuration=dict(properties),
            storage_options=self._storage_options,
            commit_properties=commit.properties(),
        )

    def _added(self, table: DeltaTable | None, schema: StructType) -> list[Field]:
        """Return the columns of a batch that are new to the table.

        Raises:
            TableMismatch: the table cannot take the batch's columns.
        """
        check_names(schema.names)
        columns = schema_of(schema)
        unknown = [name for name in self._partition_by if name not in schema.names]
        if unknown:
            raise TableMismatch(
                f"table {self.table}: partition column {unknown[0]} is not in the batch"
            )
        check_partitions(self._partition_by, schema)
        if table is None:
            return []
        check_writable(table, self.table)
        partition_columns = tuple(table.metadata().partition_columns)
        if partition_columns != self._partition_by:
            raise TableMismatch(
                f"table {self.table} is partitioned by {partition_columns or 'no column'}, but "
                f"partition_by of the sink is {self._partition_by or 'empty'}"
            )
        return added_columns(self.table, table.schema(), columns, allowed=self._add_columns)


@contextmanager
def _settings(spark: SparkSession, wanted: Mapping[str, str]) -> Iterator[None]:
    before = {name: spark.conf.get(name) for name in wanted}
    changed = {name: value for name, value in wanted.items() if before[name] != value}
    try:
        for name, value in changed.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name in changed:
            spark.conf.set(name, str(before[name]))
