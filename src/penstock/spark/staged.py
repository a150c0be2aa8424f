"""Staged batch of a sink, which stays invisible until it is committed.

A batch may still be rejected after its last row was read. Sinks therefore first do everything that
takes long (writing files and blobs, sorting rows), and then commit in one short step. `discard`
deletes the staged data; after a crash it is deleted by age.

Each batch also has the id of its streaming query. Spark stores the id in the checkpoint, so it
identifies the checkpoint. Inside `foreachBatch` it is a local property of the thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from pyspark import SparkContext
from pyspark.sql import DataFrame

T = TypeVar("T")

QUERY_PROPERTY: Final = "sql.streaming.queryId"


def _nothing() -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged(Generic[T]):
    """Staged output of a batch, with the functions that finish it.

    `commit` makes the output visible. `discard` deletes it. `check` raises the error with which
    `commit` would fail now; it is called for all sinks of a batch before the first commit.
    `replayed` is true if the batch was committed before; `rows` is then 0. `once` is true if each
    row was read only once, so that Spark's observed counts are exact.
    """

    rows: int
    commit: Callable[[], T]
    discard: Callable[[], None] = _nothing
    check: Callable[[], None] = _nothing
    replayed: bool = False
    once: bool = True


def query_of(batch: DataFrame) -> str | None:
    """Return the id of the streaming query inside `foreachBatch`; None elsewhere."""
    context = SparkContext._active_spark_context
    if context is None:  # a client of a Spark server: the property stays on the server
        return None
    return context.getLocalProperty(QUERY_PROPERTY)


def runs_locally() -> bool:
    """Whether the tasks of this process's Spark session run in the driver."""
    context = SparkContext._active_spark_context
    master = "" if context is None else str(context.master)
    return master == "local" or master.startswith("local[")
