"""Backfills: a sink that joins later gets the earlier records once, while the pipeline runs."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from penstock.spark.pipeline import joining
from penstock.spark.pipeline.replay.backfill import Backfill, Progress
from penstock.spark.pipeline.replay.parked import ask, waiting
from penstock.spark.pipeline.replay.refusals import CannotBackfill, Start, parse
from penstock.spark.pipeline.runner import PipelineRunner
from penstock.spark.tables import Materialiser
from tests.spark.pipeline.conftest import PATIENCE_SECONDS, Pipeline

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(500)]

TEXT = """
name = "late-{number}"
[run]
trigger = "once"
restarts = 0
[source.numbers]
topic = "{topic}"
format = "json"
schema = "n bigint, word string"
[source.numbers.expect]
"no thirteen" = {{ that = "n <> 13", otherwise = "park" }}
"small" = {{ that = "n < 1000", otherwise = "drop" }}
[step.doubled]
sql = "select n * 2 as n, word from numbers"
[sink.first]
from = "doubled"
table = "first"
[errors]
on_invalid = "drop"
"""
LATE = """
[sink.second]
from = "doubled"
table = "second"
[sink.newest]
from = "doubled"
table = "newest"
mode = "upsert"
keys = ["word"]
order_by = "n"
"""


def numbers(first: int, end: int) -> list[Any]:
    return [(f"k{n % 4}", {"n": n, "word": f"w{n % 7}"}) for n in range(first, end)]


def interrupted(*_: Any) -> None:
    raise KeyboardInterrupt


def values(pipeline: Pipeline, table: str) -> Counter[int]:
    return Counter(row["n"] for row in pipeline.rows(table))


def joined_late(pipeline: Pipeline, *, partitions: int = 2) -> tuple[str, str]:
    """A pipeline that has run with one sink; returns its topic and its file with three."""
    topic = pipeline.topic("numbers", partitions)
    text = TEXT.format(number=pipeline.number, topic=topic)
    pipeline.send(topic, [*numbers(0, 50), ("k0", {"n": 2000}), ("k0", b"bad")])
    pipeline.run(text)
    return topic, text.replace("[errors]", LATE + "[errors]")


@pytest.mark.long
def test_a_late_sink_gets_everything_once(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, text = joined_late(pipeline)
    spec = pipeline.write(text)
    with pytest.raises(CannotBackfill, match="no run has started with it"):
        Backfill(spec, pipeline.spark, "second").look(Start())
    pipeline.send(topic, numbers(50, 70))
    pipeline.run(text)
    # 13 waits, and 17, 21, … of its key behind it; that was so when the sink joined.
    waiting_now = {2 * n for n in range(13, 70, 4)}
    assert values(pipeline, "first") == Counter({2 * n for n in range(70)} - waiting_now)
    assert values(pipeline, "second") == Counter({2 * n for n in range(50, 70)} - waiting_now)

    backfill = Backfill(spec, pipeline.spark, "second")
    found = backfill.look(Start(), chunk_records=12)
    assert (found.id, found.records, found.chunks) == (None, 52, 5)
    seen: list[Progress] = []

    def told(progress: Progress) -> None:
        seen.append(progress)
        if len(seen) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        backfill.run(Start(), by="ada", chunk_records=12, report=told)
    # The next chunk is written, and then it dies before that is noted.
    with monkeypatch.context() as broken:
        broken.setattr(Backfill, "_write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            backfill.run(Start(), by="ada")
    with pytest.raises(CannotBackfill, match="was begun with --from earliest"):
        backfill.look(parse("2026-01-01"))
    done = Backfill(pipeline.write(text), pipeline.spark, "second").run(Start(), by="bob")
    assert (done.done, done.chunks, done.by) == (5, 5, "ada")
    assert values(pipeline, "second") == values(pipeline, "first")
    again = backfill.run(Start(), by="bob")
    assert again.rows == done.rows
    # What waited when the sink joined comes through the pipeline.
    mended = text.replace("n <> 13", "n <> -1")
    (lot,) = waiting(spec)
    assert lot.keys.to_pylist()[0]["behind"] == len(waiting_now) - 1
    ask(spec, by="ada", keys=[b"k1"])
    pipeline.run(mended)
    assert values(pipeline, "second") == values(pipeline, "first") == Counter(range(0, 140, 2))

    upsert = Backfill(pipeline.write(mended), pipeline.spark, "newest")
    upsert.run(Start(), by="ada", chunk_records=30)
    newest = {row["word"]: row["n"] for row in pipeline.rows("newest")}
    assert newest == {f"w{n % 7}": 2 * n for n in range(70)}
    first = joining.read(spec, "numbers", "first")
    assert first is not None
    assert first.since == joining.FIRST
    assert Backfill(spec, pipeline.spark, "first").run(Start(), by="ada").chunks == 0


@pytest.mark.long
def test_a_batch_under_way_belongs_to_the_new_sinks_history(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first sink has the batch, Spark does not know; then the other sinks join."""
    from penstock.spark.pipeline.journal import Journal
    from penstock.spark.pipeline.runner import QueryFailed

    topic, text = joined_late(pipeline)
    before = text.split(LATE)[0] + "[errors]\non_invalid = 'drop'\n"
    pipeline.send(topic, numbers(50, 60))

    def stop(*_: Any, **__: Any) -> None:
        raise OSError("no space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(Journal, "finish", stop)
        with pytest.raises(QueryFailed):
            pipeline.run(before)
    out = pipeline.topic("out")
    text += f"[sink.out]\nfrom = 'doubled'\ntopic = '{out}'\nvalue = 'cast(n as string)'\n"
    pipeline.send(topic, numbers(60, 62))
    pipeline.run(text)
    spec = pipeline.write(text)
    assert Backfill(spec, pipeline.spark, "second").look(Start()).records == 62
    for _ in range(2):
        Backfill(spec, pipeline.spark, "out").run(Start(), by="ada", chunk_records=20)
    sent = Counter(int(record["value"]) for record in pipeline.records(out))
    assert sent == values(pipeline, "first")
    Backfill(spec, pipeline.spark, "second").run(Start(), by="ada")
    assert values(pipeline, "second") == values(pipeline, "first")
    assert sum(values(pipeline, "first").values()) == 62 - len(range(13, 62, 4))


@pytest.mark.long
def test_the_live_pipeline_continues(pipeline: Pipeline) -> None:
    topic, text = joined_late(pipeline)
    spec = pipeline.write(text.replace('"once"', '"now"'))
    runner = PipelineRunner(spec, pipeline.spark)
    runner.start()
    stop = threading.Event()
    watcher = threading.Thread(target=runner.wait, args=(stop,))
    watcher.start()
    try:
        sent = [50]

        def more(_: Progress) -> None:
            pipeline.send(topic, numbers(sent[0], sent[0] + 10))
            sent[0] += 10

        done = Backfill(spec, pipeline.spark, "second").run(
            Start(), by="ada", chunk_records=20, report=more
        )
        assert done.done == done.chunks == 3
        expected = {2 * n for n in range(sent[0])} - {2 * n for n in range(13, sent[0], 4)}
        for _ in range(PATIENCE_SECONDS * 5):
            if values(pipeline, "first").total() >= len(expected) or not watcher.is_alive():
                break
            threading.Event().wait(0.2)
    finally:
        stop.set()
        watcher.join()
        runner.stop()
    pipeline.run(text)
    assert values(pipeline, "first") == values(pipeline, "second") == Counter(expected)


@pytest.mark.long
def test_older_records_come_from_a_table(pipeline: Pipeline, spark: SparkSession) -> None:
    topic = pipeline.topic("numbers", 2)
    pipeline.client.alter_configs("topic", topic, {"table.format": "delta"})
    text = TEXT.format(number=pipeline.number, topic=topic).replace("n <> 13", "n <> -1")
    pipeline.send(topic, numbers(0, 40))
    root = pipeline.folder / "kept"
    try:
        job = Materialiser(spark, bootstrap=pipeline.broker.bootstrap, root=str(root))
        job.run(threading.Event(), once=True)
    finally:
        pipeline.client.alter_configs("topic", topic, delete=["table.format"])
    pipeline.send(topic, numbers(40, 60))
    pipeline.run(text)
    late = text.replace("[errors]", LATE + "[errors]")
    pipeline.run(late)
    pipeline.client.delete_records(topic, {0: 5, 1: 5})
    spec = pipeline.write(late)
    backfill = Backfill(spec, spark, "second")
    only_log = backfill.look(Start())
    assert only_log.records < 60
    with pytest.raises(CannotBackfill, match="the start must be offsets"):
        backfill.look(parse("2026-01-01"), history=str(root / topic))
    with pytest.raises(AnalysisException, match=r"offsets 0 to 4 were deleted"):
        Backfill(spec, spark, "newest").run(parse(f'{{"{topic}": {{"0": 0, "1": 0}}}}'), by="ada")
    done = backfill.run(Start(), by="ada", history=str(root / topic), chunk_records=25)
    assert done.records == 60
    assert values(pipeline, "second") == values(pipeline, "first") == Counter(range(0, 120, 2))


def test_a_stateful_sink_is_refused(pipeline: Pipeline) -> None:
    topic = pipeline.topic("numbers")
    text = f"""
        name = "stateful-{pipeline.number}"
        [source.numbers]
        topic = "{topic}"
        format = "json"
        schema = "n bigint, at timestamp"
        time = "at"
        delay = "1 hour"
        deduplicate = ["n"]
        [sink.once]
        from = "numbers"
        table = "once"
        [errors]
        on_invalid = "drop"
    """
    with pytest.raises(CannotBackfill, match="belongs to the stateful query"):
        Backfill(pipeline.write(text), pipeline.spark, "once")
