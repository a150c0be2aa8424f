"""What only Spark can say of a pipeline, without running it and without a broker.

Every view is built once over streams that have the right columns and no rows. Spark analyses each
step as it would later: names, types and functions are checked, and the plan shows whether the step
is stateful. A step is looked at by itself, over inputs that stand for their views, so that what it
adds is told from what it reads.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from penstock.base.errors import PenstockError
from penstock.spark.formats import Decoder
from penstock.spark.pipeline import document, frames, rules, schemas
from penstock.spark.pipeline.causes import cause_of
from penstock.spark.pipeline.frames import StepFailed
from penstock.spark.pipeline.graph import QueryPlan, order, queries, streams
from penstock.spark.pipeline.locations import dotted
from penstock.spark.pipeline.places import Places
from penstock.spark.pipeline.problems import PipelineInvalid, Problem
from penstock.spark.pipeline.queries import group_id, output_mode
from penstock.spark.pipeline.spec import (
    HOLDING,
    KEEPING,
    RECORD,
    PipelineSpec,
    Rule,
    Sink,
    Source,
    Step,
    TableSink,
    TopicSink,
)
from penstock.spark.pipeline.writing import topic_rows
from penstock.spark.schema import COLUMN_NAMES, spark_schema
from penstock.spark.tables import read_table

# In an analysed plan, nodes that rows stream through begin with a tilde.
_STATEFUL: Final = re.compile(
    r"~(?:Aggregate|Distinct|Deduplicate\w*|GlobalLimit|FlatMapGroups\w*State\w*"
    r"|TransformWithState\w*)\b"
)
_JOIN: Final = re.compile(r"~Join\b")
_STREAM: Final = re.compile(r"~StreamingRelation")
_WINDOW: Final = re.compile(r"~Window \[")
_SQL_LINE: Final = re.compile(r"\bline (\d+)")
_QUERY_CONTEXT: Final = re.compile(r"== SQL.*|;\n.*", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedQuery:
    """A query as `penstock pipeline plan` shows it."""

    name: str
    group_id: str
    root: str | None
    sources: tuple[str, ...]
    topics: tuple[str, ...]
    tables: tuple[str, ...]
    streamed: tuple[str, ...]
    batched: tuple[str, ...]
    sinks: tuple[str, ...]
    output_mode: str
    checkpoint: Path
    explain: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What would run."""

    queries: tuple[PlannedQuery, ...]


def plan(spec: PipelineSpec, spark: SparkSession) -> Plan:
    """What would run, without running it.

    Raises:
        PipelineInvalid: the file has problems.
    """
    analysed = _analyse(spec, spark, None)
    found = queries(spec, analysed.stateful)
    return Plan(queries=tuple(_planned(spec, one, analysed) for one in found))


def plans(
    spec: PipelineSpec, spark: SparkSession, inferred: Mapping[str, str]
) -> tuple[QueryPlan, ...]:
    """The queries to run.

    Raises:
        PipelineInvalid: the file has problems.
    """
    return queries(spec, _analyse(spec, spark, inferred).stateful)


def problems(spec: PipelineSpec, spark: SparkSession) -> tuple[Problem, ...]:
    """Everything that Spark finds wrong with a pipeline that passed the static checks."""
    try:
        _analyse(spec, spark, None)
    except PipelineInvalid as invalid:
        return invalid.problems
    return ()


def _analyse(
    spec: PipelineSpec, spark: SparkSession, inferred: Mapping[str, str] | None
) -> _Analysis:
    analysis = _Analysis(spec, spark.newSession())
    analysis.run(inferred)
    if analysis.problems:
        raise PipelineInvalid(tuple(analysis.problems))
    return analysis


