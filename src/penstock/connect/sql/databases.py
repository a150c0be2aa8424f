"""Database of a connector: its connections, and its errors by what the runner does.

Any database that SQLAlchemy has a driver for can be used. PostgreSQL is reached by psycopg2, whose
`COPY` transfers columns instead of rows.

| failure                                                | the connector raises                   |
|--------------------------------------------------------|----------------------------------------|
| lost or refused connection, shutdown, deadlock, lock   | `SourceUnavailable`, `SinkUnavailable` |
| value that a constraint or a type rejects              | `ValuesRejected`                       |
| any other, such as a wrong password or a missing table | `ConnectorFailed`                      |
"""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Final

import sqlalchemy as sa

from penstock.base.errors import InvalidError, RetriableError
from penstock.base.urls import without_credentials_in
from penstock.connect.errors import ConnectorFailed
from penstock.connect.plugins import SourceBatch

PAUSE_SECONDS: Final = 0.05
"""Longest time between two batches of a source that waits."""
_POSTGRES: Final = re.compile(r"postgres(ql)?(?=:)")
_SESSION: Final = (
    "SET TIME ZONE 'UTC'; SET datestyle = 'ISO'; SET intervalstyle = 'postgres';"
    " SET bytea_output = 'hex'; SET extra_float_digits = 1; SET client_encoding = 'UTF8';"
    " SET application_name = 'penstock-connect'"
)
"""Settings of PostgreSQL that determine the text forms of values, and the name of the session."""
_RETRIED: Final = ("08", "40", "53", "57", "55P03")
"""SQLSTATE classes and codes of failures after which a retry may succeed."""
_REJECTED: Final = ("22", "23", "44", "P0001")
"""SQLSTATE classes and codes of values that can never be stored. Triggers raise P0001."""
_PERMANENT: Final = re.compile(
    r"authentication failed|does not exist|no pg_hba\.conf entry|permission denied"
    r"|no password supplied|no such (table|column)|syntax error|has no column|readonly"
)
"""Messages of errors without an SQLSTATE that a retry does not resolve."""


class ValuesRejected(InvalidError):
    """Values that a constraint, a trigger or a type of the database rejects."""

    code: ClassVar[str] = "invalid_record"


