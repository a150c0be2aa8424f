"""Connections to PostgreSQL: sessions for queries, and sessions of the replication protocol.

Every session writes texts in one form: ISO dates, UTC, the shortest exact floats, hexadecimal
bytes. Errors become `SourceUnavailable` if a later attempt may succeed, else `ConnectorFailed`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
_FORM: Final = "write url as postgresql://user@host:port/database"
_REMEDIES: Final[Mapping[str, str]] = {
    "authentication failed": "correct the user and the password of url",
    "no password supplied": "write url as postgresql://user:${env:NAME}@host:port/database",
    "does not exist": "correct the user and the database of url, or create them",
    "no pg_hba.conf entry": "add an entry for the user and this host to pg_hba.conf",
    "permission denied": "grant the user the right, or name another user in url",
    "must be superuser or replication role": "run ALTER ROLE … REPLICATION for the user of url",
    "invalid connection option": _FORM,
    "invalid dsn": _FORM,
    "could not translate host name": "correct the host of url",
}
"""Remedies of errors that another attempt does not mend, by parts of their messages."""
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
        "keepalives_idle": 2, "keepalives_interval": 1, "keepalives_count": 3,
        "tcp_user_timeout": 5_000,
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
        remedy = next((fix for part, fix in _REMEDIES.items() if part in text), "")
        if _is_retriable(error, remedy):
            raise SourceUnavailable(message) from error
        raise ConnectorFailed(f"{message}; {remedy}" if remedy else message) from error


def _is_retriable(error: psycopg2.Error, remedy: str) -> bool:
    if error.pgcode is not None:
        return error.pgcode[:2] in _RETRIABLE_CLASSES
    lost = isinstance(error, (psycopg2.OperationalError, psycopg2.InterfaceError))
    return (lost or type(error) is psycopg2.DatabaseError) and not remedy


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
