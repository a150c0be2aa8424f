"""Containers of the deployment's files, run as processes of this machine.

A container has the command, environment and ports of a file. Its host names and `0.0.0.0` become
loopback addresses of its own, so that ports stay those of the file; its files become directories
of the test. Everything else is passed on unchanged.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.deploy.image import command

SECONDS_MAX: Final = 60
PAUSE_SECONDS: Final = 0.05


def addresses(count: int) -> list[str]:
    """Return loopback addresses that no other test process uses."""
    pid = os.getpid()
    return [f"127.{64 + (pid >> 8) % 64}.{pid % 256}.{host}" for host in range(1, count + 1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """Container of a file, and its replacements of texts, which apply in their order."""

    name: str
    words: Sequence[str]
    """Arguments of `penstock`."""
    environment: Mapping[str, str]
    health: Sequence[str] = ()
    """Words of the health check, without the name of the interpreter."""
    replacements: Mapping[str, str] = field(default_factory=dict)

    def replaced(self, text: str) -> str:
        for old, new in self.replacements.items():
            text = text.replace(old, new)
        return text

    def variables(self) -> dict[str, str]:
        """Return the container's environment without that of this process."""
        kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        return kept | {name: self.replaced(text) for name, text in self.environment.items()}

    def run(self, image: Path) -> str:
        """Run a container that ends by itself; return its output."""
        done = subprocess.run(
            command(image, *map(self.replaced, self.words)),
            env=self.variables(),
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
        assert done.returncode == 0, f"{self.name}: {done.stderr}"
        return done.stdout

    def is_healthy(self) -> bool:
        words = [self.replaced(word) for word in self.health]
        done = subprocess.run(
            [sys.executable, *words], capture_output=True, timeout=SECONDS_MAX, check=False
        )
        return done.returncode == 0

    @contextmanager
    def running(self, image: Path) -> Iterator[subprocess.Popen[str]]:
        """Run a broker; kill it at the end of the context if it still runs."""
        with subprocess.Popen(
            command(image, *map(self.replaced, self.words)),
            env=self.variables(),
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def wait_until_healthy(self, process: subprocess.Popen[str]) -> str:
        """Wait for a broker's ready line and for its health check; return the line."""
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("penstock ready "), f"{self.name}: {line!r}"
        wait_until(self.is_healthy, process)
        return line


def stop(*processes: subprocess.Popen[str]) -> None:
    """Stop brokers gracefully, all at the same time."""
    for process in processes:
        process.terminate()
    assert [process.wait(SECONDS_MAX) for process in processes] == [0] * len(processes)


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """Wait for a process's state; fail if the process ends before."""
    deadline = time.monotonic() + SECONDS_MAX
    while not condition():
        assert process.poll() is None, f"{process.args!r} ended with {process.returncode}"
        assert time.monotonic() < deadline, f"{process.args!r} does not get ready"
        time.sleep(PAUSE_SECONDS)
