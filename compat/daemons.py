"""Programs of others that run in the background, with their files and HTTP interfaces."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

import requests
from prometheus_client.parser import text_string_to_metric_families
from tests.connect.worker_bed import wait_until

START_SECONDS: Final = 120.0
REQUEST_SECONDS: Final = 120.0

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]
"""Values of metrics by their names and labels."""


def java(
    libraries: str, main: str, *arguments: str | Path, options: Sequence[str] = ()
) -> list[str]:
    """Return the command of a Java program with dated log lines.

    Args:
        libraries: its class path.
        options: options of the Java machine.
    """
    log = "-Dorg.slf4j.simpleLogger"
    return [
        "java", *options, "-cp", libraries, f"{log}.defaultLogLevel=warn",
        f"{log}.showDateTime=true", main, *map(str, arguments),
    ]  # fmt: skip


def properties(file: Path, settings: Mapping[str, str]) -> Path:
    """Write a file of Java properties, and return its path."""
    escaped = (f"{name}={text}\n".replace("\\", "\\\\") for name, text in settings.items())
    file.write_text("".join(escaped))
    return file


def series_of(text: str) -> Series:
    """Return the metrics of a text in Prometheus' format."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


class Daemon:
    """Process of a program, which can be killed and started again.

    As a context manager, it starts the process, and kills it in the end.

    Attributes:
        url: the address of its HTTP interface; empty if it has none.
    """

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        url: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.url = url
        self._command = command
        self._log = log
        self._environment = {**os.environ, **(environment or {})}

    def start(self) -> Self:
        """Start the program, which appends its output to the log file."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                env=self._environment,
                cwd=self._log.parent,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        return self

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def log(self) -> str:
        return self._log.read_text(errors="replace")[-6000:]

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """Return the status of a response and its JSON, or its text; 503 if there is none.

        Args:
            body: the JSON of the request.
            headers: headers of the request, with underscores for hyphens.
        """
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            response = requests.request(
                method, self.url + path, json=body, headers=named, timeout=REQUEST_SECONDS
            )
        except requests.RequestException:
            return 503, None
        try:
            return response.status_code, response.json()
        except ValueError:
            return response.status_code, response.text

    def metrics(self) -> Series:
        """Return the values of `/metrics`; none if there is no response."""
        status, text = self.call("GET", "/metrics")
        return series_of(text) if status == 200 else {}

    def wait_until(
        self,
        reached: Callable[[], bool],
        found: Callable[[], object] = str,
        seconds: float = START_SECONDS,
    ) -> None:
        """Wait until a state is reached; the failure has what was found, and the log's end."""
        wait_until(reached, lambda: f"{found()}\n{self.log()}", seconds)
