"""A SQLite database in memory whose operations run at once, on the caller's loop."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any, Final

from penstock.control.drivers.sqlite_statements import SqliteDatabase
from penstock.control.drivers.sqlite_writer import Operation


class InlineWriter(SqliteDatabase):
    """Runs operations on the connection at once; what one raises undoes it."""

    closed: Final = False

    def __init__(self, template: sqlite3.Connection, *, on_group: Callable[[bool], None]) -> None:
        """Begin with a copy of `template`; `on_group(committed)` is called after each operation."""
        self._on_group = on_group
        self._connection = sqlite3.connect(":memory:")
        template.backup(self._connection)
        self._connection.execute("PRAGMA foreign_keys = ON")

    def start(self) -> None:
        """There is nothing to start."""

    async def run(
        self, operation: Operation, *, reads: bool = False, rows: int | None = None
    ) -> Any:
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
