"""Distributed workers of Kafka Connect, which can be killed and started again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.ports import free_port

from compat.connect.standalone import JSON
from compat.daemons import Daemon, java, properties

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


class Worker(Daemon):
    """Distributed worker, and the connectors that it is asked to run."""

    def __init__(
        self, bootstrap: str, folder: Path, name: str, libraries: str, more: Mapping[str, str]
    ) -> None:
        """Write the worker's file.

        Args:
            folder: the folder of the file and the log.
            libraries: the class path of Kafka Connect with its connectors.
            more: more settings of the worker.
        """
        url = f"http://127.0.0.1:{free_port()}"
        settings = {**_WORKER, "bootstrap.servers": bootstrap, "listeners": url, **more}
        file = properties(folder / f"{name}.properties", settings)
        main = "org.apache.kafka.connect.cli.ConnectDistributed"
        command = java(libraries, main, file, options=["-Xmx512m"])
        super().__init__(command, folder / f"{name}.log", url)

    def put(self, connector: str, config: Mapping[str, str]) -> None:
        """Create a connector or change it, when the worker accepts requests."""
        path = f"/connectors/{connector}/config"
        self.wait_until(
            lambda: self.call("PUT", path, config)[0] in (200, 201), seconds=START_SECONDS
        )

    def wait_until_running(self, connector: str) -> None:
        """Wait until the connector and all its tasks run."""
        self.wait_until(lambda: self._running(connector), seconds=START_SECONDS)

    def _running(self, connector: str) -> bool:
        status, found = self.call("GET", f"/connectors/{connector}/status")
        if status != 200:
            return False
        states = {part["state"] for part in (found["connector"], *found["tasks"])}
        assert "FAILED" not in states, found
        return bool(found["tasks"]) and states == {"RUNNING"}
