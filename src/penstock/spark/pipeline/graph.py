"""Queries of a pipeline and the work of each: a pure function of its views.

A streaming query of Spark has one plan and one sink, so everything that can be computed batch by
batch shares one query: a *record query* reads its topics once, rejects records, and runs its
batches through the steps to all sinks. Sources whose rows meet in one step or sink share one.

A *stateful* step (a window, a join of two streams, deduplication) has to be part of the streaming
plan. It is the root of a query of its own, which reads the topics again and runs later steps batch
by batch. Where two stateful steps meet, the sink's view is the root.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from penstock.spark.pipeline.spec import KEEPING, PipelineSpec, Source, Step


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryPlan:
    """Streaming query. Names of views are in the order in which they are made.

    `root` is the view that the streaming plan ends with; None for a record query.
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
        spec: a pipeline that passed its checks: all views exist, no cycles.
        stateful: the views that need state between batches by themselves.
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
    """Return the steps, each after those that it reads; those of a cycle in any order."""
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
        """Return the view that ends the streaming plan of `view`; None if nothing is stateful.

        It is the last stateful step, if every stream into `view` goes through it.
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
    """Return the streaming sources of each record query: sources that meet are together."""
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
    """Whether rules do more than drop rows."""
    return any(rule.otherwise != "drop" for rule in part.rules)


def keeps(step: Step) -> bool:
    """Whether a step's rules hold or dead-letter what they reject."""
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
