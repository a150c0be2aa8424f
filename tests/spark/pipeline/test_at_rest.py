"""Detection of a run without work, from a state directory and a broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.spark.options import parse
from penstock.spark.pipeline.at_rest import at_rest
from penstock.spark.pipeline.graph import queries
from penstock.spark.pipeline.journal import Definitions, Entry, Journal
from penstock.spark.pipeline.parsing import load
from penstock.spark.pipeline.queries import stream_options
from penstock.spark.pipeline.reads import Read
from penstock.spark.pipeline.spec import PipelineSpec
from penstock.spark.pipeline.state import PipelinePaths
from penstock.spark.reads.stream import PenstockStreamReader
from penstock.testing import Broker

TEXT = """
name = "rests"
[source.rows]
topic = "rows"
format = "json"
schema = "n bigint"
[source.rows.expect]
"positive" = {that = "n > 0", otherwise = "park"}
[sink.lake]
from = "rows"
table = "lake"
[errors]
dead_letters = "dead"
"""


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as running, running.client() as client:
        client.create_topic("rows", partitions=2)
        yield running


def loaded(folder: Path, broker: Broker, text: str = TEXT) -> PipelineSpec:
    (folder / "pipeline.toml").write_text(text)
    return load(folder / "pipeline.toml", bootstrap=broker.bootstrap)


def send(broker: Broker) -> None:
    with broker.client() as client:
        client.write_arrow("rows", pa.table({"value": pa.array([b'{"n": 1}'])}))


def ran(spec: PipelineSpec, batch_id: int, *, committed: bool = True, held: int = 0) -> None:
    """Write the state of a run that read all records in one batch."""
    (plan,) = queries(spec, ())
    paths = PipelinePaths(spec)
    definitions = Definitions(paths.definitions)
    definition = definitions.keep(spec, (plan,))
    definitions.mark_present(definition, {})
    reader = PenstockStreamReader(parse(stream_options(spec, plan, plan.sources, Read())))
    end = reader.reportLatestOffset()
    reader.stop()
    for name, text in (("offsets", f"v1\n{{}}\n{json.dumps(end)}"), ("commits", "v1\n{}")):
        (paths.checkpoint(plan.name) / name).mkdir(parents=True, exist_ok=True)
        if committed or name == "offsets":
            (paths.checkpoint(plan.name) / name / str(batch_id)).write_text(text)
    entry = Entry(batch_id=batch_id, query_id="q", now_ms=1, definition=definition)
    journal = Journal(paths.journal(plan.name))
    journal.begin(entry)
    if committed:
        journal.finish(entry, counts={}, held=held, ms=1)


def test_nothing_to_do_until_a_record_comes(tmp_path: Path, broker: Broker) -> None:
    spec = loaded(tmp_path, broker)
    assert at_rest(spec) == ()
    send(broker)
    ran(spec, 0)
    (state,) = at_rest(spec)
    assert (state.query, state.group_id, state.phase) == ("rows", "rests.rows", "ended")
    send(broker)
    assert at_rest(spec) == ()
    ran(spec, 1)
    assert at_rest(spec)


def test_a_batch_that_is_not_done(tmp_path: Path, broker: Broker) -> None:
    spec = loaded(tmp_path, broker)
    ran(spec, 0)
    ran(spec, 1, committed=False)
    assert at_rest(spec) == ()


def test_another_file_is_for_spark_to_look_at(tmp_path: Path, broker: Broker) -> None:
    ran(loaded(tmp_path, broker), 0)
    assert at_rest(loaded(tmp_path, broker, TEXT.replace("n > 0", "n > 1"))) == ()
    assert at_rest(loaded(tmp_path, broker, TEXT + "[run]\nmax_records = 3\n"))


def test_records_that_wait(tmp_path: Path, broker: Broker) -> None:
    spec = loaded(tmp_path, broker)
    ran(spec, 0, held=1)
    assert at_rest(spec) == ()
    ran(spec, 1)
    assert at_rest(spec)
    releases = PipelinePaths(spec).releases("rows")
    releases.mkdir(parents=True)
    (releases / "one.json").write_text("{}")
    assert at_rest(spec) == ()


def test_a_recreated_topic_is_left_to_spark(tmp_path: Path, broker: Broker) -> None:
    spec = loaded(tmp_path, broker)
    ran(spec, 0)
    with broker.client() as client:
        client.delete_topic("rows")
        client.create_topic("rows", partitions=2)
    assert at_rest(spec) == ()
