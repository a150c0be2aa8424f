"""A rejected record has one dead letter, whichever source or step rejects it."""

from __future__ import annotations

import json
import threading
from collections import Counter
from dataclasses import replace
from typing import Any, Final

import pytest
from hypothesis import strategies as st

from penstock.spark.pipeline.analysis import plan
from penstock.spark.pipeline.graph import queries
from penstock.spark.pipeline.rejects import described, earlier_sources
from penstock.spark.pipeline.runner import PipelineRunner, QueryFailed
from penstock.spark.pipeline.spec import Source
from tests.formats.drawn import SPARK_EXAMPLES, drawn
from tests.spark.conftest import until
from tests.spark.pipeline.conftest import Pipeline
from tests.spark.pipeline.test_graph import JSON, one
from tests.spark.pipeline.test_graph import pipeline as shape
from tests.spark.pipeline.test_graph import topic as source

NUMBERS: Final = st.integers(-(2**63), 2**63 - 1) | st.just("x")
values: Final = st.integers(0, 10**9).map(lambda number: b"no %d" % number) | st.fixed_dictionaries(
    {"id": NUMBERS, "n": st.integers(-2, 2) | st.just("x")}, optional={"at": NUMBERS}
)


def of_topic(name: str, topic: str = "t", **more: Any) -> Source:
    return replace(source(name, value_format=JSON, **more), topics=(topic,))


def test_the_earlier_source_of_a_topic_writes_the_dead_letter() -> None:
    spec = shape(
        {
            "a": of_topic("a"),
            "b": of_topic("b"),
            "other": of_topic("other", "u"),
            "newest": of_topic("newest", start="latest"),
            "timed": of_topic("timed", start="2026-01-01T00:00:00Z"),
            "like": replace(of_topic("like"), topics=(), pattern="t|u"),
        },
        {},
        {"x": "a", "y": "b"},
        dead_letters="dead",
    )
    plans = queries(spec, ())
    found = {name: earlier_sources(spec, one(plans, name), name) for name in spec.sources}
    both = ("a", "b")
    assert found == {"a": (), "b": ("a",), "other": (), "newest": (*both, "like"),
                     "timed": (*both, "like"), "like": (*both, "other")}  # fmt: skip
    assert described(spec, plans, one(plans, "a")) == ()
    assert described(spec, plans, one(plans, "b")) == (
        "no dead letter if a rejects the record too: query a writes it",
    )
    assert described(spec, plans, one(plans, "other")) == ("dead letters only, of other",)


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_each_rejected_record_has_one_dead_letter(pipeline: Pipeline) -> None:
    topic, dead = pipeline.topic("numbers", 2), pipeline.topic("dead")
    sent: list[Any] = drawn(values, max(400, SPARK_EXAMPLES))
    pipeline.send(topic, [(str(number), value) for number, value in enumerate(sent)])
    text = f"""
        name = "rejects-{pipeline.number}"
        [run]
        trigger = "once"
        [source.times]
        topic = "{topic}"
        format = "json"
        schema = "at bigint"
        start = "2020-01-01T00:00:00Z"
        [source.ids]
        topic = "{topic}"
        format = "json"
        schema = "id bigint"
        [source.ids.expect]
        clock = "current_date() > date'2020-01-01'"
        [source.numbers]
        topic = "{topic}"
        format = "json"
        schema = "n bigint"
        [source.numbers.expect]
        positive = "n >= 0"
        [step.twice]
        sql = "select explode(array(n, n + 1)) as n, _record from numbers"
        [step.twice.expect]
        "small" = "n < 2"
        [sink.times]
        from = "times"
        table = "times"
        [sink.ids]
        from = "ids"
        table = "ids"
        [sink.numbers]
        from = "twice"
        table = "numbers"
        [errors]
        dead_letters = "{dead}"
    """
    spec = pipeline.write(text)
    shown = {query.name: query.rejects for query in plan(spec, pipeline.spark).queries}
    ids, numbers = (
        f"no dead letter if {name} rejects the record too: query {name} writes it"
        for name in ("ids", "numbers")
    )
    assert shown == {"times": (ids, numbers), "ids": (), "numbers": (ids,)}
    pipeline.run(text)
    wanted: Counter[bytes] = Counter()
    for value in sent:
        broken = isinstance(value, bytes)
        data = value if broken else json.dumps(value).encode()
        no_number = broken or value["n"] == "x" or value["n"] < 0
        rejected = no_number or "x" in (value["id"], value.get("at"))
        # A row of a step is rejected by its query alone: that is another letter.
        wanted[data] += rejected + (not no_number and value["n"] + 1 >= 2)
    assert Counter(letter["value"] for letter in pipeline.records(dead)) == +wanted


