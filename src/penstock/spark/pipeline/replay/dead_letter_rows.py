"""Dead letters as columns: origin, reason, and the record to replay.

The headers of a dead letter name its origin (`pipeline/dead_letters.py`). A replay writes the
original record without those headers, and adds

    penstock.replay.id, .from (topic-partition@offset of the dead letter), .attempt (1 for the first
    time), .at (milliseconds), .by, .timestamp (of the original record, in milliseconds)

The timestamp of the replayed record is the time of the replay, because retention could delete an
older record at once. If the topic accepts the record only without the added headers, they are left
out. A truncated dead letter cannot be replayed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from penstock.records.columnar.fitting import TRUNCATED
from penstock.spark.pipeline.dead_letters import PREFIX as ERROR_PREFIX
from penstock.spark.pipeline.spec import PipelineSpec
from penstock.spark.schema import HEADERS, spark_schema

REPLAY_PREFIX: Final = "penstock.replay."
LETTER: Final = ("letter_topic_id", "letter_partition", "letter_offset")
"""Columns that identify a dead letter, even if its topic was deleted and created again."""
AUDITED: Final = (
    "rule", "letter_topic", *LETTER, "topic", "partition", "offset", "attempt",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRange:
    """Offsets of one partition of the dead-letter topic, both ends included."""

    partition: int
    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """Selection of dead letters to replay.

    `topic` is the original topic. `again` includes dead letters that were replayed before. `limit`
    selects the first ones by partition and offset.
    """

    rule: str | None = None
    topic: str | None = None
    since_ms: int | None = None
    offsets: tuple[OffsetRange, ...] = ()
    limit: int | None = None
    again: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """Id, user and time of a replay."""

    replay_id: str
    by: str
    at_ms: int


def dead_letters(records: DataFrame, *, pipeline: str, topic_id: str) -> DataFrame:
    """Return the dead letters of a pipeline, from the records of its dead-letter topic.

    Columns of the original record: `key`, `value`, `headers`, `topic`, `partition`, `offset`,
    `first_ms` (its timestamp), and `whole` (false if the dead letter is truncated). Columns of the
    rejection: `rule`, `reason`, `query`. Columns of the dead letter: `letter_topic`,
    `letter_topic_id`, `letter_partition`, `letter_offset`, `letter_time`, and `attempt`, the number
    of its next replay.
    """
    mine = records.where(_text("pipeline") == pipeline)
    attempt = _text("attempt", REPLAY_PREFIX).try_cast("int")
    return mine.select(
        "key",
        "value",
        _own_headers().alias(HEADERS),
        *(_text(name).alias(name) for name in ("rule", "reason", "query", "topic")),
        _text("partition").try_cast("int").alias("partition"),
        _text("offset").try_cast("bigint").alias("offset"),
        _text("timestamp").try_cast("bigint").alias("first_ms"),
        _text(TRUNCATED).isNull().alias("whole"),
        F.col("topic").alias("letter_topic"),
        F.lit(topic_id).alias("letter_topic_id"),
        F.col("partition").alias("letter_partition"),
        F.col("offset").alias("letter_offset"),
        F.col("timestamp").alias("letter_time"),
        (F.coalesce(attempt, F.lit(0)) + 1).alias("attempt"),
    )


def meant(found: DataFrame, wanted: Filters) -> DataFrame:
    """Return the dead letters that match the filters; ignore `again` and `limit`."""
    conditions: list[Column] = []
    if wanted.rule is not None:
        conditions.append(F.col("rule") == wanted.rule)
    if wanted.topic is not None:
        conditions.append(F.col("topic") == wanted.topic)
    if wanted.since_ms is not None:
        conditions.append(F.col("letter_time") >= F.timestamp_millis(F.lit(wanted.since_ms)))
    if wanted.offsets:
        conditions.append(reduce(Column.__or__, [_within(offset) for offset in wanted.offsets]))
    return reduce(DataFrame.where, conditions, found)


def marked(found: DataFrame, replays: DataFrame | None, spec: PipelineSpec) -> DataFrame:
    """Return the dead letters with the columns `replayed` (before) and `open` (can be replayed).

    A dead letter cannot be replayed if its headers lack the origin, if it is truncated, or if its
    record is a line of an outbox payload.
    """
    placed = F.col("topic").isNotNull() & F.col("partition").isNotNull() & F.col("whole")
    outboxes = [source for source in spec.sources.values() if source.outbox is not None]
    for source in outboxes:
        here = F.col("topic").isin(*source.topics)
        if source.pattern is not None:
            here = F.col("topic").rlike(f"^(?:{source.pattern})$")
        placed &= ~here
    frame = found.withColumn("open", F.coalesce(placed, F.lit(False)))
    if replays is None:
        return frame.withColumn("replayed", F.lit(False))
    before = replays.select(*LETTER).distinct().withColumn("replayed", F.lit(True))
    return frame.join(before, list(LETTER), "left").withColumn(
        "replayed", F.coalesce(F.col("replayed"), F.lit(False))
    )


def chosen(frame: DataFrame, wanted: Filters) -> DataFrame:
    """Return the dead letters of a marked frame to replay; repeated calls return the same ones."""
    going = frame.where(F.col("open"))
    if not wanted.again:
        going = going.where(~F.col("replayed"))
    if wanted.limit is not None:
        going = going.orderBy("letter_partition", "letter_offset").limit(wanted.limit)
    return going.drop("open", "replayed")


def put_back(going: DataFrame, stamp: Stamp) -> DataFrame:
    """Return dead letters as records to write, those of a key in their original order.

    A record with a key goes to the current partition of the key. A record without a key goes to its
    original partition.
    """
    place = F.concat(
        "letter_topic", F.lit("-"), F.col("letter_partition").cast("string"),
        F.lit("@"), F.col("letter_offset").cast("string"),
    )  # fmt: skip
    facts: Mapping[str, Column] = {
        "id": F.lit(stamp.replay_id),
        "from": place,
        "attempt": F.col("attempt").cast("string"),
        "at": F.lit(str(stamp.at_ms)),
        "by": F.lit(stamp.by),
        "timestamp": F.coalesce(F.col("first_ms").cast("string"), F.lit("")),
    }
    added = [
        F.struct(F.lit(REPLAY_PREFIX + name).alias("key"), F.encode(value, "UTF-8").alias("value"))
        for name, value in facts.items()
    ]
    headers = F.concat(F.col(HEADERS), F.array(*added).cast(_headers_type()))
    partition = F.when(F.col("key").isNull(), F.col("partition"))
    order = ("partition", "offset", "letter_partition", "letter_offset")
    return (
        going.repartition("topic", "key", partition)
        .sortWithinPartitions(*order)
        .select("key", "value", headers.alias(HEADERS), "topic", partition.alias("partition"))
    )


def audit_rows(going: DataFrame, stamp: Stamp, *, batch: int) -> DataFrame:
    return going.select(
        F.lit(stamp.replay_id).alias("replay_id"),
        F.lit(batch).cast("bigint").alias("batch"),
        F.timestamp_millis(F.lit(stamp.at_ms)).alias("at"),
        F.lit(stamp.by).alias("by"),
        *AUDITED,
    )


def _text(name: str, prefix: str = ERROR_PREFIX) -> Column:
    """Return the last header of this name as text; null if there is none."""
    found = F.filter(F.col(HEADERS), lambda one: one["key"] == prefix + name)
    return F.try_element_at(found, F.lit(-1))["value"].cast("string")


def _own_headers() -> Column:
    def own(one: Column) -> Column:
        prefixes: Sequence[str] = (ERROR_PREFIX, REPLAY_PREFIX)
        return ~reduce(Column.__or__, [one["key"].startswith(prefix) for prefix in prefixes])

    return F.coalesce(F.filter(F.col(HEADERS), own), F.array().cast(_headers_type()))


def _headers_type() -> str:
    return spark_schema((HEADERS,))[HEADERS].dataType.simpleString()


def _within(one: OffsetRange) -> Column:
    offset = F.col("letter_offset")
    here = F.col("letter_partition") == one.partition
    return here & (offset >= one.first) & (offset <= one.last)
