"""Faults around a pipeline: a clear error, or recovery with every record once."""

from __future__ import annotations

import shutil
import threading
from collections import Counter
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from penstock.base.document import DocumentInvalid
from penstock.spark.pipeline.journal import Journal
from penstock.spark.pipeline.runner import PipelineRunner, PipelineRuns, QueryFailed
from penstock.spark.pipeline.writing import writer
from tests.spark.conftest import until
from tests.spark.pipeline.conftest import PATIENCE_SECONDS, Pipeline

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]


def plain(pipeline: Pipeline, topic: str, **run: Any) -> str:
    more = "\n".join(f"{name} = {value!r}" for name, value in run.items())
    return f"""
        name = "faults-{pipeline.number}"
        [run]
        trigger = "once"
        restarts = 0
        {more}
        [source.numbers]
        topic = "{topic}"
        format = "json"
        schema = "n bigint"
        [step.kept]
        sql = "select n, _record.partition as part, _record.offset as place from numbers"
        [sink.lake]
        from = "kept"
        table = "lake"
        [errors]
        on_invalid = "drop"
    """


def numbers(first: int, last: int) -> list[dict[str, int]]:
    return [{"n": number} for number in range(first, last)]


@pytest.mark.long
def test_a_recreated_topic_ends_the_run_by_name(pipeline: Pipeline) -> None:
    topic = pipeline.topic("numbers")
    text = plain(pipeline, topic)
    pipeline.send(topic, numbers(0, 10))
    pipeline.run(text)
    pipeline.client.delete_topic(topic)
    pipeline.client.create_topic(topic, partitions=1)
    pipeline.send(topic, numbers(10, 20))
    with pytest.raises(QueryFailed, match=f"topic {topic} was deleted and created again"):
        pipeline.run(text)
    assert len(pipeline.rows("lake")) == 10


def test_a_query_that_cannot_start_ends_the_run_in_one_line(pipeline: Pipeline) -> None:
    with pytest.raises(QueryFailed) as caught:
        pipeline.run(plain(pipeline, "absent"))
    assert str(caught.value) == f"query numbers: {pipeline.broker.bootstrap} has no topic absent"


def test_a_stop_in_the_middle_of_a_batch_reports_no_error(
    pipeline: Pipeline, capfd: pytest.CaptureFixture[str]
) -> None:
    topic = pipeline.topic("numbers")
    pipeline.send(topic, numbers(0, 1))
    slow = plain(pipeline, topic).replace(
        "n, _rec", "reflect('java.lang.Thread', 'sleep', 600000L), _rec"
    )
    runner = PipelineRunner(pipeline.write(slow), pipeline.spark)
    runner.start()
    jobs = pipeline.spark.sparkContext.statusTracker()
    until("the batch runs", lambda: bool(jobs.getActiveJobsIds()))
    runner.stop()
    # What Java said before has come when this has.
    java: Any = pipeline.spark.sparkContext._jvm
    java.java.lang.System.err.println("and that was all")
    said = [""]

    def ended() -> bool:
        said[0] += capfd.readouterr().err
        return "and that was all" in said[0]

    until("Java's words have come", ended)
    assert said == ["and that was all\n"]


def test_records_deleted_before_they_were_read_end_the_run_or_are_passed_over(
    pipeline: Pipeline,
) -> None:
    topic = pipeline.topic("numbers")
    text = plain(pipeline, topic)
    pipeline.send(topic, numbers(0, 10))
    pipeline.run(text)
    pipeline.send(topic, numbers(10, 30))
    pipeline.client.delete_records(topic, {0: 15})
    with pytest.raises(QueryFailed, match=rf"{topic}-0: offsets 10 to 14 were deleted"):
        pipeline.run(text)
    pipeline.run(text.replace("restarts = 0", "restarts = 0\n        fail_on_data_loss = false"))
    assert sorted(row["n"] for row in pipeline.rows("lake")) == [*range(10), *range(15, 30)]


def test_a_deleted_checkpoint_is_noticed(pipeline: Pipeline) -> None:
    topic = pipeline.topic("numbers")
    text = plain(pipeline, topic)
    pipeline.send(topic, numbers(0, 10))
    spec = pipeline.write(text)
    pipeline.run(text)
    shutil.rmtree(spec.run.state / "checkpoints")
    with pytest.raises(QueryFailed, match=r"checkpoint"):
        pipeline.run(text)
    assert len(pipeline.rows("lake")) == 10


