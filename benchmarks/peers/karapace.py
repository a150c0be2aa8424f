"""Karapace as a peer: its schema registry, with a Penstock broker as its Kafka.

The environment variable `PENSTOCK_BENCH_KARAPACE` is the path of its program `karapace`. Without it
the peer is absent.
"""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from compat.servers import PenstockProcess
from tests.ports import free_port

VARIABLE: Final = "PENSTOCK_BENCH_KARAPACE"
START_SECONDS: Final = 60.0


class Karapace:
    """A running registry of Karapace."""

    def __init__(self, program: str, directory: Path, bootstrap: str) -> None:
        self.port = free_port()
        settings = {
            "BOOTSTRAP_URI": bootstrap,
            "HOST": "127.0.0.1",
            "PORT": str(self.port),
            "ADVERTISED_HOSTNAME": "127.0.0.1",
            "ADVERTISED_PORT": str(self.port),
            "KARAPACE_REGISTRY": "true",
            "KARAPACE_REST": "false",
            "LOG_LEVEL": "WARNING",
            "REPLICATION_FACTOR": "1",
        }
        own = {f"KARAPACE_{name}": value for name, value in settings.items()}
        with (directory / "karapace.log").open("ab") as log:
            self._process = subprocess.Popen(
                [program], cwd=directory, env=os.environ | own, stdout=log, stderr=log
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait(self) -> None:
        """Wait until the registry takes changes."""
        deadline = time.monotonic() + START_SECONDS
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"Karapace was not ready within {START_SECONDS} s")
            time.sleep(0.2)

    def _is_ready(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", "/master_available")
            return bool(json.loads(connection.getresponse().read())["master_available"])
        except (OSError, http.client.HTTPException, ValueError, KeyError):
            return False
        finally:
            connection.close()

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextmanager
def karapace(directory: Path) -> Iterator[Karapace | None]:
    """Run Karapace; None if the environment does not name its program."""
    program = os.environ.get(VARIABLE)
    if not program:
        yield None
        return
    with PenstockProcess(directory / "kafka") as broker:
        peer = Karapace(program, directory, broker.bootstrap)
        try:
            peer.wait()
            yield peer
        finally:
            peer.stop()
