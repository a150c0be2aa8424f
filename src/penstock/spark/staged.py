"""Staged batch of a sink, invisible before it is committed, and the batch's query.

The end of a pass may reject a batch. So sinks first make everything that takes long (files, blobs,
sorted rows), and then commit in one short step. `discard` deletes what was staged; after a crash it
is deleted by age.

Spark stores a query's id in its checkpoint, so it identifies the checkpoint. Inside `foreachBatch`
it is a local property of the thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from pyspark import SparkContext
from pyspark.sql import DataFrame

T = TypeVar("T")

QUERY_PROPERTY: Final = "sql.streaming.queryId"


def _nothing() -> None:
    """Do nothing: there is nothing to discard, or to check."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged(Generic[T]):
    """Staged output of a batch. `rows` is 0 for one that was committed before (`replayed`).

    `check` raises the error with which `commit` would fail now; several sinks are checked before
    the first commit. `once` means that each row was read once: observed counts are exact.
    """

    rows: int
    commit: Callable[[], T]
    discard: Callable[[], None] = _nothing
    check: Callable[[], None] = _nothing
    replayed: bool = False
    once: bool = True


def query_of(batch: DataFrame) -> str | None:
    """Return the id of the streaming query of a `foreachBatch` call."""
    context = SparkContext._active_spark_context
    if context is None:  # a client of a Spark server: the property stays on the server
        return None
    return context.getLocalProperty(QUERY_PROPERTY)
