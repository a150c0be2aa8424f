"""Analysis of a pipeline by Spark: checks its SQL without running it.

Spark checks names, types and functions of each step by itself. Instead of the views that the step
reads, it gets stubs: empty streams with the same columns. The analysed plan shows whether the step
is stateful. A broker is needed only to infer a schema that is not stored yet.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from deltalake.exceptions import DeltaError
from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import DataType, StructType

from penstock.base import document
from penstock.base.document import DocumentInvalid, Problem, dotted
from penstock.base.errors import InvalidError, InvalidSetting, PenstockError
from penstock.formats import InvalidFormat
from penstock.formats.json.debezium import CHANGE
from penstock.formats.value_format import INFER, ValueFormat
from penstock.spark.formats.decoders import Decoder
from penstock.spark.pipeline import (
    frames,
    protecting,
    readers,
    rejects,
    rules,
    schemas,
)
from penstock.spark.pipeline.batches import may_hold
from penstock.spark.pipeline.causes import cause_of
from penstock.spark.pipeline.draft import keys_of
from penstock.spark.pipeline.frames import StepFailed, with_steps
from penstock.spark.pipeline.graph import QueryPlan, order, queries
from penstock.spark.pipeline.journal import Journal
from penstock.spark.pipeline.late import LateRows
from penstock.spark.pipeline.queries import group_id, output_mode, whole
from penstock.spark.pipeline.reads import read_of
from penstock.spark.pipeline.rejects import HELD, Passes, passes
from penstock.spark.pipeline.spec import (
    ERROR,
    HOLDING,
    KEEPING,
    RECORD,
    RECORD_FIELDS,
    ConsoleSink,
    IcebergSink,
    PipelineSpec,
    Rule,
    Sink,
    Source,
    Step,
    TableSink,
    TopicSink,
)
from penstock.spark.pipeline.state import PipelinePaths
from penstock.spark.pipeline.writing import TOPIC_EXPRESSIONS, application, check_sink
from penstock.spark.schema import COLUMN_NAMES, spark_schema
from penstock.spark.tables import read_table
from penstock.spark.tables.commits import committed_by_another
from penstock.spark.tables.location import open_table
from penstock.spark.tables.schemas import RESERVED

# Checks before a run starts: columns of views, sinks, and the state directory.
#
# Each sink compares the columns with its existing table.


TARGETS: Final = {TableSink: "table", IcebergSink: "iceberg", ConsoleSink: "console"}
"""Key that names a sink's target, by type of target; `topic` for other types."""


def check_fields(names: Sequence[str], value_format: ValueFormat) -> None:
    """Check the names of a value's fields.

    Raises:
        InvalidFormat: a field is named `_record`.
    """
    if taken := [name for name in names if name.lower() == RECORD]:
        key = "schema" if value_format.schema_file is None else "schema_file"
        if value_format.kind == "registry":
            key = "reader"
        given = getattr(value_format, key)
        raise InvalidFormat(
            key, str(given), f"field {taken[0]} has the reserved name of the record column"
        )


def of_columns(schema: StructType) -> Iterator[tuple[str, str]]:
    """Yield an error message and its fix for each column of a view with a reserved name."""
    for field in schema:
        if field.name.lower().startswith(RESERVED):
            yield f"column {field.name} begins with {RESERVED}, which is reserved", "rename it"
        if field.name.lower() != RECORD:
            continue
        kind = field.dataType
        if not isinstance(kind, StructType) or kind.names != [*RECORD_FIELDS, "attempt"]:
            yield (
                f"column {field.name} is {kind.simpleString()}, but its name is reserved for the "
                "column with the record, which sinks do not write",
                "rename it",
            )


def of_sink(
    spec: PipelineSpec, query: QueryPlan, sink: Sink, view: DataFrame
) -> Iterator[tuple[str, str]]:
    """Yield the reasons for which a sink rejects a view's columns, as key of the sink and message.

    Raises:
        AnalysisException: Spark rejects an expression of the sink.
    """
    target = TARGETS.get(type(sink.to), "topic")
    try:
        check_sink(spec, query.name, sink, view)
    except InvalidSetting as error:
        known = hasattr(sink.to, error.name)
        yield (error.name, f"{error.value}: {error.reason}") if known else (target, str(error))
    except (InvalidError, DeltaError) as error:
        yield target, str(error)
    else:
        if type(sink.to) is not TableSink or (table := open_table(sink.to.table)) is None:
            return
        known_as = spark_id(PipelinePaths(spec).checkpoint(query.name))
        name = application(spec, query.name, sink.name)
        if (last := committed_by_another(table, name, known_as)) is not None:
            said = f"has batches of {name} up to {last}, committed with another checkpoint than"
            yield target, f"{said} that of {spec.run.state}"


