"""Faults of a job that keeps tables: kills between any two steps, and a full disk."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from penstock.spark.tables import Materialiser
from penstock.spark.tables.reconciler import TableState
from penstock.testing import Broker
from tests.machine import disk_of
from tests.spark.conftest import Topic
from tests.spark.driver_deaths import assert_each_once, outlive

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROWS: Final = 600
STEPS: Final = ("staged", "committed", "done")
DISK_BYTES: Final = 8 << 20
LEFT_BYTES: Final = 1 << 20
DRIVER: Final = """
import threading
from penstock.spark import session
from penstock.spark.tables import DeltaSink, Materialiser
from penstock.spark.tables import topic_table

class Sink(DeltaSink):
    def write(self, batch, batch_id, **more):
        written = super().write(batch, batch_id, **more)
        if batch_id == 1:
            die("done")
        return written

    def _commit(self, table, made, commit):
        if commit.batch_id == 0:
            die("staged")
        version = super()._commit(table, made, commit)
        if commit.batch_id == 0:
            die("committed")
        return version

class CrashTable(topic_table.TopicTable):
    def make_sink(self, location, storage_options):
        return Sink(location, application="crash")

class Job(Materialiser):
    def make_table(self, wanted):
        made = CrashTable(self._spark, wanted, bootstrap=self._bootstrap, admin_url=self._admin_url)
        made._options["maxRecordsPerTrigger"] = "200"
        return made

fast = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1", "spark.driver.memory": "1g"}
job = Job(session(cores=1, settings=fast), bootstrap=bootstrap, admin_url=admin, root=folder)
states = job.run(threading.Event(), once=True)
assert [state.phase for state in states] == ["done"], states
"""


@pytest.mark.long
@pytest.mark.timeout(600)
def test_no_record_is_lost_or_doubled_by_kills(kept: Topic, tmp_path: Path) -> None:
    written = kept.write(ROWS)
    broker = kept.broker
    outlive(DRIVER, tmp_path, broker.bootstrap, broker.admin_url, kept.name, steps=STEPS)
    table = DeltaTable(str(tmp_path / kept.name))
    assert_each_once(table, written)
    topic_id = str(kept.client.describe_topic(kept.name).topic_id)
    ends = kept.client.list_offsets(kept.name)
    assert ends == {
        at: table.transaction_version(f"penstock.position/{topic_id}/{at}") for at in ends
    }


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own that is soon full."""
    with disk_of(str(DISK_BYTES), tmp_path / "disk") as place:
        yield place


def once(broker: Broker, spark: SparkSession, root: Path, topic: str) -> TableState:
    job = Materialiser(
        spark, bootstrap=broker.bootstrap, admin_url=broker.admin_url, root=str(root)
    )
    states = {item.wanted.topic: item for item in job.run(threading.Event(), once=True)}
    return states[topic]


@pytest.mark.timeout(600)
def test_a_full_disk_is_reported_and_recovered_from(
    broker: Broker, spark: SparkSession, kept: Topic, small_disk: Path
) -> None:
    kept.write(30)
    assert once(broker, spark, small_disk, kept.name).phase == "done"
    noise = [os.urandom(100_000) for _ in range(20)]
    filler = small_disk / "filler"
    free = os.statvfs(small_disk)
    filler.write_bytes(bytes(free.f_bavail * free.f_bsize - LEFT_BYTES))
    kept.client.write_arrow(kept.name, pa.table({"value": noise}))
    full = once(broker, spark, small_disk, kept.name)
    assert full.phase == "stopped"
    assert "No space left on device" in (full.problem or "")
    location = str(small_disk / kept.name)
    assert DeltaTable(location).to_pyarrow_table().num_rows == 30
    filler.unlink()
    mended = once(broker, spark, small_disk, kept.name)
    assert mended.phase == "done", mended.problem
    read = DeltaTable(location).to_pyarrow_table()
    assert read.num_rows == 50
    assert Counter(noise) <= Counter(read["value"].to_pylist())
