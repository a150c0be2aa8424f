"""Source of tables and queries of a database that finds new rows by polling.

| mode                     | rows that are read                       | in the order of        |
|--------------------------|------------------------------------------|------------------------|
| `bulk`                   | all rows, in each interval               | the primary key        |
| `incrementing`           | rows with larger values of a column      | the column             |
| `timestamp`              | rows that were inserted or updated later | the column, then key   |
| `timestamp+incrementing` | as `timestamp`                           | both columns           |

A reading has an upper bound, which the database sets when the reading begins: the largest value of
the incrementing column, or the time less `delay_seconds`. Chunks follow each other by the values of
the ordered columns, which are the position of the table. Without a primary key, rows with equal
timestamps are always in one chunk.

In PostgreSQL, transactions that wrote to the table and are still open may hold rows below the
bound. The source waits until these transactions have ended, so it does not miss such rows. The
bound of a timestamp is also below the start of the oldest transaction that the user can see.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass
from datetime import timedelta
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa

from penstock.base.errors import InvalidSetting, PenstockError
from penstock.base.ids import validate_topic_name
from penstock.base.settings import setting
from penstock.connect.converting import whole
from penstock.connect.errors import ConnectorFailed, SourceUnavailable
from penstock.connect.plugins import (
    ConnectorSettings,
    Records,
    Source,
    SourceBatch,
    SourceContext,
)
from penstock.connect.sql.databases import Database, TableName, value, waited
from penstock.connect.sql.reading import Column, Reader, reader_of

QUERY: Final = "query"
"""Name of the position of a query, and of its table in `topic`."""
ROW_COMPARISONS: Final = ("postgresql", "sqlite")
"""Dialects that compare rows with an index."""
_WRITERS: Final = """
    SELECT virtualtransaction FROM pg_locks WHERE relation = to_regclass(:name) AND granted
    AND mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock',
    'AccessExclusiveLock') AND pid <> pg_backend_pid()
"""
_POSTGRES_NOW: Final = """
    SELECT least(now() - make_interval(secs => :delay), min(xact_start) - interval '1 microsecond')
    FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
"""
_SQLITE_NOW: Final = "SELECT strftime('%Y-%m-%d %H:%M:%f', 'now', :delay)"


class SqlSourceSettings(ConnectorSettings):
    """Keys of `[source]`."""

    url: str = setting(MISSING, "URL of the database, in SQLAlchemy's form.", secret=True)
    topic: str = setting(MISSING, "Topic of the rows; `{schema}` and `{table}` are replaced.")
    tables: tuple[str, ...] = setting(
        (), "Tables as `table` or `schema.table`; `*` and `?` match any characters. Tables that are"
        " created later are found too.",
    )  # fmt: skip
    query: str = setting("", "Statement to read instead of tables.")
    mode: str = setting(
        "bulk", "Selection of rows. `bulk` reads all rows each time.",
        choices=("bulk", "incrementing", "timestamp", "timestamp+incrementing"),
    )  # fmt: skip
    incrementing_column: str = setting("", "Column whose values grow with each inserted row.")
    timestamp_column: str = setting("", "Column with the time of the last change of the row.")
    timezone: str = setting("UTC", "Time zone of timestamps without a time zone, in PostgreSQL.")
    delay_seconds: float = setting(
        0.0, "Age at which rows are read in the timestamp modes. It must exceed the difference of"
        " clocks, and in other databases than PostgreSQL the duration of transactions.",
        minimum=0.0, maximum=86400.0,
    )  # fmt: skip
    keys: tuple[str, ...] = setting((), "Columns of the key.", shown="the primary key")
    batch_rows: int = setting(10_000, "Most rows of a batch.", 1, 1_000_000)
    poll_interval_seconds: float = setting(
        5.0, "Time between two readings.", minimum=0.01, maximum=86400.0
    )

    def __post_init__(self) -> None:
        if bool(self.tables) == bool(self.query):
            raise InvalidSetting("tables", list(self.tables), "set exactly one of tables and query")
        for name in ("incrementing", "timestamp"):
            column = f"{name}_column"
            if bool(getattr(self, column)) != (name in self.mode):
                given = getattr(self, column)
                rule = "is required for" if name in self.mode else "is not used by"
                raise InvalidSetting(column, given, f"{rule} mode {self.mode!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Rows of one table or query, and their order.

    Attributes:
        name: name of the position.
        order: columns that order the rows; empty if a bulk reading has no primary key.
        unique: whether no two rows have equal values of `order`.
        keys: columns of the record's key.
        bounded: column that is compared with the upper bound; empty without one.
    """

    name: str
    topic: str
    source: sa.FromClause
    columns: tuple[Column, ...]
    order: tuple[str, ...]
    unique: bool
    keys: tuple[str, ...]
    bounded: str
    table: TableName | None


