"""Consolidation by a job: what brokers give out, executors make, and brokers take in."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from penstock.spark.reads.consolidation import (
    ConsolidationRefused,
    Outcome,
    Run,
    _WorkQueue,
    build_rows,
    consolidate,
)
from penstock.testing import Broker
from tests.spark.test_object_chunks import Diskless, Unasked, rows

if TYPE_CHECKING:
    from tests.s3 import S3Server

SETTINGS: dict[str, Any] = {
    "diskless.consolidation.interval.ms": 0,
    "diskless.consolidation.segment.bytes": 1 << 20,
    "diskless.sweep.unreferenced.grace.ms": 3_600_000,
}


@pytest.fixture(scope="module")
def job_broker() -> Iterator[Broker]:
    with Broker(SETTINGS) as running:
        yield running


@pytest.fixture
def topic(job_broker: Broker) -> Iterator[Diskless]:
    made = Diskless(job_broker)
    for first in range(0, 900, 100):
        made.write(100, first=first)
    yield made
    made.client.close()


def offered(topic: Diskless, *, all_ages: bool = True) -> list[Run]:
    work_queue = _WorkQueue(topic.broker.admin_url)
    try:
        return list(work_queue.runs(topic.name, all_ages=all_ages, outcome=Outcome()))
    finally:
        work_queue.close()


def built(runs: list[Run]) -> list[dict[str, Any]]:
    texts = pa.array([json.dumps(run._asdict()) for run in runs])
    batch = pa.RecordBatch.from_arrays(
        [pa.array(range(len(runs)), pa.int32()), texts], names=["number", "run"]
    )
    return [row for made in build_rows({}, iter([batch])) for row in made.to_pylist()]


def handed_in(topic: Diskless, run: Run, made: dict[str, Any]) -> bool:
    work_queue = _WorkQueue(topic.broker.admin_url)
    try:
        return work_queue.complete(run, made)
    finally:
        work_queue.close()


def keys(topic: Diskless) -> set[str]:
    return {item.extents[0].key for task in topic.tasks() for item in task.slices}


def test_a_run_becomes_a_segment_and_stays_what_it_was(topic: Diskless) -> None:
    before, read = topic.consumed(), topic.tasks()
    runs = offered(topic)
    assert sorted(run.partition for run in runs) == [0, 1, 2]
    for run, row in zip(runs, built(runs), strict=True):
        assert row["error"] is None
        assert handed_in(topic, run, json.loads(row["made"]))
        assert handed_in(topic, run, json.loads(row["made"])), "an answer that was lost is repeated"
    assert keys(topic) == {run.lease["key"] for run in runs}
    assert topic.consumed() == before
    assert rows(topic.read(topic.tasks(), Unasked())) == before
    assert offered(topic) == []
    # Who planned before still finds the old objects, and the broker when they are swept.
    assert rows(topic.read(read, Unasked())) == before
    for key in {item.extents[0].key for task in read for item in task.slices}:
        (topic.objects / key).unlink()
    assert rows(topic.read(read)) == before


def test_what_is_interrupted_changes_nothing(topic: Diskless) -> None:
    before = keys(topic)
    runs = offered(topic)
    built(runs)  # and the driver dies
    assert keys(topic) == before
    again = offered(topic)
    assert [run.extents for run in again] == [run.extents for run in runs]
    assert not {run.lease["key"] for run in again} & {run.lease["key"] for run in runs}


def test_a_task_that_runs_twice_writes_once(topic: Diskless) -> None:
    runs = offered(topic)[:1]
    assert built(runs)[0]["error"] is None
    (second,) = built(runs)
    assert second["made"] is None
    assert "objects are never replaced" in second["error"]


def test_the_second_segment_of_a_run_is_rejected(topic: Diskless) -> None:
    first, second = offered(topic), offered(topic)
    made = [json.loads(row["made"]) for row in built([first[0], second[0]])]
    assert handed_in(topic, first[0], made[0])
    assert not handed_in(topic, second[0], made[1])


def test_damage_and_loss_are_reported(topic: Diskless) -> None:
    (run, *_) = offered(topic)
    (topic.objects / run.extents[0]["key"]).unlink()
    (row,) = built([run])
    assert row["made"] is None
    assert "there is no object" in row["error"]


def test_a_segment_that_is_not_there_is_refused(topic: Diskless) -> None:
    run, other = offered(topic)[:2]
    made = json.loads(built([run])[0]["made"])
    with pytest.raises(ConsolidationRefused, match=r"has \d+ bytes, but the request names"):
        handed_in(topic, run, made | {"size_bytes": made["size_bytes"] + 1})
    elsewhere = [item | {"key": other.lease["key"]} for item in made["extents"]]
    with pytest.raises(ConsolidationRefused, match="there is no object"):
        handed_in(topic, run, made | {"extents": elsewhere})
    bodies: list[dict[str, Any]] = [{}, made | {"extents": [{}]}, made | {"extents": []}]
    for body in bodies:
        with pytest.raises(ConsolidationRefused, match="400"):
            handed_in(topic, run, body)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("topics/nope/partitions/0/runs", 404),
        ("topics/{id}/partitions/9/runs", 404),
        ("topics/{id}/partitions/0/runs?start=x", 400),
        ("topics/{id}/partitions/0/segments", 400),
    ],
)
def test_mistakes(topic: Diskless, path: str, status: int) -> None:
    place = path.replace("{id}", offered(topic)[0].topic_id)
    url = f"{topic.broker.admin_url}/v1/diskless/{place}"
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(urllib.request.Request(url, b"[]"), timeout=30)
    assert caught.value.code == status
    caught.value.close()


@pytest.mark.spark
def test_a_job(topic: Diskless, spark: SparkSession) -> None:
    before = topic.consumed()
    lines: list[str] = []
    admin = topic.broker.admin_url

    def run(**options: Any) -> Outcome:
        return consolidate(
            spark, admin_url=admin, slots=2, topic=topic.name, report=lines.append, **options
        )

    assert run().segments == 0, "nothing is old enough yet"
    done = run(all_ages=True)
    assert (done.partitions, done.segments, done.failures) == (3, 3, 0), lines
    assert len(lines) == 3
    assert len(keys(topic)) == 3
    assert rows(topic.read(topic.tasks(), Unasked())) == topic.consumed() == before


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.long
def test_the_command_over_s3(s3: S3Server, tmp_path: Path) -> None:
    """Beside a running broker on SQLite, whose database it does not open."""
    secrets = tmp_path / "options"
    secrets.write_text("".join(f"{name}={value}\n" for name, value in s3.options().items()))
    store = {
        "diskless.storage.url": s3.fresh_url(),
        "diskless.storage.options.file": str(secrets),
        "diskless.commit.interval.ms": 5,
    }
    with Broker(SETTINGS | store) as broker:
        topic = Diskless(broker)
        for first in range(0, 300, 100):
            topic.write(100, first=first)
        before = topic.consumed()
        command = [
            sys.executable, "-m", "penstock", "--output", "json", "diskless", "consolidate",
            "--spark", "--master", "local[2]", "--admin", broker.admin_url, "--all-ages",
            "-X", f"diskless.storage.options.file={secrets}", "--topic", topic.name,
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, done.stderr
        assert s3.options()["aws_secret_access_key"] not in done.stdout + done.stderr
        facts = json.loads(done.stdout)
        assert (facts["partitions"], facts["segments"], facts["failures"]) == (3, 3, 0)
        assert facts["extents"] == 9
        assert len(keys(topic)) == 3
        assert rows(topic.read(topic.tasks(), Unasked(), options=s3.options())) == before
        topic.client.close()


def test_options_of_spark_go_with_spark() -> None:
    command = [sys.executable, "-m", "penstock", "diskless", "consolidate", "--master", "local"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "--master, --admin and --set require --spark" in done.stderr
