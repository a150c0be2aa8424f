"""A peer in a process of its own: started, waited for, measured, ended.

A peer is a module that is run with `python -m`, prints one line that begins with `ready` when it
can be talked to, and ends at SIGTERM. What follows `ready` on the line is for the starter.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from penstock.apps.loads.figures import cpu_seconds

STOP_TIMEOUT_SECONDS = 20
ROOT = Path(__file__).resolve().parents[2]


class PeerProcess:
    """A running peer, as a context manager."""

    def __init__(self, module: str, *arguments: str) -> None:
        self._command = [sys.executable, "-m", module, *arguments]
        self._process: subprocess.Popen[str] | None = None
        self.said = ""

    def __enter__(self) -> Self:
        process = subprocess.Popen(
            self._command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._process = process
        line = self.ask()
        if not line.startswith("ready"):
            self.stop()
            raise RuntimeError(f"{' '.join(self._command)} did not start; it said {line!r}")
        self.said = line.removeprefix("ready").strip()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """The process id of the running peer."""
        assert self._process is not None
        return self._process.pid

    def ask(self, question: str = "") -> str:
        """Write a line to the peer, if there is one, and read the next line that it says."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        if question:
            process.stdin.write(question + "\n")
            process.stdin.flush()
        return process.stdout.readline().strip()

    def cpu_seconds(self) -> float:
        """What all its threads have used of the cores so far."""
        return cpu_seconds(self.pid) or 0.0

    def stop(self) -> None:
        """End it, by force if it does not end in time."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()
