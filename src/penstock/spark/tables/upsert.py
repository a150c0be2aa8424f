"""Exactly-once upserts into a Delta table: for aggregates in `update` mode.

A windowed aggregate emits a window again whenever it changes. This sink keeps one row per key,
the latest: each batch is merged into the table in one commit that carries the same identifier as
an append does (see `append.py`), so that a replay changes nothing. The batch goes
through the driver as Arrow and is therefore bounded; what is large should be appended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from pyspark.sql import DataFrame

from penstock.spark.errors import InvalidOption, TableMismatch
from penstock.spark.tables.append import DeltaSink, Written, check_schema, schema_of

BATCH_ROWS_MAX: Final = 5_000_000


class DeltaUpsert:
    """Keeps the latest row of every key; pass it to `foreachBatch` in `update` mode."""

    def __init__(
        self,
        table: str,
        *,
        application: str,
        keys: Sequence[str],
        storage_options: Mapping[str, str] | None = None,
        batch_rows_max: int = BATCH_ROWS_MAX,
    ) -> None:
        """
        Args:
            table: directory or URI of the table; made by the first batch that has rows.
            application: names the query for good, as its checkpoint does.
            keys: columns that tell rows apart; a batch holds each combination at most once.
            storage_options: for object stores, as `deltalake` names them.
            batch_rows_max: a larger batch is refused.
        """
        if not keys:
            raise InvalidOption("keys", keys, "name the columns that tell rows apart")
        self._sink = DeltaSink(table, application=application, storage_options=storage_options)
        self._keys = tuple(keys)
        self._batch_rows_max = batch_rows_max
        self._storage_options = dict(storage_options or {}) or None

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """`foreachBatch` calls this."""
        self.write(batch, batch_id)

    def write(self, batch: DataFrame, batch_id: int) -> Written:
        """Merge a batch unless the table has it.

        Raises:
            TableMismatch: the columns differ from the table's, or the batch is too large.
        """
        if self._sink.has(batch_id):
            return Written(batch_id=batch_id, rows=0, files=0, version=None, replayed=True)
        rows = batch.limit(self._batch_rows_max + 1).toArrow()
        if rows.num_rows > self._batch_rows_max:
            raise TableMismatch(
                f"table {self._sink.table}: batch {batch_id} has more than "
                f"{self._batch_rows_max} rows to merge; lower the trigger's limit"
            )
        table = self._sink.open()
        if table is not None:
            added = check_schema(self._sink.table, table.schema(), schema_of(batch.schema))
            if added:
                raise TableMismatch(f"table {self._sink.table} has no column {added[0].name}")
        if rows.num_rows:
            table = self._merge(table, rows, batch_id)
        version = table.version() if table is not None and rows.num_rows else None
        return Written(
            batch_id=batch_id, rows=rows.num_rows, files=0, version=version, replayed=False
        )

    def _merge(self, table: DeltaTable | None, rows: pa.Table, batch_id: int) -> DeltaTable:
        properties = CommitProperties(
            app_transactions=[Transaction(self._sink.application, batch_id)]
        )
        if table is None:
            write_deltalake(
                self._sink.table,
                rows,
                mode="error",
                storage_options=self._storage_options,
                commit_properties=properties,
            )
            return DeltaTable(self._sink.table, storage_options=self._storage_options)
        same = " AND ".join(f'kept."{key}" = new."{key}"' for key in self._keys)
        table.merge(
            rows, same, source_alias="new", target_alias="kept", commit_properties=properties
        ).when_matched_update_all().when_not_matched_insert_all().execute()
        return table
