"""Standalone worker of Kafka Connect that runs one connector in a process of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import psutil
from tests.ports import free_port

from compat.daemons import Daemon, java, properties

WAIT_SECONDS: Final = 240.0
POLL_SECONDS: Final = 0.05
STRINGS: Final = "org.apache.kafka.connect.storage.StringConverter"
JSON: Final = "org.apache.kafka.connect.json.JsonConverter"
MAIN: Final = "org.apache.kafka.connect.cli.ConnectStandalone"


class Standalone(Daemon):
    """Standalone worker with one connector."""

    def __init__(
        self,
        bootstrap: str,
        folder: Path,
        libraries: str,
        connector: Mapping[str, str],
        worker: Mapping[str, str],
    ) -> None:
        """Write the files of the worker and the connector.

        Args:
            folder: a folder for files and the log, which are named after the connector.
            libraries: class path of Kafka Connect with the connector.
            connector: settings of the connector, with its `name`.
            worker: more settings of the worker, such as its converters.
        """
        name = connector["name"]
        settings = {
            "worker": {
                "bootstrap.servers": bootstrap, "plugin.discovery": "service_load",
                "consumer.auto.offset.reset": "earliest", "consumer.max.poll.records": "5000",
                "offset.flush.interval.ms": "1000",
                "offset.storage.file.filename": str(folder / f"{name}.offsets"),
                "listeners": f"http://127.0.0.1:{free_port()}", **worker,
            },
            "connector": {"tasks.max": "1", **connector},
        }  # fmt: skip
        files = [
            properties(folder / f"{name}-{part}.properties", pairs)
            for part, pairs in settings.items()
        ]
        super().__init__(java(libraries, MAIN, *files), folder / f"{name}.log")

    def cpu_seconds(self) -> float:
        """Return the CPU time that the process has used so far, in seconds."""
        return sum(psutil.Process(self.pid).cpu_times()[:2])

    def wait_for(self, count: int, moved: Callable[[], int]) -> int:
        """Wait until the connector has moved `count` rows; return the number of moved rows.

        Raises:
            RuntimeError: the process has ended, or has not moved the rows within the time limit.
        """
        deadline = time.monotonic() + WAIT_SECONDS
        while (rows := moved()) < count:
            if not self.alive or time.monotonic() > deadline:
                raise RuntimeError(f"{rows} of {count} rows:\n{self.log()}")
            time.sleep(POLL_SECONDS)
        return rows
