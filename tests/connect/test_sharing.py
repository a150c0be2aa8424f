"""Two workers with the same files run each connector once, also when one of them is killed."""

from __future__ import annotations

import shutil
import signal
import socket
from pathlib import Path

import pytest

from penstock.connect.sharing import owner
from penstock.testing import Broker
from tests.connect.worker_bed import WorkerProcess, wait_until, worker_of

NAMES = tuple(f"shared-{number}" for number in range(4))


def owners(worker: WorkerProcess) -> dict[str, str]:
    """Return the worker of each connector that runs, as a worker shows it."""
    _, body = worker.call("GET", "/connectors?expand=status")
    states = {name: item["status"]["connector"] for name, item in body.items()}
    return {name: at["worker_id"] for name, at in states.items() if at["state"] == "RUNNING"}


@pytest.mark.long
def test_connectors_move_to_the_worker_that_is_left(tmp_path: Path) -> None:
    shutil.copy(Path(__file__).parent / "dying.py", tmp_path / "dying.py")
    for name in NAMES:
        text = f'name = "{name}"\n[source]\nconnector = "dying.py:Dying"\ntopic = "{name}"\n'
        (tmp_path / f"{name}.toml").write_text(text)
    with (
        Broker(process=True) as broker,
        worker_of(tmp_path, broker.bootstrap, tmp_path / ".a") as first,
        worker_of(tmp_path, broker.bootstrap, tmp_path / ".b") as second,
    ):
        ids = [f"{socket.gethostname()}:{worker.port}" for worker in (first, second)]
        expected = {name: owner(name, ids) for name in NAMES}

        def assigned() -> bool:
            return owners(first) == expected == owners(second)

        wait_until(assigned, lambda: f"{owners(first)} {owners(second)}, not {expected}")
        second.close(signal.SIGKILL)
        alone = dict.fromkeys(NAMES, ids[0])
        wait_until(lambda: owners(first) == alone, lambda: f"{owners(first)}, not {alone}")


def test_a_worker_that_leaves_moves_its_own_connectors_alone() -> None:
    workers, names = ("a:1", "b:1", "c:1"), [f"connector-{number}" for number in range(300)]
    before = {name: owner(name, workers) for name in names}
    after = {name: owner(name, workers[:2]) for name in names}
    assert {worker for worker in before.values()} == set(workers)
    assert all(after[name] == at for name, at in before.items() if at != "c:1")
