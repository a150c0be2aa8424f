"""PySpark integration: the data source `penstock`, sessions that use it, and exactly-once tables.

Public names are imported when they are first used. Spark's workers and planner processes often need
only one module of this package.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from penstock.spark.reads.listener import GroupCommitListener
    from penstock.spark.reads.outbox import json_lines, outbox_tree, read_outbox
    from penstock.spark.sessions.java import JavaMissing, require_java
    from penstock.spark.sessions.session import session
    from penstock.spark.sessions.source import PenstockSource
    from penstock.spark.sink.commits import Appended
    from penstock.spark.sink.log_sink import LogSink
    from penstock.spark.tables.append import DeltaSink, Written
    from penstock.spark.tables.upsert import DeltaUpsert

__all__ = [
    "Appended",
    "DeltaSink",
    "DeltaUpsert",
    "GroupCommitListener",
    "JavaMissing",
    "LogSink",
    "PenstockSource",
    "Written",
    "json_lines",
    "outbox_tree",
    "read_outbox",
    "require_java",
    "session",
]

_HOMES: Final = {
    "DeltaSink": "tables.append",
    "Written": "tables.append",
    "DeltaUpsert": "tables.upsert",
    "GroupCommitListener": "reads.listener",
    "json_lines": "reads.outbox",
    "outbox_tree": "reads.outbox",
    "read_outbox": "reads.outbox",
    "JavaMissing": "sessions.java",
    "require_java": "sessions.java",
    "Appended": "sink.commits",
    "LogSink": "sink.log_sink",
    "PenstockSource": "sessions.source",
    "session": "sessions.session",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)
