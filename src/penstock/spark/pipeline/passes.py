"""Passes over the records of a batch, and the choice of the pass that counts rule results.

Spark can count rows at a point of a plan (`observe`) while it computes the plan for another
purpose. So the rows that break rules are counted while a sink's files are written. The files stay
invisible until the counts are known (`staged.py`). This is exact only if every judged row passes
the point exactly once, so the steps before the sink may only select, change and union rows. Limits,
joins, aggregates and subqueries may end early or run twice; then a separate pass counts.

Each pass reads the same records, because a batch is a range of offsets. Python steps, outboxes,
random numbers and the current time may still give other rows. Then the judged rows are kept in
memory between passes. They are also kept if decoding the values again costs more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import DataFrame

from penstock.spark.formats.decoders import Decoder
from penstock.spark.pipeline.graph import QueryPlan
from penstock.spark.pipeline.reads import read_of
from penstock.spark.pipeline.spec import PipelineSpec, Sink, Source, TableSink, TopicSink
from penstock.spark.tables.newest import in_tasks

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
    """Plan of a query's passes over a batch.

    `counting` is the sink during whose pass rule results are counted; None means a separate pass.
    `kept` is the reason to keep judged rows in memory between passes; None if they are not kept.
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
    """Return the plan of a query's passes, which is the same for all of its batches.

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
    """Whether a sink processes rows in the tasks that compute them, without a shuffle."""
    if isinstance(sink.to, TableSink):
        to = sink.to
        return to.order_by is None or in_tasks(view.schema, keys=to.keys, order=to.order_by)
    return isinstance(sink.to, TopicSink) and not sink.to.ordered


def above(spec: PipelineSpec, view: str) -> set[str]:
    step = spec.steps.get(view)
    return {view}.union(*(above(spec, name) for name in step.inputs if step) if step else ())


def row_by_row(frame: DataFrame) -> bool:
    """Whether every input row of a frame is certain to pass through its plan exactly once."""
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
    """Return why a second pass may give other rows; None if it gives the same."""
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
