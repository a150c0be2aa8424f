"""A worker shows each death with its cause within seconds, recovers, and keeps others running."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.testing import Broker
from tests.connect.worker_bed import WorkerProcess, wait_until, worker_of

SHOWN_SECONDS = 5.0


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


def assert_fails(worker: WorkerProcess, name: str, cause: str) -> None:
    assert worker.wait(name, "FAILED", cause) < SHOWN_SECONDS
    assert worker.metric("state", name, state="FAILED") == 1


def test_a_killed_process_fails_and_starts_again_without_the_others(worker: WorkerProcess) -> None:
    write(worker, "killed")
    write(worker, "other")
    worker.wait("killed", "RUNNING")
    worker.wait("other", "RUNNING")
    pid = killed(worker, "killed")
    assert_fails(worker, "killed", f"process {pid} was killed by signal 9")
    worker.wait("killed", "RUNNING")
    assert worker.metric("restarts_total", "killed") >= 1
    write(worker, "broken", 'nothing = "x"')
    assert_fails(worker, "broken", "source.nothing: there is no setting of this name")
    assert worker.metric("restarts_total", "other") == 0
    assert worker.metric("last_commit_age_seconds", "other") < SHOWN_SECONDS


@pytest.mark.parametrize(
    ("more", "cause"),
    [("memory = true", "Unable to allocate"), ('disk = "{path}/full"', "File too large")],
    ids=["memory", "disk"],
)
def test_a_limit_of_the_machine_shows_as_the_cause(
    worker: WorkerProcess, more: str, cause: str
) -> None:
    write(worker, "limited", more.format(path=worker.directory))
    worker.wait("limited", "FAILED", cause)
    assert worker.metric("state", "limited", state="FAILED") == 1
    write(worker, "limited")
    worker.wait("limited", "RUNNING")


def test_a_system_that_is_down_shows_retrying_and_recovers(worker: WorkerProcess) -> None:
    down = worker.directory / "down"
    write(worker, "away", f'down = "{down}"', "[errors]\nretry_delay_max_seconds = 0.1\n")
    worker.wait("away", "RUNNING")
    down.touch()
    assert worker.wait("away", "RETRYING", "the system is down") < SHOWN_SECONDS
    assert worker.metric("state", "away", state="RETRYING") == 1
    down.unlink()
    worker.wait("away", "RUNNING")


def test_a_poison_record_and_wrong_settings_fail_until_the_file_is_corrected(
    worker: WorkerProcess,
) -> None:
    cast = '[transform.number]\ntype = "Cast"\nspec = "text:int32"\n'
    write(worker, "poison", 'value = "7"', cast)
    worker.wait("poison", "RUNNING")
    write(worker, "poison", 'value = "x"', cast)
    worker.wait("poison", "FAILED", "cannot be processed")
    write(worker, "poison", "value = 7\nbatch = 1", cast)
    worker.wait("poison", "FAILED", "source.batch: there is no setting of this name")
    write(worker, "poison", 'value = "8"', cast)
    worker.wait("poison", "RUNNING")


@pytest.mark.long
def test_the_fiftieth_connector_disturbs_no_other(worker: WorkerProcess) -> None:
    names = [f"many-{number}" for number in range(49)]
    for name in names:
        write(worker, name)
    for name in names:
        worker.wait(name, "RUNNING", seconds=100.0)
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
