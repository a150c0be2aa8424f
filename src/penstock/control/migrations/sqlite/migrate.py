"""Schema migrations of SQLite: numbered files beside this one, each run once."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from penstock.control.errors import IncompatibleDatabase


@cache
def migrations() -> Sequence[tuple[int, str]]:
    folder = resources.files("penstock.control.migrations.sqlite")
    found = [
        (int(item.name.split("_", 1)[0]), item.read_text())
        for item in folder.iterdir()
        if item.name.endswith(".sql")
    ]
    return tuple(sorted(found))


def migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Run the migrations that the database lacks.

    Raises:
        IncompatibleDatabase: it has unknown migrations, or is not one of Penstock's.
    """
    known = migrations()
    version = _scalar(connection, "PRAGMA user_version")
    if version > known[-1][0]:
        raise IncompatibleDatabase(
            f"the metadata database {path} is at schema version {version}; this Penstock knows"
            f" versions up to {known[-1][0]}: run the Penstock that wrote it, or a newer one"
        )
    if version == 0 and _scalar(connection, "SELECT count(*) FROM sqlite_master"):
        raise IncompatibleDatabase(f"{path} is a SQLite database, but not one of Penstock's")
    for number, text in known:
        if number > version:
            for statement in text.split(";\n"):
                if statement.strip():
                    connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {number}")


def _scalar(connection: sqlite3.Connection, query: str) -> int:
    value: Any = connection.execute(query).fetchone()[0]
    return int(value)
