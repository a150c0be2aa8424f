"""Delta tables: exactly-once writes, reads by Spark without extra jars, and tables filled from
topics.

Public names are imported when they are first used, as in `penstock.spark`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from penstock.spark.tables.append import DeltaSink, Written
    from penstock.spark.tables.changes import DeltaChanges
    from penstock.spark.tables.collection import Collected, remove_orphans
    from penstock.spark.tables.compaction import Compacted, compact
    from penstock.spark.tables.location import table_version
    from penstock.spark.tables.topic_history import history, read_table
    from penstock.spark.tables.topic_table import Materialiser
    from penstock.spark.tables.upsert import DeltaUpsert

__all__ = [
    "Collected",
    "Compacted",
    "DeltaChanges",
    "DeltaSink",
    "DeltaUpsert",
    "Materialiser",
    "Written",
    "compact",
    "history",
    "read_table",
    "remove_orphans",
    "table_version",
]

_HOMES: Final = {
    "DeltaSink": "append",
    "Written": "append",
    "history": "topic_history",
    "table_version": "location",
    "Collected": "collection",
    "Compacted": "compaction",
    "compact": "compaction",
    "remove_orphans": "collection",
    "Materialiser": "topic_table",
    "read_table": "topic_history",
    "DeltaChanges": "changes",
    "DeltaUpsert": "upsert",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)
