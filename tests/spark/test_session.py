"""The session: what it sets, and what it says when Java is missing."""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock.spark import JavaMissing, require_java, session
from penstock.spark.errors import InvalidOption
from penstock.spark.sessions.java import COMPILING
from penstock.spark.sessions.session import SETTINGS, ConnectMissing
from penstock.spark.sessions.workers import (
    NotShipped,
    WorkersUnready,
    check_workers,
    reason_of,
    server_slots,
    ship,
    slots,
    warm_up,
)
from tests.spark.conftest import SETTINGS as OWN
from tests.spark.conftest import until


def test_missing_java_is_said_clearly(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(JavaMissing, match="version 17 or newer"):
        require_java()
    java = tmp_path / "home" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.touch(mode=0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    require_java()


def test_missing_packages_of_spark_connect_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "grpc_status", None)
    with pytest.raises(ConnectMissing, match=r"grpcio-status.*pip install 'pyspark\[connect\]'"):
        session(master="sc://127.0.0.1:1")


def test_a_builder_and_a_master_are_one_too_many() -> None:
    with pytest.raises(InvalidOption, match="cannot be combined with a builder"):
        session(SparkSession.builder, master="spark://127.0.0.1:7077")


@pytest.mark.parametrize(
    ("trace", "said"),
    [
        ("ModuleNotFoundError: No module named 'penstock'", "Install penstock[spark]"),
        ("ModuleNotFoundError: No module named 'pyarrow'", "lacks pyarrow"),
        ('java.io.IOException: Cannot run program "/opt/python"', "no Python at"),
        ("[PYTHON_VERSION_MISMATCH] Python in worker", "same minor version"),
        ("something else", "something else"),
    ],
)
def test_the_failure_of_a_first_task_is_explained(trace: str, said: str) -> None:
    assert said in reason_of(f"Job aborted: {trace} at line 3")


@pytest.mark.spark
def test_java_s_options_come_before_those_of_the_user(spark: SparkSession) -> None:
    java: Any = spark._jvm
    given = java.java.lang.management.ManagementFactory.getRuntimeMXBean().getInputArguments()
    ours, own = (options.split() for options in (COMPILING, OWN["spark.driver.extraJavaOptions"]))
    places = [list(given).index(option) for option in (*ours, *own)]
    assert places == sorted(places)


class _Started:
    """Session that records the jobs that are started in it."""

    def __init__(self, master: str) -> None:
        self.sparkContext = SimpleNamespace(master=master)
        self.jobs: queue.Queue[int] = queue.Queue()

    def range(self, rows: int, *, numPartitions: int) -> Any:  # noqa: N803
        def collect() -> None:
            self.jobs.put(rows)
            raise RuntimeError("the session ended")

        return SimpleNamespace(mapInArrow=lambda *_: SimpleNamespace(collect=collect))


def test_local_workers_start_while_the_driver_plans() -> None:
    local: Any = _Started("local[2]")
    warm_up(local)
    assert local.jobs.get(timeout=30) == 1
    cluster: Any = _Started("spark://127.0.0.1:7077")
    warm_up(cluster)
    for thread in threading.enumerate():
        if thread.name == "warm-up":
            thread.join(30)
    assert cluster.jobs.empty()


@pytest.mark.spark
def test_what_cannot_be_shipped_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(NotShipped, match="must be an existing file"):
        ship(spark, [tmp_path / "gone.py"])
    files = [tmp_path / folder / "steps.py" for folder in ("a", "b")]
    for file in files:
        file.parent.mkdir()
        file.touch()
    with pytest.raises(NotShipped, match="have the same name"):
        ship(spark, files)


@pytest.mark.spark
def test_a_cluster_without_free_slots_is_noticed_however_late_the_first_task_comes(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The time is over before Spark has the job, which has to be ended all the same."""
    folder = str(tmp_path)

    def held(batches: Iterator[Any]) -> Iterator[Any]:
        import time

        for batch in batches:
            open(os.path.join(folder, str(batch["id"][0])), "w").close()
            while not os.path.exists(os.path.join(folder, "free")):
                time.sleep(0.02)
            yield batch

    with ThreadPoolExecutor(1) as pool:
        holding = pool.submit(spark.range(2, numPartitions=2).mapInArrow(held, "id long").collect)
        try:
            until("both slots are taken", lambda: holding.done() or len(os.listdir(folder)) == 2)
            with pytest.raises(WorkersUnready, match="no task ran in 0 s"):
                check_workers(spark, wait_seconds=0.0)
        finally:
            (tmp_path / "free").touch()
        assert len(holding.result()) == 2


@pytest.mark.spark
def test_the_session_has_what_the_source_wants(spark: SparkSession) -> None:
    for name, value in SETTINGS.items():
        assert spark.conf.get(name) == value
    assert slots(spark) == server_slots(spark) == 2
    assert session() is spark


@pytest.mark.spark
def test_workers_come_from_our_daemon(spark: SparkSession) -> None:
    def loaded(batches):  # type: ignore[no-untyped-def]
        import gc
        import sys

        import pyarrow as pa

        ready = "penstock.spark.reads.reading" in sys.modules and gc.get_freeze_count() > 1_000
        yield pa.RecordBatch.from_pydict({"ready": [ready]})
        yield from ()

    rows = spark.range(1, numPartitions=1).mapInArrow(loaded, "ready boolean").collect()
    assert [row.ready for row in rows] == [True]
