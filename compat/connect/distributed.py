"""Distributed workers of Kafka Connect, which can be killed and started again."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Self

from tests.connect.worker_bed import call, wait_until
from tests.ports import free_port

from compat.connect.standalone import JSON

START_SECONDS: Final = 180.0
TOPICS: Final = ("config", "offset", "status")
_WORKER: Final = {
    "group.id": "connect", "plugin.discovery": "service_load",
    "key.converter": JSON, "key.converter.schemas.enable": "false",
    "value.converter": JSON, "value.converter.schemas.enable": "false",
    "offset.flush.interval.ms": "1000", "scheduled.rebalance.max.delay.ms": "0",
    **{f"{name}.storage.topic": f"connect-{name}" for name in TOPICS},
    **{f"{name}.storage.replication.factor": "-1" for name in TOPICS},
}  # fmt: skip


class Worker:
    """Process of a distributed worker; a context manager that ends it."""

    def __init__(
        self, bootstrap: str, folder: Path, name: str, libraries: str, more: Mapping[str, str]
    ) -> None:
        """Write the worker's file and start the process.

        Args:
            folder: the folder of the file and the log.
            libraries: the class path of Kafka Connect with its connectors.
            more: more settings of the worker.
        """
        self.url = f"http://127.0.0.1:{free_port()}"
        self._log = folder / f"{name}.log"
        file = folder / f"{name}.properties"
        settings = {**_WORKER, "bootstrap.servers": bootstrap, "listeners": self.url, **more}
        file.write_text("".join(f"{name}={text}\n" for name, text in settings.items()))
        self._command = [
            "java", "-Xmx512m", "-cp", libraries, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            "-Dorg.slf4j.simpleLogger.showDateTime=true",
            "org.apache.kafka.connect.cli.ConnectDistributed", str(file),
        ]  # fmt: skip
        self.start()

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def log(self) -> str:
        return self._log.read_text(errors="replace")[-6000:]

    def put(self, connector: str, config: Mapping[str, str]) -> None:
        """Create a connector or change it, when the worker accepts requests."""
        wait_until(
            lambda: self._call("PUT", f"/connectors/{connector}/config", config) in (200, 201),
            self.log, START_SECONDS,
        )  # fmt: skip

    def wait_until_running(self, connector: str) -> None:
        """Wait until the connector and all its tasks run."""
        wait_until(lambda: self._running(connector), self.log, START_SECONDS)

    def _running(self, connector: str) -> bool:
        path = f"/connectors/{connector}/status"
        if self._call("GET", path) != 200:
            return False
        found = call(self.url, "GET", path)[1]
        states = {part["state"] for part in (found["connector"], *found["tasks"])}
        assert "FAILED" not in states, found
        return bool(found["tasks"]) and states == {"RUNNING"}

    def _call(self, method: str, path: str, body: Any = None) -> int:
        """Return the status of a request; 503 if the worker does not respond yet."""
        try:
            return call(self.url, method, path, body)[0]
        except (OSError, ValueError):
            return 503

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
