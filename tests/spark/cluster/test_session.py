"""A session on a cluster: what it finds out about the workers, and what it says when one lacks."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import penstock
from penstock.spark.sessions.workers import WorkersUnready
from tests.spark.cluster import jobs
from tests.spark.cluster.conftest import Driver
from tests.spark.cluster.standalone import StandaloneCluster
from tests.spark.cluster.topics import Records
from tests.spark.conftest import until

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(400)]


def test_what_is_missing_is_said_in_a_sentence(
    driver: Driver, cluster: StandaloneCluster, tmp_path: Path
) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    driver.call(jobs.close_session)  # it has all cores
    try:
        bare_path = {"spark.executorEnv.PYTHONPATH": ""}
        with pytest.raises(WorkersUnready, match=r"no penstock\. Install penstock\[spark\]"):
            driver.call(jobs.open_session, cluster.url, python=str(bare), settings=bare_path)
        gone = str(tmp_path / "gone")
        with pytest.raises(WorkersUnready, match=f"no Python at {gone}"):
            driver.call(jobs.open_session, cluster.url, python=gone)
        greedy = {"spark.executor.memory": "64g"}
        with pytest.raises(WorkersUnready, match="no task ran in 3 s"):
            driver.call(jobs.open_session, cluster.url, settings=greedy, wait_seconds=3)
    finally:
        driver.call(jobs.open_session, cluster.url)


def test_the_workers_run_the_code_that_is_tested(driver: Driver) -> None:
    assert driver.call(jobs.code_of_workers) == {penstock.__file__}


def test_all_slots_of_the_cluster_are_planned_for(
    driver: Driver, cluster: StandaloneCluster, records: Records
) -> None:
    until("the session's executors run, and no other's", lambda: len(cluster.executors()) == 2)
    assert driver.call(jobs.slots) == 2
    records.write(1000)
    assert driver.call(jobs.batch_tasks, records.options()) <= 2


def test_functions_of_a_shipped_file_run_on_the_workers(driver: Driver, tmp_path: Path) -> None:
    file = tmp_path / "shipped_doubles.py"
    file.write_text(
        "def doubled(batches):\n    for batch in batches:\n        yield from (batch, batch)\n"
    )
    assert driver.call(jobs.shipped, str(file)) == 20
