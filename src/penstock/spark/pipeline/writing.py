"""Sinks of one query: each writes a batch once, under its own application name.

The name is `<pipeline>.<query>.<sink>`. A table or topic recognises a replayed batch by the name
and the batch number. So the name of a sink must not change.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from penstock.records.columnar.fitting import Pointer
from penstock.spark.pipeline.dead_letters import PREFIX
from penstock.spark.pipeline.spec import (
    RECORD,
    ConsoleSink,
    PipelineSpec,
    Sink,
    TableSink,
    TopicSink,
)
from penstock.spark.schema import quoted
from penstock.spark.sink.columns import is_json_value
from penstock.spark.sink.log_sink import LogSink
from penstock.spark.staged import Staged
from penstock.spark.tables import DeltaSink, DeltaUpsert

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
    if isinstance(sink.to, TopicSink):
        _log_sink(spec, sink.to, name).check(topic_rows(view, sink.to))
    elif isinstance(sink.to, TableSink) and sink.to.mode == "append":
        _append(sink.to, name).check(_rows(view))
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
    return lambda frame, batch_id: table.stage(_rows(frame), batch_id)


def _append(to: TableSink, name: str) -> DeltaSink:
    return DeltaSink(
        to.table,
        application=name,
        partition_by=to.partition_by,
        add_columns=to.add_columns,
        codec=to.codec,
    )


def _upsert(to: TableSink, name: str) -> DeltaUpsert:
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


def _rows(frame: DataFrame) -> DataFrame:
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
    """Return all columns except `_record` as the value of a record.

    This is a struct, which workers write as JSON. If workers cannot write a type, it is Spark's
    JSON.
    """
    fields = [field for field in schema if field.name != RECORD]
    row = F.struct(*(F.col(quoted(field.name)) for field in fields))
    return row if all(is_json_value(field.dataType) for field in fields) else F.to_json(row)


def _console_stage(name: str, to: ConsoleSink) -> Stage:
    def stage(frame: DataFrame, batch_id: int) -> Staged[None]:
        shown = _rows(frame)
        count = shown.count()

        def show() -> None:
            if count:
                print(f"{name}, batch {batch_id}: {count} rows", flush=True)
                shown.show(to.rows, truncate=CONSOLE_CHARS)

        return Staged(rows=count, commit=show)

    return stage