def of_state(spec: PipelineSpec, query: QueryPlan) -> Iterator[str]:
    """Yield a message if a query's checkpoint is not the one that its journal was written with."""
    paths = PipelinePaths(spec)
    last = Journal(paths.journal(query.name)).last()
    known_as = spark_id(paths.checkpoint(query.name))
    if last is not None and last.query_id is not None and last.query_id != known_as:
        there = "it is missing" if known_as is None else f"it is now that of query {known_as}"
        yield (
            f"batch {last.batch_id} of query {query.name} ran with the checkpoint of query "
            f"{last.query_id}, but {there}"
        )


def spark_id(checkpoint: Path) -> str | None:
    """Return the query id that Spark stored in a checkpoint; None if there is no checkpoint."""
    try:
        facts: dict[str, Any] = json.loads((checkpoint / "metadata").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return str(facts.get("id"))


# In an analysed plan, nodes that rows stream through begin with a tilde.
_STATEFUL: Final = re.compile(
    r"~(?:Aggregate|Distinct|Deduplicate\w*|GlobalLimit|FlatMapGroups\w*State\w*"
    r"|TransformWithState\w*)\b"
)
_JOIN: Final = re.compile(r"~Join\b")
_STREAM: Final = re.compile(r"~StreamingRelation")
_WINDOW: Final = re.compile(r"~Window \[")
_SQL_LINE: Final = re.compile(r"\bline (\d+)")
_CURES: Final = (
    ("UNRESOLVED_COLUMN", "write an existing column, or 'text' in single quotes"),
    ("UNRESOLVED_ROUTINE", "write a function of Spark's SQL"),
    ("DATATYPE_MISMATCH", "cast it"),
    ("STREAMING_OUTPUT_MODE", 'write output = "update", or give the source time and delay'),
    ("", "correct the SQL at this line"),
)
_DDL: Final = 'write it as "id bigint, name string"'


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedQuery:
    """Query as `penstock pipeline plan` shows it."""

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
    values: tuple[str, ...]
    passes: str
    rejects: tuple[str, ...]
    late: tuple[str, ...]
    explain: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Queries that a pipeline would run."""

    queries: tuple[PlannedQuery, ...]


def plan(spec: PipelineSpec, spark: SparkSession) -> Plan:
    """Return the plan of a pipeline without running it.

    Raises:
        DocumentInvalid: the file has problems.
    """
    analysed = _analyse(spec, spark)
    found = queries(spec, analysed.stateful)
    return Plan(queries=tuple(_planned(spec, query, found, analysed) for query in found))


def plans(
    spec: PipelineSpec, spark: SparkSession, inferred: Mapping[str, str]
) -> tuple[QueryPlan, ...]:
    """Analyse a pipeline and return the plans of its queries.

    Args:
        inferred: the inferred schemas as DDL, by source.

    Raises:
        DocumentInvalid: the file has problems.
    """
    return queries(spec, _analyse(spec, spark, inferred).stateful)


def problems(
    spec: PipelineSpec,
    spark: SparkSession,
    *,
    reported: Collection[Problem] = (),
    unsure: Collection[str] = (),
) -> tuple[Problem, ...]:
    """Return the problems that Spark finds in a pipeline, except at keys with a reported problem.

    Args:
        spec: a pipeline, which may have problems (`parsing.survey`).
        reported: the problems that earlier checks found.
        unsure: views whose columns are unreliable because of a reported problem. For these, and for
            views that read them, only the syntax is checked.
    """
    analysis = _Analysis(spec, spark.newSession(), reported, unsure)
    analysis.run(None)
    return tuple(analysis.problems)


def _analyse(
    spec: PipelineSpec, spark: SparkSession, inferred: Mapping[str, str] | None = None
) -> _Analysis:
    analysis = _Analysis(spec, spark.newSession())
    analysis.run(inferred)
    if analysis.problems:
        raise DocumentInvalid(tuple(analysis.problems))
    return analysis


class _Analysis:
    def __init__(
        self,
        spec: PipelineSpec,
        spark: SparkSession,
        reported: Collection[Problem] = (),
        unsure: Collection[str] = (),
    ) -> None:
        self._spec = spec
        self._spark = spark
        self._reported = {problem.where for problem in reported}
        self._unsure = unsure
        self._document = document.read(spec.file)
        self._streams: dict[str, bool] = {}
        self.decoders: dict[str, Decoder] = {}
        self.problems: list[Problem] = []
        self.stateful: set[str] = set()
        self.views: dict[str, DataFrame] = {}
        self._clear: dict[str, DataFrame] = {}  # views before protection, for rules
        self._keys = keys_of(spec)
        self.steps: dict[str, DataFrame] = {}
        self.explained: dict[str, str] = {}
        self._ranking: list[str] = []

    def run(self, inferred: Mapping[str, str] | None) -> None:
        for name, source in self._spec.sources.items():
            if name not in self._unsure:
                self._try(("source", name), partial(self._source, name, inferred))
            self._check_rules(("source", name), source.rules, self._clear.get(name))
        for name in order(self._spec):
            step = self._spec.steps[name]
            key = ("step", name, "sql" if step.sql is not None else "python")
            if name not in self._unsure and all(view in self.views for view in step.inputs):
                self._try(key, partial(self._step, step))
            elif step.sql is not None:
                self._try(key, partial(self._spark.sql, step.sql), syntax=True)
            self._check_rules(("step", name), step.rules, self._clear.get(name))
        for name, sink in self._spec.sinks.items():
            if sink.view in self.views:
                self._try(("sink", name), partial(self._sink, sink))
        self._check_holding()
        for query in queries(self._known(), self.stateful):
            self._check_ranking(query)
            self._check_streamed_rules(query)
            self._check_targets(query)
            self._check_streaming(query)

    def _known(self) -> PipelineSpec:
        spec = self._spec
        return replace(
            spec,
            sources={name: source for name, source in spec.sources.items() if name in self.views},
            steps={name: step for name, step in spec.steps.items() if name in self.views},
            sinks={name: sink for name, sink in spec.sinks.items() if sink.view in self.views},
        )

    # Views

    def _source(self, name: str, inferred: Mapping[str, str] | None) -> None:
        source = self._spec.sources[name]
        if source.table is not None:
            self.views[name] = self._clear[name] = read_table(self._spark, source.table).limit(0)
        else:
            if inferred is None:
                alone = replace(self._spec, sources={name: source})
                try:
                    inferred = schemas.inferred(alone, self._spark, keep=False)
                except PenstockError as error:
                    raise InvalidFormat("schema", INFER, cause_of(error)) from error
            if source.value_format.schema is None:
                source = replace(source, value_format=readers.analysed_format(self._spec, source))
                self._spec = replace(self._spec, sources={**self._spec.sources, name: source})
            read = frames.decoders(replace(self._spec, sources={name: source}), inferred)[name]
            self.decoders[name] = read
            check_fields(read.schema.names, source.value_format)
            empty = self._stub(spark_schema(COLUMN_NAMES))
            opened = frames.opened(empty, source, read)
            if self._can_protect(("source", name), source, opened.drop(ERROR), ("decrypt",)):
                opened = protecting.decrypted(opened, source, self._keys).drop(protecting.SHREDDED)
            self._clear[name] = self._stub(opened.drop(ERROR).schema)
            frame = self._protected(("source", name), source, self._clear[name])
            self.views[name] = self._stub(frame.schema)
            self._check_columns(("source", name), source, frame)
        self._streams[name] = source.streaming
        if source.deduplicate:
            self.stateful.add(name)
        self.views[name].createOrReplaceTempView(name)

    def _step(self, step: Step) -> None:
        clear = frames.run_step(self._spark, step, self.views)
        made = self._protected(("step", step.name), step, clear)
        self.steps[step.name] = made
        text = self.explained[step.name] = analysed_plan(made)
        streaming = any(self._streams[view] for view in step.inputs)
        self._streams[step.name] = streaming
        if streaming:
            joined = len(_STREAM.findall(text)) > 1 and _JOIN.search(text)
            if step.deduplicate or joined or _STATEFUL.search(text):
                self.stateful.add(step.name)
            if _WINDOW.search(text):
                self._ranking.append(step.name)
        self._check_columns(("step", step.name), step, made)
        self._clear[step.name] = self._stub(clear.schema) if streaming else clear.limit(0)
        stands = self._stub(made.schema) if streaming else made.limit(0)
        self.views[step.name] = stands
        stands.createOrReplaceTempView(step.name)

    def _stub(self, schema: StructType) -> DataFrame:
        # One cast for all columns: each column of a `select` takes ten calls to the JVM. The type
        # has the metadata that marks columns of windows and of event times.
        rate = self._spark.readStream.format("rate").load()
        return rate.select(F.lit(None).cast(schema).alias("row")).select("row.*")

    def _protected(self, key: tuple[str, ...], part: Source | Step, clear: DataFrame) -> DataFrame:
        if not self._can_protect(key, part, clear, ("mask", "tokenize", "encrypt")):
            return clear
        return protecting.protected(clear, part, self._keys)

    def late(self, query: QueryPlan) -> tuple[str, ...]:
        """Describe what happens to the late rows of a stateful query."""
        return LateRows(self._spec, query, self.decoders).described(self._spark)

    # Checks

    def _can_protect(
        self, key: tuple[str, ...], part: Source | Step, frame: DataFrame, by: Sequence[str]
    ) -> bool:
        before = len(self.problems)
        for protection in part.protections:
            if protection.by not in by:
                continue
            place = (*key, "protect", protection.column)
            if protection.column not in frame.columns or protection.column == RECORD:
                self._no_column(place, protection.column, frame)
            else:
                self._check_type(
                    place, frame, protection.column, protecting.TYPES[protection.by], protection.by
                )
            if protection.subject:
                self._try(
                    (*place, "subject"), partial(self._subject, place, frame, protection.subject)
                )
        return len(self.problems) == before

    def _subject(self, place: tuple[str, ...], frame: DataFrame, subject: str) -> None:
        [column] = (found := frame.selectExpr(f"({subject}\n)")).columns
        self._check_type((*place, "subject"), found, column, protecting.SUBJECT_TYPES, "a subject")

    def _check_type(
        self, place: tuple[str, ...], frame: DataFrame, column: str,
        fit: tuple[type[DataType], ...], what: str,
    ) -> None:  # fmt: skip
        kind = frame.schema[column].dataType
        if not isinstance(kind, fit):
            names = [allowed().simpleString() for allowed in fit]
            self._problem(
                place, f"is {kind.simpleString()}, but {what} requires {' or '.join(names)}",
                "cast it in an earlier step",
            )  # fmt: skip

    def _sink(self, sink: Sink) -> None:
        key = ("sink", sink.name)
        view = self.views[sink.view]
        if not self._streams[sink.view]:
            self._problem(
                (*key, "from"), f"{sink.view} has no streaming source: it reads tables only",
                "name a view that reads a topic",
            )  # fmt: skip
        if isinstance(sink.to, TopicSink):
            if sink.to.ordered and RECORD not in view.columns:
                self._problem(
                    (*key, "ordered"), f"{sink.view} has no column {RECORD} to order by",
                    f"select {RECORD} in it",
                )  # fmt: skip
            for name in TOPIC_EXPRESSIONS:
                if (expression := getattr(sink.to, name)) is not None:
                    self._try((*key, name), partial(view.selectExpr, expression))
        if isinstance(sink.to, TableSink):
            self._table_sink(key, sink.to, view)

    def _table_sink(self, key: tuple[str, ...], to: TableSink, view: DataFrame) -> None:
        # The sink itself checks partitions of Iceberg, which may have transforms.
        plain = () if isinstance(to, IcebergSink) else to.partition_by
        columns = {"keys": to.keys, "partition_by": plain, "order_by": to.order_by}
        for name, given in columns.items():
            for column in (given,) if isinstance(given, str) else given or ():
                if column not in view.columns or column == RECORD:
                    self._no_column((*key, name), column, view)
        if to.delete_when is not None:
            self._try((*key, "delete_when"), partial(view.where, to.delete_when))
        if to.applies_changes and CHANGE not in view.columns:
            self._no_column((*key, "mode"), CHANGE, view)

    def _check_targets(self, query: QueryPlan) -> None:
        for name in query.sinks:
            key, view = ("sink", name), self._spec.sinks[name].view
            if not any(map(self._is_wrong, (key, ("source", view), ("step", view)))):
                self._try(key, partial(self._check_target, key, query, self._spec.sinks[name]))
        for said in of_state(self._spec, query):
            fix = "restore the checkpoint, or name a new state directory and other sinks"
            self._problem(("run", "state"), said, fix)

    def _check_target(self, key: tuple[str, ...], query: QueryPlan, sink: Sink) -> None:
        origins = readers.origins(self._spec, query.sources)
        for name, said in of_sink(self._spec, query, sink, self.views[sink.view]):
            self._problem((*key, name), f"{said} ({origins})" if origins else said)

    def _check_streaming(self, query: QueryPlan) -> None:
        if query.root is None:
            return
        key = ("step" if query.root in self._spec.steps else "source", query.root)
        if self._is_wrong(key):
            return
        inputs = {name: self.views[name] for name in query.tables}
        for name in query.sources:
            source = self._spec.sources[name]
            inputs[name] = frames.with_watermark(self.views[name], source)
        self._try(key, partial(self._stream, query, inputs))

    def _stream(self, query: QueryPlan, inputs: Mapping[str, DataFrame]) -> None:
        views = with_steps(self._spark, self._spec, query, inputs, frames.with_watermark)
        frame = views[query.root or ""]
        check_supported(frame, output_mode(self._spec, query))

    def _check_columns(self, key: tuple[str, ...], part: Any, frame: DataFrame) -> None:
        for said, fix in of_columns(frame.schema):
            self._problem(key, said, fix)
        if part.time is not None and part.time not in frame.columns:
            self._no_column((*key, "time"), part.time, frame)
        elif part.time is not None:
            kind = frame.schema[part.time].dataType.simpleString()
            if kind != "timestamp":
                self._problem(
                    (*key, "time"),
                    f"column {part.time} is {kind}, but must be timestamp",
                    "cast it",
                )
        for name in part.deduplicate:
            if name not in frame.columns:
                self._no_column((*key, "deduplicate"), name, frame)

    def _check_rules(
        self, key: tuple[str, ...], some: tuple[Rule, ...], frame: DataFrame | None
    ) -> None:
        for rule in some:
            place = (*key, "expect", rule.name)
            if frame is None:
                nothing = self._spark.range(0)
                self._try(place, partial(nothing.where, rule.condition), syntax=True)
                continue
            self._try(place, partial(_judged_by, frame, rule))
            if rule.otherwise in KEEPING and RECORD not in frame.columns:
                self._problem(
                    place,
                    f"{rule.otherwise} needs the column {RECORD}, which {key[1]} lacks",
                    f"add {RECORD} to the select list of {key[1]}, or use drop, warn or fail",
                )

    def _check_holding(self) -> None:
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
                "is stateful, and records that are parked or retried would reach it late or "
                "out of order",
                "write the valid records to a topic, and aggregate that topic in another pipeline",
            )
        topics = [topic for name in decodes for topic in spec.sources[name].topics]
        for topic in sorted({topic for topic in topics if topics.count(topic) > 1}):
            self._problem(
                ("errors",), f"park and retry require that only one source reads topic {topic}",
                "read the topic with one source, and split its rows in steps",
            )  # fmt: skip
        for name in decodes:
            if spec.sources[name].outbox is not None:
                self._problem(
                    ("source", name, "outbox"), "payloads of an outbox cannot be parked or retried",
                    "use dead-letter, drop or fail",
                )  # fmt: skip

    def _check_ranking(self, one: QueryPlan) -> None:
        """Reject window functions over rows: on a stream, their rows may be in several batches."""
        for name in one.streamed if one.root is not None else one.batched:
            if name in self._ranking:
                self._problem(
                    ("step", name, "sql"),
                    "a window function over rows (OVER …) is not defined on a stream",
                    "group by window(time, '5 minutes') before it, or use deduplicate",
                )

    def _check_streamed_rules(self, one: QueryPlan) -> None:
        """Reject rules with an action other than drop in stateful steps and in steps between them.

        Spark computes these steps inside the streaming plan, before `foreachBatch` sees their rows.
        """
        for name in one.streamed:
            if not any(above in self.stateful for above in self._above(name)):
                continue
            for rule in self._spec.steps[name].rules:
                if rule.otherwise != "drop":
                    self._problem(
                        ("step", name, "expect", rule.name),
                        f"{rule.otherwise} is not possible in or between stateful steps",
                        "move the rule to a later step, or use drop",
                    )

    def _above(self, name: str) -> set[str]:
        step = self._spec.steps.get(name)
        inputs = () if step is None else step.inputs
        return {name}.union(*(self._above(view) for view in inputs))

    # Problems

    def _try(
        self, key: tuple[str, ...], look: Callable[[], object], *, syntax: bool = False
    ) -> None:
        """Call the check `look`; if it raises an error, add a problem of the key `key`.

        With `syntax`, ignore errors of Spark's analysis except SQL that cannot be parsed.
        """
        try:
            look()
        except AnalysisException as error:
            if isinstance(error, ParseException) or not syntax:
                self._problem(key, cause_of(error), _fix(error), line=_line(error))
        except InvalidFormat as error:
            fix = _DDL if error.name == "schema" else ""
            self._problem((*key, error.name), cause_of(error), fix, line=_line(error))
        except (StepFailed, PenstockError, PySparkException, DeltaError, OSError) as error:
            self._problem(key, cause_of(error))

    def _is_wrong(self, key: tuple[str, ...]) -> bool:
        keys = (*self._reported, *(problem.where for problem in self.problems))
        return any(f"{reported}.".startswith(f"{dotted(key)}.") for reported in keys)

    def _no_column(self, key: tuple[str, ...], name: str, frame: DataFrame) -> None:
        there = ", ".join(column for column in frame.columns if column != RECORD)
        self._problem(key, f"there is no column {name}", f"there are {there}")

    def _problem(
        self, key: tuple[str, ...], message: str, fix: str = "", *, line: int | None = None
    ) -> None:
        if line is None and dotted(key) in self._reported:
            return
        if line is not None and key[0] == "step" and key[-1] == "sql":
            file, place = self._document.sql_place(key[1], line)
        else:
            file, place = self._document.place(key, line)
        self.problems.append(
            Problem(file=file, line=place, where=dotted(key), message=message, fix=fix)
        )


def _judged_by(frame: DataFrame, rule: Rule) -> None:
    """Let Spark analyse a rule's condition as a column and as a filter; raise its errors.

    A rule that only warns is filtered too, so that its condition must be boolean.
    """
    frame.selectExpr(rule.condition)
    rules.met(frame, (replace(rule, otherwise="drop"),))


def check_supported(frame: DataFrame, mode: str) -> None:
    """Check that Spark supports a streaming plan in an output mode; do nothing over Connect.

    Raises:
        AnalysisException: Spark does not support it.
    """
    inner = getattr(frame, "_jdf", None)
    if inner is None:  # Spark Connect does not show plans
        return
    java: Any = frame.sparkSession._jvm
    modes = java.org.apache.spark.sql.streaming.OutputMode
    checker = java.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    chosen = modes.Update() if mode == "update" else modes.Append()
    checker.checkForStreaming(inner.queryExecution().analyzed(), chosen)


def analysed_plan(frame: DataFrame) -> str:
    """Return Spark's analysed plan as text, in a classic session or over Connect."""
    inner = getattr(frame, "_jdf", None)
    if inner is not None:
        return str(inner.queryExecution().analyzed().toString())
    text: str = frame._explain_string(extended=True)  # type: ignore[operator]
    return text.partition("== Analyzed Logical Plan ==")[2].partition("== Optimized")[0]


def _planned(
    spec: PipelineSpec, one: QueryPlan, plans: Sequence[QueryPlan], analysis: _Analysis
) -> PlannedQuery:
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
        checkpoint=PipelinePaths(spec).checkpoint(one.name),
        values=tuple(_reads(spec, one, analysis)),
        passes=str(_passes(spec, one, analysis)),
        rejects=rejects.described(spec, plans, one),
        late=() if one.root is None else analysis.late(one),
        explain="\n".join(f"{name}\n{analysis.explained[name]}" for name in steps),
    )


def _reads(spec: PipelineSpec, one: QueryPlan, analysis: _Analysis) -> Iterator[str]:
    for names in (one.sources,) if one.root is None else [(name,) for name in one.sources]:
        yield str(read_of(spec, one, analysis.decoders, names, whole=whole(spec, one)))


def _passes(spec: PipelineSpec, one: QueryPlan, analysis: _Analysis) -> Passes:
    if one.root is None and may_hold(spec, one):
        return HELD
    return passes(spec, one, analysis.views | analysis.steps, analysis.decoders)


def _line(error: Exception) -> int:
    found = _SQL_LINE.search(str(error))
    return int(found.group(1)) if found else 1


def _fix(error: AnalysisException) -> str:
    name = error.getCondition() or ""
    return next(fix for mark, fix in _CURES if mark in name)
