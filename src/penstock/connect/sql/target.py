"""Table that a sink writes: its columns, the forms of their values, and statements by dialect.

| database   | insert            | upsert                                 | delete           |
|------------|-------------------|----------------------------------------|------------------|
| PostgreSQL | `COPY`            | `COPY`, then `INSERT … ON CONFLICT`    | `COPY`, `DELETE` |
| SQLite     | `INSERT` of rows  | `INSERT … ON CONFLICT`                 | `DELETE`         |
| others     | `INSERT` of rows  | `UPDATE`, then `INSERT` of absent keys | `DELETE`         |

Values get the types of the table's columns. Texts of a column of bytes are base64, as JSON values
have them. Whole numbers of a timestamp are microseconds since 1970, of a date days.
"""

from __future__ import annotations

import base64
import io
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from pyarrow import csv
from sqlalchemy.dialects import postgresql, sqlite

from penstock.connect.converting import DIGITS_MAX, exact, whole
from penstock.connect.postgresql.values import INFINITE_US
from penstock.connect.sql.databases import Database, TableName, ValuesRejected
from penstock.connect.sql.reading import TIMESTAMP, TIMESTAMP_TZ
from penstock.formats.json.writing import json_values

SQLITE_DIGITS_MAX: Final = 15
"""Digits of a decimal that SQLite keeps in a numeric column."""
KEY_CHARACTERS: Final = 255
"""Length of a text in a key, in databases that need it."""
_BASE64: Final = r"^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
_INFINITE: Final = {
    False: (INFINITE_US["infinity"], INFINITE_US["-infinity"]),
    True: (2**31 - 1, -(2**31)),
}
"""Counts of infinite timestamps and dates, as the sources of PostgreSQL write them."""
_UNKNOWN: Final = sa.types.NullType()