class _Analysis:
    """One look at a pipeline."""

    def __init__(self, spec: PipelineSpec, spark: SparkSession) -> None:
        self._spec = spec
        self._spark = spark
        self._document = document.read(spec.file)
        self._streams = streams(spec)
        self._decoders: dict[str, Decoder] = {}
        self.problems: list[Problem] = []
        self.stateful: set[str] = set()
        self.views: dict[str, DataFrame] = {}
        self.explained: dict[str, str] = {}
        self._ranking: list[str] = []

    def run(self, inferred: Mapping[str, str] | None) -> None:
        for name in self._spec.sources:
            self._try(("source", name), partial(self._source, name, inferred))
        for name in order(self._spec):
            step = self._spec.steps[name]
            if all(view in self.views for view in step.inputs):
                key = ("step", name, "sql" if step.sql is not None else "python")
                self._try(key, partial(self._step, step))
        for name, sink in self._spec.sinks.items():
            if sink.view in self.views:
                self._try(("sink", name), partial(self._sink, sink))
        self._check_holding()
        if not self.problems:
            for one in queries(self._spec, self.stateful):
                self._check_ranking(one)
                self._check_streamed_rules(one)

    # Views

    def _source(self, name: str, inferred: Mapping[str, str] | None) -> None:
        source = self._spec.sources[name]
        if source.table is not None:
            self.views[name] = read_table(self._spark, source.table).limit(0)
        else:
            if inferred is None:
                alone = replace(self._spec, sources={name: source})
                inferred = schemas.inferred(alone, self._spark, keep=False)
            read = frames.decoders(replace(self._spec, sources={name: source}), inferred)[name]
            self._decoders[name] = read
            empty = self._stub(spark_schema(COLUMN_NAMES))
            frame = frames.opened(empty, source, read).drop(frames.ERROR)
            self.views[name] = self._stub(frame.schema)
            self._check_columns(("source", name), source, frame)
        self._check_rules(("source", name), source.rules, self.views[name])
        if source.deduplicate:
            self.stateful.add(name)
        self.views[name].createOrReplaceTempView(name)

    def _step(self, step: Step) -> None:
        made = frames.run_step(self._spark, step, self.views)
        key = ("step", step.name)
        text = self.explained[step.name] = analysed_plan(made)
        if self._streams[step.name]:
            joined = len(_STREAM.findall(text)) > 1 and _JOIN.search(text)
            if step.deduplicate or joined or _STATEFUL.search(text):
                self.stateful.add(step.name)
            if _WINDOW.search(text):
                self._ranking.append(step.name)
        self._check_columns(key, step, made)
        self._check_rules(key, step.rules, made)
        stands = self._stub(made.schema) if self._streams[step.name] else made.limit(0)
        self.views[step.name] = stands
        stands.createOrReplaceTempView(step.name)

    def _stub(self, schema: StructType) -> DataFrame:
        """A stream with these columns and no rows."""
        rate = self._spark.readStream.format("rate").load()
        nothing = [
            # The metadata says which column is a window's, or an event time.
            F.lit(None).cast(field.dataType).alias(field.name, metadata=field.metadata)
            for field in schema.fields
        ]
        return rate.select(*nothing)

    # Checks

    def _sink(self, sink: Sink) -> None:
        key = ("sink", sink.name)
        view = self.views[sink.view]
        if not self._streams[sink.view]:
            self._problem(
                (*key, "from"), f"nothing streams into {sink.view}: it is made of tables only",
                "name a view that reads a topic",
            )  # fmt: skip
        if isinstance(sink.to, TopicSink):
            if sink.to.ordered and RECORD not in view.columns:
                self._problem(
                    (*key, "ordered"), f"{sink.view} has no column {RECORD} to order by",
                    f"select {RECORD} in it",
                )  # fmt: skip
            else:
                topic_rows(view, sink.to)
        if isinstance(sink.to, TableSink):
            columns = [*sink.to.keys, *sink.to.partition_by]
            columns += [sink.to.order_by] if sink.to.order_by else []
            for column in columns:
                if column not in view.columns or column == RECORD:
                    self._no_column(key, column, view)
            if sink.to.delete_when is not None:
                view.where(sink.to.delete_when)

    def _check_columns(self, key: tuple[str, ...], part: Any, frame: DataFrame) -> None:
        if part.time is not None and part.time not in frame.columns:
            self._no_column((*key, "time"), part.time, frame)
        elif part.time is not None:
            kind = frame.schema[part.time].dataType.simpleString()
            if kind != "timestamp":
                self._problem(
                    (*key, "time"), f"column {part.time} is {kind}, not timestamp", "cast it"
                )
        for name in part.deduplicate:
            if name not in frame.columns:
                self._no_column((*key, "deduplicate"), name, frame)

    def _check_rules(self, key: tuple[str, ...], some: tuple[Rule, ...], frame: DataFrame) -> None:
        for rule in some:
            place = (*key, "expect", rule.name)
            self._try(place, partial(rules.met, frame, (rule,)))
            if rule.otherwise in KEEPING and RECORD not in frame.columns:
                self._problem(
                    place,
                    f"{rule.otherwise} needs the record, and {key[1]} has no column {RECORD}",
                    f"select {RECORD} in it, or say drop, warn or fail",
                )

    def _check_holding(self) -> None:
        """Held records come back into record queries only."""
        spec = self._spec
        parts: list[tuple[str, Source | Step]] = [*spec.sources.items(), *spec.steps.items()]
        names = {name for name, part in parts if any(r.otherwise in HOLDING for r in part.rules)}
        decodes = [name for name, source in spec.sources.items() if source.streaming]
        if spec.errors.on_invalid in HOLDING:
            names |= set(decodes)
        if not names:
            return
        for name in sorted(self.stateful):
            kind = "step" if name in spec.steps else "source"
            self._problem(
                (kind, name),
                "is stateful, and records that are parked or tried again would reach it late or "
                "out of order",
                "write the good records to a topic, and aggregate that in a pipeline of its own",
            )
        topics = [topic for name in decodes for topic in spec.sources[name].topics]
        for topic in sorted({topic for topic in topics if topics.count(topic) > 1}):
            self._problem(
                ("errors",), f"topic {topic} is read by two sources, and records may be held",
                "read it by one source and split it in steps",
            )  # fmt: skip
        for name in decodes:
            if spec.sources[name].outbox is not None:
                self._problem(
                    ("source", name, "outbox"), "payloads of an outbox cannot be parked or retried",
                    "say dead-letter, drop or fail",
                )  # fmt: skip

    def _check_ranking(self, one: QueryPlan) -> None:
        """A window function sees one batch; only what a stateful step hands on comes complete."""
        for name in one.streamed if one.root is not None else one.batched:
            if name in self._ranking:
                self._problem(
                    ("step", name, "sql"),
                    "a window function over rows (OVER …) is not defined on a stream",
                    "group by window(time, '5 minutes') before it, or use deduplicate",
                )

    def _check_streamed_rules(self, one: QueryPlan) -> None:
        """Rules of steps with state before them are part of the streaming plan."""
        for name in one.streamed:
            if not any(above in self.stateful for above in self._above(name)):
                continue
            for rule in self._spec.steps[name].rules:
                if rule.otherwise != "drop":
                    self._problem(
                        ("step", name, "expect", rule.name),
                        f"{rule.otherwise} is not possible in a stateful step, or between two",
                        "put the rule on a step behind it, or say drop",
                    )

    def _above(self, name: str) -> set[str]:
        """A view and everything it is made of."""
        step = self._spec.steps.get(name)
        inputs = () if step is None else step.inputs
        return {name}.union(*(self._above(view) for view in inputs))

    # Problems

    def _try(self, key: tuple[str, ...], look: Callable[[], object]) -> None:
        """Look at one part; what Spark or a format refuses becomes a problem."""
        try:
            look()
        except (AnalysisException, ParseException) as error:
            found = _SQL_LINE.search(str(error))
            self._problem(key, _message(error), line=int(found.group(1)) if found else 1)
        except (StepFailed, PenstockError, PySparkException, OSError) as error:
            self._problem(key, cause_of(error))

    def _no_column(self, key: tuple[str, ...], name: str, frame: DataFrame) -> None:
        there = ", ".join(column for column in frame.columns if column != RECORD)
        self._problem(key, f"there is no column {name}", f"there are {there}")

    def _problem(
        self, key: tuple[str, ...], message: str, cure: str = "", *, line: int | None = None
    ) -> None:
        """Note a problem at a key; `line` counts within the key's text."""
        if line is not None and key[0] == "step" and key[-1] == "sql":
            file, place = self._document.sql_place(key[1], line)
        else:
            file, place = self._document.place(key, line)
        self.problems.append(
            Problem(file=file, line=place, where=dotted(key), message=message, cure=cure)
        )


