"""Execution of operations on a SQLite connection."""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar
from uuid import UUID

from penstock.control.drivers.statements import (
    Answer,
    Each,
    Lock,
    Operation,
    Scan,
    Statement,
    Together,
    Values,
)
from penstock.control.errors import StaleClusterEpoch
from penstock.control.limits import OPERATION_TIMEOUT_SECONDS

T = TypeVar("T")

sqlite3.register_adapter(UUID, lambda value: value.bytes)


def run(connection: sqlite3.Connection, operation: Operation[T]) -> T:
    answer: Any = None
    try:
        while True:
            statement, values = operation.send(answer)
            if type(statement) is Each:
                answer = _each(connection, statement, *values)
            elif type(statement) is Scan:
                answer = _scans(connection, statement, values[0])
            elif type(statement) is Together:
                for part, rows in zip(statement.parts, values, strict=True):
                    answer = _each(connection, part, rows, ())
            else:
                answer = _one(connection, statement, values)
    except StopIteration as end:
        value: T = end.value
        return value


def _value(cursor: sqlite3.Cursor) -> Any:
    found = cursor.fetchone()
    return None if found is None else found[0]


_ANSWERS: Final[dict[Answer, Callable[[sqlite3.Cursor], Any]]] = {
    "rows": sqlite3.Cursor.fetchall,
    "row": sqlite3.Cursor.fetchone,
    "value": _value,
    "changed": lambda cursor: cursor.rowcount,
}


def _one(connection: sqlite3.Connection, statement: Statement, values: Values) -> Any:
    for text, count in statement.sqlite:
        cursor = connection.execute(text, values[:count])
    return _ANSWERS[statement.answer](cursor)


def _each(
    connection: sqlite3.Connection, statement: Each, rows: list[Values], shared: Values
) -> Any:
    [(text, _)] = statement.sqlite
    if shared:
        rows = [(*row, *shared) for row in rows]
    if statement.answer == "rows":
        return [found for row in rows for found in connection.execute(text, row)]
    return connection.executemany(text, rows).rowcount if rows else 0


def _scans(
    connection: sqlite3.Connection, statement: Scan, rows: list[Values]
) -> Iterator[sqlite3.Cursor]:
    [(text, _)] = statement.sqlite
    for row in rows:
        cursor = connection.execute(text, row)
        yield cursor
        cursor.close()  # lets the next execution reuse the compiled text


class SqliteDatabase(ABC):
    """A `Database` in SQLite, whose writer runs operations one after the other."""

    @abstractmethod
    async def run(
        self,
        operation: Callable[[sqlite3.Connection], Any],
        *,
        reads: bool = False,
        rows: int | None = None,
    ) -> Any:
        """Run a function in a transaction of the connection; return its value once it is durable.

        `reads` means that the function changes nothing, so nothing is synced. `rows` is the
        approximate number of rows that it touches, or None if they may be many.
        """

    async def read(
        self,
        make: Callable[[], Operation[T]],
        *,
        within_seconds: float = OPERATION_TIMEOUT_SECONDS,
    ) -> T:
        found: T = await self.run(lambda connection: run(connection, make()), reads=True)
        return found

    async def change(
        self,
        make: Callable[[], Operation[T]],
        *,
        lock: Lock = Lock.NONE,
        cluster_epoch: int | None = None,
        rows: int | None = None,
    ) -> T:
        def operation(connection: sqlite3.Connection) -> T:
            if cluster_epoch is not None:
                check_cluster_epoch(connection, cluster_epoch)
            return run(connection, make())

        value: T = await self.run(operation, rows=rows)
        return value


def check_cluster_epoch(connection: sqlite3.Connection, expected: int) -> None:
    """Raise StaleClusterEpoch unless the stored cluster epoch is `expected`."""
    (found,) = connection.execute("SELECT membership FROM image_version").fetchone()
    if found != expected:
        raise StaleClusterEpoch(expected, found)
