"""Sink that writes rows of topics into tables of a database, each record once.

The table `penstock_offsets` has the next offset of each partition. The transaction that writes rows
also writes their offsets, so neither a crash nor a second run of the connector repeats a row: rows
below the stored offset are skipped.

If the database rejects rows, the sink divides the batch, with savepoints, until it has found all
rejected rows. It then rolls the transaction back and raises `RowsRejected`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass
from functools import reduce
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa

from penstock.base.errors import InvalidSetting, PenstockError
from penstock.base.settings import setting
from penstock.connect.converting import whole
from penstock.connect.errors import ConnectorFailed, RowsRejected, SinkUnavailable
from penstock.connect.plugins import (
    KEY,
    OFFSET,
    PARTITION,
    VALUE,
    ConnectorSettings,
    Sink,
    SinkBatch,
)
from penstock.connect.sql.databases import Database, TableName, ValuesRejected
from penstock.connect.sql.target import Target

OFFSETS: Final = sa.Table(
    "penstock_offsets",
    sa.MetaData(),
    sa.Column("connector", sa.String(100), primary_key=True),
    sa.Column("topic", sa.String(249), primary_key=True),
    sa.Column("partition", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("next_offset", sa.BigInteger, nullable=False),
)
"""Next offset of each partition that a connector has written."""
_ROW: Final = "row"


class SqlSinkSettings(ConnectorSettings):
    """Keys of `[sink]`."""

    url: str = setting(MISSING, "URL of the database, in SQLAlchemy's form.", secret=True)
    table: str = setting(
        "{name}", "Table as `table` or `schema.table`; `{topic}` is the topic, `{name}` its last"
        " part after a period.",
    )  # fmt: skip
    mode: str = setting(
        "insert", "`insert` adds each record as a row; `upsert` keeps the newest record of a key.",
        choices=("insert", "upsert"),
    )  # fmt: skip
    keys: tuple[str, ...] = setting(
        (), "Columns of the key, from the record's key or value. A key that is no object is the"
        " value of one column.", shown="the fields of the record's key",
    )  # fmt: skip
    delete: bool = setting(False, "Whether a record without value deletes the row of its key.")
    envelope: bool = setting(
        False, "Whether values are Debezium's: the row is `after`, and `op = d` deletes."
    )
    create_table: bool = setting(False, "Whether a missing table is created.")
    add_columns: bool = setting(False, "Whether missing columns are added to the table.")

    def __post_init__(self) -> None:
        for name in ("delete", "envelope"):
            if getattr(self, name) and self.mode != "upsert":
                raise InvalidSetting(name, True, 'needs mode = "upsert"')


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Changes of a table by the rows of a batch. Both tables have a column of row numbers.

    Attributes:
        upserts: columns of inserted or updated rows.
        deletes: key columns of deleted rows.
        keys: names of the key columns.
    """

    upserts: Any
    deletes: Any
    keys: tuple[str, ...]

    def slice(self, first: int, end: int) -> Changes:
        """Return the changes of the rows `first` to `end`, without `end`."""
        return self.only(pa.array(range(first, end), pa.int64()))

    def only(self, numbers: Any) -> Changes:
        """Return the changes of the rows with these numbers (int64)."""
        upserts, deletes = (
            table.filter(pc.is_in(table.column(_ROW), numbers))
            for table in (self.upserts, self.deletes)
        )
        return Changes(upserts=upserts, deletes=deletes, keys=self.keys)

    def newest(self) -> Changes:
        """Return the last change of each key; the others have no effect."""
        names = [*self.keys, _ROW]
        both = pa.concat_tables([self.upserts.select(names), self.deletes.select(names)])
        last = both.group_by(list(self.keys)).aggregate([(_ROW, "max")])
        return self.only(whole(last.column(f"{_ROW}_max")))


