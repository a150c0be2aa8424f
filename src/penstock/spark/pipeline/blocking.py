"""Selection of records that wait: rejected records, and later records of their keys.

The functions read judged frames: rows with the rule that each one breaks (`rules.py`). A *point* is
the position from which records wait. With `keep_order`, a key of a partition has one point: its
first rejected record, or the start of the batch if an earlier record of the key still waits.
Without `keep_order`, and for records without a key, each rejected record is its own point. The
driver computes the points from the rejected records; a broadcast join compares the batch's records
with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from penstock.spark.pipeline.retry_store import QUEUED, SCHEMA
from penstock.spark.pipeline.rules import OTHERWISE, REASON, RULE
from penstock.spark.pipeline.spec import HOLDING, RECORD, RECORD_FIELDS

BEFORE_ALL: Final = -1
REJECT_SCHEMA: Final = pa.schema(
    [
        *(SCHEMA.field(name) for name in ("topic", "partition", "key", "offset")),
        *(SCHEMA.field(name) for name in ("rule", "reason", "otherwise", "attempt")),
    ]
)
_POINT_SCHEMA: Final = pa.schema(
    [
        pa.field("_penstock_topic", pa.string()),
        pa.field("_penstock_partition", pa.int32()),
        pa.field("_penstock_key", pa.binary()),
        pa.field("_penstock_offset", pa.int64()),
        pa.field("_penstock_from", pa.int64()),
        pa.field("_penstock_point_rule", pa.string()),
        pa.field("_penstock_point_reason", pa.string()),
        pa.field("_penstock_point_otherwise", pa.string()),
    ]
)
_ADDED: Final = tuple(_POINT_SCHEMA.names)


def rejects(frame: DataFrame) -> DataFrame:
    """Return the rows of a judged frame that must wait, with the columns of `REJECT_SCHEMA`."""
    record = F.col(RECORD)
    return frame.where(F.col(OTHERWISE).isin(*sorted(HOLDING))).select(
        *(record[name].alias(name) for name in ("topic", "partition", "key", "offset")),
        F.col(RULE).alias("rule"),
        F.col(REASON).alias("reason"),
        F.col(OTHERWISE).alias("otherwise"),
        record["attempt"].alias("attempt"),
    )


def blocking_offsets(rejected: pa.Table, staying: pa.Table, *, keep_order: bool) -> pa.Table:
    """Return a table with a row for each point.

    Args:
        rejected: the rejected records, with the columns of `REJECT_SCHEMA`; a record may occur more
            than once.
        staying: the held records that are not part of this batch.
    """
    found = rejected.sort_by(
        [("topic", "ascending"), ("partition", "ascending"), ("offset", "ascending")]
    )
    if not keep_order:
        return _alone(found)
    keyed = found.filter(pc.is_valid(found["key"]))
    waiting = staying.filter(pc.is_valid(staying["key"])).select(REJECT_SCHEMA.names)
    waiting = waiting.set_column(
        waiting.schema.get_field_index("offset"),
        SCHEMA.field("offset"),
        pa.chunked_array([pa.repeat(pa.scalar(BEFORE_ALL, pa.int64()), waiting.num_rows)]),
    )
    firsts = _first_of(pa.concat_tables([waiting, keyed]), ("topic", "partition", "key"))
    nothing = pa.nulls(firsts.num_rows, pa.int64())
    in_order = _point_table(firsts, keys=firsts["key"], offsets=nothing, froms=firsts["offset"])
    return pa.concat_tables([in_order, _alone(found.filter(pc.is_null(found["key"])))])


def split(
    spark: SparkSession, frame: DataFrame, where: pa.Table, *, keep_order: bool
) -> tuple[DataFrame, DataFrame]:
    """Split a judged frame into rows that proceed and rows that wait.

    Args:
        where: the points, from `blocking_offsets`. Rows that wait also have the columns of their
            point, which `held_rows` reads.
    """
    table = F.broadcast(spark.createDataFrame(where))
    record = F.col(RECORD)
    key: Column = record["key"] if keep_order else F.lit(None).cast("binary")
    offset = F.when(key.isNull(), record["offset"])
    joined = frame.join(
        table,
        (record["topic"] == F.col("_penstock_topic"))
        & (record["partition"] == F.col("_penstock_partition"))
        & key.eqNullSafe(F.col("_penstock_key"))
        & offset.eqNullSafe(F.col("_penstock_offset")),
        "left",
    )
    waits = F.col("_penstock_from").isNotNull() & (record["offset"] >= F.col("_penstock_from"))
    return joined.where(~F.coalesce(waits, F.lit(False))).drop(*_ADDED), joined.where(waits)


def held_rows(waiting: DataFrame, *, now_ms: int, delays_seconds: Sequence[float]) -> DataFrame:
    """Return rows that wait, from `split`, as rows of the retry store.

    A record at a point gets the point's rule and, for a retry, the time of its next try. The queued
    records behind it get neither.
    """
    record = F.col(RECORD)
    point = record["offset"] == F.col("_penstock_from")
    otherwise = F.when(point, F.col("_penstock_point_otherwise")).otherwise(F.lit(QUEUED))
    retried = otherwise == "retry"
    delays = F.array(*(F.lit(int(delay * 1_000)) for delay in delays_seconds or (0,)))
    due = F.when(retried, F.lit(now_ms) + F.get(delays, record["attempt"]).cast("long"))
    return waiting.select(
        *(record[name].alias(name) for name in _RECORD_ORDER),
        F.when(point, F.col("_penstock_point_rule")).alias("rule"),
        F.when(point, F.col("_penstock_point_reason")).alias("reason"),
        otherwise.alias("otherwise"),
        (record["attempt"] + F.when(retried, 1).otherwise(0)).cast("int").alias("attempt"),
        F.lit(now_ms).cast("long").alias("held_ms"),
        due.alias("due_ms"),
    ).select(*SCHEMA.names)


def dead_letter_rows(held: DataFrame) -> DataFrame:
    """Return held records as rows of a judged frame with the action dead-letter."""
    fields = (*RECORD_FIELDS, "attempt")
    return held.select(
        F.struct(*(F.col(name) for name in fields)).alias(RECORD),
        F.col("rule").alias(RULE),
        F.col("reason").alias(REASON),
        F.lit("dead-letter").alias(OTHERWISE),
    )


_RECORD_ORDER: Final = tuple(name for name in SCHEMA.names if name in RECORD_FIELDS)


def _alone(rejected: pa.Table) -> pa.Table:
    firsts = _first_of(rejected, ("topic", "partition", "offset"))
    nobody = pa.nulls(firsts.num_rows, pa.binary())
    return _point_table(firsts, keys=nobody, offsets=firsts["offset"], froms=firsts["offset"])


def _first_of(table: pa.Table, names: Sequence[str]) -> pa.Table:
    others = [name for name in table.column_names if name not in names]
    grouped = table.group_by(list(names), use_threads=False).aggregate(
        [(name, "first") for name in others]
    )
    return grouped.rename_columns([name.removesuffix("_first") for name in grouped.column_names])


def _point_table(firsts: pa.Table, *, keys: object, offsets: object, froms: object) -> pa.Table:
    return pa.table(
        [
            firsts["topic"], firsts["partition"], keys, offsets, froms,
            firsts["rule"], firsts["reason"], firsts["otherwise"],
        ],
        schema=_POINT_SCHEMA,
    )  # fmt: skip
