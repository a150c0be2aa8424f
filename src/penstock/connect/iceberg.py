"""Sink `iceberg`: writes topics into an Iceberg table, each record once.

The fields of a value become columns. One commit adds the rows of a flush together with the offsets
behind them (`penstock.lake.commits`). A run starts from the offsets of the newest snapshot, and a
commit succeeds only if the snapshot before it has the offsets from which the run continued. So a
second run of the same connector fails instead of writing records again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa

from penstock.base.errors import InvalidSetting
from penstock.base.settings import Kind, setting
from penstock.base.system import SYSTEM_CLOCK
from penstock.connect.converting import exact, fitted
from penstock.connect.errors import RowsRejected, rows_from
from penstock.connect.plugins import VALUE, ConnectorSettings, Sink, SinkBatch
from penstock.lake.commits import LakeTable, Mark, appended
from penstock.lake.schemas import DECIMAL_DIGITS_MAX, arrow_schema, partition, storable
from penstock.lake.target import (
    LakeConflict,
    LakeMismatch,
    LakeUnavailable,
    Target,
    catalog_properties,
    table_name,
)
from penstock.lake.upsert import Upsert, check_keys, newest

PENDING_BYTES_MAX: Final = 256 << 20
"""Arrow bytes of rows after which `write` commits without waiting for `flush`."""


class IcebergSettings(ConnectorSettings):
    """Keys of the sink."""

    table: str = setting(
        "", "Required: the table, as NAMESPACE.TABLE. The first rows create it.",
        kind=Kind("table", table_name), shown="–",
    )  # fmt: skip
    catalog: Mapping[str, str] | None = setting(
        None, "The catalogue: its properties as pyiceberg names them (`type`, `uri`, `warehouse`),"
        " or its name in pyiceberg's own configuration.",
        kind=Kind("name or table", catalog_properties), shown="`default`", secret=True,
    )  # fmt: skip
    mode: str = setting(
        "append", "`upsert` keeps the newest row of a key.", choices=("append", "upsert")
    )
    keys: tuple[str, ...] = setting((), "For `upsert`, required: the columns of the key.")
    order_by: str = setting(
        "", "For `upsert`: the column whose greatest value marks a key's newest row.",
        shown="the order of the records",
    )  # fmt: skip
    partition_by: tuple[str, ...] = setting(
        (), "Partitions of a new table: `country`, `day(at)`, `bucket(16, id)`,"
        " `truncate(4, name)`. Write them as a list.",
    )  # fmt: skip
    add_columns: bool = setting(
        False, "Whether columns that the table lacks are added to it, and too narrow types widened."
    )
    codec: str = setting(
        "zstd", "Compression of the files.", choices=("none", "gzip", "snappy", "lz4", "zstd")
    )

    def __post_init__(self) -> None:
        if not self.table:
            raise InvalidSetting("table", self.table, 'is required, as table = "db.orders"')
        if (self.mode == "upsert") != bool(self.keys):
            raise InvalidSetting("keys", self.keys, "are required by mode upsert, and only by it")
        if self.order_by and self.mode != "upsert":
            raise InvalidSetting("order_by", self.order_by, "is only for mode upsert")
        for text in self.partition_by:
            try:
                partition(text)
            except LakeMismatch as error:
                raise InvalidSetting("partition_by", text, str(error)) from error


class IcebergSink(Sink[IcebergSettings]):
    """Sink that keeps the rows of several batches, and commits them in one snapshot."""

    settings_type: ClassVar[type[Any]] = IcebergSettings

    def __init__(self, settings: IcebergSettings, connector: str) -> None:
        super().__init__(settings, connector)
        self._table = LakeTable(
            Target.of(settings.table, settings.catalog or {}, Path),
            application=f"connect.{connector}",
            partition_by=settings.partition_by,
            add_columns=settings.add_columns,
            codec=settings.codec,
        )
        self._stored: dict[str, dict[int, int]] | None = None
        self._rows: list[pa.Table] = []
        self._pending_bytes = 0
        self._offsets: dict[str, dict[int, int]] = {}
        self._facts: dict[str, Any] = {}

    def problems(self) -> Sequence[str]:
        try:
            self._table.open()
        except (LakeMismatch, LakeUnavailable) as error:
            return (f"catalog: {error}",)
        return ()

    def plan(self) -> Sequence[str]:
        if self._table.open() is None:
            return [f"create Iceberg table {self.settings.table} with the first rows"]
        return []

    def offsets(self) -> Mapping[tuple[str, int], int]:
        self._stored = self._load()
        return {
            (topic, partition): offset
            for topic, offsets in self._stored.items()
            for partition, offset in offsets.items()
        }

    def write(self, batch: SinkBatch) -> None:
        try:
            rows = self._with_pending(batch)
        except pa.ArrowException:
            self.flush()
            rows = self._with_pending(batch)
        self._rows = rows
        self._pending_bytes = sum(table.nbytes for table in rows)
        self._offsets.setdefault(batch.topic, {}).update(batch.next_offsets)
        if self._pending_bytes >= PENDING_BYTES_MAX:
            self.flush()

    def _with_pending(self, batch: SinkBatch) -> list[pa.Table]:
        """Return the pending rows and the columns of the batch's values, in one schema.

        Raises:
            RowsRejected: values are no structs, or do not fit the table or the batch's first part.
            pa.ArrowException: they do not fit the pending rows.
        """
        found, first = [*self._rows], 0
        for part in batch.parts:
            with rows_from(first):
                rows = self._accepted(part.rows)
                try:
                    found = fitted([*found, rows]) if rows.num_rows else found
                except pa.ArrowException as error:
                    if len(found) == len(self._rows):
                        raise
                    reason = f"its columns conflict with rows before it: {error}"
                    raise RowsRejected(range(part.count), [reason] * part.count) from error
            first += part.count
        return found

    def flush(self) -> None:
        if not self._offsets:
            return
        began = SYSTEM_CLOCK.monotonic()
        before = self._load() if self._stored is None else self._stored
        after = {
            topic: {**before.get(topic, {}), **self._offsets.get(topic, {})}
            for topic in {**before, **self._offsets}
        }
        rows = pa.concat_tables(self._rows) if self._rows else None
        count = 0 if rows is None else rows.num_rows
        if rows is not None or self._table.open() is not None:
            self._commit(rows, before, after)
        self._stored = after
        self._rows, self._pending_bytes, self._offsets = [], 0, {}
        self._facts = {
            "table": self.settings.table,
            "commit_rows": count,
            "commit_ms": round((SYSTEM_CLOCK.monotonic() - began) * 1000, 1),
        }

    def facts(self) -> Mapping[str, Any]:
        return self._facts

    def _load(self) -> dict[str, dict[int, int]]:
        mark = self._table.mark(fresh=True)
        return {} if mark is None else mark.offsets

    def _accepted(self, rows: pa.Table) -> pa.Table:
        """Return the columns of the rows' values.

        Raises:
            RowsRejected: values are no structs, or do not fit the table.
        """
        values = rows[VALUE].combine_chunks()
        if isinstance(values, pa.ChunkedArray):
            values = pa.concat_arrays(values.chunks)
        if not len(values):
            return pa.table({})
        if not pa.types.is_struct(values.type):
            reason = f"the value is {values.type}, but an Iceberg sink needs fields"
            raise RowsRejected(range(len(values)), [reason] * len(values))
        if values.null_count:
            gone = np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False)).tolist()
            raise RowsRejected(gone, ["the value is null"] * len(gone))
        columns = pa.table(values.flatten(), names=[field.name for field in values.type])
        reasons: dict[int, str] = {}
        for name in filter(None, (*self.settings.keys, self.settings.order_by)):
            absent = columns[name].is_null() if name in columns.column_names else None
            found = range(len(columns)) if absent is None else np.flatnonzero(absent)
            reasons |= dict.fromkeys(map(int, found), f"column {name}, a key or the order, is null")
        columns = self._converted(columns, reasons)
        if reasons:
            rejected = sorted(reasons)
            raise RowsRejected(rejected, [reasons[row] for row in rejected])
        return columns

    def _converted(self, columns: pa.Table, reasons: dict[int, str]) -> pa.Table:
        """Return rows with the table's types where that loses nothing; add reasons for other rows.

        With `add_columns`, a number that is too large stays as it is: it widens the table's type.
        """
        table = self._table.open()
        known = {} if table is None else {
            field.name: field for field in arrow_schema(table.schema())
        }  # fmt: skip
        for at, given in enumerate(columns.schema):
            field = known.get(given.name, given.with_type(_narrowed(given.type)))
            if given.type == field.type:
                continue
            values = columns.column(at).combine_chunks()
            unfit = _unfit(values, field.type)
            if not unfit:
                columns = columns.set_column(at, field.name, exact(values, field.type))
            elif not (self.settings.add_columns and _widens(field.type, values.type)):
                said = f"a value of {values.type} does not fit the table's type {field.type}"
                reasons |= dict.fromkeys(unfit, f"column {field.name}: {said}")
        return columns

    def _commit(
        self,
        rows: pa.Table | None,
        before: dict[str, dict[int, int]],
        after: dict[str, dict[int, int]],
    ) -> None:
        def proceed(mark: Mark | None) -> bool:
            found = {} if mark is None else mark.offsets
            if found == after:
                return False  # the commit of an attempt whose result was not received
            if found != before:
                raise LakeConflict(
                    f"table {self.settings.table}: another run of connector {self.connector} wrote"
                    " it. End one of them, or give the connectors different names"
                )
            return True

        mark = Mark(offsets=after)
        if rows is None:
            self._table.commit(mark, proceed, appended(()))
            return
        self._table.prepare(rows.schema)
        writer = self._table.writer()
        if self.settings.mode == "append":
            self._table.commit(mark, proceed, appended(writer.write(rows)))
            return
        keys, order_by = self.settings.keys, self.settings.order_by or None
        check_keys(self.settings.table, storable(self.settings.table, rows.schema), keys, order_by)
        rows = rows.take(newest(self.settings.table, rows, keys, order_by))
        upsert = Upsert(name=self.settings.table, rows=rows, keys=keys, order_by=order_by)
        self._table.commit(mark, proceed, upsert.change(writer))


def _narrowed(kind: pa.DataType) -> pa.DataType:
    """Return a type without decimals that are too long for Iceberg."""
    if pa.types.is_decimal256(kind):
        return pa.decimal128(DECIMAL_DIGITS_MAX, min(kind.scale, DECIMAL_DIGITS_MAX))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_narrowed(field.type)) for field in kind])
    return pa.list_(_narrowed(kind.value_type)) if pa.types.is_list(kind) else kind


def _widens(table: pa.DataType, rows: pa.DataType) -> bool:
    """Whether Iceberg can widen a table's type to that of rows."""
    if pa.types.is_decimal(table) and pa.types.is_decimal(rows):
        return bool(table.scale == rows.scale)
    return (table, rows) in ((pa.int32(), pa.int64()), (pa.float32(), pa.float64()))


def _unfit(values: Any, kind: pa.DataType, first: int = 0) -> list[int]:
    """Return the indexes of values that have no equal value in a type; halves are tried in turn."""
    try:
        exact(values, kind)
    except pa.lib.ArrowMemoryError:
        raise
    except pa.ArrowException:
        if len(values) == 1:
            return [first]
        half = len(values) // 2
        return _unfit(values[:half], kind, first) + _unfit(values[half:], kind, first + half)
    return []
