"""Worker of connectors in a process of its own, and requests of its REST interface."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.ports import free_port

WAIT_SECONDS = 30.0


class WorkerProcess:
    """Process of `penstock connect worker`."""

    def __init__(self, directory: Path, bootstrap: str, state: Path | None = None) -> None:
        directory.mkdir(exist_ok=True)
        self.directory = directory
        self.bootstrap = bootstrap
        self.states = state or directory / ".state"
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        command = [
            sys.executable, "-m", "penstock", "connect", "worker", str(directory), "-b", bootstrap,
            "--listen", f"127.0.0.1:{self.port}", "--state", str(self.states),
        ]  # fmt: skip
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        assert "ready" in self.process.stdout.readline()

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        return call(self.url, method, path, body)

    def state(self, name: str) -> tuple[str, str]:
        """Return state and cause of a connector."""
        status, body = self.call("GET", f"/connectors/{name}/status")
        if status != 200:
            return "ABSENT", ""
        return body["connector"]["state"], body["connector"].get("trace", "")

    def wait(self, name: str, state: str, cause: str = "", seconds: float = WAIT_SECONDS) -> float:
        """Wait until a connector has a state with a cause; return the seconds that it took."""
        began = time.monotonic()

        def reached() -> bool:
            found, trace = self.state(name)
            return found == state and cause in trace

        wait_until(reached, lambda: f"{name}: {self.state(name)}, not {state} {cause}", seconds)
        return time.monotonic() - began

    def metric(self, metric: str, name: str, **labels: str) -> float:
        with urllib.request.urlopen(f"{self.url}/metrics") as response:
            text = response.read().decode()
        parts = [f'connector="{name}"', *(f'{key}="{value}"' for key, value in labels.items())]
        for line in text.splitlines():
            if line.startswith(f"penstock_connect_{metric}{{") and all(p in line for p in parts):
                return float(line.rpartition(" ")[2])
        raise AssertionError(f"{metric} of {name} is not in\n{text}")

    def pid(self, name: str) -> int:
        """Return the process of a connector, from its status file."""
        file = self.states / name / "status.json"
        return int(json.loads(file.read_text())["pid"])

    def remove(self, name: str) -> None:
        """Remove a connector's file, and wait until its process has ended."""
        (self.directory / f"{name}.toml").unlink()
        self.wait(name, "ABSENT")

    def close(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)
        self.process.wait(WAIT_SECONDS)
        if self.process.stdout is not None:
            self.process.stdout.close()


@contextmanager
def worker_of(
    directory: Path, bootstrap: str, state: Path | None = None
) -> Iterator[WorkerProcess]:
    worker = WorkerProcess(directory, bootstrap, state)
    try:
        yield worker
    finally:
        if worker.process.poll() is None:
            worker.close()


def call(url: str, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    """Return the status of a response and its JSON; `body` is bytes, or is sent as JSON."""
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(
        url + path, data=data, method=method, headers={"content-type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=WAIT_SECONDS) as response:
            status, content = response.status, response.read()
    except urllib.error.HTTPError as error:
        with error:
            status, content = error.code, error.read()
    return status, json.loads(content) if content else None


def wait_until(
    reached: Callable[[], bool], message: Callable[[], str], seconds: float = WAIT_SECONDS
) -> None:
    deadline = time.monotonic() + seconds
    while not reached():
        if time.monotonic() > deadline:
            raise AssertionError(message())
        time.sleep(0.05)
