"""What the demo starts, and ends again whatever happens: broker, agent, and the Spark driver."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

READY: Final = re.compile(r"penstock ready kafka=(\S+) admin=(\S+)")
AGENT_READY: Final = "penstock host ready"
READY_SECONDS: Final = 120.0
END_SECONDS: Final = 60.0
LOG_TAIL_CHARS: Final = 3_000


class Process:
    """A child in its own process group, its standard error in a file."""

    def __init__(
        self, name: str, command: list[str], log: Path, on_line: Callable[[str], None]
    ) -> None:
        self.name = name
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        self._errors = log.open("ab")
        self._child = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            stdin=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, args=(on_line,), daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """The process id, which is its group's too."""
        return self._child.pid

    @property
    def status(self) -> int | None:
        """How it ended; None while it runs."""
        return self._child.poll()

    def wait(self, seconds: float) -> int | None:
        """Wait for its end; None if it still runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._child.wait(seconds)
        return None

    def kill(self) -> None:
        """kill -9: the process and all that it started, at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._child.wait()
        self._done()

    def end(self) -> None:
        """Ask it to end; kill it if it does not."""
        if self.status is None:
            self._child.send_signal(signal.SIGTERM)
            if self.wait(END_SECONDS) is None:
                self.kill()
        self._done()

    def tail(self) -> str:
        """The end of what it wrote to its log."""
        return self.log.read_text(errors="replace")[-LOG_TAIL_CHARS:]

    def _read(self, on_line: Callable[[str], None]) -> None:
        for line in self._child.stdout or ():
            on_line(line)

    def _done(self) -> None:
        self._reader.join(END_SECONDS)
        if self._child.stdout is not None:
            self._child.stdout.close()
        self._errors.close()


class BrokerProcess:
    """`penstock serve` on free ports, with its data below the output folder."""

    def __init__(self, folder: Path) -> None:
        self.bootstrap = ""
        self.admin_url = ""
        self._ready = threading.Event()
        self.process = Process(
            "broker",
            [
                *(sys.executable, "-m", "penstock", "serve"),
                *("--data-dir", str(folder / "log")),
                *("--listener", "127.0.0.1:0", "--admin", "127.0.0.1:0"),
                *("-X", "group.initial.rebalance.delay.ms=0"),  # nobody else is about to join
            ],
            folder / "broker.txt",
            self._line,
        )
        if not self._ready.wait(READY_SECONDS):
            self.process.end()
            raise SystemExit(f"The broker did not start:\n{self.process.tail()}")

    def _line(self, line: str) -> None:
        if found := READY.search(line):
            self.bootstrap, self.admin_url = found[1], f"http://{found[2]}"
            self._ready.set()


class AgentProcess:
    """`penstock host serve` on a socket file, with the log as its sink.

    The file lies in a temporary directory: a socket's path has at most 107 bytes, and the output
    folder may be anywhere.
    """

    def __init__(self, folder: Path, bootstrap: str) -> None:
        self._folder = folder
        self._bootstrap = bootstrap
        self._directory = Path(tempfile.mkdtemp(prefix="penstock-"))
        self.socket = self._directory / "host.sock"
        self.process = self._start()

    def kill(self) -> int:
        """kill -9 the agent and start another; returns the process id of the dead one."""
        pid = self.process.pid
        self.process.kill()
        self.process = self._start()
        return pid

    def end(self) -> None:
        """Let it drain and end."""
        self.process.end()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _start(self) -> Process:
        ready = threading.Event()

        def line(text: str) -> None:
            if text.startswith(AGENT_READY):
                ready.set()

        process = Process(
            "agent",
            [
                *(sys.executable, "-m", "penstock", "host", "serve"),
                *("--socket", str(self.socket), "--sink", "log", "--bootstrap", self._bootstrap),
            ],
            self._folder / "agent.txt",
            line,
        )
        if not ready.wait(READY_SECONDS):
            process.end()
            raise SystemExit(f"The host agent did not start:\n{process.tail()}")
        return process


class Addresses(Protocol):
    """Where brokers are."""

    @property
    def bootstrap(self) -> str: ...

    @property
    def admin_url(self) -> str: ...


def start_pipeline(folder: Path, broker: Addresses, on_line: Callable[[str], None]) -> Process:
    """The Spark driver; the same command again continues where the last one ended."""
    command = [sys.executable, "-m", "examples.flights.pipeline"]
    arguments = [str(folder), broker.bootstrap, broker.admin_url]
    return Process("pipeline", command + arguments, folder / "spark.txt", on_line)
