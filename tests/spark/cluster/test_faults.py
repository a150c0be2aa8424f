"""Executors, workers and Python workers that die in the middle of a batch: each record once."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest
from deltalake import DeltaTable

from tests.spark.cluster import jobs
from tests.spark.cluster.conftest import Driver
from tests.spark.cluster.standalone import StandaloneCluster
from tests.spark.cluster.topics import Records

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(600)]

WAIT_SECONDS = 180.0
ROWS = 3_000
STEP = '''
import os, time

FOLDER = {folder!r}

def held(batches):
    """The first task to come says who it is, hands on its first rows and waits for its end."""
    for batch in batches:
        yield batch.slice(0, 1)
        try:
            mark = open(os.path.join(FOLDER, "mark"), "x")
        except FileExistsError:
            pass
        else:
            mark.close()
            with open(os.path.join(FOLDER, "holding"), "w") as holding:
                holding.write(str(os.getpid()) + "\\n")
            for _ in range(1200):
                time.sleep(0.1)
            raise RuntimeError("this task was not ended")
        yield batch.slice(1)
'''


@pytest.mark.parametrize(
    ("victim", "kind"),
    [
        ("executor", "table"),
        ("executor", "log"),
        ("executor", "writer"),
        ("python", "log"),
        ("worker", "table"),
    ],
)
def test_each_record_is_there_once(
    victim: str,
    kind: str,
    driver: Driver,
    cluster: StandaloneCluster,
    records: Records,
    tmp_path: Path,
) -> None:
    written = records.write(ROWS)
    sink = {
        "kind": kind,
        "table": str(tmp_path / "table"),
        "topic": records.out,
        "application": f"faults-{victim}-{kind}",
    }
    step = tmp_path / f"held_{victim}_{kind}.py"
    step.write_text(STEP.format(folder=str(tmp_path)))
    options = records.options(maxRecordsPerTrigger=ROWS // 2, parallelism=2)
    running = driver.begin(jobs.stream, options, sink, str(tmp_path), str(step))
    task = await_task(tmp_path / "holding", running)
    end(victim, task)
    if victim == "worker":
        cluster.add_worker()
    running.result(WAIT_SECONDS)
    found = values(sink) if kind == "table" else records.appended(driver)
    assert Counter(found) == Counter(written)


def await_task(file: Path, running: Any) -> psutil.Process:
    """The Python worker that holds the batch."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not (file.exists() and file.read_text().endswith("\n")):
        if running.done():
            running.result()
        assert time.monotonic() < deadline, "no task of the stream began"
        time.sleep(0.05)
    return psutil.Process(int(file.read_text()))


def end(victim: str, task: psutil.Process) -> None:
    """SIGKILL the Python worker, the executor it belongs to, or the worker of that."""
    if victim == "python":
        os.kill(task.pid, signal.SIGKILL)
        return
    executor, worker = [parent for parent in task.parents() if parent.name() == "java"][:2]
    assert "ExecutorBackend" in " ".join(executor.cmdline())
    assert "worker.Worker" in " ".join(worker.cmdline())
    os.kill((executor if victim == "executor" else worker).pid, signal.SIGKILL)


def values(sink: dict[str, Any]) -> list[bytes]:
    found: list[bytes] = DeltaTable(sink["table"]).to_pyarrow_table()["value"].to_pylist()
    return found