class SqlSource(Source[SqlSourceSettings]):
    """Source of the rows of tables, or of a query."""

    settings_type = SqlSourceSettings

    def __init__(self, settings: SqlSourceSettings, context: SourceContext) -> None:
        super().__init__(settings, context)
        self._database = Database(settings.url, SourceUnavailable)
        self._reader: Reader = reader_of(self._database)
        self._selections: dict[str, Selection] = {}
        self._waits_for = 0

    # Checks

    def problems(self) -> Sequence[str]:
        found: list[str] = []
        try:
            tables = self._tables()
            if not tables:
                found.append("tables: no table has such a name; correct the names or create it")
            for table in tables:
                self._select(table)
        except PenstockError as error:
            found.append(str(error))
        finally:
            self.close()
        return found

    def plan(self) -> Sequence[str]:
        if self.settings.query:
            return [f"read the query into topic {self._topic(None)}"]
        tables = [table for table in self._tables() if table is not None]
        return [f"read table {table} into topic {self._topic(table)}" for table in tables]

    def facts(self) -> Mapping[str, Any]:
        return {"tables": len(self._selections), "waits_for_transactions": self._waits_for}

    def close(self) -> None:
        self._database.close()

    # Tables

    def _tables(self) -> list[TableName | None]:
        """Return the tables and views whose names match the settings; None is the query."""
        if self.settings.query:
            return [None]
        found: dict[str, TableName] = {}
        with self._database.errors():
            inspector = self._database.inspector()
            for pattern in self.settings.tables:
                wanted = TableName.parse(pattern)
                schemas = [wanted.schema]
                if wanted.schema and any(mark in wanted.schema for mark in "*?["):
                    schemas = list(fnmatch.filter(inspector.get_schema_names(), wanted.schema))
                for schema in schemas:
                    names = inspector.get_table_names(schema) + inspector.get_view_names(schema)
                    for name in fnmatch.filter(sorted(names), wanted.name):
                        table = TableName(schema, name)
                        found[str(table)] = table
        return list(found.values())

    def _topic(self, table: TableName | None) -> str:
        name = QUERY if table is None else table.name
        schema = (None if table is None else table.schema) or self._default_schema()
        topic = self.settings.topic.replace("{table}", name).replace("{schema}", schema)
        validate_topic_name(topic)
        return topic

    def _default_schema(self) -> str:
        if "{schema}" not in self.settings.topic:
            return ""
        with self._database.errors():
            return self._database.inspector().default_schema_name or "main"

    def _select(self, table: TableName | None) -> Selection:
        """Return the selection of a table, or of the query.

        Raises:
            ConnectorFailed: a column of the settings does not exist, or the table cannot be read.
        """
        settings = self.settings
        types: dict[str, Any] = {}
        primary: tuple[str, ...] = ()
        if table is None:
            escaped = settings.query.strip().rstrip(";").replace(":", "\\:")
            source: Any = sa.text(f"({escaped}) penstock_query")
        else:
            source = table.clause()
            with self._database.errors():
                inspector = self._database.inspector()
                key = inspector.get_pk_constraint(table.name, table.schema)
                primary = tuple(key["constrained_columns"])
                types = self._database.columns(table)
        columns = self._reader.columns(sa.select(sa.text("*")).select_from(source), types)
        order, unique = self._order(primary)
        name = str(table) if table is not None else QUERY
        keys = settings.keys or primary
        there = {column.name for column in columns}
        missing = [column for column in (*order, *keys) if column not in there]
        if missing:
            raise ConnectorFailed(f"{name} has no column {missing[0]}; it has {sorted(there)}")
        return Selection(
            name=name, topic=self._topic(table), source=source, columns=columns, order=order,
            unique=unique, keys=keys, table=table,
            bounded="" if settings.mode == "bulk" else order[0],
        )  # fmt: skip

    def _order(self, primary: tuple[str, ...]) -> tuple[tuple[str, ...], bool]:
        """Return the columns that order rows, and whether their values are unique."""
        settings = self.settings
        given = (settings.timestamp_column, settings.incrementing_column)
        order = tuple(column for column in given if column)
        if settings.incrementing_column or not order:
            return order or primary, True
        return tuple(dict.fromkeys((*order, *primary))), bool(primary)

    # Rows

    def read(self, positions: Mapping[str, Any]) -> Iterator[SourceBatch]:
        stored = dict(positions)
        while True:
            tables = self._tables()
            if not tables:
                raise ConnectorFailed(f"no table has a name of {list(self.settings.tables)}")
            for table in tables:
                name = str(table) if table is not None else QUERY
                if name not in self._selections:
                    self._selections[name] = self._select(table)
                for batch in self._reading(self._selections[name], stored.get(name)):
                    stored |= batch.positions
                    yield batch
            yield SourceBatch(caught_up=True)
            yield from waited(self.settings.poll_interval_seconds)

    def _reading(self, selection: Selection, position: Any) -> Iterator[SourceBatch]:
        """Yield the rows of a selection that are there now and that follow a position."""
        if not selection.order:
            statement = sa.select(*_named(selection.columns)).select_from(selection.source)
            chunks = self._reader.stream(statement, selection.columns, self.settings.batch_rows)
            for rows in chunks:
                yield self._batch(selection, rows, {})
            return
        last = self._checked(selection, position)
        bound = None
        if selection.bounded:
            bound = self._bound(selection)
            if bound is None:
                return
            yield from self._writers_ended(selection)
        while True:
            rows, last = self._chunk(selection, last, bound)
            ended = rows.num_rows == 0
            if ended and selection.bounded:
                return
            state = None if ended else {"mode": self.settings.mode, "after": list(last)}
            yield self._batch(selection, rows, {selection.name: state})
            if ended:
                return

    def _checked(self, selection: Selection, position: Any) -> tuple[Any, ...]:
        if position is None:
            return ()
        if position["mode"] != self.settings.mode or len(position["after"]) != len(selection.order):
            raise ConnectorFailed(
                f"{selection.name} was read in mode {position['mode']!r} with other columns. Give"
                " the connector another name to read all rows again, or restore the settings"
            )
        return tuple(position["after"])

    def _chunk(
        self, selection: Selection, last: tuple[Any, ...], bound: Any
    ) -> tuple[Any, tuple[Any, ...]]:
        """Return the next rows and the position after them."""
        limit = self.settings.batch_rows
        statement = self._statement(selection, last, bound)
        chunk = self._reader.read(statement.limit(limit), selection.columns, selection.order)
        if selection.unique or chunk.rows.num_rows < limit:
            return chunk.rows, chunk.last or last
        # Rows with the timestamp of the last row may follow: read all of them in one chunk.
        name, (moment,) = selection.order[0], chunk.last
        column = chunk.rows.column(name)
        before = chunk.rows.filter(pc.less(column, column[-1]))
        same = self._statement(selection, (), None).where(sa.column(name) == value(moment))
        equal = self._reader.read(same, selection.columns, ())
        return pa.concat_tables([before, equal.rows]), chunk.last

    def _statement(self, selection: Selection, last: tuple[Any, ...], bound: Any) -> sa.Select[Any]:
        order: list[sa.ColumnClause[Any]] = [sa.column(name) for name in selection.order]
        statement = (
            sa.select(*_named(selection.columns)).select_from(selection.source).order_by(*order)
        )
        if bound is not None:
            statement = statement.where(sa.column(selection.bounded) <= value(bound))
        if last:
            statement = statement.where(_after(order, last, self._database.dialect))
        return statement

    def _batch(self, selection: Selection, rows: Any, positions: Mapping[str, Any]) -> SourceBatch:
        if not rows.num_rows:
            return SourceBatch(positions=positions)
        made = {"value": _struct(rows, rows.column_names)}
        if selection.keys:
            made = {"key": _struct(rows, selection.keys), **made}
        return SourceBatch(records=(Records(selection.topic, pa.table(made)),), positions=positions)

    # Upper bound

    def _bound(self, selection: Selection) -> Any:
        """Return the largest value that this reading includes; None if there are no rows."""
        if not self.settings.timestamp_column:
            column: Any = sa.func.max(sa.column(selection.bounded))
            with self._database.transaction() as connection:
                statement = sa.select(column).select_from(selection.source)
                return connection.execute(statement).scalar()
        delay = self.settings.delay_seconds
        with self._database.transaction() as connection:
            if self._database.postgres:
                moment = connection.execute(sa.text(_POSTGRES_NOW), {"delay": delay}).scalar()
                column_kind = {column.name: column.kind for column in selection.columns}
                if getattr(column_kind[selection.bounded], "tz", None):
                    return str(moment)
                zoned = sa.func.timezone(self.settings.timezone, moment)
                return str(connection.execute(sa.select(zoned)).scalar())
            if self._database.dialect == "sqlite":
                given = {"delay": f"-{delay} seconds"}
                return connection.execute(sa.text(_SQLITE_NOW), given).scalar()
            now = connection.execute(sa.select(sa.func.current_timestamp())).scalar()
            return now - timedelta(seconds=delay)  # type: ignore[operator]

    def _writers_ended(self, selection: Selection) -> Iterator[SourceBatch]:
        """Wait until the transactions that now write to the table have ended."""
        if selection.table is None or not self._database.postgres:
            return
        given = {"name": self._database.quoted(selection.table)}
        before: set[str] | None = None
        while True:
            with self._database.transaction() as connection:
                writers = set(connection.execute(sa.text(_WRITERS), given).scalars())
            before = writers if before is None else before & writers
            self._waits_for = len(before)
            if not before:
                return
            yield from waited(0.02)


def _after(order: Sequence[Any], last: tuple[Any, ...], dialect: str) -> Any:
    """Return the condition that the ordered columns are larger than a row of values."""
    if dialect in ROW_COMPARISONS and len(order) > 1:
        return sa.tuple_(*order) > sa.tuple_(*(value(item) for item in last))
    conditions = []
    for at, column in enumerate(order):
        equal = [before == value(last[i]) for i, before in enumerate(order[:at])]
        conditions.append(sa.and_(*equal, column > value(last[at])))
    return sa.or_(*conditions)


def _named(columns: Sequence[Column]) -> list[sa.ColumnClause[Any]]:
    return [sa.column(column.name) for column in columns]


def _struct(rows: Any, names: Sequence[str]) -> Any:
    arrays = [whole(rows.column(name)) for name in names]
    fields = [pa.field(name, array.type) for name, array in zip(names, arrays, strict=True)]
    return pa.StructArray.from_arrays(arrays, fields=fields)
