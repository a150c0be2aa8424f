"""Sinks of one query: each writes a batch once, under its own application name.

The name is `<pipeline>.<query>.<sink>`. A table or topic recognises a replayed batch by the name
and the batch number. So the name of a sink must not change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import starmap
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from penstock.base.extras import check_installed
from penstock.lake.target import Target
from penstock.records.columnar.shortening import Pointer
from penstock.spark.formats.decoders import Decoder
from penstock.spark.pipeline import frames, rejects
from penstock.spark.pipeline.graph import QueryPlan
from penstock.spark.pipeline.rules import OTHERWISE, REASON, RULE
from penstock.spark.pipeline.spec import (
    RECORD,
    ConsoleSink,
    IcebergSink,
    PipelineSpec,
    Sink,
    TableSink,
    TopicSink,
)
from penstock.spark.schema import HEADERS, quoted, spark_schema
from penstock.spark.sink.log_sink import LogSink
from penstock.spark.sink.options import is_json_value
from penstock.spark.staged import Staged
from penstock.spark.tables import DeltaChanges, DeltaSink, DeltaUpsert

if TYPE_CHECKING:
    from penstock.lake.commits import LakeTable
    from penstock.spark.tables.iceberg import IcebergAppend, IcebergChanges, IcebergUpsert

# Dead letters: rejected records as they are written to the dead-letter topic.
#
# A dead letter has the record's key, value and headers unchanged, followed by the headers
#
#   penstock.error.pipeline, .query, .rule, .reason, .attempts
#   penstock.error.topic, .partition, .offset, .timestamp     (of the original record; milliseconds)
#   penstock.error.truncated     (what was cut, if the topic does not accept the whole record)
#
# A query writes at most one dead letter of a record: that of its first view that rejects the
# record. `penstock pipeline replay` writes the records back to their topics.


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
        """Return the number of rejected rows, counted by Spark while it wrote `frame()`."""
        return sum(starmap(_rows, self._rejected))

    def late(self) -> int:
        """Return the number of late rows, counted by Spark while it wrote `frame()`."""
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


DEAD_LETTERS: Final = "dead-letters"
ORDER: Final = ("_topic", "_partition", "_offset")
TOPIC_EXPRESSIONS: Final = ("value", "key", "partition", "headers")
CONSOLE_CHARS: Final = 40

Stage = Callable[[DataFrame, int], Staged[Any]]
"""Function that stages a batch, given its rows and number, for a later commit (`staged.py`)."""


def application(spec: PipelineSpec, query: str, sink: str) -> str:
    """Return the name under which a sink of a query commits batches."""
    return f"{spec.name}.{query}.{sink}"


def writer(spec: PipelineSpec, query: str, sink: Sink) -> Stage:
    name = application(spec, query, sink.name)
    if isinstance(sink.to, TableSink):
        return _table_writer(sink.to, name)
    if isinstance(sink.to, TopicSink):
        return _topic_writer(spec, sink.to, name)
    return _console_stage(sink.name, sink.to)


def check_sink(spec: PipelineSpec, query: str, sink: Sink, view: DataFrame) -> None:
    """Check that a sink accepts the columns of its view; read no rows.

    Raises:
        InvalidError: the sink rejects the columns; `InvalidSetting` names the key of the sink.
        AnalysisException: Spark rejects an expression of the sink.
    """
    name = application(spec, query, sink.name)
    if isinstance(sink.to, IcebergSink):
        check_installed("iceberg")
    if isinstance(sink.to, TopicSink):
        _log_sink(spec, sink.to, name).check(topic_rows(view, sink.to))
    elif isinstance(sink.to, TableSink) and sink.to.mode == "append":
        _append(sink.to, name).check(_without_record(view))
    elif isinstance(sink.to, TableSink):
        _upsert(sink.to, name).check(view)


def dead_letter_writer(spec: PipelineSpec, query: str) -> Stage:
    return LogSink(
        application=application(spec, query, DEAD_LETTERS),
        bootstrap=spec.run.bootstrap,
        admin_url=spec.run.admin_url,
        topic=spec.errors.dead_letters,
        ordered_by=ORDER,
        shorten=Pointer(prefix=PREFIX),
    ).stage


def _table_writer(to: TableSink, name: str) -> Stage:
    if to.mode != "append":
        return _upsert(to, name).stage
    table = _append(to, name)
    return lambda frame, batch_id: table.stage(_without_record(frame), batch_id)


def _append(to: TableSink, name: str) -> DeltaSink | IcebergAppend:
    if isinstance(to, IcebergSink):
        from penstock.spark.tables.iceberg import IcebergAppend

        return IcebergAppend(_lake_table(to, name), name)
    return DeltaSink(
        to.table,
        application=name,
        partition_by=to.partition_by,
        add_columns=to.add_columns,
        codec=to.codec,
    )


def _upsert(
    to: TableSink, name: str
) -> DeltaChanges | DeltaUpsert | IcebergChanges | IcebergUpsert:
    if isinstance(to, IcebergSink):
        from penstock.spark.tables.iceberg import IcebergChanges, IcebergUpsert

        lake = _lake_table(to, name)
        if to.applies_changes:
            return IcebergChanges(lake, name, keys=to.keys, history=to.history, leave_out=(RECORD,))
        return IcebergUpsert(
            lake,
            name,
            keys=to.keys,
            order_by=to.order_by,
            delete_when=to.delete_when,
            leave_out=(RECORD,),
        )
    if to.applies_changes:
        return DeltaChanges(
            to.table,
            application=name,
            keys=to.keys,
            history=to.history,
            add_columns=to.add_columns,
            leave_out=(RECORD,),
            codec=to.codec,
        )
    return DeltaUpsert(
        to.table,
        application=name,
        keys=to.keys,
        order_by=to.order_by,
        delete_when=to.delete_when,
        add_columns=to.add_columns,
        leave_out=(RECORD,),
        codec=to.codec,
    )


def _lake_table(to: IcebergSink, name: str) -> LakeTable:
    from penstock.lake.commits import LakeTable

    return LakeTable(
        Target(table=to.table, catalog=tuple(sorted((to.catalog or {}).items()))),
        application=name,
        partition_by=to.partition_by,
        add_columns=to.add_columns,
        codec=to.codec,
    )


def _topic_writer(spec: PipelineSpec, to: TopicSink, name: str) -> Stage:
    log = _log_sink(spec, to, name)
    return lambda frame, batch_id: log.stage(topic_rows(frame, to), batch_id)


def _log_sink(spec: PipelineSpec, to: TopicSink, name: str) -> LogSink:
    return LogSink(
        application=name,
        bootstrap=spec.run.bootstrap,
        admin_url=spec.run.admin_url,
        topic=to.topic,
        codec=to.codec,
        ordered_by=ORDER if to.ordered else (),
        transactional=to.transactional,
    )


def _without_record(frame: DataFrame) -> DataFrame:
    return frame.drop(RECORD) if RECORD in frame.columns else frame


def topic_rows(frame: DataFrame, to: TopicSink) -> DataFrame:
    columns = {"value": F.expr(to.value) if to.value else _row(frame.schema)}
    for name in TOPIC_EXPRESSIONS[1:]:
        expression = getattr(to, name)
        if expression is not None:
            columns[name] = F.expr(expression)
    if to.ordered:
        record = F.col(RECORD)
        columns |= {f"_{name}": record[name] for name in ("topic", "partition", "offset")}
    return frame.select(*(column.alias(name) for name, column in columns.items()))


def _row(schema: StructType) -> Column:
    """Return the value of a topic sink's record: all columns except `_record`, as JSON.

    The result is a struct, which workers write as JSON. If a type is not supported there, it is the
    text of Spark's `to_json`.
    """
    fields = [field for field in schema if field.name != RECORD]
    row = F.struct(*(F.col(quoted(field.name)) for field in fields))
    return row if all(is_json_value(field.dataType) for field in fields) else F.to_json(row)


def _console_stage(name: str, to: ConsoleSink) -> Stage:
    def stage(frame: DataFrame, batch_id: int) -> Staged[None]:
        shown = _without_record(frame)
        count = shown.count()

        def show() -> None:
            if count:
                print(f"{name}, batch {batch_id}: {count} rows", flush=True)
                shown.show(to.rows, truncate=CONSOLE_CHARS)

        return Staged(rows=count, commit=show)

    return stage
