"""Connections to PostgreSQL: sessions for queries, and sessions of the replication protocol.

Every session writes texts in one form: ISO dates, UTC, the shortest exact floats, hexadecimal
bytes. Errors become `SourceUnavailable` if a later attempt may succeed, else `ConnectorFailed`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import psycopg2
from psycopg2 import errorcodes, extensions
from psycopg2.extras import LogicalReplicationConnection

from penstock.base.urls import without_credentials
from penstock.connect.errors import ConnectorFailed, SourceUnavailable

CONNECT_SECONDS: Final = 10
APPLICATION: Final = "penstock-connect"
_OPTIONS: Final = " ".join(
    f"-c {setting}"
    for setting in (
        "datestyle=ISO", "intervalstyle=postgres", "timezone=UTC", "extra_float_digits=3",
        "bytea_output=hex", "lc_monetary=C", "statement_timeout=0", "lock_timeout=0",
        "idle_in_transaction_session_timeout=0",
    )
)  # fmt: skip
_PERMANENT: Final = (
    "authentication failed", "does not exist", "no pg_hba.conf entry", "permission denied",
    "must be superuser or replication role", "invalid connection option", "invalid dsn",
    "could not translate host name",
)  # fmt: skip
"""Parts of messages of failed connections that another attempt does not mend."""
_RETRIABLE_CLASSES: Final = ("08", "40", "53", "55", "57", "58")
"""Classes of SQLSTATE whose statements may succeed later."""


def connect(url: str, *, replication: bool = False) -> Any:
    """Return a session; with `replication`, one of the logical replication protocol.

    Raises:
        SourceUnavailable: the server does not respond.
        ConnectorFailed: the server rejects the user, the database or the URL.
    """
    options: dict[str, Any] = {
        "connect_timeout": CONNECT_SECONDS, "application_name": APPLICATION, "options": _OPTIONS,
        "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3,
    }  # fmt: skip
    if replication:
        options["connection_factory"] = LogicalReplicationConnection
    with translated(url):
        return psycopg2.connect(url, **options)


@contextmanager
def translated(url: str) -> Iterator[None]:
    """Convert the database's errors in a block.

    Raises:
        SourceUnavailable, ConnectorFailed: as `connect`.
    """
    try:
        yield
    except psycopg2.Error as error:
        text = " ".join(str(error).split())
        message = f"PostgreSQL at {without_credentials(url)}: {text}"
        if _is_retriable(error, text):
            raise SourceUnavailable(message) from error
        raise ConnectorFailed(message) from error


def _is_retriable(error: psycopg2.Error, text: str) -> bool:
    if error.pgcode is not None:
        return error.pgcode[:2] in _RETRIABLE_CLASSES
    lost = isinstance(error, (psycopg2.OperationalError, psycopg2.InterfaceError))
    return (lost or type(error) is psycopg2.DatabaseError) and not any(
        part in text for part in _PERMANENT
    )


def is_duplicate(error: psycopg2.Error) -> bool:
    """Whether an object exists already."""
    return error.pgcode in (errorcodes.DUPLICATE_OBJECT, errorcodes.UNIQUE_VIOLATION)


class Session:
    """Session for queries, with autocommit; reconnects are up to the caller."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.connection = connect(url)
        self.connection.autocommit = True

    def rows(self, query: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a query; errors are those of `connect`."""
        with translated(self.url), self.connection.cursor() as cursor:
            cursor.execute(query, parameters or None)
            return list(cursor.fetchall()) if cursor.description else []

    def row(self, query: str, parameters: Sequence[Any] = ()) -> tuple[Any, ...]:
        """Return the only row of a query; errors are those of `connect`."""
        [found] = self.rows(query, parameters)
        return found

    def close(self) -> None:
        self.connection.close()


def quoted(*names: str) -> str:
    """Return a name as an SQL identifier; several are joined by dots."""
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def literal(value: Any) -> str:
    """Return a text as an SQL literal."""
    return "NULL" if value is None else extensions.QuotedString(str(value)).getquoted().decode()
