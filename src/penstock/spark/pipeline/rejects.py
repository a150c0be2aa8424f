"""Choice of the query that writes the dead letter of a record that several sources read.

Sources of one topic in different queries apply their rules to the same records. If several of them
dead-letter a record, only the *earliest* of these sources writes a dead letter.

A source is earlier than another if it is certain to read every record of the other: it starts at
the beginning of the log, or both start at the same fixed time. If that is true in both directions,
the first one in the file is earlier. Rules whose result may change over time are unsuitable here:
only the earlier source's rules before the first such rule are applied. `penstock pipeline plan`
shows which query writes which dead letters.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from penstock.spark.formats.decoders import Decoder
from penstock.spark.pipeline import frames, rules
from penstock.spark.pipeline.graph import QueryPlan
from penstock.spark.pipeline.reads import read_of
from penstock.spark.pipeline.spec import (
    RECORD,
    RECORD_FIELDS,
    PipelineSpec,
    Sink,
    Source,
    TableSink,
    TopicSink,
)
from penstock.spark.schema import ERROR, VALUE
from penstock.spark.tables.newest import in_tasks

# Passes over the records of a batch, and the choice of the pass that counts rule results.
#
# Spark can count rows at a point of a plan (`observe`) while it computes the plan for another
# purpose. So the rows that break rules are counted while a sink's files are written. The files stay
# invisible until the counts are known (`staged.py`). This is exact only if every judged row passes
# the point exactly once, so the steps before the sink may only select, change and union rows.
# Limits, joins, aggregates and subqueries may end early or run twice; then a separate pass counts.
#
# Each pass reads the same records, because a batch is a range of offsets. Python steps, outboxes,
# random numbers and the current time may still give other rows. Then the judged rows are kept in
# memory between passes. They are also kept if decoding the values again costs more.


ROW_BY_ROW: Final = frozenset(
    {
        "Project", "Filter", "Generate", "SubqueryAlias", "View", "Union", "CollectMetrics",
        "ArrowEvalPython", "BatchEvalPython", "MapInArrow", "MapInPandas", "PythonMapInArrow",
    }
)  # fmt: skip
"""Nodes of an analysed plan that pass on every input row exactly once."""

_STATE: Final = "its state would be computed again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """Passes of a query over each batch: one for each sink, and perhaps one that counts.

    The rows that break rules are counted while the sink `counting` is written; if that is None, by
    a separate pass. `kept` is the reason to keep judged rows in memory between passes; None if
    each pass computes them again.
    """

    counting: str | None
    kept: str | None

    def __str__(self) -> str:
        if self.kept is not None:
            return f"kept in memory: {self.kept}"
        if self.counting is not None:
            return f"not kept; rules are counted while {self.counting} is written"
        return "not kept"


HELD: Final = Passes(counting=None, kept="records may have to wait")


def passes(
    spec: PipelineSpec,
    plan: QueryPlan,
    views: Mapping[str, DataFrame],
    decoders: Mapping[str, Decoder],
) -> Passes:
    """Choose a query's passes over a batch, from the plans of its views; all batches use them.

    Args:
        views: the query's views, built over any records.
    """
    watched = {name for name in plan.batched if spec.steps[name].rules}
    if plan.root is None:
        watched |= {name for name in plan.sources if _judges(spec.sources[name])}
    fit = [name for name in plan.sinks if _counts(spec, plan, spec.sinks[name], watched, views)]
    counting = fit[0] if fit and watched else None
    rounds = len(plan.sinks) + bool(watched and counting is None)
    again = rounds > 1 or bool(watched and spec.errors.dead_letters)
    if plan.root is not None:
        return Passes(counting=counting, kept=_STATE if again else None)
    kept = _unsure(spec, plan, views) if again else None
    if kept is None and rounds > 1:
        kept = _costly(spec, plan, decoders)
    return Passes(counting=counting, kept=kept)


def _counts(
    spec: PipelineSpec,
    plan: QueryPlan,
    sink: Sink,
    watched: set[str],
    views: Mapping[str, DataFrame],
) -> bool:
    if not one_by_one(sink, views[sink.view]):
        return False
    made_of = above(spec, sink.view)
    steps = made_of & set(plan.batched)
    return watched <= made_of and all(
        spec.steps[name].python is None and row_by_row(views[name]) for name in steps
    )


def one_by_one(sink: Sink, view: DataFrame) -> bool:
    """Whether rows can be counted while a sink writes them: its tasks write without a shuffle."""
    if isinstance(sink.to, TableSink):
        to = sink.to
        return to.order_by is None or in_tasks(view.schema, keys=to.keys, order=to.order_by)
    return isinstance(sink.to, TopicSink) and not sink.to.ordered


def above(spec: PipelineSpec, view: str) -> set[str]:
    step = spec.steps.get(view)
    return {view}.union(*(above(spec, name) for name in step.inputs if step) if step else ())


def row_by_row(frame: DataFrame) -> bool:
    """Whether rows can be counted while a frame is computed: its plan passes on each row once."""
    plan = _analysed(frame)
    return (
        plan is not None
        and not plan.containsPattern(_pattern(frame, "PLAN_EXPRESSION"))
        and all(
            str(node.nodeName()) in ROW_BY_ROW or not node.children().size()
            for node in _nodes(plan)
        )
    )


def _judges(source: Source) -> bool:
    return source.can_fail or bool(source.rules)


def _unsure(spec: PipelineSpec, plan: QueryPlan, views: Mapping[str, DataFrame]) -> str | None:
    """Return why computing the views again may give other rows; None if it gives the same rows."""
    if any(spec.sources[name].outbox for name in plan.sources):
        return "files of an outbox may be gone when they are read again"
    for name in plan.batched:
        if spec.steps[name].python is not None:
            return f"step {name} is Python, and may give other rows when it runs again"
        if not repeatable(views[name]):
            return f"step {name} may give other rows when it runs again"
    return None


def repeatable(frame: DataFrame) -> bool:
    plan = _analysed(frame)
    if plan is None or not plan.deterministic():
        return False
    return not plan.containsPattern(_pattern(frame, "CURRENT_LIKE"))


def _costly(spec: PipelineSpec, plan: QueryPlan, decoders: Mapping[str, Decoder]) -> str | None:
    """Return why decoding values in each pass is too expensive; None if it is cheap."""
    if read_of(spec, plan, decoders, plan.sources, whole=True).value_format is not None:
        return None
    opened = [name for name in plan.sources if spec.sources[name].can_fail]
    return f"values of {opened[0]} cost more to decode again than to keep" if opened else None


def _analysed(frame: DataFrame) -> Any:
    inner = getattr(frame, "_jdf", None)
    return None if inner is None else inner.queryExecution().analyzed()


def _pattern(frame: DataFrame, name: str) -> Any:
    java: Any = frame.sparkSession._jvm
    return getattr(java.org.apache.spark.sql.catalyst.trees.TreePattern, name)()


def _nodes(plan: Any) -> Iterable[Any]:
    yield plan
    children = plan.children()
    for index in range(children.size()):
        yield from _nodes(children.apply(index))


DEAD_LETTER: Final = "dead-letter"
_ROW: Final = "_penstock_row"
_FIELDS: Final = ", ".join(f"`{field}`" for field in RECORD_FIELDS)


def writes_dead_letters(spec: PipelineSpec, source: Source) -> bool:
    """Whether a source dead-letters records that it cannot decode or that break its rules."""
    return spec.errors.dead_letters is not None and (
        (source.can_fail and spec.errors.on_invalid == DEAD_LETTER)
        or any(rule.otherwise == DEAD_LETTER for rule in source.rules)
    )


def described(spec: PipelineSpec, plans: Sequence[QueryPlan], plan: QueryPlan) -> tuple[str, ...]:
    """Describe for users which dead letters a record query writes or leaves to other queries."""
    if plan.root is not None:
        return ()
    found = []
    rejecting = [name for name in plan.sources if writes_dead_letters(spec, spec.sources[name])]
    if not plan.sinks and rejecting:
        found.append(f"dead letters only, of {', '.join(rejecting)}")
    query = {name: other.name for other in plans if other.root is None for name in other.sources}
    for name in rejecting:
        found += [
            f"no dead letter if {earlier} rejects the record too: query {query[earlier]} writes it"
            for earlier in earlier_sources(spec, plan, name)
        ]
    return tuple(found)


def earlier_sources(spec: PipelineSpec, plan: QueryPlan, name: str) -> tuple[str, ...]:
    """Return the sources of other queries that are earlier than the source `name`."""
    source = spec.sources[name]
    before = list(spec.sources)[: list(spec.sources).index(name)]
    return tuple(
        first
        for first, other in spec.sources.items()
        if first not in plan.sources
        and _stands_for(spec, other, source)
        and (first in before or not _stands_for(spec, source, other))
    )


def _stands_for(spec: PipelineSpec, first: Source, second: Source) -> bool:
    return (
        first.streaming
        and writes_dead_letters(spec, first)
        and first.outbox is None
        and second.outbox is None
        and not first.decrypts
        and (first.start == "earliest" or first.start == second.start != "latest")
        and _share_topics(first, second)
    )


def _share_topics(first: Source, second: Source) -> bool:
    """Whether two sources may read the same topic; True for two patterns."""
    if first.pattern is not None and second.pattern is not None:
        return True
    if first.pattern is None and second.pattern is None:
        return bool(set(first.topics) & set(second.topics))
    pattern = first.pattern or second.pattern or ""
    topics = second.topics if first.pattern is not None else first.topics
    return any(re.fullmatch(pattern, topic) for topic in topics)


def without_those_of(
    rejected: DataFrame,
    spec: PipelineSpec,
    earlier: Sequence[str],
    decoders: Mapping[str, Decoder],
) -> DataFrame:
    """Return the rejected rows of a source, without rows that earlier sources dead-letter.

    Args:
        rejected: rows of a judged frame whose action is dead-letter.
        earlier: the result of `earlier_sources`.
    """
    columns = rejected.columns
    for name in earlier:
        source = spec.sources[name]
        records = rejected.select(
            *(F.col(RECORD)[field].alias(field) for field in RECORD_FIELDS),
            F.struct(*(f"`{column}`" for column in columns)).alias(_ROW),
        )
        values = (
            decoders[name]
            .decode(records)
            .selectExpr(
                f"{VALUE}.*",
                f"struct({_FIELDS}, 0 as attempt) as {RECORD}",
                ERROR,
                _ROW,
            )
        )
        judged = _judged(values, source, spec.errors.on_invalid)
        if judged is None:
            continue
        read = frames.reads(F.col(f"{RECORD}.topic"), source)
        theirs = read & F.coalesce(F.col(rules.OTHERWISE) == DEAD_LETTER, F.lit(False))
        rejected = judged.where(~theirs).select(f"{_ROW}.*")
    return rejected


def _judged(values: DataFrame, source: Source, on_error: str) -> DataFrame | None:
    """Return values judged by a source's rules before the first whose result may change.

    Return None if the judgement may change even without rules.
    """
    for count in range(len(source.rules), -1, -1):
        judged = rules.judged(values, source.rules[:count], error=ERROR, on_error=on_error)
        if repeatable(judged):
            return judged
    return None
