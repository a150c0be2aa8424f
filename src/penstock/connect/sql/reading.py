"""Readers of statements as Arrow columns.

| database   | transfer                                       | types                            |
|------------|------------------------------------------------|----------------------------------|
| PostgreSQL | `COPY` as CSV, or texts of a cursor            | of the statement                 |
| others     | rows of the driver, converted column by column | of the table, else of the values |

Numbers with a precision of up to 38 digits are decimals, and texts otherwise. Times without a date,
JSON, UUIDs, intervals and all other types are texts. Integers of other databases are int64.
"""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import psycopg2.extensions
import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from pyarrow import csv

from penstock.connect.converting import whole
from penstock.connect.errors import ConnectorFailed
from penstock.connect.postgresql.values import PgType, ValueRules, converter
from penstock.connect.sql.databases import Database

DECIMAL_DIGITS_MAX: Final = 38
TIMESTAMP: Final = pa.timestamp("us")
TIMESTAMP_TZ: Final = pa.timestamp("us", "UTC")
_POSTGRES_KINDS: Final = {
    "bool": pa.bool_(), "int2": pa.int16(), "int4": pa.int32(), "int8": pa.int64(),
    "oid": pa.int64(), "float4": pa.float32(), "float8": pa.float64(), "bytea": pa.binary(),
    "date": pa.date32(), "timestamp": TIMESTAMP, "timestamptz": TIMESTAMP_TZ,
}  # fmt: skip
_PARSED: Final = ("bool", "int2", "int4", "int8", "oid", "float4", "float8")
"""Types whose texts Arrow's CSV parser converts."""
_RULES: Final = ValueRules()
_TYPES: Final = """
    SELECT t.oid, t.typname, e.typname FROM pg_type t
    LEFT JOIN pg_type e ON e.oid = t.typelem AND t.typcategory = 'A' WHERE t.oid = ANY(:ids)
"""


@dataclass(frozen=True, slots=True)
class Column:
    """Column of a statement's result.

    Attributes:
        kind: Arrow type; None if it depends on the values.
        type: type in PostgreSQL.
    """

    name: str
    kind: Any = None
    type: PgType | None = None


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows of a result. `last` has the key values of the last row, as the database wrote them."""

    rows: Any
    last: tuple[Any, ...] = ()


class Reader(ABC):
    """Reader of statements of one kind of database."""

    def __init__(self, database: Database) -> None:
        self.database = database

    @abstractmethod
    def columns(self, statement: sa.Select[Any], types: Mapping[str, Any]) -> tuple[Column, ...]:
        """Return the columns of a statement.

        Args:
            types: SQLAlchemy types of the columns of the table; empty for a query.
        """

    @abstractmethod
    def read(
        self, statement: sa.Select[Any], columns: Sequence[Column], keys: Sequence[str]
    ) -> Chunk:
        """Return all rows of a statement, which the caller has limited.

        Raises:
            ConnectorFailed: a value has no form in the type of its column.
        """

    @abstractmethod
    def stream(
        self, statement: sa.Select[Any], columns: Sequence[Column], rows: int
    ) -> Iterator[Any]:
        """Yield tables of at most `rows` rows, from a cursor of the server."""


def reader_of(database: Database) -> Reader:
    return PostgresReader(database) if database.postgres else RowReader(database)


class PostgresReader(Reader):
    """Reader of PostgreSQL's text forms."""

    def columns(self, statement: sa.Select[Any], types: Mapping[str, Any]) -> tuple[Column, ...]:
        with self.database.transaction() as connection:
            return described(connection, statement.limit(0))

    def read(
        self, statement: sa.Select[Any], columns: Sequence[Column], keys: Sequence[str]
    ) -> Chunk:
        with self.database.transaction() as connection:
            texts = copied(connection, statement, columns)
        rows = converted(texts, columns)
        at = [position for position, column in enumerate(columns) if column.name in keys]
        places = {columns[position].name: position for position in at}
        last = tuple(texts.column(places[key])[-1].as_py() for key in keys) if len(texts) else ()
        return Chunk(rows, last)

    def stream(
        self, statement: sa.Select[Any], columns: Sequence[Column], rows: int
    ) -> Iterator[Any]:
        ids = tuple(column.type.id for column in columns if column.type is not None)
        as_text = psycopg2.extensions.new_type(ids, "TEXT", lambda text, _cursor: text)
        names = [str(at) for at in range(len(columns))]
        with (
            self.database.transaction() as connection,
            _driver(connection).cursor("penstock_rows") as cursor,
        ):
            psycopg2.extensions.register_type(as_text, cursor)
            cursor.execute(*_compiled(connection, statement))
            while chunk := cursor.fetchmany(rows):
                texts = [pa.array(taken, pa.large_string()) for taken in zip(*chunk, strict=True)]
                yield converted(pa.table(texts, names), columns)


