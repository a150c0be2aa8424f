"""Standalone worker of Kafka Connect that runs one connector in a process of its own."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Self

import psutil
from tests.ports import free_port

WAIT_SECONDS: Final = 240.0
POLL_SECONDS: Final = 0.05
STRINGS: Final = "org.apache.kafka.connect.storage.StringConverter"
JSON: Final = "org.apache.kafka.connect.json.JsonConverter"


class Standalone:
    """Process of a worker with one connector; a context manager that ends it."""

    def __init__(
        self,
        bootstrap: str,
        folder: Path,
        libraries: str,
        connector: Mapping[str, str],
        worker: Mapping[str, str],
    ) -> None:
        """Start the process.

        Args:
            folder: a folder for files and the log, which are named after the connector.
            libraries: class path of Kafka Connect with the connector.
            connector: settings of the connector, with its `name`.
            worker: more settings of the worker, such as its converters.

        Raises:
            FileNotFoundError: Java is not installed.
        """
        name = connector["name"]
        self._log = folder / f"{name}.log"
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
        files = [folder / f"{name}-{part}.properties" for part in settings]
        for file, pairs in zip(files, settings.values(), strict=True):
            escaped = (f"{key}={text}\n".replace("\\", "\\\\") for key, text in pairs.items())
            file.write_text("".join(escaped))
        command = [
            "java", "-cp", libraries, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            "org.apache.kafka.connect.cli.ConnectStandalone", *map(str, files),
        ]  # fmt: skip
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def cpu_seconds(self) -> float:
        """Return the CPU time that the process has used so far, in seconds."""
        return sum(psutil.Process(self._process.pid).cpu_times()[:2])

    def wait_for(self, count: int, moved: Callable[[], int]) -> int:
        """Wait until the connector has moved `count` rows; return the number of moved rows.

        Raises:
            RuntimeError: the process has ended, or has not moved the rows within the time limit.
        """
        deadline = time.monotonic() + WAIT_SECONDS
        while (rows := moved()) < count:
            if self._process.poll() is not None or time.monotonic() > deadline:
                text = self._log.read_text(errors="replace")[-6000:]
                raise RuntimeError(f"{rows} of {count} rows:\n{text}")
            time.sleep(POLL_SECONDS)
        return rows
