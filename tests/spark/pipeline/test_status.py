"""Status of a running and of a stopped pipeline."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from pyspark.sql import DataFrame

from penstock.base.http_page import HttpPage
from penstock.spark.pipeline.admin import Run, build_app
from penstock.spark.pipeline.journal import Entry, Journal
from penstock.spark.pipeline.spec import ErrorPolicy, PipelineSpec, RunOptions
from penstock.spark.pipeline.state import PipelinePaths
from penstock.spark.pipeline.status import (
    RUN_FILE,
    announced,
    checkpoint_offsets,
    known_queries,
    live,
    stored,
)
from penstock.testing import Broker
from tests.spark.conftest import Topic
from tests.spark.pipeline.test_admin import RUN
from tests.spark.pipeline.test_progress import ORDERS, Script


@pytest.fixture
def spec(tmp_path: Path) -> PipelineSpec:
    return PipelineSpec(
        name="shop",
        file=tmp_path / "shop.toml",
        run=RunOptions(bootstrap="127.0.0.1:1", admin_url=None, state=tmp_path / "state"),
        sources={},
        steps={},
        sinks={},
        errors=ErrorPolicy(),
    )


@pytest.fixture
def run(spec: PipelineSpec) -> Run:
    return replace(RUN, state_directory=str(spec.run.state))


@pytest.fixture
def admin(run: Run) -> Iterator[str]:
    page = HttpPage(build_app(run, Script(ORDERS).states), ("127.0.0.1", 0))
    host, port = page.start()
    yield f"http://{host}:{port}"
    page.stop()


# A pipeline that runs


def test_the_page_is_found_while_it_runs(spec: PipelineSpec, run: Run, admin: str) -> None:
    assert live(spec) is None
    with announced(run, admin):
        body = json.loads((spec.run.state / RUN_FILE).read_bytes())
        assert body == {**asdict(run), "admin": admin}
        found = live(spec)
        assert found is not None
        assert (found["admin"], found["pid"], found["running"]) == (admin, run.pid, True)
        assert [query["query"] for query in found["queries"]] == ["orders"]
    assert live(spec) is None
    assert not (spec.run.state / RUN_FILE).exists()


def test_the_file_goes_when_the_run_fails(spec: PipelineSpec, run: Run, admin: str) -> None:
    with pytest.raises(ValueError, match="mine"), announced(run, admin):
        raise ValueError("mine")
    assert not (spec.run.state / RUN_FILE).exists()


def test_the_file_of_another_run_stays(spec: PipelineSpec, run: Run, admin: str) -> None:
    other = json.dumps(asdict(run) | {"pid": 1, "admin": admin})
    with announced(run, admin):
        (spec.run.state / RUN_FILE).write_text(other)
    assert (spec.run.state / RUN_FILE).read_text() == other


@pytest.mark.parametrize(
    "left",
    [
        b"",
        b"{",
        b"[]",
        b'{"admin": "http://127.0.0.1:1"}',
        b'{"admin": "file:///etc/passwd"}',
        b'{"admin": 7}',
    ],
)
def test_what_a_killed_run_left_is_no_page(spec: PipelineSpec, left: bytes) -> None:
    spec.run.state.mkdir()
    (spec.run.state / RUN_FILE).write_bytes(left)
    assert live(spec) is None


def test_the_page_of_another_pipeline_is_not_ours(
    spec: PipelineSpec, run: Run, admin: str, broker: Broker
) -> None:
    with announced(run, admin):
        assert live(replace(spec, name="other")) is None
    with announced(run, broker.admin_url):
        assert live(spec) is None


# One that does not


def test_nothing_is_known_of_a_pipeline_that_never_ran(spec: PipelineSpec, broker: Broker) -> None:
    with broker.client() as client:
        found = stored(spec, client)
    assert found == {
        "pipeline": "shop",
        "file": str(spec.file),
        "state_directory": str(spec.run.state),
        "running": False,
        "broker_error": None,
        "queries": [],
    }


def take(batch: DataFrame, batch_id: int) -> None:
    batch.count()


@pytest.mark.spark
def test_checkpoint_journal_and_broker_together(spec: PipelineSpec, topic: Topic) -> None:
    topic.write(90, partition=1)
    places = PipelinePaths(spec)
    checkpoint = places.checkpoint("orders")
    frame = topic.stream(maxRecordsPerTrigger=60, groupId="shop.orders")
    writer = frame.writeStream.foreachBatch(take).option("checkpointLocation", str(checkpoint))
    writer.trigger(availableNow=True).start().awaitTermination()
    at = {(topic.name, partition): 90 if partition == 1 else 0 for partition in range(3)}
    assert checkpoint_offsets(checkpoint) == at
    topic.write(5, partition=1)
    journal = Journal(places.journal("orders"))
    first, second = (Entry(batch_id=n, query_id=None, now_ms=0) for n in (1, 2))
    journal.finish(first, counts={}, held=4, ms=1)
    with topic.broker.client() as client:
        (found,) = stored(spec, client)["queries"]
        journal.begin(replace(second, held=4))
        (begun,) = stored(spec, client)["queries"]
    assert found == {
        "query": "orders",
        "group": "shop.orders",
        "batch_id": 1,
        "unfinished": False,
        "held_records": 4,
        "lag_records": 5,
        "partitions": [
            {
                "topic": topic.name,
                "partition": partition,
                "committed_offset": 90 if partition == 1 else 0,
                "log_end_offset": 95 if partition == 1 else 0,
                "lag": 5 if partition == 1 else 0,
            }
            for partition in range(3)
        ],
    }
    assert (begun["batch_id"], begun["unfinished"]) == (1, True)


def test_a_groups_offsets_replace_a_missing_checkpoint(spec: PipelineSpec, broker: Broker) -> None:
    Journal(PipelinePaths(spec).journal("orders")).begin(Entry(batch_id=0, query_id=None, now_ms=0))
    with broker.client() as client:
        client.create_topic("status-group", partitions=1)
        client.commit_offsets("grouped.orders", {("status-group", 0): 0})
        (found,) = stored(replace(spec, name="grouped"), client)["queries"]
    assert (found["batch_id"], found["unfinished"]) == (None, True)
    (place,) = found["partitions"]
    assert (place["topic"], place["committed_offset"], place["lag"]) == ("status-group", 0, 0)


CHECKPOINT = """v1
{"batchWatermarkMs":0,"conf":{}}
{"bootstrap": "b", "topics": {"t": {"id": "i", "partitions": {"0": {"epoch": 0, "offset": 7}}}}}
{"bootstrap": "b", "topics": {"t": {"id": "i", "partitions": {"0": {"epoch": 0, "offset": 5}}}}}
-
{"seed": 1}
"""


def kept(folder: Path, text: str = CHECKPOINT) -> Path:
    for name, batches in (("commits", (9, 10)), ("offsets", (9, 10, 11))):
        (folder / name).mkdir(parents=True)
        for number in batches:
            (folder / name / str(number)).write_text(text if number == 10 else "v1\n{}\n")
            (folder / name / f".{number}.crc").write_bytes(b"")
    return folder


def test_a_checkpoint_has_the_offsets_of_its_slowest_source(tmp_path: Path) -> None:
    assert checkpoint_offsets(kept(tmp_path)) == {("t", 0): 5}


@pytest.mark.parametrize(
    "text", ["", "v9" + CHECKPOINT[2:], "v1", "v1\n{}\n{", 'v1\n{}\n{"topics": 3}', "\xff\n\n{"]
)
def test_an_unreadable_checkpoint_has_no_positions(tmp_path: Path, text: str) -> None:
    assert checkpoint_offsets(kept(tmp_path, text)) == {}


def test_no_batch_done_no_offsets(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").write_text(CHECKPOINT)
    assert checkpoint_offsets(tmp_path) == {}


def test_without_a_broker_the_stored_status_is_returned(spec: PipelineSpec) -> None:
    kept(PipelinePaths(spec).checkpoint("orders"))
    Journal(PipelinePaths(spec).journal("windows")).begin(
        Entry(batch_id=3, query_id=None, now_ms=0)
    )
    assert known_queries(spec) == ("orders", "windows")
    from penstock.client import Client

    with Client("127.0.0.1:1", api_timeout_ms=200) as client:
        found = stored(spec, client)
    orders, windows = found["queries"]
    assert "127.0.0.1:1" in found["broker_error"]
    assert [(place["committed_offset"], place["lag"]) for place in orders["partitions"]] == [
        (5, None)
    ]
    assert (orders["lag_records"], windows["batch_id"]) == (None, 2)
