"""Division of a pipeline into queries."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from penstock.formats import ValueFormat
from penstock.spark.pipeline.graph import QueryPlan, order, queries
from penstock.spark.pipeline.spec import (
    ConsoleSink,
    ErrorPolicy,
    PipelineSpec,
    Rule,
    RunOptions,
    Sink,
    Source,
    Step,
)

JSON = ValueFormat(kind="json", schema="id bigint")
KEEP = (Rule(name="r", condition="id > 0", otherwise="dead-letter"),)


def pipeline(
    sources: Mapping[str, Source],
    steps: Mapping[str, Sequence[str]],
    sinks: Mapping[str, str],
    *,
    rules: Mapping[str, tuple[Rule, ...]] | None = None,
    **errors: Any,
) -> PipelineSpec:
    given_rules = rules or {}
    return PipelineSpec(
        name="p",
        file=Path("p.toml"),
        run=RunOptions(bootstrap="b:1", admin_url=None, state=Path("state")),
        sources=sources,
        steps={
            name: Step(
                name=name, sql="select 1", inputs=tuple(inputs), rules=given_rules.get(name, ())
            )
            for name, inputs in steps.items()
        },
        sinks={name: Sink(name=name, view=view, to=ConsoleSink()) for name, view in sinks.items()},
        errors=ErrorPolicy(**errors),
    )


def topic(name: str, **more: Any) -> Source:
    return Source(name=name, topics=(name,), **more)


def table(name: str) -> Source:
    return Source(name=name, table=f"/{name}")


def one(plans: Sequence[QueryPlan], name: str) -> QueryPlan:
    return next(plan for plan in plans if plan.name == name)


def test_sinks_of_one_topic_share_one_read() -> None:
    spec = pipeline(
        {"a": topic("a"), "t": table("t")},
        {"clean": ["a", "t"], "more": ["clean"]},
        {"x": "clean", "y": "more", "z": "a"},
    )
    assert queries(spec, ()) == (
        QueryPlan(
            name="a", root=None, sources=("a",), tables=("t",), streamed=(),
            batched=("clean", "more"), sinks=("x", "y", "z"),
        ),
    )  # fmt: skip


def test_sources_that_meet_are_read_together_and_others_apart() -> None:
    spec = pipeline(
        {"a": topic("a"), "b": topic("b"), "c": topic("c")},
        {"both": ["a", "b"]},
        {"x": "both", "y": "c", "z": "b"},
    )
    plans = queries(spec, ())
    assert [plan.sources for plan in plans] == [("a", "b"), ("c",)]
    assert [plan.sinks for plan in plans] == [("x", "z"), ("y",)]


def test_a_stateful_step_ends_the_stream_of_a_query_of_its_own() -> None:
    spec = pipeline(
        {"a": topic("a", value_format=JSON)},
        {"clean": ["a"], "counts": ["clean"], "named": ["counts"]},
        {"rows": "clean", "totals": "named", "raw": "counts"},
        dead_letters="dead",
    )
    plans = queries(spec, {"counts"})
    assert one(plans, "a").sinks == ("rows",)
    counts = one(plans, "counts")
    assert (counts.root, counts.streamed) == ("counts", ("clean", "counts"))
    assert (counts.batched, counts.sinks) == (("named",), ("totals", "raw"))


def test_two_stateful_steps_in_a_row_end_with_the_last() -> None:
    spec = pipeline({"a": topic("a")}, {"w": ["a"], "v": ["w"], "u": ["v"]}, {"x": "u"})
    (plan,) = queries(spec, {"w", "v"})
    assert (plan.root, plan.streamed, plan.batched) == ("v", ("w", "v"), ("u",))


def test_where_streams_meet_behind_a_stateful_step_the_sinks_view_is_the_root() -> None:
    spec = pipeline({"a": topic("a"), "b": topic("b")}, {"w": ["a"], "u": ["w", "b"]}, {"x": "u"})
    (plan,) = queries(spec, {"w"})
    assert (plan.root, plan.streamed, plan.sources) == ("u", ("w", "u"), ("a", "b"))


def test_records_that_can_be_rejected_are_seen_by_a_record_query() -> None:
    spec = pipeline({"a": topic("a", value_format=JSON)}, {"w": ["a"]}, {"x": "w"})
    names = [(plan.name, plan.root, plan.sinks) for plan in queries(spec, {"w"})]
    assert names == [("a", None, ()), ("w", "w", ("x",))]
    dropped = pipeline(
        {"a": topic("a", value_format=JSON)}, {"w": ["a"]}, {"x": "w"}, on_invalid="drop"
    )
    assert [plan.name for plan in queries(dropped, {"w"})] == ["w"]


def test_steps_that_keep_what_they_reject_run_in_the_record_query() -> None:
    spec = pipeline(
        {"a": topic("a")}, {"clean": ["a"], "w": ["clean"]}, {"x": "w"}, rules={"clean": KEEP}
    )
    record, window = queries(spec, {"w"})
    assert (record.batched, record.sinks) == (("clean",), ())
    assert window.streamed == ("clean", "w")


def test_deduplication_at_a_source_has_a_name_beside_the_record_query() -> None:
    spec = pipeline({"a": topic("a", value_format=JSON)}, {"clean": ["a"]}, {"x": "clean"})
    record, once = queries(spec, {"a"})
    assert (record.name, once.name, once.root) == ("a", "a.once", "a")
    assert (once.streamed, once.batched) == ((), ("clean",))


NAMES = [f"s{number}" for number in range(6)]


@given(
    st.lists(st.sets(st.integers(0, 7), min_size=1, max_size=3), min_size=6, max_size=6),
    st.sets(st.sampled_from(NAMES)),
    st.sets(st.sampled_from(NAMES), min_size=1),
)
def test_every_sink_is_in_one_query_that_makes_all_it_needs(
    inputs: list[set[int]], stateful: set[str], ends: set[str]
) -> None:
    views = ["a", "b", *NAMES]
    # A step reads views before it.
    steps = {
        name: sorted({views[min(number, at + 1)] for number in chosen})
        for at, (name, chosen) in enumerate(zip(NAMES, inputs, strict=True))
    }
    spec = pipeline(
        {"a": topic("a"), "b": topic("b")}, steps, {f"to-{end}": end for end in sorted(ends)}
    )
    plans = queries(spec, stateful)
    names = [plan.name for plan in plans]
    assert len(set(names)) == len(names)
    assert sorted(sink for plan in plans for sink in plan.sinks) == sorted(spec.sinks)
    position = {name: at for at, name in enumerate(order(spec))}
    for plan in plans:
        made = [*plan.streamed, *plan.batched]
        assert len(set(made)) == len(made)
        assert all(
            position[a] < position[b]
            for part in (plan.streamed, plan.batched)
            for a, b in itertools.pairwise(part)
        )
        there = {*plan.sources, *plan.tables, *made}
        for name in made:
            assert set(spec.steps[name].inputs) <= there
        for sink in plan.sinks:
            assert spec.sinks[sink].view in there
        assert not stateful & set(plan.batched)
        if plan.root is not None:
            reach = {plan.root, *plan.tables, *plan.batched}
            for name in plan.batched:
                assert set(spec.steps[name].inputs) <= reach
