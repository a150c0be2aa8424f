"""The SQLite form on a database in memory, whose operations run at once: for tests and simulation.

There is no thread and no file: an operation is one transaction on the caller's loop, and is over
when its call returns. With a clock and dice of the caller's own, the same calls give the same
answers. Brokers share a plane by sharing the object; it is open as long as there is one, whoever
starts or closes it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Final

from penstock.base.system import SYSTEM_CLOCK, SYSTEM_RANDOMNESS, Clock, Randomness
from penstock.control.sqlite import SqliteControlPlane, migrate
from penstock.control.sqlite_writer import Operation

_IN_MEMORY: Final = Path(":memory:")


@cache
def _migrated() -> sqlite3.Connection:
    """An empty database with all migrations: to copy it takes a fifth of the time to run them."""
    connection = sqlite3.connect(_IN_MEMORY, check_same_thread=False)
    migrate(connection, _IN_MEMORY)
    return connection


class InlineWriter:
    """Runs operations on the connection at once; what one raises undoes it."""

    closed: Final = False

    def __init__(self, *, on_group: Callable[[bool], None]) -> None:
        """`on_group(committed)` is called after each operation."""
        self._on_group = on_group
        self._connection = sqlite3.connect(_IN_MEMORY)
        _migrated().backup(self._connection)
        self._connection.execute("PRAGMA foreign_keys = ON")

    def start(self) -> None:
        """There is nothing to start."""

    async def run(self, operation: Operation) -> Any:
        """Run one operation and return its value."""
        return self.execute(operation)

    def execute(self, operation: Operation) -> Any:
        """Do what `run` does, where nothing can be awaited."""
        try:
            with self._connection as connection:  # begins with the first change
                value = operation(connection)
        except BaseException:
            self._on_group(False)
            raise
        self._on_group(True)
        return value

    async def close(self) -> None:
        """The database goes with the object."""


class MemoryControlPlane(SqliteControlPlane):
    """The SQLite form in memory; nothing outlives this object."""

    def __init__(
        self, *, clock: Clock = SYSTEM_CLOCK, randomness: Randomness = SYSTEM_RANDOMNESS
    ) -> None:
        super().__init__(_IN_MEMORY, clock=clock, randomness=randomness)

    def _new_writer(self) -> InlineWriter:
        writer = InlineWriter(on_group=self._publish)
        writer.execute(self._open)
        return writer

    async def start(self) -> None:
        """It is open."""

    async def changed_rows(self) -> int:
        """How many rows were changed so far: what has looked at all need not look again."""
        changes: int = await self._writer.run(lambda connection: connection.total_changes)
        return changes