class Database:
    """Database that a connector reads or writes, connected on first use.

    Args:
        url: URL of SQLAlchemy; `postgresql://` means psycopg2.
        unavailable: error that is raised if the database does not respond.

    Raises:
        ConnectorFailed: the URL is invalid, or its driver is not installed.
    """

    def __init__(self, url: str, unavailable: type[RetriableError]) -> None:
        try:
            self._url = sa.make_url(_POSTGRES.sub("postgresql+psycopg2", url, count=1))
            self.engine = sa.create_engine(self._url)
        except (sa.exc.ArgumentError, ModuleNotFoundError, ValueError) as error:
            raise ConnectorFailed(
                f"url: {self.hidden(str(error))}; write DIALECT://USER@HOST:PORT/DATABASE, and"
                " install the driver of the dialect"
            ) from None
        self._unavailable = unavailable
        self._opened: sa.Connection | None = None
        if self.postgres:
            sa.event.listen(self.engine, "connect", _set_session)
        elif self.dialect == "sqlite":
            sa.event.listen(self.engine, "connect", _leave_transactions_to_sqlalchemy)
            sa.event.listen(self.engine, "begin", _begin)

    @property
    def dialect(self) -> str:
        return self.engine.dialect.name

    @property
    def postgres(self) -> bool:
        return self._url.drivername == "postgresql+psycopg2"

    @contextmanager
    def transaction(self) -> Iterator[sa.Connection]:
        """Run statements of one transaction on the connection, which stays open.

        Raises:
            RetriableError: the database does not respond.
            ValuesRejected: the database rejects values.
            ConnectorFailed: any other failure of the database.
        """
        with self.errors():
            if self._opened is None or self._opened.closed or self._opened.invalidated:
                self.close()
                self._opened = self.engine.connect()
            with self._opened.begin():
                yield self._opened

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Convert errors of the database to those of connectors."""
        try:
            yield
        except OverflowError as error:  # an integer of more than 64 bits, from sqlite3
            raise ValuesRejected(str(error)) from error
        except sa.exc.DBAPIError as error:
            raise self._error(error.orig or error) from None
        except sa.exc.SQLAlchemyError as error:
            raise ConnectorFailed(self.hidden(str(error))) from None
        except self.engine.dialect.loaded_dbapi.Error as error:
            raise self._error(error) from None

    def _error(self, error: BaseException) -> Exception:
        dbapi = self.engine.dialect.loaded_dbapi
        message = self.hidden(str(error).strip())
        state = str(getattr(error, "pgcode", None) or "")
        rejected = isinstance(error, (dbapi.IntegrityError, dbapi.DataError))
        if rejected or state.startswith(_REJECTED):
            return ValuesRejected(message.replace("\n", ". "))
        lost = isinstance(error, (dbapi.OperationalError, dbapi.InterfaceError))
        if state.startswith(_RETRIED) or (lost and not state and not _PERMANENT.search(message)):
            self.close()
            return self._unavailable(f"the database does not respond: {message}")
        return ConnectorFailed(f"the database rejects the request: {message}")

    def hidden(self, message: str) -> str:
        """Return a message without passwords."""
        url = getattr(self, "_url", None)
        password = "" if url is None else str(url.password or "")
        shown = without_credentials_in(message)
        return shown.replace(password, "…") if password else shown

    def inspector(self) -> sa.Inspector:
        """Return a view of the tables, which caches what it has read."""
        return sa.inspect(self.engine)

    def columns(self, table: TableName) -> dict[str, sa.types.TypeEngine[Any]]:
        """Return the types of a table's columns by name; none if the table does not exist."""
        with self.errors(), warnings.catch_warnings():
            warnings.simplefilter("ignore", sa.exc.SAWarning)  # types of extensions
            inspector = self.inspector()
            if not inspector.has_table(table.name, table.schema):
                return {}
            found = inspector.get_columns(table.name, table.schema)
        return {column["name"]: column["type"] for column in found}

    def quoted(self, table: TableName) -> str:
        """Return a table's name as SQL."""
        return self.engine.dialect.identifier_preparer.format_table(table.clause())

    def identifier(self, name: str) -> str:
        """Return a column's name as SQL."""
        return self.engine.dialect.identifier_preparer.quote(name)

    def close(self) -> None:
        """Close all connections. A lost connection is discarded."""
        opened, self._opened = self._opened, None
        if opened is not None:
            try:
                opened.close()
            except (sa.exc.SQLAlchemyError, self.engine.dialect.loaded_dbapi.Error):
                opened.invalidate()
        self.engine.dispose()


class TableName:
    """Name of a table, with its schema if the name has one."""

    def __init__(self, schema: str | None, name: str) -> None:
        self.schema = schema
        self.name = name

    @classmethod
    def parse(cls, text: str) -> TableName:
        """Return the name that is written as `table` or `schema.table`."""
        schema, _, name = text.rpartition(".")
        return cls(schema or None, name)

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}" if self.schema else self.name

    def clause(self, *columns: str) -> sa.TableClause:
        """Return the table for statements, with columns whose values are passed unchanged."""
        return sa.table(self.name, *(sa.column(name) for name in columns), schema=self.schema)


def value(given: Any) -> sa.BindParameter[Any]:
    """Return a parameter of a statement that the driver gets unchanged."""
    return sa.bindparam(None, given, type_=sa.types.NullType())


def waited(seconds: float) -> Iterator[SourceBatch]:
    """Yield empty batches for a time, so that the runner can stop."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(left, PAUSE_SECONDS))
        yield SourceBatch()


def _set_session(connection: Any, _record: Any) -> None:
    connection.autocommit = True
    with connection.cursor() as cursor:
        cursor.execute(_SESSION)
    connection.autocommit = False


def _leave_transactions_to_sqlalchemy(connection: Any, _record: Any) -> None:
    connection.isolation_level = None
    connection.execute("PRAGMA busy_timeout = 5000")


def _begin(connection: sa.Connection) -> None:
    connection.exec_driver_sql("BEGIN")