def analysed_plan(frame: DataFrame) -> str:
    """Spark's analysed plan as text, in a classic session or over Connect."""
    inner = getattr(frame, "_jdf", None)
    if inner is not None:
        return str(inner.queryExecution().analyzed().toString())
    text: str = frame._explain_string(extended=True)  # type: ignore[operator]
    return text.partition("== Analyzed Logical Plan ==")[2].partition("== Optimized")[0]


def _planned(spec: PipelineSpec, one: QueryPlan, analysis: _Analysis) -> PlannedQuery:
    sources = [spec.sources[name] for name in one.sources]
    steps = (*one.streamed, *one.batched)
    return PlannedQuery(
        name=one.name,
        group_id=group_id(spec, one),
        root=one.root,
        sources=one.sources,
        topics=tuple(
            topic for source in sources for topic in (source.topics or (source.pattern or "",))
        ),
        tables=one.tables,
        streamed=one.streamed,
        batched=one.batched,
        sinks=one.sinks,
        output_mode=output_mode(spec, one),
        checkpoint=Places(spec).checkpoint(one.name),
        explain="\n".join(f"{name}\n{analysis.explained[name]}" for name in steps),
    )


def _message(error: PySparkException) -> str:
    text = _QUERY_CONTEXT.sub("", str(error))
    return " ".join(text.split())
