"""A worker keeps its connectors apart: one that dies or starts disturbs no other."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.base.pause import pause
from penstock.connect.worker import STARTS_MAX, Worker, WorkerSettings
from penstock.testing import Broker
from tests.connect.worker_bed import WorkerProcess, wait_until, worker_of

SHOWN_SECONDS = 5.0
ANSWER_SECONDS = 2.0
"""Time for an answer of the REST interface while many connectors start."""


@pytest.fixture(scope="module")
def log() -> Iterator[Broker]:
    with Broker(process=True) as broker:
        yield broker


@pytest.fixture(scope="module")
def worker(log: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    directory = tmp_path_factory.mktemp("connectors")
    shutil.copy(Path(__file__).parent / "dying.py", directory / "dying.py")
    with worker_of(directory, log.bootstrap) as running:
        yield running


def write(worker: WorkerProcess, name: str, more: str = "", after: str = "") -> None:
    text = f'name = "{name}"\n[source]\nconnector = "dying.py:Dying"\ntopic = "{name}"\n{more}\n'
    part = worker.directory / f"{name}.part"
    part.write_text(text + after)
    part.rename(worker.directory / f"{name}.toml")


def killed(worker: WorkerProcess, name: str) -> int:
    pid = worker.pid(name)
    os.kill(pid, signal.SIGKILL)
    return pid


def test_a_dead_connector_disturbs_no_other(worker: WorkerProcess) -> None:
    write(worker, "killed")
    write(worker, "other")
    worker.wait("killed", "RUNNING")
    worker.wait("other", "RUNNING")
    killed(worker, "killed")
    worker.wait("killed", "FAILED", "killed by signal 9")
    worker.wait("killed", "RUNNING")
    write(worker, "broken", 'nothing = "x"')
    worker.wait("broken", "FAILED", "source.nothing: there is no setting of this name")
    assert worker.metric("restarts_total", "killed") >= 1
    assert worker.metric("restarts_total", "other") == 0
    wait_until(
        lambda: worker.metric("last_commit_age_seconds", "other") < SHOWN_SECONDS,
        lambda: f"the other connector has not committed for {SHOWN_SECONDS} s",
    )


def test_few_connectors_start_at_the_same_time(
    log: Broker, worker: WorkerProcess, tmp_path: Path
) -> None:
    """Otherwise 49 starting processes take the machine from the REST interface."""
    names = [f"bounded-{number}" for number in range(STARTS_MAX + 3)]
    shutil.copy(worker.directory / "dying.py", tmp_path)
    for name in names:
        text = f'[source]\nconnector = "dying.py:Dying"\ntopic = "{name}"\n'
        (tmp_path / f"{name}.toml").write_text(f'name = "{name}"\n{text}')
    state = tmp_path / ".state"
    watched = Worker(WorkerSettings(directory=tmp_path, state=state, bootstrap=log.bootstrap))
    starting: list[int] = []

    def started() -> bool:
        found = [watched.status(name).state for name in watched.entries if watched.runs(name)]
        starting.append(found.count("STARTING"))
        return found.count("RUNNING") == len(names)

    async def run() -> None:
        stop = asyncio.Event()
        running = asyncio.create_task(watched.run(stop))
        try:
            async with asyncio.timeout(60):
                while not started():
                    await pause(0.01)
        finally:
            stop.set()
            await running

    asyncio.run(run())
    assert 0 < max(starting) <= STARTS_MAX


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_fiftieth_connector_disturbs_no_other(worker: WorkerProcess) -> None:
    names = [f"many-{number}" for number in range(49)]
    for name in names:
        write(worker, name)
    slowest = 0.0
    for name in names:
        began = time.monotonic()
        while worker.state(name)[0] != "RUNNING":
            slowest = max(slowest, time.monotonic() - began)
            assert slowest < ANSWER_SECONDS
            began = time.monotonic()
    print(f"slowest answer of the REST interface: {slowest:.2f} s")
    pids = {name: worker.pid(name) for name in names}
    write(worker, "fiftieth")
    worker.wait("fiftieth", "RUNNING")
    killed(worker, "fiftieth")
    worker.wait("fiftieth", "FAILED", "killed by signal 9")
    worker.wait("fiftieth", "RUNNING")
    write(worker, "fiftieth", "nothing = 1")
    worker.wait("fiftieth", "FAILED", "there is no setting")
    assert pids == {name: worker.pid(name) for name in names}
    for name in names:
        assert worker.metric("restarts_total", name) == 0
        wait_until(
            lambda: worker.metric("last_commit_age_seconds", name) < SHOWN_SECONDS,  # noqa: B023
            lambda: f"{name} has not committed for {SHOWN_SECONDS} s",  # noqa: B023
        )