def described(connection: sa.Connection, statement: Any) -> tuple[Column, ...]:
    """Return the columns of a statement of PostgreSQL that returns no rows."""
    cursor = connection.execute(statement).cursor
    found: list[Any] = [] if cursor is None else list(cursor.description or ())
    ids = [item.type_code for item in found]
    types = connection.execute(sa.text(_TYPES), {"ids": ids})
    names = {oid: (name, element) for oid, name, element in types}
    return tuple(_postgres_column(item, *names[item.type_code]) for item in found)


def converted(texts: Any, columns: Sequence[Column]) -> Any:
    """Return a table of PostgreSQL's texts in the types of its columns."""
    arrays = [_of_texts(column, whole(texts.column(at))) for at, column in enumerate(columns)]
    return pa.table(arrays, [column.name for column in columns])


def copied(connection: sa.Connection, statement: Any, columns: Sequence[Column]) -> Any:
    """Return the result of a statement of PostgreSQL as a table of texts, numbers and booleans.

    Columns are named by their positions.
    """
    cursor = _driver(connection).cursor()
    query, parameters = _compiled(connection, statement)
    target = io.BytesIO()
    with cursor:
        text = cursor.mogrify(query, parameters).decode()
        cursor.copy_expert(f"COPY ({text}) TO STDOUT (FORMAT csv)", target)
    names = [str(position) for position in range(len(columns))]
    kinds = [
        column.kind
        if column.type is not None and column.type.name in _PARSED
        else pa.large_string()
        for column in columns
    ]
    schema = pa.schema(list(zip(names, kinds, strict=True)))
    size = target.tell()
    if not size:
        return schema.empty_table()
    target.seek(0)
    return csv.read_csv(
        target,
        csv.ReadOptions(column_names=names, use_threads=False, block_size=size + 1),
        csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        csv.ConvertOptions(
            column_types=schema,
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            true_values=["t"],
            false_values=["f"],
        ),
    )


def _driver(connection: sa.Connection) -> Any:
    found = connection.connection.driver_connection
    if found is None:
        raise ConnectorFailed("the connection was closed")
    return found


def _compiled(connection: sa.Connection, statement: Any) -> tuple[str, Any]:
    compiled = statement.compile(
        dialect=connection.dialect, compile_kwargs={"render_postcompile": True}
    )
    return str(compiled), compiled.params


def _postgres_column(item: Any, name: str, element: str | None) -> Column:
    inner = PgType(id=0, name=element) if element is not None else None
    kind = _POSTGRES_KINDS.get(element or name, pa.string())
    if name == "numeric":
        kind = _number(item.precision, item.scale)
    if inner is not None:
        kind = pa.list_(kind)
    return Column(item.name, kind, PgType(id=item.type_code, name=name, element=inner))


def _of_texts(column: Column, texts: Any) -> Any:
    """Return a column of PostgreSQL's texts in its Arrow type."""
    kind, origin = column.kind, column.type
    if texts.type == kind or origin is None:
        return texts
    try:
        if pa.types.is_decimal(kind):
            return texts.cast(kind)
        if origin.name.strip("_") in ("timestamp", "timestamptz"):
            texts = pc.replace_substring(texts, "+00", "")
        plain = _untimed(origin)
        return converter(plain, _RULES)(texts).cast(kind)
    except (pa.ArrowException, ValueError) as error:
        raise _no_form(column, error) from error


