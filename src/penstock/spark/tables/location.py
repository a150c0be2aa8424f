"""Location of a table: paths, URIs, and opening it with the options of its store."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import ClassVar, Final

import pyarrow.fs as pa_fs
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from penstock.base.errors import InvalidError
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


# Delta table features that this package supports when it reads or writes Parquet files directly.
#
# Source: the Delta transaction protocol, "Protocol Evolution", "Valid Feature Names in Table
# Features".


READER_VERSION_FEATURES: Final = 3
WRITER_VERSION_FEATURES: Final = 7
# They change how the log is read, which `deltalake` supports, or add a type that Spark has.
HONOURED_FEATURES: Final = frozenset({"timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"})
COLUMN_MAPPING: Final = "delta.columnMapping.mode"
APPEND_ONLY: Final = "delta.appendOnly"
WRITTEN_FEATURES: Final = frozenset(
    {
        "appendOnly", "changeDataFeed", "checkConstraints", "columnMapping", "generatedColumns",
        "invariants", "timestampNtz", "v2Checkpoint",
    }
)  # fmt: skip
"""Features of tables that `deltalake` can commit to; it applies their rules in merges."""
APPENDED_FEATURES: Final = WRITTEN_FEATURES | {"deletionVectors"}
"""Features of tables to which files can be appended."""
_IDENTITY_VERSION: Final = 6
"""Writer version that implies the feature `identityColumns`."""


class UnreadableTable(InvalidError):
    """Table with a Delta feature that a scan of its Parquet files would ignore."""

    code: ClassVar[str] = "unsupported_version"

    def __init__(self, table: str, features: str) -> None:
        super().__init__(
            f"table {table} uses {features}. A scan of its Parquet files would ignore that and "
            "return wrong rows. Read the table with Delta's own connector"
        )
        self.table = table


class UnwritableTable(InvalidError):
    """Table with a Delta feature that writes by this package would violate."""

    code: ClassVar[str] = "unsupported_version"

    def __init__(self, table: str, features: str) -> None:
        super().__init__(
            f"table {table} uses {features}, which this writer does not support. Write to another "
            "table, or write to this one with Delta's own connector"
        )
        self.table = table


def check_readable(opened: DeltaTable, root: str) -> None:
    """Check that a plain scan of a table's Parquet files returns the right rows.

    Raises:
        UnreadableTable: the table has unsupported features, which the message names.
    """
    if mode := _column_mapping(opened):
        raise UnreadableTable(root, f"column mapping (mode {mode})")
    protocol = opened.protocol()
    features = set(protocol.reader_features or ())
    if unknown := sorted(features - HONOURED_FEATURES):
        raise UnreadableTable(root, ", ".join(unknown))
    if protocol.min_reader_version > READER_VERSION_FEATURES:
        raise UnreadableTable(root, f"reader version {protocol.min_reader_version}")


def check_writable(opened: DeltaTable, root: str, *, removes: bool = False) -> None:
    """Check that files can be appended to a table and, with `removes`, that files can be replaced.

    Raises:
        UnwritableTable: the table has unsupported features, which the message names.
    """
    if mode := _column_mapping(opened):
        raise UnwritableTable(root, f"column mapping (mode {mode})")
    protocol = opened.protocol()
    features = set(protocol.writer_features or ())
    if protocol.min_writer_version == _IDENTITY_VERSION:
        features.add("identityColumns")
    if unknown := sorted(features - (WRITTEN_FEATURES if removes else APPENDED_FEATURES)):
        raise UnwritableTable(root, ", ".join(unknown))
    if protocol.min_writer_version > WRITER_VERSION_FEATURES:
        raise UnwritableTable(root, f"writer version {protocol.min_writer_version}")
    if removes and opened.metadata().configuration.get(APPEND_ONLY) == "true":
        raise UnwritableTable(root, f"{APPEND_ONLY} = true")


def _column_mapping(opened: DeltaTable) -> str | None:
    mode = opened.metadata().configuration.get(COLUMN_MAPPING)
    return None if mode in {None, "none"} else mode
