"""Which of Delta's features a reader of plain Parquet files may meet in a table."""

from __future__ import annotations

from typing import Final

from deltalake import DeltaTable

from penstock.spark.tables.errors import UnreadableTable

READER_VERSION_FEATURES: Final = 3
# Features that change how the log is read, which `deltalake` does, or a type that Spark has.
HONOURED_FEATURES: Final = frozenset({"timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"})
COLUMN_MAPPING: Final = "delta.columnMapping.mode"


def check_readable(opened: DeltaTable, root: str) -> None:
    """Refuse a table that a plain scan of its files would read wrongly.

    Raises:
        UnreadableTable: it names the features.
    """
    mode = opened.metadata().configuration.get(COLUMN_MAPPING, "none")
    if mode not in {None, "none"}:
        raise UnreadableTable(root, f"column mapping (mode {mode})")
    protocol = opened.protocol()
    features = set(protocol.reader_features or ())
    if unknown := sorted(features - HONOURED_FEATURES):
        raise UnreadableTable(root, ", ".join(unknown))
    if protocol.min_reader_version > READER_VERSION_FEATURES:
        raise UnreadableTable(root, f"reader version {protocol.min_reader_version}")