class SqlSink(Sink[SqlSinkSettings]):
    """Sink of tables."""

    settings_type = SqlSinkSettings

    def __init__(self, settings: SqlSinkSettings, connector: str) -> None:
        super().__init__(settings, connector)
        self._database = Database(settings.url, SinkUnavailable)
        self._targets: dict[str, Target] = {}
        self._unique: set[str] = set()

    # Checks

    def problems(self) -> Sequence[str]:
        try:
            with self._database.transaction() as connection:
                connection.execute(sa.select(1))
            if "{" not in self.settings.table:
                name = TableName.parse(self.settings.table)
                target = Target(self._database, name)
                self._check(target, self.settings.keys)
            return ()
        except PenstockError as error:
            return (str(error),)
        finally:
            self.close()

    def plan(self) -> Sequence[str]:
        there = self._database.inspector().has_table(OFFSETS.name)
        steps = [] if there else [f"create table {OFFSETS.name}"]
        table = self.settings.table
        if self.settings.create_table:
            steps.append(f"create table {table} if it does not exist, from the columns of the rows")
        if self.settings.add_columns:
            steps.append(f"add columns to table {table} that the rows have and it has not")
        return steps

    def facts(self) -> Mapping[str, Any]:
        return {"tables": sorted(str(target.name) for target in self._targets.values())}

    def close(self) -> None:
        self._database.close()

    # Offsets

    def offsets(self) -> Mapping[tuple[str, int], int]:
        with self._database.transaction() as connection:
            OFFSETS.create(connection, checkfirst=True)
        with self._database.transaction() as connection:
            found = connection.execute(
                sa.select(OFFSETS.c.topic, OFFSETS.c.partition, OFFSETS.c.next_offset).where(
                    OFFSETS.c.connector == self.connector
                )
            )
            return {(topic, partition): offset for topic, partition, offset in found}

    def _locked_offsets(
        self, connection: sa.Connection, topic: str, partitions: Mapping[int, int]
    ) -> dict[int, int]:
        """Return the stored offsets; other runs of the connector wait until the transaction ends.

        Raises:
            SinkUnavailable: another run has just stored its first offset.
        """
        mine = (OFFSETS.c.connector == self.connector, OFFSETS.c.topic == topic)
        statement = sa.select(OFFSETS.c.partition, OFFSETS.c.next_offset).where(*mine)
        found = connection.execute(statement.with_for_update())
        stored = {partition: offset for partition, offset in found}
        place = {"connector": self.connector, "topic": topic}
        missing = [partition for partition in partitions if partition not in stored]
        if missing:
            rows = [{**place, "partition": partition, "next_offset": 0} for partition in missing]
            try:
                connection.execute(OFFSETS.insert(), rows)
            except sa.exc.IntegrityError as error:
                raise SinkUnavailable(f"another run of {self.connector} has begun") from error
        return stored

    def _store(self, connection: sa.Connection, topic: str, offsets: Mapping[int, int]) -> None:
        statement = OFFSETS.update().where(
            OFFSETS.c.connector == self.connector,
            OFFSETS.c.topic == topic,
            OFFSETS.c.partition == sa.bindparam("at"),
            OFFSETS.c.next_offset < sa.bindparam("following"),
        ).values(next_offset=sa.bindparam("following"))  # fmt: skip
        given = [{"at": partition, "following": offset} for partition, offset in offsets.items()]
        if given:
            connection.execute(statement, given)

    # Rows

    def write(self, batch: SinkBatch) -> None:
        topic = batch.records.topic
        if not batch.records.count:
            with self._database.transaction() as connection:
                self._locked_offsets(connection, topic, batch.next_offsets)
                self._store(connection, topic, batch.next_offsets)
            return
        target, changes = self._fitted(topic, self._changes(batch.records.rows))
        try:
            with self._database.transaction() as connection:
                stored = self._locked_offsets(connection, topic, batch.next_offsets)
                kept = _unwritten(changes, batch.records.rows, stored)
                self._apply(connection, target, kept)
                self._store(connection, topic, batch.next_offsets)
        except ValuesRejected as error:
            rejected = self._rejected(batch, changes, target)
            raise rejected or SinkUnavailable(f"rows were rejected once: {error}") from error

    def _apply(self, connection: sa.Connection, target: Target, changes: Changes) -> None:
        if self.settings.mode == "insert":
            if changes.upserts.num_rows:
                target.insert(connection, changes.upserts.drop_columns([_ROW]))
            return
        newest = changes.newest()
        if newest.deletes.num_rows:
            target.delete(connection, newest.deletes.drop_columns([_ROW]))
        if newest.upserts.num_rows:
            target.upsert(connection, newest.upserts.drop_columns([_ROW]), changes.keys)

    def _rejected(self, batch: SinkBatch, changes: Changes, target: Target) -> RowsRejected | None:
        """Return the rows that the database rejects; the transaction is rolled back."""
        found: dict[int, str] = {}

        def search(connection: sa.Connection, first: int, end: int) -> None:
            try:
                with self._database.errors(), connection.begin_nested():
                    self._apply(connection, target, kept.slice(first, end))
            except ValuesRejected as error:
                if end - first == 1:
                    found[first] = str(error)
                    return
                middle = (first + end) // 2
                search(connection, first, middle)
                search(connection, middle, end)

        with self._database.transaction() as connection:
            topic = batch.records.topic
            stored = self._locked_offsets(connection, topic, batch.next_offsets)
            kept = _unwritten(changes, batch.records.rows, stored)
            search(connection, 0, batch.records.count)
            connection.get_transaction().rollback()  # type: ignore[union-attr]
        return RowsRejected(list(found), list(found.values())) if found else None

    # Columns

    def _fitted(self, topic: str, changes: Changes) -> tuple[Target, Changes]:
        """Return the table of a topic, and the changes with the columns that it has.

        Raises:
            RowsRejected: rows have values for columns that do not exist and are not added.
            ConnectorFailed: the table does not exist, or has no unique index of the keys.
        """
        if topic not in self._targets:
            name = self.settings.table.replace("{topic}", topic)
            name = name.replace("{name}", topic.rpartition(".")[2])
            self._targets[topic] = Target(self._database, TableName.parse(name))
        target, rows = self._targets[topic], changes.upserts.drop_columns([_ROW])
        kinds = {
            name: column.type
            for name, column in zip(rows.column_names, rows.columns, strict=True)
            if column.null_count < len(column)
        }
        if not target.columns and kinds and self.settings.create_table:
            target.create(kinds, changes.keys)
        if changes.keys:
            self._check(target, changes.keys)
        self._check(target, ())
        unknown = {name: kind for name, kind in kinds.items() if name not in target.columns}
        if unknown and self.settings.add_columns:
            target.add(unknown)
        elif unknown:
            valid = [changes.upserts.column(name).is_valid() for name in unknown]
            numbers = changes.upserts.column(_ROW).filter(reduce(pc.or_, valid)).to_pylist()
            reason = f"table {target.name} has no column {', '.join(unknown)}"
            raise RowsRejected(numbers, [reason] * len(numbers))
        names = [name for name in rows.column_names if name in target.columns]
        fitted = changes.upserts.select([*names, _ROW])
        return target, Changes(upserts=fitted, deletes=changes.deletes, keys=changes.keys)

    def _check(self, target: Target, keys: Sequence[str]) -> None:
        """Check a table and its unique index.

        Raises:
            ConnectorFailed: the table does not exist, or has no unique index of the keys.
        """
        name = str(target.name)
        if not target.columns:
            target.refresh()
        if not target.columns:
            if self.settings.create_table:
                return
            raise ConnectorFailed(
                f"table: {name} does not exist; create it, or set create_table = true"
            )
        if self.settings.mode == "upsert" and keys and name not in self._unique:
            if not target.unique(keys):
                raise ConnectorFailed(
                    f"table: {name} has no unique index of ({', '.join(keys)}); run CREATE UNIQUE"
                    f" INDEX ON {name} ({', '.join(keys)})"
                )
            self._unique.add(name)

    def _changes(self, rows: Any) -> Changes:
        """Return the changes that rows make.

        Raises:
            RowsRejected: rows without value, without key, or without a row of Debezium.
        """
        values, keys = _unwrapped(whole(rows.column(VALUE))), pa.nulls(len(rows))
        if KEY in rows.column_names:
            keys = _unwrapped(whole(rows.column(KEY)))
        there = values.is_valid()
        if not _is_object(values):
            _reject(there, "the value is not an object with columns")
        if self.settings.envelope:
            there, gone, fields, before = _of_envelopes(values)
        else:
            gone, fields, before = pc.invert(there), _fields(values), {}
            if not self.settings.delete:
                _reject(gone, "the record has no value; set delete = true to delete the row")
        names = self.settings.keys or tuple(_fields(keys))
        upsert = self.settings.mode == "upsert"
        if upsert and not names:
            _reject(pc.or_(there, gone), "the record's key is not an object; set keys")
        for name in names:
            sources = [fields.get(name), before.get(name), _key_column(keys, name, names)]
            fields[name] = _first(sources, len(rows))
            if upsert:
                missing = pc.and_(pc.or_(there, gone), fields[name].is_null())
                _reject(missing, f"column {name} of the key has no value")
        numbers = pa.array(range(len(rows)), pa.int64())
        table = pa.table({**fields, _ROW: numbers})
        deletes = table.select([*names, _ROW]).filter(gone)
        return Changes(upserts=table.filter(there), deletes=deletes, keys=names if upsert else ())


