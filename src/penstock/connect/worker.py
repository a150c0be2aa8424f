"""Worker: runs the connectors of a directory, each in a process of its own.

The directory has one TOML file for each connector. The worker starts connectors of new files,
restarts those of changed files, and stops those of removed files; others are not disturbed. A
connector that fails or is killed starts again after a pause that doubles up to `PAUSE_MAX_MS`.
`pause`, `stop` and `restart` are kept in `NAME.target` files in the state directory, so they outlive
the worker.

The processes are forked from a server process that has imported the packages, so they share most of
their memory.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Final, Literal

from penstock.base.document import DocumentInvalid
from penstock.base.errors import InvalidError, PenstockError
from penstock.base.files import write_durably
from penstock.base.pause import pause
from penstock.base.retry import Backoff
from penstock.base.system import SYSTEM_CLOCK, SYSTEM_RANDOMNESS, Clock
from penstock.connect.connector_file import ConnectorSpec, load
from penstock.connect.status import ALIVE, ConnectorStatus, StatusFile, read_status

LOOK_SECONDS: Final = 0.25
"""Time between two looks at the directory and at the processes."""
STOP_SECONDS: Final = 10.0
"""Time for a connector to end after SIGTERM, before it is killed."""
PAUSE_MAX_MS: Final = 60_000.0
CONNECTORS_MAX: Final = 1_000
"""Most connectors of a worker."""
PRELOADED: Final = ("penstock.connect.running", "penstock.client.writer", "penstock.client.columns")

Target = Literal["RUNNING", "PAUSED", "STOPPED"]

logger = logging.getLogger(__name__)


class UnknownConnector(InvalidError):
    """Name of a connector that the worker does not have."""

    def __init__(self, name: str) -> None:
        super().__init__(f"connector {name} does not exist")
        self.name = name


@dataclass(slots=True)
class Entry:
    """Connector of a worker.

    Attributes:
        text: content of the file at the last start.
        spec: checked content; None if the file has problems, which `problem` has.
        failures: ends with an error since the last success.
        start_at: monotonic time of the next start, in seconds.
    """

    file: Path
    target: Target
    text: bytes = b""
    spec: ConnectorSpec | None = None
    problem: str = ""
    process: BaseProcess | None = None
    failures: int = 0
    start_at: float = 0.0
    stopping_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """Settings of a worker.

    Attributes:
        directory: directory of the connectors' files.
        state: directory of the status files.
        bootstrap: brokers; None means those of the files.
        worker_id: address under which the worker is shown, as HOST:PORT.
        security: the client's security options by Kafka's names.
    """

    directory: Path
    state: Path
    bootstrap: str | None
    worker_id: str
    security: Mapping[str, str] | None = field(default=None, repr=False)


class Worker:
    """Connectors of a directory and their processes; used by one event loop."""

    def __init__(self, settings: WorkerSettings, clock: Clock = SYSTEM_CLOCK) -> None:
        self.settings = settings
        self._clock = clock
        self._entries: dict[str, Entry] = {}
        self._context = get_context("forkserver")
        self._context.set_forkserver_preload(list(PRELOADED))
        self._backoff = Backoff(first_ms=1_000, ceiling_ms=PAUSE_MAX_MS, steady=0.5)
        settings.directory.mkdir(parents=True, exist_ok=True)
        settings.state.mkdir(parents=True, exist_ok=True)

    async def run(self, stop: asyncio.Event) -> None:
        """Run the connectors until `stop` is set, then stop them."""
        while not stop.is_set():
            self.look()
            await pause(LOOK_SECONDS)
        for entry in self._entries.values():
            entry.target = "STOPPED"
        while any(entry.process is not None for entry in self._entries.values()):
            for name, entry in self._entries.items():
                self._settle(name, entry)
            await pause(LOOK_SECONDS)

    def look(self) -> None:
        """Compare the directory, the targets and the processes once."""
        there = {file.stem: file for file in sorted(self.settings.directory.glob("*.toml"))}
        for name, file in list(there.items())[:CONNECTORS_MAX]:
            if name not in self._entries:
                self._entries[name] = Entry(file=file, target=self._stored_target(name))
        for name, entry in list(self._entries.items()):
            if name not in there:
                entry.target = "STOPPED"
            self._settle(name, entry)
            if name not in there and entry.process is None:
                del self._entries[name]

    def _settle(self, name: str, entry: Entry) -> None:
        """Start, stop or reap the process of a connector."""
        process, now = entry.process, self._clock.monotonic()
        if process is not None and not process.is_alive():
            self._ended(name, entry, process)
            process = entry.process
        text = _content(entry.file)
        changed = bool(text) and text != entry.text
        if process is not None and (entry.target != "RUNNING" or changed):
            self._stop(entry, process, now)
        elif process is None and entry.target == "RUNNING" and (changed or now >= entry.start_at):
            entry.failures = 0 if changed else entry.failures
            self._start(name, entry, text)

    def _start(self, name: str, entry: Entry, text: bytes) -> None:
        entry.text, entry.problem = text, ""
        try:
            entry.spec = load(
                entry.file, bootstrap=self.settings.bootstrap, state=self.settings.state / name
            )
        except DocumentInvalid as error:
            entry.spec, entry.problem = None, str(error)
            self._delay(entry)
            return
        entry.process = self._context.Process(
            target=_serve, name=f"connector {name}",
            args=(entry.file, self.settings.bootstrap, self.settings.state / name,
                  self.settings.security),
        )  # fmt: skip
        entry.process.start()
        logger.info("connector %s: started process %s", name, entry.process.pid)

    def _stop(self, entry: Entry, process: BaseProcess, now: float) -> None:
        if entry.stopping_at is None:
            process.terminate()
            entry.stopping_at = now
        elif now - entry.stopping_at > STOP_SECONDS:
            process.kill()

    def _ended(self, name: str, entry: Entry, process: BaseProcess) -> None:
        process.join()
        entry.process, stopped = None, entry.stopping_at is not None
        entry.stopping_at = None
        if stopped or process.exitcode == 0:
            entry.failures, entry.start_at = 0, self._clock.monotonic()
            return
        self._delay(entry)
        logger.warning("connector %s: its process ended with status %s", name, process.exitcode)

    def _delay(self, entry: Entry) -> None:
        entry.failures += 1
        seconds = self._backoff.pause_seconds(entry.failures, chance=SYSTEM_RANDOMNESS.uniform())
        entry.start_at = self._clock.monotonic() + seconds

    # Interface

    def names(self) -> Iterator[str]:
        """Yield the names of the connectors, sorted."""
        yield from sorted(self._entries)

    def entry(self, name: str) -> Entry:
        """Return a connector.

        Raises:
            UnknownConnector: the worker has no connector of this name.
        """
        if name not in self._entries:
            raise UnknownConnector(name)
        return self._entries[name]

    def status(self, name: str) -> ConnectorStatus:
        """Return the state of a connector: FAILED also if its file or its process has failed."""
        entry = self.entry(name)
        found = read_status(self.settings.state / name)
        if found is None:
            found = ConnectorStatus(connector=name, direction="source")
        if entry.spec is not None:
            found.direction = entry.spec.direction
        if entry.problem:
            found.state, found.cause = "FAILED", entry.problem
        elif entry.process is None and found.state in ALIVE and entry.target == "RUNNING":
            found.state = "FAILED"
        return found

    def put(self, name: str, text: str) -> None:
        """Write the file of a connector; the next look starts it.

        Raises:
            InvalidError: the worker has `CONNECTORS_MAX` connectors.
        """
        if name not in self._entries and len(self._entries) >= CONNECTORS_MAX:
            raise InvalidError(f"the worker has {CONNECTORS_MAX} connectors; delete one first")
        write_durably(self.settings.directory / f"{name}.toml", text.encode())

    def delete(self, name: str) -> None:
        """Remove the file of a connector, which stops it; raises `UnknownConnector`."""
        self.entry(name).file.unlink(missing_ok=True)
        self._target_file(name).unlink(missing_ok=True)

    def aim(self, name: str, target: Target) -> None:
        """Set the state that a connector shall have; raises `UnknownConnector`."""
        entry = self.entry(name)
        write_durably(self._target_file(name), target.encode())
        entry.target = target

    def restart(self, name: str) -> None:
        """Stop a connector's process and start another one; raises `UnknownConnector`."""
        entry = self.entry(name)
        entry.failures, entry.start_at = 0, 0.0
        if entry.process is not None:
            self._stop(entry, entry.process, self._clock.monotonic())

    def _target_file(self, name: str) -> Path:
        return self.settings.state / f"{name}.target"

    def _stored_target(self, name: str) -> Target:
        text = _content(self._target_file(name)).decode()
        return "PAUSED" if text == "PAUSED" else "STOPPED" if text == "STOPPED" else "RUNNING"


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        return b""


def _serve(
    file: Path, bootstrap: str | None, state: Path, security: Mapping[str, str] | None
) -> None:
    """Run a connector in this process until SIGTERM; exit with status 1 if it fails."""
    from penstock.client import Client
    from penstock.connect import running

    stop = running.Stop()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    spec = load(file, bootstrap=bootstrap, state=state)
    status = StatusFile(spec.name, spec.direction, spec.state)
    try:
        with Client(spec.bootstrap, client_id=f"connect-{spec.name}", security=security) as client:
            running.run(running.Run(spec=spec, client=client, status=status, stop=stop))
    except PenstockError as error:
        logger.error("connector %s: %s", spec.name, error)
        os._exit(1)