class Target:
    """Table of a database.

    Attributes:
        columns: SQLAlchemy types by name; empty if the table does not exist.
    """

    def __init__(self, database: Database, name: TableName) -> None:
        self.name = name
        self._database = database
        self._sql = database.quoted(name)
        self.columns: Mapping[str, Any] = {}
        self.refresh()

    def refresh(self) -> None:
        """Read the columns of the table; none if it does not exist."""
        self.columns = self._database.columns(self.name)

    def unique(self, keys: Sequence[str]) -> bool:
        """Return whether the table has a primary key or unique index of exactly these columns."""
        with self._database.errors():
            inspector, place = self._database.inspector(), (self.name.name, self.name.schema)
            found: list[Sequence[str | None]] = [
                inspector.get_pk_constraint(*place)["constrained_columns"]
            ]
            found += [item["column_names"] for item in inspector.get_unique_constraints(*place)]
            found += [
                item["column_names"] for item in inspector.get_indexes(*place) if item["unique"]
            ]
        return any(set(columns) == set(keys) for columns in found)

    # Definition

    def create(self, kinds: Mapping[str, Any], keys: Sequence[str]) -> None:
        """Create the table with columns of Arrow types."""
        with self._database.transaction() as connection:
            columns = [
                sa.Column(name, self._type(kind, name in keys), primary_key=name in keys,
                          autoincrement=False)
                for name, kind in kinds.items()
            ]  # fmt: skip
            table = sa.Table(self.name.name, sa.MetaData(), *columns, schema=self.name.schema)
            table.create(connection, checkfirst=True)
        self.refresh()

    def add(self, kinds: Mapping[str, Any]) -> None:
        """Add columns of Arrow types."""
        word = "" if self._database.dialect in ("mssql", "oracle") else "COLUMN "
        with self._database.transaction() as connection:
            for name, kind in kinds.items():
                column = f"{self._database.identifier(name)} {self.sql_type(kind)}"
                connection.exec_driver_sql(f"ALTER TABLE {self._sql} ADD {word}{column}")
        self.refresh()

    def sql_type(self, kind: Any) -> str:
        """Return the type that a created column has, as SQL."""
        return str(self._type(kind, key=False).compile(dialect=self._database.engine.dialect))

    def _type(self, kind: Any, key: bool) -> sa.types.TypeEngine[Any]:
        if pa.types.is_nested(kind):
            return self._nested_type(kind)
        if pa.types.is_decimal(kind):
            wide = self._database.dialect == "sqlite" and kind.precision > SQLITE_DIGITS_MAX
            return sa.Text() if wide else sa.Numeric(kind.precision, kind.scale)
        if pa.types.is_timestamp(kind):
            return sa.DateTime(timezone=kind.tz is not None)
        for matches, made in _TYPES:
            if matches(kind):
                return made
        bounded = key and self._database.dialect not in ("postgresql", "sqlite")
        return sa.String(KEY_CHARACTERS) if bounded else sa.Text()

    def _nested_type(self, kind: Any) -> sa.types.TypeEngine[Any]:
        if not self._database.postgres:
            return sa.JSON()
        if pa.types.is_list(kind) and not pa.types.is_nested(kind.value_type):
            return postgresql.ARRAY(self._type(kind.value_type, key=False))
        return postgresql.JSONB()

    # Rows

    def insert(self, connection: sa.Connection, rows: Any) -> None:
        """Insert rows.

        Raises:
            ValuesRejected: a value has no form in the type of its column.
            sa.exc.DBAPIError: the database rejects the rows.
        """
        if self._database.postgres:
            self._copy(connection, self._sql, rows)
        else:
            self._many(connection, self.name.clause(*rows.column_names).insert(), rows)

    def upsert(self, connection: sa.Connection, rows: Any, keys: Sequence[str]) -> None:
        """Insert rows, or update the rows that have their keys; no two rows have the same key."""
        names = rows.column_names
        others = [name for name in names if name not in keys]
        clause = self.name.clause(*names)
        if self._database.postgres:
            stage = self._staged(connection, rows)
            statement = postgresql.insert(clause).from_select(names, sa.select(*stage.columns))
            connection.execute(_on_conflict(statement, keys, others))
        elif self._database.dialect == "sqlite":
            self._many(connection, _on_conflict(sqlite.insert(clause), keys, others), rows)
        else:
            same = [clause.c[key] == sa.bindparam(f"k_{key}", type_=_UNKNOWN) for key in keys]
            values = {name: sa.bindparam(f"k_{name}", type_=_UNKNOWN) for name in names}
            absent = sa.select(*values.values()).where(~sa.exists().where(*same))
            if others:
                changed = {name: values[name] for name in others}
                self._many(connection, clause.update().where(*same).values(changed), rows, "k_")
            self._many(connection, clause.insert().from_select(names, absent), rows, "k_")

    def delete(self, connection: sa.Connection, rows: Any) -> None:
        """Delete the rows that have these keys."""
        clause = self.name.clause(*rows.column_names)
        if self._database.postgres:
            stage = self._staged(connection, rows)
            same = [clause.c[name] == stage.c[name] for name in rows.column_names]
            connection.execute(sa.delete(clause).where(*same))
            return
        bound = [
            clause.c[name] == sa.bindparam(f"k_{name}", type_=_UNKNOWN)
            for name in rows.column_names
        ]
        self._many(connection, sa.delete(clause).where(*bound), rows, "k_")

    def _staged(self, connection: sa.Connection, rows: Any) -> sa.TableClause:
        """Return a temporary table that has the rows, in the types of this table."""
        names = rows.column_names
        number = zlib.crc32(f"{self._sql} {self.columns}".encode())
        stage = sa.table(f"penstock_rows_{number}", *(sa.column(name) for name in names))
        connection.exec_driver_sql(
            f"CREATE TEMP TABLE IF NOT EXISTS {stage.name} ON COMMIT DELETE ROWS"
            f" AS TABLE {self._sql} WITH NO DATA"
        )
        connection.execute(sa.delete(stage))
        self._copy(connection, f"pg_temp.{stage.name}", rows)
        return stage

    def _copy(self, connection: sa.Connection, table: str, rows: Any) -> None:
        """Write rows into a table of PostgreSQL as CSV."""
        names = rows.column_names
        texts = self._formed(rows, postgres_texts)
        target = io.BytesIO()
        csv.write_csv(
            pa.table(texts, names),
            target,
            csv.WriteOptions(include_header=False, batch_size=max(len(rows), 1)),
        )
        target.seek(0)
        columns = ", ".join(self._database.identifier(name) for name in names)
        raw: Any = connection.connection.driver_connection
        with raw.cursor() as cursor:
            cursor.copy_expert(f"COPY {table} ({columns}) FROM STDIN (FORMAT csv)", target)

    def _formed(self, rows: Any, form: Callable[[Any, Any], Any]) -> list[Any]:
        """Return the columns of rows in the forms of their types.

        Raises:
            ValuesRejected: a value has no such form; the error names the column.
        """
        found = []
        for name, column in zip(rows.column_names, rows.columns, strict=True):
            try:
                found.append(form(whole(column), self.columns.get(name, _UNKNOWN)))
            except ValuesRejected as error:
                raise ValuesRejected(f"column {name}: {error}") from error
        return found

    def _many(self, connection: sa.Connection, statement: Any, rows: Any, prefix: str = "") -> None:
        """Run a statement for each row."""
        values = self._formed(rows, partial(driver_values, dialect=self._database.dialect))
        names = [prefix + name for name in rows.column_names]
        parameters = [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]
        connection.execute(statement, parameters)


