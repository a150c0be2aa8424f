"""Mirrors between two brokers, for tests: their files, and runs in processes that can be killed."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from penstock.client import Client
from penstock.connect.running import Stop
from penstock.connect.status import StatusFile
from penstock.mirror.mirror_file import load
from penstock.mirror.running import MirrorRun, run
from penstock.mirror.watching import Watch

COLUMNS = ("partition", "offset", "timestamp", "key", "value", "headers")


class Cluster(Protocol):
    """Broker with an address."""

    @property
    def bootstrap(self) -> str: ...


class Address(NamedTuple):
    """Address of a broker."""

    bootstrap: str


def mirror_file(
    folder: Path, name: str, source: Cluster, target: Cluster, policy: str = "identity",
    source_keys: str = "", target_keys: str = "",
) -> Path:  # fmt: skip
    file = folder / f"{name}.toml"
    file.write_text(
        f'name = "{name}"\n[source]\nbootstrap = "{source.bootstrap}"\n'
        f'topics = ["orders", "b[.]orders", "a[.]orders"]\ngroups = ["g"]\n{source_keys}\n'
        f'[target]\nbootstrap = "{target.bootstrap}"\npolicy = "{policy}"\n{target_keys}\n'
        "[mirror]\ngroups_seconds = 0.1\ntopics_seconds = 1\n"
    )
    return file


def mirror(file: Path, report: Callable[[str], None] = print) -> Any:
    """Run a mirror with `once` in this process; return its last status."""
    spec = load(file)
    status = StatusFile(spec.name, "mirror", spec.state)
    with Watch(spec, status) as watch:
        run(MirrorRun(spec=spec, watch=watch, stop=Stop(), once=True, report=report))
    return status.status


@contextmanager
def running(file: Path) -> Iterator[Watch]:
    """Run a mirror in a thread of this process; yield its `Watch`.

    Raises:
        Exception: the mirror has failed.
    """
    spec, stop = load(file), Stop()
    failures: list[Exception] = []

    def work() -> None:
        try:
            run(MirrorRun(spec=spec, watch=watch, stop=stop))
        except Exception as error:
            failures.append(error)

    with Watch(spec, StatusFile(spec.name, "mirror", spec.state)) as watch:
        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield watch
        finally:
            stop.set()
            thread.join()
    for error in failures:
        raise error


def wait_for(found: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait until a condition holds.

    Raises:
        TimeoutError: it does not hold in time.
    """
    until = time.monotonic() + seconds
    while not found():
        if time.monotonic() > until:
            raise TimeoutError(f"not within {seconds} s")
        time.sleep(0.02)


def run_command(verb: str, file: Path, status: int, *options: str) -> str:
    """Run a command of `penstock mirror` in a process; return its output after its status."""
    words = [sys.executable, "-m", "penstock", "mirror", verb, str(file), *options]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == status, ran.stderr
    return ran.stdout + ran.stderr


class Mirroring:
    """Mirror in a process, which can be killed and started again."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "penstock", "mirror", "run", str(self._file)]
        with self._file.with_suffix(".log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


def rows(client: Client, topic: str) -> list[dict[str, Any]]:
    """Return the committed records of a topic by partition and offset."""
    found: list[dict[str, Any]] = client.read_arrow(
        topic, columns=COLUMNS, isolation="read_committed"
    ).to_pylist()
    return found