@pytest.mark.long
def test_a_checkpoint_copied_to_another_pipeline_is_noticed(pipeline: Pipeline) -> None:
    topic = pipeline.topic("numbers")
    text = plain(pipeline, topic)
    pipeline.send(topic, numbers(0, 10))
    pipeline.run(text)
    first = pipeline.write(text).run.state
    other = text.replace('name = "faults', 'name = "copied').replace('"lake"', '"other"')
    second = pipeline.write(other).run.state
    shutil.copytree(first / "checkpoints", second / "checkpoints")
    pipeline.send(topic, numbers(10, 20))
    with pytest.raises(QueryFailed, match="is at batch 1, but the journal is empty"):
        pipeline.run(other)
    assert not (pipeline.folder / "other").exists()


def test_two_runs_of_one_pipeline_are_refused(pipeline: Pipeline) -> None:
    topic = pipeline.topic("numbers")
    spec = pipeline.write(plain(pipeline, topic))
    runner = PipelineRunner(spec, pipeline.spark)
    runner.start()
    try:
        with pytest.raises(PipelineRuns, match="is already running as process"):
            PipelineRunner(spec, pipeline.spark).start()
        runner.wait(threading.Event())
    finally:
        runner.stop()


def test_held_records_are_bounded(pipeline: Pipeline) -> None:
    topic = pipeline.topic("numbers")
    text = plain(pipeline, topic).replace(
        'on_invalid = "drop"', 'on_invalid = "park"\nheld_max = 5'
    )
    pipeline.send(topic, [b"bad"] * 6, key=None)
    with pytest.raises(QueryFailed, match=r"6 records would be held, errors.held_max is 5"):
        pipeline.run(text)
    assert pipeline.run(text.replace("held_max = 5", "held_max = 6"))["numbers"].held == 6


def test_a_schema_that_drifts_is_rejected_record_by_record(pipeline: Pipeline) -> None:
    topic, dead = pipeline.topic("numbers"), pipeline.topic("dead")
    text = (
        plain(pipeline, topic)
        .replace('on_invalid = "drop"', f'dead_letters = "{dead}"')
        .replace('schema = "n bigint"', 'schema = "n bigint"\nunknown_fields = "reject"')
    )
    pipeline.send(topic, [{"n": 1}, {"n": "one"}, {"n": 2, "new": 1}, {"n": 3}, [1], {}])
    pipeline.run(text)
    assert sorted(str(row["n"]) for row in pipeline.rows("lake")) == ["1", "3", "None"]
    assert len(pipeline.records(dead)) == 3


