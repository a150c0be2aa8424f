"""The schema of each database, as numbered migration files.

Each file runs once, in one transaction.

The first file is the whole schema of release 0.1. Its number is that of the last migration before
that release.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Literal

from penstock.control.values.errors import IncompatibleDatabase


@cache
def migrations(database: Literal["sqlite", "postgres"]) -> Sequence[tuple[int, str]]:
    """Return (number, SQL text) of a database's migrations, in order."""
    return tuple(
        sorted(
            (int(item.name.split("_", 1)[0]), item.read_text())
            for item in resources.files("penstock.control.migrations").joinpath(database).iterdir()
            if item.name.endswith(".sql")
        )
    )


def missing(
    database: Literal["sqlite", "postgres"], version: int, *, where: str
) -> Sequence[tuple[int, str]]:
    """Return the migrations that a database at schema version `version` lacks.

    An empty one is at 0.

    Raises:
        IncompatibleDatabase: the version is newer than all migrations, or older than release 0.1.
    """
    known = migrations(database)
    first, last = known[0][0], known[-1][0]
    if version > last:
        raise IncompatibleDatabase(
            f"{where} is at schema version {version}; this Penstock supports versions up to"
            f" {last}: run the Penstock that wrote it, or a newer one"
        )
    if 0 < version < first:
        raise IncompatibleDatabase(
            f"{where} is at schema version {version}; this Penstock supports versions from {first}"
            " on: start Penstock 0.1 with this database first"
        )
    return [(number, text) for number, text in known if number > version]
