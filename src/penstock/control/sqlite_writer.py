"""One thread that owns a SQLite connection and commits queued operations together.

Each operation runs in a savepoint of a transaction that it shares with the others that waited:
an operation that refuses undoes only itself, and one sync makes the whole group durable. An
operation's future is resolved after the commit that covers it, never before. When the commit
itself fails, every operation of the group fails with `ControlUnavailable`.

Source: SQLite's documentation of WAL, `synchronous` and savepoints.
"""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from penstock.control.errors import ControlBusy, ControlUnavailable

WAITING_OPERATIONS_MAX: Final = 10_000
GROUP_OPERATIONS_MAX: Final = 512
BUSY_TIMEOUT_SECONDS: Final = 2.0

Operation = Callable[[sqlite3.Connection], Any]
_Entry = tuple[Operation, "asyncio.Future[Any]", asyncio.AbstractEventLoop]


class SqliteWriter:
    """Runs operations on one connection in the order in which they were handed in."""

    def __init__(self, path: Path, *, on_group: Callable[[bool], None]) -> None:
        """`on_group(committed)` is called on the writer's thread after each group."""
        self._path = path
        self._on_group = on_group
        self._queue: queue.Queue[_Entry | None] = queue.Queue(WAITING_OPERATIONS_MAX)
        self._thread = threading.Thread(target=self._run, name="penstock-control", daemon=True)
        self._closed = False

    def start(self) -> None:
        self._thread.start()

    async def run(self, operation: Operation) -> Any:
        """Run one operation and return its value once it is durable.

        Raises:
            ControlBusy: too many operations wait.
            ControlUnavailable: the database failed, or the writer is closed.
            PenstockError: whatever the operation itself refused with.
        """
        if self._closed:
            raise ControlUnavailable("the metadata database is closed")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        try:
            self._queue.put_nowait((operation, future, loop))
        except queue.Full:
            raise ControlBusy(WAITING_OPERATIONS_MAX) from None
        return await future

    async def close(self) -> None:
        """Finish what is queued and end the thread. Idempotent."""
        if self._closed:
            return
        self._closed = True
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self._queue.put, None)
        await loop.run_in_executor(None, self._thread.join)

    def _run(self) -> None:
        connection: sqlite3.Connection | None = None
        while True:
            entry = self._queue.get()
            if entry is None:
                break
            group, last = self._gather(entry)
            try:
                if connection is None:
                    connection = open_connection(self._path)
                self._commit(connection, group)
            except sqlite3.Error as error:
                self._fail(connection, group, error)
            if last:
                break
        if connection is not None:
            connection.close()

    def _gather(self, first: _Entry) -> tuple[list[_Entry], bool]:
        group = [first]
        while len(group) < GROUP_OPERATIONS_MAX:
            try:
                entry = self._queue.get_nowait()
            except queue.Empty:
                return group, False
            if entry is None:
                return group, True
            group.append(entry)
        return group, False

    def _commit(self, connection: sqlite3.Connection, group: list[_Entry]) -> None:
        connection.execute("BEGIN IMMEDIATE")
        outcomes = [_attempt(connection, operation) for operation, _, _ in group]
        connection.execute("COMMIT")
        self._on_group(True)
        for (_, future, loop), (value, error) in zip(group, outcomes, strict=True):
            _resolve(loop, future, value, error)

    def _fail(
        self, connection: sqlite3.Connection | None, group: list[_Entry], cause: sqlite3.Error
    ) -> None:
        if connection is not None and connection.in_transaction:
            connection.rollback()
        self._on_group(False)
        error = ControlUnavailable(f"the metadata database {self._path} failed: {cause}")
        error.__cause__ = cause
        for _, future, loop in group:
            _resolve(loop, future, None, error)


def open_connection(path: Path) -> sqlite3.Connection:
    """Open a database for one owner: exclusive, write-ahead, every commit synced."""
    connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_SECONDS, isolation_level=None)
    try:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _attempt(connection: sqlite3.Connection, operation: Operation) -> tuple[Any, Exception | None]:
    """Run one operation in its savepoint; what it raises undoes that operation alone.

    Only a failure of the database itself goes on to fail the whole group.
    """
    connection.execute("SAVEPOINT operation")
    try:
        value = operation(connection)
    except sqlite3.Error:
        raise
    except Exception as error:
        connection.execute("ROLLBACK TO operation")
        connection.execute("RELEASE operation")
        return None, error
    connection.execute("RELEASE operation")
    return value, None


def _resolve(
    loop: asyncio.AbstractEventLoop,
    future: asyncio.Future[Any],
    value: Any,
    error: Exception | None,
) -> None:
    def settle() -> None:
        if future.done():  # its caller was cancelled
            return
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)

    if not loop.is_closed():
        loop.call_soon_threadsafe(settle)