@pytest.mark.long
def test_a_batch_that_failed_half_way_is_made_of_the_same_rows(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second of two sinks fails; the table that both read changes before the replay."""
    topic = pipeline.topic("numbers")
    names = str(pipeline.folder / "names")
    write_deltalake(names, pa.table({"n": [0, 1], "name": ["zero", "one"]}))
    text = plain(pipeline, topic).replace(
        "[step.kept]",
        """[source.names]
        table = "names"
        [step.named]
        sql = "select a.n, b.name from numbers a left join names b on a.n = b.n"
        [sink.first]
        from = "named"
        table = "first"
        [sink.second]
        from = "named"
        table = "second"
        [step.kept]""",
    )
    pipeline.send(topic, numbers(0, 4))

    fail_for(monkeypatch, "second")
    with pytest.raises(QueryFailed, match="no space left"):
        pipeline.run(text)
    monkeypatch.undo()
    write_deltalake(names, pa.table({"n": [2, 3], "name": ["two", "three"]}), mode="append")
    pipeline.run(text)
    expected = Counter([(0, "zero"), (1, "one"), (2, None), (3, None)])
    for table in ("first", "second"):
        assert Counter((row["n"], row["name"]) for row in pipeline.rows(table)) == expected
    assert len(pipeline.rows("lake")) == 4


@pytest.mark.long
def test_a_batch_that_failed_half_way_is_finished_by_the_file_that_it_began_with(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = pipeline.topic("numbers")
    text = plain(pipeline, topic).replace(
        "[sink.lake]",
        """[source.numbers.expect]
        "small" = { that = "n < 3", otherwise = "park" }
        [sink.second]
        from = "kept"
        table = "second"
        [sink.lake]""",
    )
    pipeline.send(topic, numbers(0, 5), key=None)
    fail_for(monkeypatch, "lake")
    with pytest.raises(QueryFailed, match="no space left"):
        pipeline.run(text)
    monkeypatch.undo()
    changed = text.replace("n < 3", "n < 100").replace(
        "[sink.lake]",
        """[sink.third]
        from = "kept"
        table = "third"
        [sink.lake]""",
    )
    pipeline.send(topic, numbers(5, 8), key=None)
    assert pipeline.run(changed)["numbers"].held == 2
    assert sorted(row["n"] for row in pipeline.rows("lake")) == [0, 1, 2, 5, 6, 7]
    assert sorted(row["n"] for row in pipeline.rows("second")) == [0, 1, 2, 5, 6, 7]
    assert sorted(row["n"] for row in pipeline.rows("third")) == [5, 6, 7]


def test_a_sink_that_refuses_a_batch_can_be_mended_in_the_file(pipeline: Pipeline) -> None:
    topic = pipeline.topic("numbers")
    write_deltalake(str(pipeline.folder / "lake"), pa.table({"n": [-1]}))
    text = plain(pipeline, topic).replace(
        "[sink.lake]",
        """[sink.second]
        from = "kept"
        table = "second"
        [sink.lake]""",
    )
    pipeline.send(topic, numbers(0, 3))
    with pytest.raises(DocumentInvalid, match="has no column part"):
        pipeline.run(text)
    other = text.replace("n, _record.partition as part", "n + 100 as n, _record.partition as part")
    with pytest.raises(DocumentInvalid, match="has no column part"):
        pipeline.run(other)
    assert not [*(pipeline.folder / "second").rglob("*.*")]
    mended = other.replace('table = "lake"', 'table = "lake"\n        add_columns = true')
    pipeline.run(mended)
    assert sorted(row["n"] for row in pipeline.rows("lake")) == [-1, 100, 101, 102]
    assert sorted(row["n"] for row in pipeline.rows("second")) == [100, 101, 102]


@pytest.mark.long
def test_a_half_written_batch_that_is_refused_says_by_which_file_it_goes(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = pipeline.topic("numbers")
    text = plain(pipeline, topic).replace(
        "[sink.lake]",
        """[sink.second]
        from = "kept"
        table = "second"
        [sink.lake]""",
    )
    pipeline.send(topic, numbers(0, 3))
    fail_for(monkeypatch, "lake")
    with pytest.raises(QueryFailed, match="no space left"):
        pipeline.run(text)
    monkeypatch.undo()
    write_deltalake(str(pipeline.folder / "lake"), pa.table({"n": [-1]}))
    with pytest.raises(DocumentInvalid, match="has no column part"):
        pipeline.run(text.replace("select n,", "select n + 100 as n,"))
    pipeline.run(text.replace('table = "lake"', 'table = "lake"\n        add_columns = true'))
    for table in ("second", "lake"):
        assert [*range(3)] == sorted(row["n"] for row in pipeline.rows(table) if row["n"] >= 0)


def fail_for(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Let a sink's commit fail as on a full disk."""

    def full() -> None:
        raise OSError("no space left on device")

    def broken(spec: Any, query: str, sink: Any) -> Any:
        stage = writer(spec, query, sink)
        if sink.name != name:
            return stage
        return lambda frame, batch_id: replace(stage(frame, batch_id), commit=full)

    monkeypatch.setattr("penstock.spark.pipeline.work.writer", broken)


@pytest.mark.long
def test_a_broker_that_is_away_is_waited_for(pipeline: Pipeline, tmp_path: Any) -> None:
    from penstock.testing import Broker

    with Broker(process=True) as broker:
        other = Pipeline(tmp_path, broker, pipeline.spark)
        topic = other.topic("numbers", 2)
        text = (
            plain(other, topic, max_records=50)
            .replace('"once"', '"now"')
            .replace("restarts = 0", "restarts = 20")
        )
        other.send(topic, numbers(0, 200))
        runner = PipelineRunner(other.write(text), other.spark)
        runner.start()
        stop = threading.Event()
        watcher = threading.Thread(target=runner.wait, args=(stop,))
        watcher.start()
        try:
            patience = threading.Event()

            def rows_are(count: int) -> bool:
                for _ in range(PATIENCE_SECONDS * 5):
                    done = runner.states()[0].counts.get("written.lake", 0)
                    if done >= count or not watcher.is_alive():
                        return done >= count
                    patience.wait(0.2)
                return False

            assert rows_are(100)
            broker.kill()
            patience.wait(1.0)
            broker.start()
            other.client.close()
            other.client = broker.client()
            other.send(topic, numbers(200, 300))
            assert rows_are(300)
        finally:
            stop.set()
            watcher.join()
            runner.stop()
        assert Counter(row["n"] for row in other.rows("lake")) == Counter(range(300))
        assert Journal(other.write(text).run.state / "journal" / "numbers").last() is not None
        other.client.close()
