"""A SQLite database in memory whose operations run at once, on the caller's loop."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any, Final

from penstock.control.drivers.sqlite_statements import SqliteDatabase
from penstock.control.drivers.sqlite_writer import Operation


class InlineWriter(SqliteDatabase):
    """Runs operations on the connection at once; an exception rolls its operation back."""

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