@pytest.mark.spark
@pytest.mark.timeout(300)
@pytest.mark.long
@pytest.mark.parametrize("good", [True, False])
def test_a_stateful_query_leaves_its_dead_letters_to_an_earlier_source(
    pipeline: Pipeline, good: bool
) -> None:
    """Leave out all that the second source rejects, with late rows beside them and without."""
    topic, dead = pipeline.topic("clicks"), pipeline.topic("dead")
    broken = [b"broken %d" % number for number in range(30)]
    clicks = [{"id": 1, "at": "2026-01-01T00:00:00Z"}, {"id": 2}]
    pipeline.send(topic, [*broken, *(clicks if good else [])])
    pipeline.run(f"""
        name = "stateful-{pipeline.number}"
        [run]
        trigger = "once"
        restarts = 0
        [source.a]
        topic = "{topic}"
        format = "json"
        schema = "id bigint"
        [source.b]
        topic = "{topic}"
        format = "json"
        schema = "id bigint, at timestamp"
        time = "at"
        delay = "1 minute"
        [step.windows]
        sql = '''
        select window(at, '1 minute').start as start, count(*) as n
        from b group by window(at, '1 minute')
        '''
        [sink.ids]
        from = "a"
        table = "ids"
        [sink.windows]
        from = "windows"
        table = "windows"
        [errors]
        dead_letters = "{dead}"
    """)
    letters = Counter(letter["value"] for letter in pipeline.records(dead))
    late = [b'{"id": 2}'] if good else []
    assert letters == Counter([*broken, *late])


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(300)
def test_a_job_that_fails_beside_another_ends_the_run_in_one_line(
    pipeline: Pipeline, capfd: pytest.CaptureFixture[str]
) -> None:
    first, second = pipeline.topic("first"), pipeline.topic("second")
    pipeline.send(first, [{"n": n} for n in range(10)])
    text = f"""
        name = "fails-{pipeline.number}"
        [run]
        trigger = "now"
        restarts = 0
        [source.a]
        topic = "{first}"
        format = "json"
        schema = "n bigint"
        [source.b]
        topic = "{second}"
        format = "json"
        schema = "n bigint"
        [step.slow]
        sql = "select n, reflect('java.lang.Thread', 'sleep', 600000L) as s from a"
        [step.bad]
        sql = "select n, cast(raise_error('no good') as string) as e from b"
        [sink.slow]
        from = "slow"
        table = "slow"
        [sink.bad]
        from = "bad"
        table = "bad"
        [errors]
        on_invalid = "drop"
    """
    runner = PipelineRunner(pipeline.write(text), pipeline.spark)
    runner.start()
    jobs = pipeline.spark.sparkContext.statusTracker()
    until("a batch runs", lambda: bool(jobs.getActiveJobsIds()))
    pipeline.send(second, [{"n": n} for n in range(10)])
    try:
        with pytest.raises(QueryFailed, match=r"^query b: .*no good$") as caught:
            runner.wait(threading.Event())
    finally:
        runner.stop()
    assert "\n" not in str(caught.value)
    java: Any = pipeline.spark.sparkContext._jvm
    java.java.lang.System.err.println("and that was all")
    said = [""]

    def ended() -> bool:
        said[0] += capfd.readouterr().err
        return "and that was all" in said[0]

    until("Java's words have come", ended)
    assert said == ["and that was all\n"]
