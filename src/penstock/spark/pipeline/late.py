"""Late rows: rows that a stateful query drops behind its watermark, which become dead letters.

Spark drops a row silently at the first stateful operator if the row's time, or the end of its
window, is not after the watermark of the previous batch. Spark writes that watermark and the
batch's offsets into the checkpoint before the batch runs. So `foreachBatch` reads the batch's
records again, and runs them through the same steps up to each of these operators. It selects the
rows for which Spark's own condition holds. They are committed as dead letters before the batch's
rows.

    EventTimeWatermark        marks a column by metadata, which follow the column through the plan
    Aggregate, Distinct       drop rows by the grouping key with this mark
    Deduplicate, Join         drop rows by the input column with this mark, each input by itself

Rows with a null time are lost too, and become dead letters. Spark removes them where it creates
windows. In `append` mode it never emits their groups or distinct rows. It never emits them as
unmatched rows of an outer join. A row in several windows may be late in only some of them; its
reason names the window. Late rows without `_record` are only counted. Late rows of stateful Python
operators are unknown (`Unseen`).

Source: Spark's `WatermarkSupport`, `IncrementalExecution` (the watermark of the previous batch
decides which rows are late) and `MicroBatchExecution` (the files in `offsets`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Final

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.classic.column import Column as ClassicColumn

from penstock.base.errors import UnavailableError
from penstock.spark.formats.decoders import Decoder
from penstock.spark.pipeline import frames
from penstock.spark.pipeline.causes import cause_of
from penstock.spark.pipeline.frames import Ranges, StepFailed
from penstock.spark.pipeline.graph import QueryPlan
from penstock.spark.pipeline.reads import read_of
from penstock.spark.pipeline.rules import OTHERWISE, REASON, RULE
from penstock.spark.pipeline.spec import RECORD, PipelineSpec, Source, Step
from penstock.spark.reads.positions import TOPICS, Positions, from_json
from penstock.spark.schema import COLUMN_NAMES, spark_schema

LATE: Final = "late"
"""Rule name in the dead letters of late rows."""
_DELAY: Final = "spark.watermarkDelayMs"
_STREAM: Final = "penstock.stream"
_DROPPING: Final = frozenset({"Aggregate", "Distinct", "Deduplicate", "Join"})
_WINDOW_PARTS: Final = frozenset({"Project", "SubqueryAlias"})
_NAMED: Final = frozenset({"AttributeReference", "Alias"})
_UNSEEN: Final = ("FlatMapGroups", "TransformWithState")
_PLACE: Final = ("topic", "partition", "offset")


class CheckpointUnreadable(UnavailableError):
    """Spark's checkpoint lacks the offsets or the watermark of a batch."""

    code: ClassVar[str] = "invalid_config"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Offset ranges of a batch, and the watermark by which Spark drops its late rows.

    The `first` batch begins at the start of each source, instead of the first offsets in `ranges`.
    """

    ranges: Ranges
    watermark_ms: int
    first: bool = False


@dataclass(frozen=True, slots=True)
class OperatorInput:
    """Input of a stateful operator, before Spark drops rows.

    `record` is None if the rows have no `_record`. If `untimed` names a column, rows with a null in
    it are lost; otherwise rows behind the watermark are lost.
    """

    operator: str
    rows: DataFrame
    time: Column
    is_window: bool
    record: Column | None
    untimed: str | None = None


@dataclass(frozen=True, slots=True)
class Unseen:
    """Stateful operator whose late rows cannot be found."""

    operator: str


def bounds(checkpoint: Path, batch_id: int) -> Bounds | None:
    """Return the bounds of a batch from a checkpoint; None if the batch has no records.

    Raises:
        CheckpointUnreadable: a file of offsets is missing, or is not as Spark writes it.
    """
    _, until = _offsets(checkpoint, batch_id)
    first = batch_id == 0
    nowhere = [replace(end, partitions={}) for end in until]
    watermark_ms, before = (0, nowhere) if first else _offsets(checkpoint, batch_id - 1)
    ranges: dict[str, dict[str, tuple[int, int]]] = {}
    for start, end in zip(before, until, strict=True):
        for at, position in end.partitions.items():
            low = start.offset(at) or 0
            if low >= position.offset:
                continue
            known = ranges.setdefault(at.topic, {}).get(str(at.partition), (low, position.offset))
            ranges[at.topic][str(at.partition)] = (
                min(low, known[0]), max(position.offset, known[1])
            )  # fmt: skip
    return Bounds(ranges=ranges, watermark_ms=watermark_ms, first=first) if ranges else None


def _offsets(checkpoint: Path, batch_id: int) -> tuple[int, list[Positions]]:
    path = checkpoint / "offsets" / str(batch_id)
    try:
        _, metadata, *sources = path.read_text().splitlines()
        bodies = [json.loads(line) for line in sources if line.startswith("{")]
        watermark_ms = int(json.loads(metadata)["batchWatermarkMs"])
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointUnreadable(
            f"{path} does not contain the offsets and the watermark of batch {batch_id}: {error}"
        ) from error
    return watermark_ms, [from_json(body) for body in bodies if TOPICS in body]


class LateRows:
    """Late rows of the batches of one stateful query."""

    def __init__(
        self, spec: PipelineSpec, plan: QueryPlan, decoders: Mapping[str, Decoder]
    ) -> None:
        self._spec = spec
        self._plan = plan
        self._decoders = decoders

    def of(self, spark: SparkSession, found: Bounds) -> tuple[DataFrame | None, int]:
        """Return late rows as rejected rows of a judged frame, and the number of other late rows.

        The frame has one row per record; it is None if no late row can have a record. The number
        counts late rows without a record. `found` is the result of `bounds`.
        """
        late: list[DataFrame] = []
        without = 0
        for operator_input in self.operator_inputs(spark, found.ranges, first=found.first):
            if isinstance(operator_input, Unseen):
                continue
            rows = _late(operator_input, found.watermark_ms)
            if operator_input.record is None:
                without += rows.count()
            else:
                late.append(rows)
        return (self._once_per_record(frames.union(late)) if late else None), without

    def operator_inputs(
        self, spark: SparkSession, ranges: Ranges, *, first: bool = False
    ) -> list[OperatorInput | Unseen]:
        """Return the input of every operator that drops late rows, computed from some records.

        Args:
            ranges: the offsets of the records.
            first: read from the start of each source instead of the first offsets in `ranges`.
        """
        try:
            views = frames.views(
                spark,
                self._spec,
                self._plan,
                self._decoders,
                records=lambda name: self._records(spark, name, ranges, first),
                timed=_timed,
            )
        except (AnalysisException, StepFailed) as error:  # a step that works on streams only
            return [Unseen(cause_of(error))]
        root = getattr(views[self._plan.root or ""], "_jdf", None)
        if root is None:
            return [Unseen("Spark Connect shows no plans")]
        step = self._spec.steps.get(self._plan.root or "")
        appends = step is None or step.output_mode == "append"
        return list(_Plans(spark, appends).operator_inputs(root.queryExecution().analyzed()))

    def described(self, spark: SparkSession) -> tuple[str, ...]:
        """Describe what happens to late rows, with a line for each different outcome."""
        fate = (
            "are dead letters" if self._spec.errors.late_dead_letters else "are dropped and counted"
        )
        found = dict.fromkeys(
            f"cannot be found: {operator_input.operator}"
            if isinstance(operator_input, Unseen)
            else fate
            if operator_input.record is not None
            else f"are dropped and counted: {operator_input.operator} gets no column {RECORD}"
            for operator_input in self.operator_inputs(spark, {})
        )
        return tuple(f"rows behind the watermark {line}" for line in found)

    def _records(self, spark: SparkSession, name: str, ranges: Ranges, first: bool) -> DataFrame:
        source = self._spec.sources[name]
        if not ranges:
            return spark.createDataFrame([], spark_schema(COLUMN_NAMES))
        read = read_of(self._spec, self._plan, self._decoders, (name,), whole=True)
        options = frames.range_options(self._spec, ranges) | read.options()
        if first:
            options |= frames.start_options(source.start)
        records = spark.read.format("penstock").options(**options).load()
        return frames.records_of(records, source)

    def _once_per_record(self, late: DataFrame) -> DataFrame:
        outboxes = any(self._spec.sources[name].outbox for name in self._plan.sources)
        place = [*_PLACE, "value"] if outboxes else [*_PLACE]
        row = F.struct(*(f"`{name}`" for name in late.columns))
        return (
            late.groupBy(*(F.col(RECORD)[name].alias(f"_{name}") for name in place))
            .agg(F.min_by(row, REASON).alias("_row"))
            .select("_row.*")
        )


def _timed(frame: DataFrame, part: Source | Step) -> DataFrame:
    """Return a batch with the deduplication of its stream, and with marks in its metadata.

    By the marks, the columns of the record and of the watermark are found in the plan.
    """
    if RECORD in frame.columns and isinstance(part, Source):
        frame = frame.withMetadata(RECORD, {_STREAM: True})
    if part.time is not None and part.delay is not None:
        frame = frame.withMetadata(part.time, {_DELAY: 0})
    return frame.dropDuplicates(list(part.deduplicate)) if part.deduplicate else frame


def _late(operator_input: OperatorInput, watermark_ms: int) -> DataFrame:
    if operator_input.untimed is not None:
        lost = operator_input.time.isNull()
        reason = F.lit(
            f"late: {operator_input.untimed} is null, and rows without a time are not kept"
        )
    else:
        moment = F.timestamp_millis(F.lit(watermark_ms))
        end = operator_input.time["end"] if operator_input.is_window else operator_input.time
        what = "the window that ended at" if operator_input.is_window else "time"
        lost = end <= moment
        reason = F.concat(
            F.lit(f"late: {what} "), end.cast("string"), F.lit(", not after the watermark "),
            moment.cast("string"),
        )  # fmt: skip
    rows = operator_input.rows.where(lost)
    if operator_input.record is None:
        return rows
    return rows.select(
        operator_input.record.alias(RECORD),
        F.lit(LATE).alias(RULE),
        reason.alias(REASON),
        F.lit("dead-letter").alias(OTHERWISE),
    )


class _Plans:
    def __init__(self, spark: SparkSession, appends: bool) -> None:
        self._spark = spark
        self._java: Any = spark._jvm
        self._appends = appends

    def operator_inputs(self, node: Any) -> Iterator[OperatorInput | Unseen]:
        """Yield the input of the first stateful operator on each path from a source to `node`."""
        name = str(node.nodeName())
        children = _items(node.children())
        if name.startswith(_UNSEEN):
            yield Unseen(name)
            return
        streams = [child for child in children if self._streams(child)]
        drops = name in _DROPPING and bool(streams) and (name != "Join" or len(streams) > 1)
        for child in children:
            below = list(self.operator_inputs(child))
            yield from below
            if drops and not below and child in streams:
                yield from self._operator_input(name, node, child)

    def _operator_input(self, name: str, node: Any, child: Any) -> Iterator[OperatorInput]:
        output = _items(child.output())
        keys = _items(node.groupingExpressions()) if name == "Aggregate" else output
        time = self._marked(keys, _DELAY)
        if time is None:
            return
        yield self._input(name, child, time)
        if _is_window(time):
            child = self._before_windows(child)
            time = child and self._marked(_items(child.output()), _DELAY)
        elif not self._needs_time(name, node, child, time):
            return
        if time is not None:
            yield replace(self._input(name, child, time), untimed=str(time.name()))

    def _input(self, name: str, child: Any, time: Any) -> OperatorInput:
        record = self._marked(_items(child.output()), _STREAM)
        return OperatorInput(
            operator=name,
            rows=self._frame(child),
            time=self._column(time),
            is_window=_is_window(time),
            record=None if record is None else self._column(record),
        )

    def _needs_time(self, name: str, node: Any, child: Any, time: Any) -> bool:
        if name != "Join":
            return self._appends and name in {"Aggregate", "Distinct"}
        kept = {"LEFT OUTER": [0], "RIGHT OUTER": [1], "FULL OUTER": [0, 1]}
        sides = kept.get(str(node.joinType().sql()), [])
        if not any(child.equals(node.children().apply(side)) for side in sides):
            return False
        condition = node.condition()
        return bool(condition.isDefined() and condition.get().references().contains(time))

    def _before_windows(self, node: Any) -> Any:
        """Return the plan below the nodes that make windows, which drop rows with null times.

        Its output still has the rows that are lost there. Return None if other filters or unknown
        nodes are in between.
        """
        above = ""
        while node.children().size() == 1 and self._has_windows(node):
            below = node.children().apply(0)
            name = str(node.nodeName())
            if not self._has_windows(below):  # the node makes the windows
                if above == "Filter":
                    return below
                tumbling = str(below.nodeName()) == "Filter"
                return below.children().apply(0) if tumbling else None
            if above == "Filter" or name not in _WINDOW_PARTS | {"Filter"}:
                return None
            above, node = name, below
        return None

    def _has_windows(self, node: Any) -> bool:
        return any(
            _is_window(column) and column.metadata().contains(_DELAY)
            for column in _items(node.output())
        )

    def _streams(self, node: Any) -> bool:
        if self._marked(_items(node.output()), _STREAM) is not None:
            return True
        return any(self._streams(child) for child in _items(node.children()))

    def _marked(self, expressions: Sequence[Any], key: str) -> Any:
        """Return the first named expression that has the mark `key` in its metadata; else None."""
        for expression in expressions:
            named = str(expression.getClass().getSimpleName()) in _NAMED
            if named and expression.metadata().contains(key):
                return expression
        return None

    def _frame(self, plan: Any) -> DataFrame:
        classic = self._java.org.apache.spark.sql.classic
        return DataFrame(classic.Dataset.ofRows(self._spark._jsparkSession, plan), self._spark)

    def _column(self, expression: Any) -> Column:
        classic = self._java.org.apache.spark.sql.classic
        return ClassicColumn(classic.ExpressionUtils.column(expression.toAttribute()))


def _is_window(column: Any) -> bool:
    return str(column.dataType().typeName()) == "struct"


def _items(sequence: Any) -> list[Any]:
    return [sequence.apply(index) for index in range(sequence.size())]
