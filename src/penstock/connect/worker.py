"""Worker: runs the connectors of a directory, each in a process of its own.

The directory has one TOML file for each connector. The worker starts connectors of new files,
restarts those of changed files, and stops those of removed files; others are not disturbed. A
connector that fails or is killed starts again after a pause that doubles up to `PAUSE_MAX_MS`.
At most `STARTS_MAX` processes start at the same time, so that the others and the REST interface
keep their share of the machine.
Files `NAME.target` beside the connectors' files keep their targets (`pause`, `stop`, `restart`).
Workers that share the directory share the targets.

The processes are forked from a server process that has imported the packages, so they share most of
their memory. Only they import the code of connectors. They end when the worker ends.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
import tomllib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import msgspec
from msgspec import Struct

from penstock.base.errors import InvalidError, UnavailableError
from penstock.base.files import write_durably
from penstock.base.pause import pause
from penstock.base.retry import Backoff
from penstock.base.system import SYSTEM_CLOCK, SYSTEM_RANDOMNESS, Clock
from penstock.connect.connector_file import load
from penstock.connect.errors import ConnectorFailed
from penstock.connect.status import CAUSE_CHARS_MAX, ConnectorStatus, StatusFile, read_status

LOOK_SECONDS: Final = 0.25
"""Time between two looks at the directory and at the processes."""
STOP_SECONDS: Final = 10.0
"""Time for a connector to end after SIGTERM, before it is killed."""
STARTS_MAX: Final = 4
"""Most processes that start at the same time."""
START_SECONDS: Final = 10.0
"""Time after which a process no longer counts as starting."""
PAUSE_MAX_MS: Final = 60_000.0
ANSWER_SECONDS: Final = 30.0
"""Time for a process that answers a question about a connector."""
CONNECTORS_MAX: Final = 1_000
"""Most connectors of a worker."""
PRELOADED: Final = (
    "penstock.connect.running", "penstock.client.writer", "penstock.client.columns",
    "penstock.connect.flat_config",
)  # fmt: skip

State = Literal["RUNNING", "PAUSED", "STOPPED"]
R = TypeVar("R")

logger = logging.getLogger(__name__)


class UnknownConnector(InvalidError):
    """Name of a connector that the worker does not have."""

    def __init__(self, name: str) -> None:
        super().__init__(f"connector {name} does not exist")
        self.name = name


class Target(Struct, frozen=True):
    """State that a connector shall have, and the number of requested restarts."""

    state: State = "RUNNING"
    restarts: int = 0


@dataclass(slots=True)
class Entry:
    """Connector of a worker.

    Attributes:
        text: content of the file at the last start.
        cause: error of the last process; empty if it has not failed.
        failures: ends with an error since the last success.
        start_at: monotonic time of the next start, in seconds.
        starts: processes that were started.
        starting_until: monotonic time until which the process counts as starting, in seconds.
        report: end of the pipe on which the process sends its error.
    """

    file: Path
    target: Target = field(default_factory=Target)
    text: bytes = b""
    cause: str = ""
    process: BaseProcess | None = None
    failures: int = 0
    start_at: float = 0.0
    starts: int = 0
    starting_until: float = 0.0
    stopping_at: float | None = None
    report: Connection | None = None

    @property
    def values(self) -> Mapping[str, Any]:
        """Values of the file; empty if it is not TOML."""
        try:
            return tomllib.loads(_content(self.file).decode())
        except (ValueError, RecursionError):
            return {}

    @property
    def direction(self) -> Literal["source", "sink"]:
        return "sink" if "sink" in self.values else "source"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """Settings of a worker.

    Attributes:
        directory: directory of the connectors' files.
        state: directory of the status files.
        bootstrap: brokers; None means those of the files.
        security: the client's security options by Kafka's names.
    """

    directory: Path
    state: Path
    bootstrap: str | None
    security: Mapping[str, str] | None = field(default=None, repr=False)


class Worker:
    """Connectors of a directory and their processes; used by one event loop."""

    def __init__(self, settings: WorkerSettings, clock: Clock = SYSTEM_CLOCK) -> None:
        self.settings = settings
        self.entries: dict[str, Entry] = {}
        self._clock = clock
        self._assigned: Collection[str] | None = None
        self._ending = False
        self._free_starts = 0
        self._ready = False
        self._context = get_context("forkserver")
        self._context.set_forkserver_preload(list(PRELOADED))
        self._backoff = Backoff(first_ms=1_000, ceiling_ms=PAUSE_MAX_MS, steady=0.5)
        settings.directory.mkdir(parents=True, exist_ok=True)
        settings.state.mkdir(parents=True, exist_ok=True)

    async def run(self, stop: asyncio.Event) -> None:
        """Run the connectors until `stop` is set, then stop them."""
        await asyncio.to_thread(self.prepare)
        while not stop.is_set():
            self.look()
            await pause(LOOK_SECONDS)
        self._ending = True
        self.assign(())
        while any(entry.process is not None for entry in self.entries.values()):
            for name, entry in self.entries.items():
                self._settle(name, entry)
            await pause(LOOK_SECONDS / 5)

    def prepare(self) -> None:
        """Import the packages of the connectors' processes; before, no process is started."""
        process = self._context.Process(target=os.getpid)
        process.start()
        process.join()
        self._ready = True

    def assign(self, names: Collection[str] | None) -> None:
        """Run only the named connectors; None means all."""
        self._assigned = () if self._ending else names

    def runs(self, name: str) -> bool:
        return name in self.entries and self.entries[name].process is not None

    def look(self) -> None:
        """Compare the directory, the targets and the processes once."""
        there = {file.stem: file for file in sorted(self.settings.directory.glob("*.toml"))}
        for name, file in list(there.items())[:CONNECTORS_MAX]:
            self.entries.setdefault(name, Entry(file=file))
        starting = sum(self._is_starting(name, entry) for name, entry in self.entries.items())
        self._free_starts = STARTS_MAX - starting if self._ready else 0
        for name, entry in list(self.entries.items()):
            target = Target("STOPPED") if name not in there else self._stored_target(name)
            if target.restarts > entry.target.restarts and entry.starts:
                self._restart(entry)
            entry.target = target
            self._settle(name, entry)
            if name not in there and entry.process is None:
                del self.entries[name]

    def _is_starting(self, name: str, entry: Entry) -> bool:
        if entry.process is None or self._clock.monotonic() >= entry.starting_until:
            return False
        found = read_status(self.settings.state / name)
        return found is None or found.pid != entry.process.pid or found.state == "STARTING"

    def _wanted(self, name: str, entry: Entry) -> bool:
        there = self._assigned is None or name in self._assigned
        return there and entry.target.state == "RUNNING"

    def _settle(self, name: str, entry: Entry) -> None:
        """Start, stop or reap the process of a connector."""
        now, wanted = self._clock.monotonic(), self._wanted(name, entry)
        if entry.process is not None and not entry.process.is_alive():
            self._ended(name, entry, entry.process)
        process, text = entry.process, _content(entry.file)
        changed = bool(text) and text != entry.text
        if process is not None and (not wanted or changed or entry.stopping_at is not None):
            self._stop(entry, process, now)
        elif process is None and wanted and (changed or now >= entry.start_at):
            if changed:
                entry.failures, entry.cause = 0, ""
            self._start(name, entry, text)
        elif process is None and not wanted:
            entry.failures, entry.start_at, entry.cause = 0, 0.0, ""

    def _start(self, name: str, entry: Entry, text: bytes) -> None:
        """Start a process, or leave it to a later look if `STARTS_MAX` processes are starting."""
        if self._free_starts <= 0:
            return
        self._free_starts -= 1
        entry.text, entry.starts = text, entry.starts + 1
        entry.starting_until = self._clock.monotonic() + START_SECONDS
        entry.report, theirs = self._context.Pipe(duplex=False)
        entry.process = self._context.Process(
            target=_serve, name=f"connector {name}",
            args=(entry.file, self.settings.bootstrap, self.settings.state / name,
                  self.settings.security, theirs),
        )  # fmt: skip
        entry.process.start()
        theirs.close()
        logger.info("connector %s: started process %s", name, entry.process.pid)

    def _stop(self, entry: Entry, process: BaseProcess, now: float) -> None:
        if entry.stopping_at is None:
            process.terminate()
            entry.stopping_at = now
        elif now - entry.stopping_at > STOP_SECONDS:
            process.kill()

    def _ended(self, name: str, entry: Entry, process: BaseProcess) -> None:
        process.join()
        stopped, now = entry.stopping_at is not None, self._clock.monotonic()
        entry.process, entry.stopping_at = None, None
        reported = _received(entry.report)
        if stopped:
            entry.cause, entry.start_at = "", now
            return
        found = read_status(self.settings.state / name)
        if found is None or found.pid != process.pid:
            found = ConnectorStatus(connector=name, direction="source")
        code, healthy = process.exitcode or 0, bool(found.batches)
        entry.cause = (reported and found.cause) or reported or (
            f"process {process.pid} was killed by signal {-code}, perhaps because memory ran out"
            if code < 0
            else f"process {process.pid} ended with status {code}"
        )  # fmt: skip
        entry.failures = 1 if healthy else entry.failures + 1
        chance = SYSTEM_RANDOMNESS.uniform()
        entry.start_at = now + self._backoff.pause_seconds(entry.failures, chance=chance)
        logger.warning("connector %s: %s", name, entry.cause)

    def _restart(self, entry: Entry) -> None:
        entry.failures, entry.start_at, entry.cause = 0, 0.0, ""
        if entry.process is not None:
            self._stop(entry, entry.process, self._clock.monotonic())

    # Interface

    def entry(self, name: str) -> Entry:
        """Return a connector.

        Raises:
            UnknownConnector: the worker has no connector of this name.
        """
        if name not in self.entries:
            raise UnknownConnector(name)
        return self.entries[name]

    def status(self, name: str) -> ConnectorStatus:
        """Return the state of a connector, which is FAILED also if its file or process has failed.

        After a failure, the state is FAILED until a process of the connector runs.

        Raises:
            UnknownConnector: the worker has no connector of this name.
        """
        entry, process = self.entry(name), self.entries[name].process
        found = read_status(self.settings.state / name)
        if found is None:
            found = ConnectorStatus(connector=name, direction="source")
        found.direction = entry.direction
        if process is None and not self._wanted(name, entry):
            found.state, found.cause = "STOPPED", None
        elif process is None or found.pid != process.pid or found.state == "STARTING":
            found.state = "FAILED" if entry.cause else "STARTING"
            found.cause = entry.cause or None
        return found

    def put(self, name: str, text: str, state: State = "RUNNING") -> None:
        """Write the file of a connector, and start it unless `state` is another.

        Raises:
            InvalidError: the worker has `CONNECTORS_MAX` connectors.
        """
        if name not in self.entries:
            if len(self.entries) >= CONNECTORS_MAX:
                raise InvalidError(f"the worker has {CONNECTORS_MAX} connectors; delete one first")
            self._write_target(name, Target(state))
        write_durably(self.settings.directory / f"{name}.toml", text.encode())
        self.look()

    def delete(self, name: str) -> None:
        """Remove the file of a connector, which stops it; raises `UnknownConnector`."""
        self.entry(name).file.unlink(missing_ok=True)
        self._target_file(name).unlink(missing_ok=True)
        self.look()

    def aim(self, name: str, state: State) -> None:
        """Set the state that a connector shall have; raises `UnknownConnector`."""
        restarts = self.entry(name).target.restarts
        self._write_target(name, Target(state, restarts))
        self.look()

    def restart(self, name: str) -> None:
        """Stop a connector's process and start another one; raises `UnknownConnector`."""
        target = self.entry(name).target
        self._write_target(name, Target(target.state, target.restarts + 1))
        self.look()

    async def ask(self, function: Callable[..., R], *arguments: Any) -> R:
        """Return the result of a function of a module, which a process of its own calls.

        Raises:
            InvalidError: the function raised an error; has its text.
            UnavailableError: the process ended without a result, or took `ANSWER_SECONDS`.
        """
        ours, theirs = self._context.Pipe(duplex=False)
        process = self._context.Process(target=_answer, args=(theirs, function, arguments))
        process.start()
        theirs.close()
        try:
            if not await asyncio.to_thread(ours.poll, ANSWER_SECONDS):
                raise UnavailableError(f"no answer within {ANSWER_SECONDS:.0f} s")
            done, result = ours.recv()
        except EOFError as error:
            raise UnavailableError("the process ended without an answer") from error
        finally:
            process.kill()
            process.join()
            ours.close()
        if not done:
            raise InvalidError(result)
        answer: R = result
        return answer

    def _target_file(self, name: str) -> Path:
        return self.settings.directory / f"{name}.target"

    def _write_target(self, name: str, target: Target) -> None:
        write_durably(self._target_file(name), msgspec.json.encode(target))

    def _stored_target(self, name: str) -> Target:
        text = _content(self._target_file(name))
        try:
            return msgspec.json.decode(text, type=Target) if text else Target()
        except msgspec.MsgspecError:
            return self.entries[name].target


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        return b""


