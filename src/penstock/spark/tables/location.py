"""Location of a table: paths, URIs, and opening it with the options of its store."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Final

import pyarrow.fs as pa_fs
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from penstock.spark.errors import InvalidOption

# Characters of a local path that `deltalake` misinterprets or cannot put into a URL.
UNUSABLE: Final = re.compile(r"[\[\]^|\\]|%[0-9A-Fa-f]{2}")


def absolute(table: str) -> str:
    """Return a local path made absolute; a URI is returned without a trailing slash.

    Raises:
        InvalidOption: the local path has characters that `deltalake` cannot open.
    """
    if "://" in table:
        return table.rstrip("/")
    path = os.path.abspath(table)
    if found := UNUSABLE.search(path):
        raise InvalidOption(
            "table", table, f"deltalake cannot open paths with {found[0]!r}. Rename the directory"
        )
    return path


def filesystem(table: str) -> tuple[pa_fs.FileSystem, str]:
    """Return the file system that holds a table, and the table's path in it."""
    if "://" in table:
        found, root = pa_fs.FileSystem.from_uri(table)
        return found, root.rstrip("/")
    return pa_fs.LocalFileSystem(), absolute(table)


def open_table(
    table: str, storage_options: Mapping[str, str] | None = None, version: int | None = None
) -> DeltaTable | None:
    """Return the table at a version (None: the latest), or None if it does not exist.

    Raises:
        deltalake.exceptions.DeltaError: the version does not exist, or the log cannot be read.
    """
    try:
        return DeltaTable(
            absolute(table), version=version, storage_options=dict(storage_options or {}) or None
        )
    except TableNotFoundError:
        return None


def table_version(table: str, storage_options: Mapping[str, str] | None = None) -> int | None:
    """Return the latest version of a table; None if it does not exist."""
    opened = open_table(table, storage_options)
    return None if opened is None else opened.version()