def _unwritten(changes: Changes, rows: Any, stored: Mapping[int, int]) -> Changes:
    """Return the changes of rows whose offsets have not been stored."""
    at = pc.index_in(whole(rows.column(PARTITION)), pa.array(list(stored), pa.int32()))
    least = pa.array(list(stored.values()), pa.int64()).take(at).fill_null(0)
    new = pc.greater_equal(whole(rows.column(OFFSET)), least)
    if pc.all(new, min_count=0).as_py():
        return changes
    numbers = pa.array(np.flatnonzero(new.to_numpy(zero_copy_only=False)), pa.int64())
    return changes.only(numbers)


def _reject(rows: Any, reason: str) -> None:
    """Raise an error for the rows of a mask, if there are any."""
    numbers = np.flatnonzero(rows.to_numpy(zero_copy_only=False)).tolist()
    if numbers:
        raise RowsRejected(numbers, [reason] * len(numbers))


def _is_object(column: Any) -> bool:
    return bool(pa.types.is_struct(column.type) or column.null_count == len(column))


def _fields(column: Any) -> dict[str, Any]:
    """Return the fields of objects as columns; none for other types."""
    if not pa.types.is_struct(column.type):
        return {}
    names = [field.name for field in column.type]
    return dict(zip(names, column.flatten(), strict=True))