def _received(report: Connection | None) -> str:
    if report is None:
        return ""
    with report:
        try:
            return str(report.recv()) if report.poll() else ""
        except EOFError:
            return ""


def _answer(
    theirs: Connection, function: Callable[..., object], arguments: tuple[object, ...]
) -> None:
    try:
        theirs.send((True, function(*arguments)))
    except Exception as error:
        theirs.send((False, f"{type(error).__name__}: {error}"))


def _serve(
    file: Path, bootstrap: str | None, state: Path, security: Mapping[str, str] | None,
    report: Connection,
) -> None:  # fmt: skip
    """Run a connector in this process until SIGTERM; if it fails, send its error and exit."""
    try:
        _run(file, bootstrap, state, security)
    except InvalidError as error:
        _fail(report, str(error))
    except BaseException as error:
        _fail(report, f"{type(error).__name__}: {error}")


def _fail(report: Connection, cause: str) -> None:
    report.send(cause[:CAUSE_CHARS_MAX])
    os._exit(1)


def _run(
    file: Path, bootstrap: str | None, state: Path, security: Mapping[str, str] | None
) -> None:
    from penstock.client import Client
    from penstock.connect import running

    stop = running.Stop()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, args=(stop,), daemon=True).start()
    spec = load(file, bootstrap=bootstrap, state=state)
    if spec.name != file.stem:
        raise ConnectorFailed(
            f"{file}: name {spec.name!r} differs from the name of the file; rename one of them"
        )
    status = StatusFile(spec.name, spec.direction, spec.state)
    with Client(spec.bootstrap, client_id=f"connect-{spec.name}", security=security) as client:
        running.run(running.Run(spec=spec, client=client, status=status, stop=stop))


def _end_with_parent(stop: Any) -> None:
    """Stop the connector when the worker has ended, so that the next worker can run it."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        stop.set()
        threading.Event().wait(STOP_SECONDS)
        os._exit(1)