_TYPES: Final[Sequence[tuple[Callable[[Any], bool], sa.types.TypeEngine[Any]]]] = (
    (pa.types.is_boolean, sa.Boolean()),
    (pa.types.is_uint64, sa.Numeric(20, 0)),
    (lambda kind: kind in (pa.int64(), pa.uint32()), sa.BigInteger()),
    (lambda kind: kind in (pa.int8(), pa.uint8(), pa.int16()), sa.SmallInteger()),
    (pa.types.is_integer, sa.Integer()),
    (pa.types.is_float32, sa.REAL()),
    (pa.types.is_floating, sa.Double()),
    (pa.types.is_date, sa.Date()),
    (pa.types.is_time, sa.Time()),
    (pa.types.is_binary, sa.LargeBinary()),
    (pa.types.is_large_binary, sa.LargeBinary()),
)


def _on_conflict(statement: Any, keys: Sequence[str], others: Sequence[str]) -> Any:
    if not others:
        return statement.on_conflict_do_nothing(index_elements=keys)
    changed = {name: statement.excluded[name] for name in others}
    return statement.on_conflict_do_update(index_elements=keys, set_=changed)


# Forms of values


def postgres_texts(column: Any, given: Any) -> Any:
    """Return a column in a form whose CSV PostgreSQL reads in the type of its column."""
    if isinstance(given, sa.ARRAY) and pa.types.is_list(column.type):
        return _array_texts(column)
    column = _typed(column, given, "postgresql")
    kind = column.type
    if pa.types.is_nested(kind):
        return json_values(column)
    if pa.types.is_binary(kind):
        return _hex(column)
    if pa.types.is_timestamp(kind) or pa.types.is_date32(kind):
        return _moments(column)
    if pa.types.is_decimal(kind) or pa.types.is_time(kind):
        return column.cast(pa.string())
    return column


def _moments(column: Any) -> Any:
    """Return dates or timestamps as texts; the largest and smallest values are infinite."""
    days = pa.types.is_date32(column.type)
    largest, smallest = _INFINITE[days]
    counts = column.cast(pa.int32() if days else pa.int64())
    if not days and column.type.unit != "us":
        return column.cast(pa.string())
    texts = pc.if_else(pc.greater_equal(counts, largest), "infinity", column.cast(pa.string()))
    return pc.if_else(pc.less_equal(counts, smallest), "-infinity", texts)


def driver_values(column: Any, given: Any, dialect: str) -> list[Any]:
    """Return a column as values for a driver."""
    column = _typed(column, given, dialect)
    if isinstance(given, sa.DateTime) and pa.types.is_string(column.type):
        column = _parsed(column)
    kind = column.type
    if pa.types.is_nested(kind):
        column = json_values(column)
    elif dialect == "sqlite":
        if pa.types.is_timestamp(kind):
            column = column.cast(pa.timestamp("us", kind.tz)).cast(TIMESTAMP).cast(pa.string())
        elif not (pa.types.is_binary(kind) or _plain(kind)):
            column = column.cast(pa.string())
    found: list[Any] = column.to_pylist()
    return found


def _parsed(texts: Any) -> Any:
    """Return timestamps of texts with or without a time zone.

    Raises:
        ValuesRejected: a text is not a timestamp.
    """
    try:
        zoned = pc.match_substring_regex(texts, r"(Z|T.*[+-]\d\d(:?\d\d)?)$")
        kind = TIMESTAMP_TZ if pc.any(zoned).as_py() else TIMESTAMP
        return texts.cast(kind)
    except pa.ArrowException as error:
        raise ValuesRejected(str(error)) from error


def _plain(kind: Any) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or kind == pa.bool_())