def _unwrapped(column: Any) -> Any:
    """Return the payload of values that have a schema beside it, as Kafka Connect writes them."""
    fields = _fields(column)
    return fields["payload"] if set(fields) == {"schema", "payload"} else column


def _of_envelopes(values: Any) -> tuple[Any, Any, dict[str, Any], dict[str, Any]]:
    """Return masks of upserted and deleted rows, and the columns of `after` and `before`.

    Raises:
        RowsRejected: values that are not envelopes of one row.
    """
    nothing = pa.nulls(len(values))
    fields = _fields(values)
    before, after = fields.get("before", nothing), fields.get("after", nothing)
    operations = fields.get("op", nothing).cast(pa.string())
    gone = pc.equal(operations, "d").fill_null(False)
    there = pc.and_(after.is_valid(), pc.invert(gone))
    neither = pc.invert(pc.or_(there, gone))
    _reject(pc.and_(values.is_valid(), neither), "the value is not an envelope of a row")
    return there, gone, _fields(after), _fields(before)


def _key_column(keys: Any, name: str, names: Sequence[str]) -> Any:
    """Return a column of the record's key; None if the key has no such column."""
    fields = _fields(keys)
    if fields or len(names) > 1 or pa.types.is_null(keys.type):
        return fields.get(name)
    return keys.cast(pa.string()) if pa.types.is_binary(keys.type) else keys


def _first(columns: Sequence[Any], count: int) -> Any:
    """Return the first value of each row that is not null."""
    given = [
        column for column in columns if column is not None and not pa.types.is_null(column.type)
    ]
    if not given:
        return pa.nulls(count)
    return pc.coalesce(*(column.cast(given[0].type) for column in given))
