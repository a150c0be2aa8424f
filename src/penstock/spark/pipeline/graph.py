"""Streaming queries of a pipeline and the views that each computes: a pure function of its file.

Spark's streaming queries have one plan and one sink each. To read a topic only once, all stateless
work on it is in one *record query*: its `foreachBatch` rejects records, runs the steps, and writes
all sinks of each batch. Sources whose rows meet in one step or sink share a record query.

A *stateful* step (a window, a join of two streams, deduplication) must be part of the streaming
plan. It becomes the root of a *stateful query*, which reads the topics again, and runs later steps
batch by batch. If some rows of a sink's view do not pass through one last stateful step, the view
itself is the root.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from penstock.spark.pipeline.spec import KEEPING, PipelineSpec, Source, Step


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryPlan:
    """Plan of a streaming query; tuples of views are in the order in which they are computed.

    `root` is the last view of the streaming plan; None for a record query. `streamed` names the
    steps in the streaming plan, `batched` the steps that run batch by batch.
    """

    name: str
    root: str | None
    sources: tuple[str, ...]
    tables: tuple[str, ...]
    streamed: tuple[str, ...]
    batched: tuple[str, ...]
    sinks: tuple[str, ...]


def queries(spec: PipelineSpec, stateful: Collection[str]) -> tuple[QueryPlan, ...]:
    """Return the queries of a pipeline, record queries first.

    Args:
        spec: a pipeline that passed its checks: all views exist, and there are no cycles.
        stateful: the sources and steps that keep state between batches themselves.
    """
    views = _Views(spec)
    roots: dict[str, list[str]] = {}
    record_sinks: list[str] = []
    for name, sink in spec.sinks.items():
        root = views.root(sink.view, stateful)
        if root is None:
            record_sinks.append(name)
        else:
            roots.setdefault(root, []).append(name)
    plans = [
        _record_query(views, group, record_sinks, stateful)
        for group in _components(views, record_sinks, stateful)
    ]
    plans += [_stateful_query(views, root, sinks) for root, sinks in roots.items()]
    return tuple(plans)


def order(spec: PipelineSpec) -> tuple[str, ...]:
    """Return the names of steps, each after the steps it reads; cycles are in any order."""
    done: list[str] = []
    met: set[str] = set()

    def visit(name: str) -> None:
        step = spec.steps.get(name)
        if step is None or name in met:
            return
        met.add(name)
        for view in step.inputs:
            visit(view)
        done.append(name)

    for name in spec.steps:
        visit(name)
    return tuple(done)


class _Views:
    def __init__(self, spec: PipelineSpec) -> None:
        self.spec = spec
        self.steps = order(spec)
        self.above: dict[str, frozenset[str]] = {name: frozenset({name}) for name in spec.sources}
        for name in self.steps:
            inputs = spec.steps[name].inputs
            self.above[name] = frozenset({name}).union(*(self.above[view] for view in inputs))

    def sources(self, names: Iterable[str], *, streaming: bool) -> tuple[str, ...]:
        wanted = set(names)
        return tuple(
            name
            for name, source in self.spec.sources.items()
            if name in wanted and source.streaming is streaming
        )

    def steps_of(self, names: Iterable[str]) -> tuple[str, ...]:
        wanted = set(names)
        return tuple(name for name in self.steps if name in wanted)

    def root(self, view: str, stateful: Collection[str]) -> str | None:
        """Return the last view in the streaming plan of `view`; None if nothing is stateful.

        This is the last stateful step, if every stream into `view` passes through it; else `view`.
        """
        inside = [name for name in self.above[view] if name in stateful]
        last = [
            name
            for name in inside
            if not any(name != other and name in self.above[other] for other in inside)
        ]
        if not last:
            return None
        if len(last) == 1 and not self._streams_around(view, last[0]):
            return last[0]
        return view

    def _streams_around(self, view: str, root: str) -> bool:
        if view == root:
            return False
        source = self.spec.sources.get(view)
        if source is not None:
            return source.streaming
        return any(self._streams_around(source, root) for source in self.spec.steps[view].inputs)


def _components(
    views: _Views, sinks: Iterable[str], stateful: Collection[str]
) -> list[tuple[str, ...]]:
    """Group the streaming sources by record query: sources of one step or sink share a query."""
    spec = views.spec
    groups: list[set[str]] = []
    met = [views.sources(views.above[spec.sinks[name].view], streaming=True) for name in sinks]
    met += [(name,) for name in views.sources(spec.sources, streaming=True) if _rejects(spec, name)]
    met += [
        views.sources(views.above[name], streaming=True)
        for name in views.steps
        if watched(spec.steps[name]) and views.root(name, stateful) is None
    ]
    for sources in met:
        joined = set(sources).union(*(group for group in groups if group & set(sources)))
        groups = [group for group in groups if not group & joined]
        if joined:
            groups.append(joined)
    ordered = [views.sources(group, streaming=True) for group in groups]
    position = {name: index for index, name in enumerate(spec.sources)}
    return sorted(ordered, key=lambda group: position[group[0]])


def _rejects(spec: PipelineSpec, name: str) -> bool:
    source = spec.sources[name]
    return (source.can_fail and spec.errors.on_invalid != "drop") or watched(source)


def watched(part: Source | Step) -> bool:
    """Whether a record query must apply the rules of a source or step, as some do not just drop."""
    return any(rule.otherwise != "drop" for rule in part.rules)


def keeps(step: Step) -> bool:
    """Whether a rule of a step dead-letters, parks or retries the rows that it rejects."""
    return any(rule.otherwise in KEEPING for rule in step.rules)


def _record_query(
    views: _Views, sources: tuple[str, ...], sinks: Iterable[str], stateful: Collection[str]
) -> QueryPlan:
    spec = views.spec
    own = tuple(
        name
        for name in sinks
        if set(views.sources(views.above[spec.sinks[name].view], streaming=True)) & set(sources)
    )
    ends = [spec.sinks[name].view for name in own]
    ends += [
        name
        for name in views.steps
        if watched(spec.steps[name])
        and views.root(name, stateful) is None
        and set(views.sources(views.above[name], streaming=True)) & set(sources)
    ]
    needed = frozenset[str]().union(*(views.above[end] for end in ends))
    return QueryPlan(
        name=sources[0],
        root=None,
        sources=sources,
        tables=views.sources(needed, streaming=False),
        streamed=(),
        batched=views.steps_of(needed),
        sinks=own,
    )


def _stateful_query(views: _Views, root: str, sinks: list[str]) -> QueryPlan:
    spec = views.spec
    above = views.above[root]
    needed = frozenset[str]().union(*(views.above[spec.sinks[name].view] for name in sinks))
    return QueryPlan(
        name=root if root in spec.steps else f"{root}.once",
        root=root,
        sources=views.sources(above, streaming=True),
        tables=views.sources(needed, streaming=False),
        streamed=views.steps_of(above),
        batched=views.steps_of(needed - above),
        sinks=tuple(sinks),
    )
