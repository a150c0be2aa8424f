"""Sink that writes rows of topics into tables of a database, each record once.

The table `penstock_offsets` has the next offset of each partition. The transaction that writes rows
also writes their offsets, so neither a crash nor a second run of the connector repeats a row: rows
below the stored offset are skipped.

If the database rejects rows, the sink divides the batch, with savepoints, until it has found all
rejected rows. It then rolls the transaction back and raises `RowsRejected`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, replace
from functools import partial, reduce
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa

from penstock.base.errors import InvalidSetting, PenstockError
from penstock.base.settings import setting
from penstock.connect.converting import whole
from penstock.connect.errors import ConnectorFailed, RowsRejected, SinkUnavailable, rows_from
from penstock.connect.plugins import (
    KEY,
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
_RANK: Final = "rank"


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
    """Changes of a table by rows of a batch. Both tables have a column of ranks.

    A rank is the place of a row in the batch, in the order of partitions and offsets.

    Attributes:
        upserts: columns of inserted or updated rows.
        deletes: key columns of deleted rows.
        keys: names of the key columns.
    """

    target: Target
    upserts: Any
    deletes: Any
    keys: tuple[str, ...]

    def only(self, ranks: Any) -> Changes:
        """Return the changes of the rows with these ranks (int64)."""
        upserts, deletes = (
            table.filter(pc.is_in(table.column(_RANK), ranks))
            for table in (self.upserts, self.deletes)
        )
        return replace(self, upserts=upserts, deletes=deletes)


def newest(changes: Sequence[Changes]) -> list[Changes]:
    """Return the last change of each key of a table; the others have no effect."""
    keys = list(changes[0].keys)
    tables = [
        rows.select([*keys, _RANK])
        for change in changes
        for rows in (change.upserts, change.deletes)
    ]
    if len(changes) > 1:  # the parts of a batch may have keys of different types
        texts = pa.schema([*((name, pa.string()) for name in keys), (_RANK, pa.int64())])
        tables = [rows.cast(texts) for rows in tables]
    last = pa.concat_tables(tables).group_by(keys).aggregate([(_RANK, "max")])
    ranks = whole(last.column(f"{_RANK}_max"))
    return [change.only(ranks) for change in changes]


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
        partitions, offsets = batch.partitions, batch.offsets
        order = np.lexsort((offsets, partitions))
        changes = self._changes_of(batch, np.argsort(order))
        unwritten = partial(self._unwritten, batch, changes, partitions[order], offsets[order])
        try:
            with self._database.transaction() as connection:
                self._apply(connection, unwritten(connection))
                self._store(connection, batch.topic, batch.next_offsets)
        except ValuesRejected as error:
            with self._database.transaction() as connection:
                found = self._search(connection, unwritten(connection), batch.count)
                connection.get_transaction().rollback()  # type: ignore[union-attr]
            if not found:
                raise SinkUnavailable(f"rows were rejected once: {error}") from error
            rows = {int(order[rank]): reason for rank, reason in found.items()}
            raise RowsRejected(sorted(rows), [rows[row] for row in sorted(rows)]) from error

    def _changes_of(self, batch: SinkBatch, ranks: Any) -> list[Changes]:
        """Return the changes of the parts of a batch.

        Raises:
            RowsRejected: rows that have no form in the table.
            ConnectorFailed: a table does not exist, or has no unique index of the keys.
        """
        found, first = [], 0
        for part in batch.parts:
            with rows_from(first):
                target = self._target(part.topic)
                own = pa.array(ranks[first : first + part.count])
                found.append(self._fitted(self._changes(target, part.rows, own), own))
            first += part.count
        return found

    def _unwritten(
        self, batch: SinkBatch, changes: list[Changes], partitions: Any, offsets: Any,
        connection: sa.Connection,
    ) -> list[Changes]:  # fmt: skip
        """Return the changes of rows whose offsets are not stored; the arrays are by rank."""
        stored = self._locked_offsets(connection, batch.topic, batch.next_offsets)
        new = np.ones(len(offsets), np.bool_)
        for partition, offset in stored.items():
            new &= (partitions != partition) | (offsets >= offset)
        if new.all():
            return changes
        return [change.only(pa.array(np.flatnonzero(new))) for change in changes]

    def _apply(self, connection: sa.Connection, changes: list[Changes]) -> None:
        if self.settings.mode == "upsert":
            keyed = [change for change in changes if change.keys]  # others have no rows
            targets = {str(change.target.name): change.target for change in keyed}
            changes = [
                change
                for target in targets.values()
                for change in newest([change for change in keyed if change.target is target])
            ]
        for change in changes:
            upserts, deletes = (
                rows.drop_columns([_RANK]) for rows in (change.upserts, change.deletes)
            )
            if self.settings.mode == "insert":
                if upserts.num_rows:
                    change.target.insert(connection, upserts)
                continue
            if deletes.num_rows:
                change.target.delete(connection, deletes)
            if upserts.num_rows:
                change.target.upsert(connection, upserts, change.keys)

    def _search(
        self, connection: sa.Connection, changes: list[Changes], count: int
    ) -> dict[int, str]:
        """Return the reasons of the rows that the database rejects, by rank."""
        found: dict[int, str] = {}

        def search(first: int, end: int) -> None:
            ranks = pa.array(range(first, end), pa.int64())
            try:
                with self._database.errors(), connection.begin_nested():
                    self._apply(connection, [change.only(ranks) for change in changes])
            except ValuesRejected as error:
                if end - first == 1:
                    found[first] = str(error)
                    return
                middle = (first + end) // 2
                search(first, middle)
                search(middle, end)

        search(0, count)
        return found

    # Columns

    def _target(self, topic: str) -> Target:
        """Return the table of a topic; topics of the same table have the same object."""
        name = self.settings.table.replace("{topic}", topic)
        name = name.replace("{name}", topic.rpartition(".")[2])
        if name not in self._targets:
            self._targets[name] = Target(self._database, TableName.parse(name))
        return self._targets[name]

    def _fitted(self, changes: Changes, ranks: Any) -> Changes:
        """Return the changes with the columns that the table has.

        Args:
            ranks: rank of each row.

        Raises:
            RowsRejected: rows have values for columns that do not exist and are not added.
            ConnectorFailed: the table does not exist, or has no unique index of the keys.
        """
        target, rows = changes.target, changes.upserts.drop_columns([_RANK])
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
            given = changes.upserts.column(_RANK).filter(reduce(pc.or_, valid))
            bad = pc.index_in(given, value_set=ranks).to_pylist()
            reason = f"table {target.name} has no column {', '.join(unknown)}"
            raise RowsRejected(bad, [reason] * len(bad))
        names = [name for name in rows.column_names if name in target.columns]
        return replace(changes, upserts=changes.upserts.select([*names, _RANK]))

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

    def _changes(self, target: Target, rows: Any, ranks: Any) -> Changes:
        """Return the changes that rows make.

        Args:
            ranks: rank of each row.

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
        table = pa.table({**fields, _RANK: ranks})
        return Changes(
            target=target, upserts=table.filter(there),
            deletes=table.select([*names, _RANK]).filter(gone), keys=names if upsert else (),
        )  # fmt: skip


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
