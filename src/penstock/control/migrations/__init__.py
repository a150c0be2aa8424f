"""The schema of each database: numbered files, each of which runs in one transaction, once.

The first file is the whole schema of release 0.1, numbered as the last migration of that release.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Literal

from penstock.control.errors import IncompatibleDatabase


@cache
def migrations(database: Literal["sqlite", "postgres"]) -> Sequence[tuple[int, str]]:
    """Return the numbers and texts of a database's migrations, in order."""
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
    """Return the migrations that a database of this version lacks; 0 is an empty database.

    Raises:
        IncompatibleDatabase: the version is unknown, or older than release 0.1.
    """
    known = migrations(database)
    first, last = known[0][0], known[-1][0]
    if version > last:
        raise IncompatibleDatabase(
            f"{where} is at schema version {version}; this Penstock knows versions up to {last}:"
            " run the Penstock that wrote it, or a newer one"
        )
    if 0 < version < first:
        raise IncompatibleDatabase(
            f"{where} is at schema version {version}; this Penstock knows versions from {first} on:"
            " start Penstock 0.1 with it first"
        )
    return [(number, text) for number, text in known if number > version]
