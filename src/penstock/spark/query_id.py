"""Which streaming query a batch belongs to.

Spark makes a query's id with its checkpoint and keeps it there, so the id tells one checkpoint from
another that took its place. Inside `foreachBatch` it is a local property of the thread.
"""

from __future__ import annotations

from typing import Final

from pyspark import SparkContext
from pyspark.sql import DataFrame

QUERY_PROPERTY: Final = "sql.streaming.queryId"


def query_of(batch: DataFrame) -> str | None:
    """The id of the streaming query that a `foreachBatch` call belongs to."""
    context = SparkContext._active_spark_context
    if context is None:  # a client of a Spark server: the property stays on the server
        return None
    return context.getLocalProperty(QUERY_PROPERTY)
