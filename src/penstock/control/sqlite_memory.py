"""The control plane in an in-memory SQLite database, for tests.

There is no thread and no file. An operation is one transaction on the caller's event loop, and has
ended when its call returns. The same calls with the same clock and randomness therefore give the
same results. Several brokers share one control plane by sharing the object. It stays open after
`close`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Final

from penstock.base.system import SYSTEM_CLOCK, SYSTEM_RANDOMNESS, Clock, Randomness
from penstock.control.drivers.sqlite_statements import SqliteDatabase
from penstock.control.drivers.sqlite_writer import Operation
from penstock.control.migrations.sqlite.migrate import migrate
from penstock.control.sqlite import SqliteControlPlane

_IN_MEMORY: Final = Path(":memory:")


@cache
def _migrated() -> sqlite3.Connection:
    """Return an empty database with the schema. Copying it is five times as fast as migrating."""
    connection = sqlite3.connect(_IN_MEMORY, check_same_thread=False)
    with connection:  # an open transaction would block every copy
        migrate(connection, _IN_MEMORY)
    return connection


class _InlineWriter(SqliteDatabase):
    """Writer that runs each operation at once. An exception rolls the operation back."""

    closed: Final = False

    def __init__(self, template: sqlite3.Connection, *, on_group: Callable[[bool], None]) -> None:
        """Start with a copy of `template`; call `on_group(committed)` after each operation."""
        self._on_group = on_group
        self._connection = sqlite3.connect(":memory:")
        template.backup(self._connection)
        self._connection.execute("PRAGMA foreign_keys = ON")

    def start(self) -> None: ...
    async def run(
        self, operation: Operation, *, reads: bool = False, rows: int | None = None
    ) -> Any:
        return self.execute(operation)

    def execute(self, operation: Operation) -> Any:
        try:
            with self._connection as connection:  # begins with the first change
                value = operation(connection)
        except BaseException:
            self._on_group(False)
            raise
        self._on_group(True)
        return value

    async def close(self) -> None: ...


class MemoryControlPlane(SqliteControlPlane):
    """The control plane in memory. Its data ends with the object."""

    def __init__(
        self, *, clock: Clock = SYSTEM_CLOCK, randomness: Randomness = SYSTEM_RANDOMNESS
    ) -> None:
        super().__init__(_IN_MEMORY, clock=clock, randomness=randomness)

    def _new_writer(self) -> _InlineWriter:
        writer = _InlineWriter(_migrated(), on_group=self._on_group)
        writer.execute(self._open)
        return writer

    async def start(self) -> None: ...
    async def changed_rows(self) -> int:
        """Return the number of rows changed so far. Tests use it to detect changes."""
        changes: int = await self._writer.run(lambda connection: connection.total_changes)
        return changes
