"""Dead letters: rejected records as they are written to the dead-letter topic.

A dead letter has the record's key, value and headers unchanged, followed by the headers

    penstock.error.pipeline, .query, .rule, .reason, .attempts
    penstock.error.topic, .partition, .offset, .timestamp     (of the original record; milliseconds)
    penstock.error.truncated     (what was cut, if the topic does not accept the whole record)

A query writes at most one dead letter of a record: that of its first view that rejects the record.
`penstock pipeline replay` writes the records back to their topics.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import starmap
from typing import Final

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F  # noqa: N812

from penstock.spark.formats.decoders import Decoder
from penstock.spark.pipeline import frames, rejects
from penstock.spark.pipeline.graph import QueryPlan
from penstock.spark.pipeline.rules import OTHERWISE, REASON, RULE
from penstock.spark.pipeline.spec import RECORD, PipelineSpec
from penstock.spark.schema import HEADERS, spark_schema

PREFIX: Final = "penstock.error."
REASON_CHARS_MAX: Final = 1_000
_ROWS: Final = "_rows"
_PLACE: Final = ("_topic", "_partition", "_offset")


class BatchDeadLetters:
    """Dead letters of one batch of a query, collected from the views that reject records."""

    def __init__(
        self, spec: PipelineSpec, plan: QueryPlan, decoders: Mapping[str, Decoder]
    ) -> None:
        self._spec = spec
        self._plan = plan
        self._decoders = decoders
        self._frames: list[DataFrame] = []
        self._rejected: list[tuple[DataFrame, Observation]] = []
        self._late: list[tuple[DataFrame, Observation]] = []
        self._of_steps = False

    def add(self, view: str | None, judged: DataFrame) -> None:
        """Add the rows of a judged frame whose action is dead-letter.

        Rows that an earlier source of another query dead-letters are left out (`rejects.py`).

        Args:
            view: the source or step that judged the rows; None for held records.
        """
        rows = self._counted(judged.where(F.col(OTHERWISE) == "dead-letter"), self._rejected)
        if view in self._plan.sources:
            earlier = rejects.earlier_sources(self._spec, self._plan, view)
            rows = rejects.without_those_of(rows, self._spec, earlier, self._decoders)
        self._of_steps |= view in self._spec.steps
        self._frames.append(self._made(rows))

    def add_late(self, rows: DataFrame) -> None:
        self._frames.append(self._made(self._counted(rows, self._late)))

    def frame(self) -> DataFrame:
        if len(self._frames) == 1 and not self._of_steps:
            return self._frames[0]
        outbox = any(self._spec.sources[name].outbox for name in self._plan.sources)
        place = [*_PLACE, "value"] if outbox else [*_PLACE]
        ranked = [frame.withColumn("_rank", F.lit(at)) for at, frame in enumerate(self._frames)]
        row = F.struct(*self._frames[0].columns)
        first = frames.union(ranked).groupBy(*place).agg(F.min_by(row, "_rank").alias("_row"))
        return first.select("_row.*")

    def rejected(self) -> int:
        """Return the number of rejected rows that were read while `frame` was written."""
        return sum(starmap(_rows, self._rejected))

    def late(self) -> int:
        """Return the number of late rows that were read while `frame` was written."""
        return sum(starmap(_rows, self._late))

    def _made(self, rows: DataFrame) -> DataFrame:
        return dead_letters(rows, pipeline=self._spec.name, query=self._plan.name)

    def _counted(self, rows: DataFrame, seen: list[tuple[DataFrame, Observation]]) -> DataFrame:
        observation = Observation()
        seen.append((rows, observation))
        return rows.observe(observation, F.count(F.lit(1)).alias(_ROWS))


def _rows(rows: DataFrame, observation: Observation) -> int:
    try:
        return int(observation.get[_ROWS])
    except Py4JJavaError:
        # Adaptive execution removed this part of the plan, because no row of it was written.
        return rows.count()


def dead_letters(frame: DataFrame, *, pipeline: str, query: str) -> DataFrame:
    """Return the dead letters of a judged frame as rows for the log sink.

    The columns `_topic`, `_partition` and `_offset` define their order.
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