def _typed(column: Any, given: Any, dialect: str) -> Any:
    """Return texts and numbers as bytes or times, if the table's column has such a type.

    Raises:
        ValuesRejected: a text is not of the type, or the type does not have a number exactly.
    """
    texts = pa.types.is_string(column.type)
    whole_numbers = pa.types.is_integer(column.type)
    try:
        if isinstance(given, sa.LargeBinary) and texts:
            return from_base64(column)
        if isinstance(given, sa.DateTime) and whole_numbers:
            return column.cast(pa.int64()).cast(TIMESTAMP)
        if isinstance(given, sa.Date) and whole_numbers:
            return column.cast(pa.int32()).cast(pa.date32())
    except pa.ArrowException as error:
        raise ValuesRejected(str(error)) from error
    return _number(column, given, dialect) if isinstance(given, (sa.Numeric, sa.Float)) else column


def _number(column: Any, given: Any, dialect: str) -> Any:
    """Return numbers in a form that the table's column stores unchanged.

    Raises:
        ValuesRejected: the column would round a number.
    """
    kind = column.type
    whole_numbers = pa.types.is_integer(kind)
    decimals, doubles = pa.types.is_decimal(kind), pa.types.is_floating(kind)
    try:
        if isinstance(given, sa.Float) or (dialect == "sqlite" and decimals):
            return exact(column, pa.float64()) if whole_numbers or decimals else column
        if given.scale is not None and (decimals or doubles):
            finite = column if decimals else column.filter(pc.is_finite(column))
            exact(finite, pa.decimal256(DIGITS_MAX, given.scale))
    except pa.ArrowException as error:
        shown = f"the number {column[0]}" if len(column) == 1 else "a number"
        raise ValuesRejected(f"{shown} does not fit {given} without rounding") from error
    return column


def from_base64(texts: Any) -> Any:
    """Return the bytes of texts in base64 (RFC 4648, with padding); null stays null.

    Raises:
        ValuesRejected: a text is not base64.
    """
    if not pc.all(pc.match_substring_regex(texts, _BASE64), min_count=0).as_py():
        raise ValuesRejected("a text for a column of bytes is not base64")
    given = texts.fill_null("")
    lengths = pc.binary_length(given).to_numpy(zero_copy_only=False) // 4 * 3
    padding = pc.count_substring(given, "=").to_numpy(zero_copy_only=False)
    # Padding becomes digits of zero bits, so that one call decodes all texts.
    joined = "".join(pc.replace_substring(given, "=", "A").to_pylist())
    data = np.frombuffer(base64.b64decode(joined), np.uint8)
    kept = np.ones(len(data), np.bool_)
    ends = np.cumsum(lengths)
    kept[ends[padding > 0] - 1] = False
    kept[ends[padding > 1] - 2] = False
    offsets = np.concatenate(([0], np.cumsum(lengths - padding))).astype(np.int32)
    found = pa.BinaryArray.from_buffers(
        pa.binary(), len(given), [None, pa.py_buffer(offsets), pa.py_buffer(data[kept])]
    )
    return pc.if_else(texts.is_valid(), found, None) if texts.null_count else found


def _hex(column: Any) -> Any:
    r"""Return bytes as texts such as `\x00ff`."""
    values = column.cast(pa.large_binary())
    lengths = pc.binary_length(values).fill_null(0).to_numpy(zero_copy_only=False)
    data = b"".join(item or b"" for item in values.to_pylist()).hex().encode()
    offsets = np.concatenate(([0], np.cumsum(lengths * 2))).astype(np.int64)
    digits = pa.LargeStringArray.from_buffers(
        len(values), pa.py_buffer(offsets), pa.py_buffer(data)
    ).cast(pa.string())
    texts = pc.binary_join_element_wise("\\x", digits, "")
    return pc.if_else(values.is_valid(), texts, None) if values.null_count else texts


def _array_texts(column: Any) -> Any:
    """Return lists as the texts of PostgreSQL's arrays, such as `{1,NULL,"a b"}`."""
    items = column.flatten()
    if pa.types.is_binary(items.type):
        items = _hex(items)
    plain = _plain(items.type)
    texts = items.cast(pa.string())
    if not plain:
        for mark in ("\\", '"'):
            texts = pc.replace_substring(texts, mark, "\\" + mark)
        texts = pc.binary_join_element_wise('"', texts, '"', "")
    lengths = pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False)
    offsets = pa.array(np.concatenate(([0], np.cumsum(lengths))).astype(np.int32))
    lists = pa.ListArray.from_arrays(offsets, texts.fill_null("NULL"))
    joined = pc.binary_join_element_wise("{", pc.binary_join(lists, ","), "}", "")
    return pc.if_else(column.is_valid(), joined, None) if column.null_count else joined
