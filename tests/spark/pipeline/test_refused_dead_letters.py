"""A refused dead letter, or a kill between steps: no table shows a batch without its letters."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest
from deltalake import DeltaTable

from penstock.spark.pipeline.runner import QueryFailed
from tests.spark.driver_deaths import outlive
from tests.spark.pipeline.conftest import Pipeline

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

ROWS: Final = 900
STEPS: Final = ("staged", "checked", "begun", "letters", "copied", "table", "finished", "done")
"""Of the second of three batches; a driver dies once behind each of them."""
DRIVER: Final = """
import threading
from pathlib import Path
from penstock.spark import session
from penstock.spark.pipeline.journal import Journal
from penstock.spark.pipeline.parsing import load
from penstock.spark.pipeline.runner import PipelineRunner
from penstock.spark.pipeline.work import Work
from penstock.spark.sink.commits import Commits
from penstock.spark.tables import DeltaSink

def behind(kind, name, step_of):
    plain = getattr(kind, name)
    def wrapped(self, *given, **named):
        result = plain(self, *given, **named)
        if (step := step_of(self, *given, **named)) is not None:
            die(step)
        return result
    setattr(kind, name, wrapped)

behind(Work, "_stage", lambda work, *_: "staged" if work.entry.batch_id == 1 else None)
behind(Commits, "check", lambda commits, batch, *_: "checked" if batch == 1 else None)
behind(Journal, "write", lambda journal, entry: "begun" if entry.batch_id == 1 else None)
behind(Commits, "commit", lambda commits, batch, *_: None if batch != 1 else
       "letters" if commits._application.endswith("dead-letters") else "copied")
behind(DeltaSink, "_commit", lambda sink, table, made, commit:
       "table" if commit.batch_id == 1 else None)
behind(Work, "write", lambda work, *_, **named: "finished" if work.entry.batch_id == 1 else None)
behind(Journal, "finish", lambda journal, entry, **named: "done" if entry.batch_id == 1 else None)

fast = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1", "spark.driver.memory": "1g"}
spark = session(cores=1, settings=fast)
spark.sparkContext.setLogLevel("OFF")
spec = load(Path(folder) / "pipeline.toml", bootstrap=bootstrap, admin=admin)
runner = PipelineRunner(spec, spark)
runner.start()
runner.wait(threading.Event())
runner.stop()
"""


def text(pipeline: Pipeline, topic: str, out: str, dead: str, mode: str = "append") -> str:
    keys = "" if mode == "append" else '\n        keys = "n"'
    return f"""
        name = "letters-{pipeline.number}"
        [run]
        trigger = "once"
        max_records = {ROWS // 3}
        restarts = 0
        [source.numbers]
        topic = "{topic}"
        format = "json"
        schema = "n bigint"
        [sink.lake]
        from = "numbers"
        table = "lake"
        mode = "{mode}"{keys}
        [sink.copy]
        from = "numbers"
        topic = "{out}"
        [errors]
        dead_letters = "{dead}"
    """


def values(count: int) -> list[Any]:
    """Every third value cannot be read."""
    return [b"no %d" % n if n % 3 == 0 else {"n": n} for n in range(count)]


def seen(
    pipeline: Pipeline, out: str, dead: str
) -> tuple[Counter[int], Counter[int], Counter[int]]:
    """Read the numbers in the table, the topic and the dead letters."""
    table: Counter[int] = Counter()
    if (pipeline.folder / "lake" / "_delta_log").exists():
        rows = DeltaTable(str(pipeline.folder / "lake")).to_pyarrow_table()
        table = Counter(rows["n"].to_pylist())
    copied = Counter(json.loads(item["value"])["n"] for item in pipeline.records(out))
    letters = Counter(int(item["value"].split()[1]) for item in pipeline.records(dead))
    return table, copied, letters


def killed_behind(pipeline: Pipeline, steps: tuple[str, ...]) -> None:
    topic, out, dead = (pipeline.topic(name) for name in ("numbers", "out", "dead"))
    pipeline.send(topic, values(ROWS))
    pipeline.write(text(pipeline, topic, out, dead))

    def no_batch_without_its_dead_letters() -> None:
        table, copied, letters = seen(pipeline, out, dead)
        batches = {n * 3 // ROWS for n in (*table, *copied)}
        assert batches <= {n * 3 // ROWS for n in letters}
        assert max([*table.values(), *copied.values(), *letters.values()]) == 1

    broker = pipeline.broker
    outlive(
        DRIVER, Path(pipeline.folder), broker.bootstrap, broker.admin_url, topic, steps=steps,
        between=no_batch_without_its_dead_letters,
    )  # fmt: skip
    good = Counter(n for n in range(ROWS) if n % 3)
    bad = Counter(n for n in range(ROWS) if n % 3 == 0)
    assert seen(pipeline, out, dead) == (good, good, bad)


@pytest.mark.long
def test_a_driver_that_dies_behind_the_dead_letters(pipeline: Pipeline) -> None:
    killed_behind(pipeline, ("letters",))


@pytest.mark.long
def test_a_driver_that_dies_behind_every_step(pipeline: Pipeline) -> None:
    killed_behind(pipeline, STEPS)


@pytest.mark.parametrize("mode", ["append", pytest.param("upsert", marks=pytest.mark.long)])
def test_what_a_topic_refuses_leaves_nothing_visible(pipeline: Pipeline, mode: str) -> None:
    topic, out, dead = (pipeline.topic(name) for name in ("numbers", "out", "dead"))
    pipeline.send(topic, values(90))
    refused = text(pipeline, topic, out, dead, mode)
    for name in (dead, out):
        pipeline.client.alter_configs("topic", name, {"max.message.bytes": "70"})
        with pytest.raises(QueryFailed, match=name):
            pipeline.run(refused)
        assert not any(seen(pipeline, out, dead))
        pipeline.client.alter_configs("topic", name, delete=["max.message.bytes"])
    pipeline.run(refused)
    good = Counter(n for n in range(90) if n % 3)
    assert seen(pipeline, out, dead) == (good, good, Counter(range(0, 90, 3)))


@pytest.mark.parametrize("refusing", [0, 1], ids=["the sink", "the dead letters"])
def test_what_only_the_broker_refuses_leaves_nothing_visible(
    pipeline: Pipeline, refusing: int
) -> None:
    topic, out, dead = (pipeline.topic(name) for name in ("numbers", "out", "dead"))
    pipeline.send(topic, values(90))
    # Every record is older than its batch is when the broker looks at it.
    strict = {"message.timestamp.before.max.ms": "0"}
    pipeline.client.alter_configs("topic", (out, dead)[refusing], strict)
    with pytest.raises(QueryFailed, match="was rejected"):
        pipeline.run(text(pipeline, topic, out, dead))
    assert not any(seen(pipeline, out, dead))
