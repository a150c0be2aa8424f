"""Iceberg's REST catalogue for tests, in a process of its own that may be killed."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from compat.parts import PartMissing, iceberg_rest

from penstock.lake.target import Target
from tests.machine import lacking


class RestCatalog:
    """Process of the catalogue; its tables are files below a folder."""

    def __init__(self, class_path: str, folder: Path) -> None:
        self._class_path = class_path
        self._folder = folder
        self._process: subprocess.Popen[str] | None = None
        self._port = 0

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def target(self, table: str = "db.orders") -> Target:
        return Target.of(table, {"type": "rest", "uri": self.uri}, Path)

    def start(self) -> None:
        """Start the process and wait until it listens; a restart keeps the port."""
        files = (f"{self._folder}/rest.db", f"file://{self._folder}/lake", str(self._port))
        with (self._folder / "rest.log").open("ab") as log:
            self._process = subprocess.Popen(
                ["java", "-XX:TieredStopAtLevel=1", "-cp", self._class_path, "RestCatalog", *files],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip
        assert self._process.stdout is not None
        port = self._process.stdout.readline()
        assert port, (self._folder / "rest.log").read_text()[-3_000:]
        self._port = int(port)

    def kill(self) -> None:
        if self._process is not None:
            assert self._process.stdout is not None
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process.stdout.close()
            self._process = None


@contextmanager
def rest_catalog(folder: Path) -> Iterator[RestCatalog]:
    """A running catalogue without tables."""
    try:
        catalog = RestCatalog(iceberg_rest(), folder)
    except PartMissing as error:
        lacking(f"there is no REST catalogue: {error}")
    catalog.start()
    try:
        yield catalog
    finally:
        catalog.kill()
