"""Rejected records, as they go to the dead-letter topic.

A dead letter has the key, the value and the headers of the record, unchanged, and behind those
headers what happened to it:

    penstock.error.pipeline, .query, .rule, .reason, .attempts
    penstock.error.topic, .partition, .offset, .timestamp     (milliseconds; where it came from)

`penstock pipeline replay` reads them to put records back to where they came from.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from penstock.spark.pipeline.rules import OTHERWISE, REASON, RULE
from penstock.spark.pipeline.spec import RECORD
from penstock.spark.schema import HEADERS, spark_schema

PREFIX: Final = "penstock.error."
REASON_CHARS_MAX: Final = 1_000


def dead_letters(frame: DataFrame, *, pipeline: str, query: str) -> DataFrame:
    """The rows of a judged frame that are to be dead-lettered, as the log sink takes them.

    Their order columns are `_topic`, `_partition` and `_offset`.
    """
    record = F.col(RECORD)
    facts = {
        "pipeline": F.lit(pipeline),
        "query": F.lit(query),
        "rule": F.col(RULE),
        "reason": F.substring(F.col(REASON), 1, REASON_CHARS_MAX),
        "attempts": (record["attempt"] + 1).cast("string"),
        "topic": record["topic"],
        "partition": record["partition"].cast("string"),
        "offset": record["offset"].cast("string"),
        "timestamp": F.unix_millis(record["timestamp"]).cast("string"),
    }
    added = F.array(*(_header(PREFIX + name, value) for name, value in facts.items()))
    headers_type = spark_schema((HEADERS,))[HEADERS].dataType
    kept = F.coalesce(record["headers"], F.array().cast(headers_type))
    return frame.where(F.col(OTHERWISE) == "dead-letter").select(
        record["key"].alias("key"),
        record["value"].alias("value"),
        F.concat(kept, added.cast(headers_type)).alias("headers"),
        record["topic"].alias("_topic"),
        record["partition"].alias("_partition"),
        record["offset"].alias("_offset"),
    )


def _header(name: str, value: Column) -> Column:
    text = F.encode(F.coalesce(value, F.lit("")), "UTF-8")
    return F.struct(F.lit(name).alias("key"), text.alias("value"))
