"""Streaming query of a batch.

Spark stores a query's id in its checkpoint, so it identifies the checkpoint. Inside `foreachBatch`
it is a local property of the thread.
"""

from __future__ import annotations

from typing import Final

from pyspark import SparkContext
from pyspark.sql import DataFrame

QUERY_PROPERTY: Final = "sql.streaming.queryId"


def query_of(batch: DataFrame) -> str | None:
    """Return the id of the streaming query of a `foreachBatch` call."""
    context = SparkContext._active_spark_context
    if context is None:  # a client of a Spark server: the property stays on the server
        return None
    return context.getLocalProperty(QUERY_PROPERTY)
