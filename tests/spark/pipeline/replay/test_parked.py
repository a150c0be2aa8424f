"""Parked records: their listing, and the release or dead-lettering of one key of several."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from penstock.spark.pipeline.replay.parked import NothingParked, ask, waiting
from penstock.spark.pipeline.runner import PipelineRunner
from penstock.spark.pipeline.spec import PipelineSpec
from penstock.spark.pipeline.state import PipelinePaths
from tests.spark.pipeline.conftest import PATIENCE_SECONDS, Pipeline

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(400)]

TEXT = """
name = "waits-{number}"
[run]
trigger = "once"
[source.rows]
topic = "{topic}"
format = "json"
schema = "n bigint"
[source.rows.expect]
even = {{ that = "n % 2 = 0", otherwise = "park" }}
[sink.lake]
from = "rows"
table = "lake"
[errors]
dead_letters = "{dead}"
"""


@contextmanager
def running(pipeline: Pipeline, spec: PipelineSpec) -> Iterator[None]:
    runner = PipelineRunner(spec, pipeline.spark)
    runner.start()
    stop = threading.Event()
    watcher = threading.Thread(target=runner.wait, args=(stop,))
    watcher.start()
    try:
        yield
    finally:
        stop.set()
        watcher.join()
        runner.stop()


def eventually(true: Callable[[], bool]) -> bool:
    for _ in range(PATIENCE_SECONDS * 5):
        if true():
            return True
        threading.Event().wait(0.2)
    return False


def held(spec: PipelineSpec) -> list[tuple[bytes | None, int]]:
    (lot,) = waiting(spec)
    return [(row["key"], row["behind"]) for row in lot.keys.to_pylist()]


def numbers(pipeline: Pipeline) -> list[int]:
    return sorted(row["n"] for row in pipeline.rows("lake"))


def done(spec: PipelineSpec, request: str) -> dict[str, Any]:
    path = PipelinePaths(spec).releases("rows") / "done" / f"{request}.json"
    body: dict[str, Any] = json.loads(path.read_bytes())
    return body


@pytest.mark.long
def test_one_key_of_several_goes_while_the_pipeline_runs(pipeline: Pipeline) -> None:
    topic, dead = pipeline.topic("rows"), pipeline.topic("dead")
    text = TEXT.format(number=pipeline.number, topic=topic, dead=dead)
    spec = pipeline.write(text)
    assert waiting(spec) == ()
    with pytest.raises(NothingParked, match="no parked record matches"):
        ask(spec, by="ada", keys=None)
    sent = [("a", 1), ("a", 2), ("a", 3), ("b", 5), ("b", 6), ("c", 7), (None, 9), (None, 10)]
    pipeline.send(topic, [(key, {"n": n}) for key, n in sent])
    assert pipeline.run(text)["rows"].held == 7
    (lot,) = waiting(spec)
    assert (lot.query, lot.total, lot.parked, lot.requested) == ("rows", 7, 4, ())
    assert held(spec) == [(b"a", 2), (b"b", 1), (b"c", 0), (None, 0)]
    first = lot.keys.to_pylist()[0]
    assert (first["offset"], first["rule"], first["otherwise"]) == (0, "even", "park")
    (of_b,) = waiting(spec, keys=[b"b"])
    assert (of_b.total, of_b.keys.num_rows) == (2, 1)
    with pytest.raises(NothingParked, match="query other has no held records"):
        waiting(spec, query="other")
    with pytest.raises(NothingParked, match="no parked record matches"):
        ask(spec, by="ada", keys=[b"z"])

    live_text = text.replace("n % 2 = 0", "n % 2 = 0 or n = 1 or n = 7")
    live = pipeline.write(live_text.replace('"once"', '"now"'))
    with running(pipeline, live):
        asked = ask(live, by="ada", keys=[b"a"])
        assert eventually(lambda: numbers(pipeline) == [1, 2, 10])
        assert eventually(lambda: held(live) == [(b"a", 0), (b"b", 1), (b"c", 0), (None, 0)])
        assert eventually(lambda: waiting(live)[0].requested == ())
        body = done(live, asked["rows"])
        assert (body["by"], body["keys"], body["records"]) == ("ada", ["61"], 3)
        given_up = ask(live, by="bob", keys=[b"a", b"b"], dead_letter=True)
        assert eventually(lambda: held(live) == [(b"c", 0), (None, 0)])
        assert eventually(lambda: waiting(live)[0].requested == ())
        assert done(live, given_up["rows"])["records"] == 3
        everything = ask(live, by="ada", keys=None, query="rows")
        assert eventually(lambda: waiting(live)[0].requested == ())
    assert done(live, everything["rows"])["records"] == 2
    assert numbers(pipeline) == [1, 2, 6, 7, 10]
    assert held(live) == [(None, 0)]
    # A rule that is gone leaves nothing behind that could not be released.
    gone = live_text.replace("[source.rows.expect]\n", "").split("even =")
    without = gone[0] + gone[1].partition("\n")[2]
    ask(pipeline.write(without), by="ada", keys=None)
    assert pipeline.run(without)["rows"].held == 0
    assert numbers(pipeline) == [1, 2, 6, 7, 9, 10]
    letters = pipeline.records(dead)
    assert sorted(json.loads(letter["value"])["n"] for letter in letters) == [3, 5]
    for letter in letters:
        told = {head["key"]: head["value"].decode() for head in letter["headers"]}
        assert told["penstock.error.rule"] == "even"
        assert told["penstock.error.topic"] == topic


def test_dead_letters_need_a_topic(pipeline: Pipeline) -> None:
    topic = pipeline.topic("rows")
    text = TEXT.format(number=pipeline.number, topic=topic, dead="x").split("[errors]")[0]
    spec = pipeline.write(text + '[errors]\non_invalid = "drop"\n')
    with pytest.raises(NothingParked, match=r"set errors\.dead_letters in the file"):
        ask(spec, by="ada", keys=None, dead_letter=True)
