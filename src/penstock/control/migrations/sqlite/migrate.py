"""Schema migrations of SQLite: numbered files, each of which runs once."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from penstock.control.migrations import missing
from penstock.control.values.errors import IncompatibleDatabase


def migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Run the migrations that the database lacks.

    Raises:
        IncompatibleDatabase: the schema version is unknown or older than release 0.1, or the file
            is another program's database.
    """
    version = _scalar(connection, "PRAGMA user_version")
    lacking = missing("sqlite", version, where=f"the metadata database {path}")
    if version == 0 and _scalar(connection, "SELECT count(*) FROM sqlite_master"):
        raise IncompatibleDatabase(f"{path} is a SQLite database of another program")
    for number, text in lacking:
        for statement in text.split(";\n"):
            if statement.strip():
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {number}")


def _scalar(connection: sqlite3.Connection, query: str) -> int:
    value: Any = connection.execute(query).fetchone()[0]
    return int(value)
