"""A Java process of Spark's, from the PySpark wheel, with its log in a file."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

import pyspark

WAIT_SECONDS = 240.0
"""Longest time for a Java process to say that it runs; the machine may be busy."""
END_SECONDS = 20.0
_HOME = Path(pyspark.__file__).parent
_DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG of Linux."""


class JavaFailed(RuntimeError):
    """A process did not come up."""


class JavaProcess:
    """Started when made; ended by `end`, or with the test run."""

    def __init__(
        self, directory: Path, name: str, *arguments: str, environment: Mapping[str, str]
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.name = name
        self._log = directory / f"{name}.log"
        # What a session set for its own planners must not be what makes these work.
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PENSTOCK_", "PYSPARK_", "SPARK_", "PYTHON"))
        }
        with self._log.open("wb") as log:
            # The script becomes the Java process, so the id is that of the latter.
            self._process = subprocess.Popen(
                [str(_HOME / "bin" / "spark-class"), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={
                    **kept,
                    "SPARK_HOME": str(_HOME),
                    "SPARK_CONF_DIR": str(directory),
                    "SPARK_LOCAL_IP": "127.0.0.1",
                    **environment,
                },
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )
        self.pid = self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def await_word(self, text: str) -> re.Match[str]:
        """Wait until the log has something."""
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            said = self._log.read_text(errors="replace")
            if found := re.search(text, said):
                return found
            if not self.alive or time.monotonic() > deadline:
                raise JavaFailed(f"{self.name} did not say {text!r}:\n{said[-4000:]}")
            time.sleep(0.1)

    def ask_to_end(self) -> None:
        if self.alive:
            self._process.terminate()

    def end(self) -> None:
        """End it and wait."""
        self.ask_to_end()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(END_SECONDS)


def _end_with_parent() -> None:
    # A test run that is killed must not leave processes behind.
    ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGTERM)
