"""Releases that are stopped at any step, and the next run by a file without the rule."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from penstock.spark.pipeline.journal import Journal
from penstock.spark.pipeline.replay.parked import ask, waiting
from penstock.spark.pipeline.retry_store import ReleaseBox, RetryStore
from penstock.spark.pipeline.runner import PipelineRunner, QueryFailed
from penstock.spark.pipeline.spec import PipelineSpec
from penstock.spark.pipeline.state import PipelinePaths, QueryState
from penstock.spark.tables import DeltaSink
from tests.spark.pipeline.conftest import Pipeline

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(240)]

TEXT = """
name = "stopped-{number}"
[run]
trigger = "once"
restarts = 0
[source.rows]
topic = "{topic}"
format = "json"
schema = "n bigint"
{rule}
[sink.lake]
from = "rows"
table = "lake"
[errors]
dead_letters = "{dead}"
"""
RULE = '[source.rows.expect]\neven = {{ that = "{that}", otherwise = "park" }}'
SENT = [("a", 1), ("a", 2), ("b", 5), ("b", 6), (None, 9)]

Step = tuple[Any, str, bool]
STEPS: dict[str, Step] = {
    "table written": (DeltaSink, "_finish", True),
    "lot saved": (RetryStore, "save", True),
    "finished, and not committed": (Journal, "finish", True),
    "noted": (Journal, "begin", True),
    "about to write": (Journal, "write", True),
    "dead letters written": (RetryStore, "save", False),
    "requests put aside": (ReleaseBox, "done", True),
}
"""What a batch has done when it is stopped: at which function, and whether after it."""


def stops(function: Callable[..., Any], *, after: bool) -> Callable[..., Any]:
    def stopped(*args: Any, **more: Any) -> Any:
        if after:
            function(*args, **more)
        raise OSError("the run ends here")

    return stopped


def unwatched(pipeline: Pipeline, text: str) -> QueryState:
    """Run to the end without a watcher, which might wake the query by chance."""
    runner = PipelineRunner(pipeline.write(text), pipeline.spark)
    runner.start()
    try:
        for query in pipeline.spark.streams.active:
            query.awaitTermination()
    finally:
        runner.stop()
    (state,) = runner.states()
    return state


def done(spec: PipelineSpec, requests: dict[str, str]) -> int:
    path = PipelinePaths(spec).releases("rows") / "done" / f"{requests['rows']}.json"
    records: int = json.loads(path.read_bytes())["records"]
    return records


@pytest.mark.long
@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_a_release_that_is_stopped_is_finished_and_the_next_one_follows(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, step: Step
) -> None:
    owner, name, after = step
    topic, dead = pipeline.topic("rows"), pipeline.topic("dead")
    places = {"number": pipeline.number, "topic": topic, "dead": dead}
    strict = TEXT.format(rule=RULE.format(that="n % 2 = 0"), **places)
    milder = TEXT.format(rule=RULE.format(that="n % 2 = 0 or n = 1"), **places)
    without = TEXT.format(rule="", **places)
    pipeline.send(topic, [(key, {"n": n}) for key, n in SENT])
    assert unwatched(pipeline, strict).held == 5

    spec = pipeline.write(milder)
    of_a = ask(spec, by="ada", keys=[b"a"])
    of_b = ask(spec, by="bob", keys=[b"b"], dead_letter=True)
    with monkeypatch.context() as stopping:
        stopping.setattr(owner, name, stops(getattr(owner, name), after=after))
        with pytest.raises(QueryFailed, match="the run ends here"):
            pipeline.run(milder)

    spec = pipeline.write(without)
    rest = ask(spec, by="ada", keys=None)
    assert unwatched(pipeline, without).held == 0
    (lot,) = waiting(spec)
    assert (lot.total, lot.requested) == (0, ())
    assert sorted(row["n"] for row in pipeline.rows("lake")) == [1, 2, 6, 9]
    assert [json.loads(letter["value"])["n"] for letter in pipeline.records(dead)] == [5]
    assert (done(spec, of_a), done(spec, of_b)) == (2, 2)
    # What was only noted when the run ended is chosen anew, and the last request asked for all.
    assert done(spec, rest) == (5 if name == "begin" else 1)


@pytest.mark.long
def test_a_run_without_a_batch_knows_what_waits(pipeline: Pipeline) -> None:
    topic, dead = pipeline.topic("rows"), pipeline.topic("dead")
    rule = RULE.format(that="n % 2 = 0")
    text = TEXT.format(number=pipeline.number, topic=topic, dead=dead, rule=rule)
    pipeline.send(topic, [(key, {"n": n}) for key, n in SENT])
    assert unwatched(pipeline, text).held == 5
    state = unwatched(pipeline, text)
    assert (state.batch_id, state.held) == (None, 5)