def _untimed(origin: PgType) -> PgType:
    """Return the type whose converter has exact values: other types than these stay texts."""
    element = None if origin.element is None else _untimed(origin.element)
    name = {"timestamptz": "timestamp"}.get(origin.name, origin.name)
    if name not in _POSTGRES_KINDS and element is None:
        name = "text"
    return PgType(id=origin.id, name=name, element=element)


def _no_form(column: Column, error: Exception) -> ConnectorFailed:
    return ConnectorFailed(
        f"column {column.name} has a value that is not {column.kind}: {error}. Read the table with"
        " `query`, and cast the column there"
    )


class RowReader(Reader):
    """Reader of rows of any driver."""

    def columns(self, statement: sa.Select[Any], types: Mapping[str, Any]) -> tuple[Column, ...]:
        with self.database.transaction() as connection:
            names = list(connection.execute(statement.limit(0)).keys())
        return tuple(Column(name, kind_of(types[name]) if types else None) for name in names)

    def read(
        self, statement: sa.Select[Any], columns: Sequence[Column], keys: Sequence[str]
    ) -> Chunk:
        with self.database.transaction() as connection:
            rows = connection.execute(statement).fetchall()
        places = {column.name: at for at, column in enumerate(columns)}
        last = tuple(rows[-1][places[key]] for key in keys) if rows else ()
        return Chunk(_of_rows(columns, rows), last)

    def stream(
        self, statement: sa.Select[Any], columns: Sequence[Column], rows: int
    ) -> Iterator[Any]:
        with self.database.transaction() as connection:
            result = connection.execution_options(stream_results=True).execute(statement)
            for chunk in result.partitions(rows):
                yield _of_rows(columns, chunk)


def kind_of(given: sa.types.TypeEngine[Any]) -> Any:
    """Return the Arrow type of a column; None if it depends on the values."""
    if isinstance(given, sa.Numeric) and not isinstance(given, sa.Float):
        return _number(given.precision, given.scale or 0)
    for types, kind in _KINDS:
        if isinstance(given, types):
            zoned = kind == TIMESTAMP and getattr(given, "timezone", False)
            return TIMESTAMP_TZ if zoned else kind
    return None if isinstance(given, sa.types.NullType) else pa.string()


_KINDS: Final = (
    (sa.Boolean, pa.bool_()),
    (sa.Integer, pa.int64()),
    (sa.Float, pa.float64()),
    (sa.DateTime, TIMESTAMP),
    (sa.Date, pa.date32()),
    (sa.LargeBinary, pa.binary()),
)


def _number(precision: int | None, scale: int | None) -> Any:
    if precision is None or scale is None or not 0 <= scale <= precision <= DECIMAL_DIGITS_MAX:
        return pa.string()
    return pa.decimal128(precision, scale)


def _of_rows(columns: Sequence[Column], rows: Sequence[Any]) -> Any:
    taken = zip(*rows, strict=True) if rows else ([] for _ in columns)
    arrays = [_of_values(column, values) for column, values in zip(columns, taken, strict=True)]
    return pa.table(arrays, [column.name for column in columns])


def _of_values(column: Column, values: Any) -> Any:
    """Return the values of a driver as an array of the column's type."""
    if column.kind == pa.string():
        return pa.array([None if item is None else _text(item) for item in values], pa.string())
    try:
        found = pa.array(values)
        if pa.types.is_integer(found.type) and pa.types.is_decimal(column.kind or found.type):
            found = found.cast(pa.decimal128(DECIMAL_DIGITS_MAX, column.kind.scale))
        return found if column.kind is None else found.cast(column.kind)
    except (pa.ArrowException, OverflowError) as error:
        raise _no_form(column, error) from error


def _text(item: Any) -> str:
    return item.decode(errors="replace") if isinstance(item, bytes) else str(item)
