"""Parent process of several brokers: starts them, restarts those that end, and stops all.

It locks the data directory, and migrates the database of metadata while no broker uses it. Then it
forks the brokers and the front of the admin address; these share the memory of all modules that
were imported before. After that it waits for signals, and for reports of children that they are
ready.

| event                          | reaction                                                      |
|--------------------------------|---------------------------------------------------------------|
| all children are ready         | writes the ready line                                         |
| a child ends before that       | stops all; the child has printed the reason                   |
| a child ends later             | restarts it, at first at once, then after growing pauses      |
| SIGTERM, SIGINT                | stops the brokers one after the other, then the front         |
| a second signal                | kills all                                                     |
| the parent itself is killed    | the children stop, because a pipe to the parent is closed     |

The children inherit the lock, so the directory is free when the last of them has ended. The lock
file has the parent's process id. If the lock is taken but that process has ended, a new parent
waits for the children of the former one.
"""

from __future__ import annotations

import asyncio
import fcntl
import gc
import logging
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final, NoReturn

import click

from penstock.apps.cli import describe
from penstock.apps.process.daemon import (
    FORCED_STATUS,
    VARIABLE,
    handled,
    notify_ready,
    notify_stopping,
)
from penstock.apps.process.wiring import PortUnavailable, prepare, unbound
from penstock.apps.serve.front import Front
from penstock.apps.serve.plan import Plan, check_held
from penstock.apps.serve.running import serve_until, stop_ms
from penstock.base.errors import PenstockError, UnavailableError
from penstock.base.retry import Backoff
from penstock.base.system import SYSTEM_CLOCK
from penstock.control.drivers.notices import SocketNotices, new_inbox

if TYPE_CHECKING:
    from penstock.apps.process.configuration import Configuration
    from penstock.broker.configuration.settings import BrokerSettings
    from penstock.broker.net.listeners import Address


logger = logging.getLogger(__name__)

LOCK_FILE: Final = ".processes"
RESTARTS: Final = Backoff(first_ms=100, ceiling_ms=30_000)
FORGOTTEN_SECONDS: Final = 60.0
"""Run time, in seconds, after which earlier failures of a process no longer delay its restart."""
LOOK_SECONDS: Final = 0.05
"""Interval, in seconds, of attempts to get a lock that is about to be released."""
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_READY: Final = b"1"
_WAKES_READ: Final = 4096


class DirectoryShared(UnavailableError):
    """Other processes use the data directory."""

    code: ClassVar[str] = "kafka_storage_error"


class ProcessEnded(UnavailableError):
    """A process ended before all were ready, or was killed because it did not stop."""

    code: ClassVar[str] = "kafka_storage_error"


@dataclass(slots=True)
class Child:
    """Child process: a broker, or the front.

    `main` runs in the child. It gets the end of a pipe that closes when the parent ends, and a
    function that reports readiness.
    """

    name: str
    main: Callable[[int, Callable[[], None]], None]
    pid: int = 0
    said: int = -1
    """Read end of a pipe to which the child writes a byte when it is ready; -1 once that is
    read.
    """
    ready: bool = False
    started: float = 0.0
    failures: int = 0
    due: float = inf


def run_all(configuration: Configuration) -> None:
    """Run `configuration.processes` brokers and their front until a signal arrives.

    Raises:
        PenstockError: the processes cannot be started together, or one had to be killed.
    """
    _import_all()
    with ExitStack() as keep:
        _run_all(configuration, keep)


def _run_all(configuration: Configuration, keep: ExitStack) -> None:
    plan = Plan(configuration, keep)
    prepare(configuration.directory / plan.brokers[0].log)
    stop_seconds = stop_ms(configuration) / 1000
    keep.callback(os.close, _lock(configuration.directory, stop_seconds))
    check_held([entry.broker.node_id for entry in plan.brokers], configuration.directory)
    parent = Parent(stop_seconds)
    inboxes = [keep.enter_context(closing(new_inbox())) for _ in plan.brokers]
    if plan.admin is not None:
        front = Front(configuration.broker, configuration.security, plan.admins, plan.secret)
        parent.add("admin", partial(_front, configuration.broker, plan.admin, front))
    for place, one in enumerate(plan.brokers):
        notices = SocketNotices(inboxes[place], [*inboxes[:place], *inboxes[place + 1 :]])
        parent.add(f"broker {one.broker.node_id}", partial(_broker, one, notices))
    gc.freeze()

    def announce() -> None:
        click.echo(plan.ready_line())
        notify_ready()

    parent.run(announce)


def _import_all() -> None:
    """Import the modules of the children before forking, so that they share the memory."""
    for name in (
        "uvloop",
        "uvicorn.protocols.http.httptools_impl",
        "penstock.broker.admin_app",
        "penstock.broker.partitions.replicas",
        "penstock.broker.server",
        "penstock.diskless.topics.service",
        "penstock.storage",
    ):
        import_module(name)


def _lock(directory: Path, seconds: float) -> int:
    """Lock a data directory and return the descriptor of the lock file.

    If the parent that had the lock has ended, its children get `seconds` to end too.

    Raises:
        DirectoryShared: other processes use the directory.
    """
    path = directory / LOCK_FILE
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    deadline = SYSTEM_CLOCK.monotonic() + seconds
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(file, 20, 0).decode(errors="replace").strip()
            if _runs(owner) or SYSTEM_CLOCK.monotonic() >= deadline:
                os.close(file)
                raise DirectoryShared(
                    f"data directory {directory}: process {owner} runs brokers in it; stop that"
                    " process, or choose another directory with --data-dir"
                ) from None
            select.select([], [], [], LOOK_SECONDS)
        else:
            os.ftruncate(file, 0)
            os.pwrite(file, str(os.getpid()).encode(), 0)
            return file


def _runs(process: str) -> bool:
    try:
        os.kill(int(process), 0)
    except (ValueError, ProcessLookupError):
        return False
    except PermissionError:
        return True
    return True


class Parent:
    """Supervisor of child processes."""

    def __init__(self, stop_seconds: float) -> None:
        """Create a supervisor without children; a child that needs more than `stop_seconds` is
        killed.
        """
        self._stop_seconds = stop_seconds
        self._children: list[Child] = []
        self._signals = 0
        self._restarts = False
        """Whether ended children are restarted: from the time when all were ready until the
        stop.
        """
        self._alive, self._held = os.pipe()
        self._woken, self._wake = socket.socketpair()
        self._woken.setblocking(False)
        self._wake.setblocking(False)

    def add(self, name: str, main: Callable[[int, Callable[[], None]], None]) -> None:
        """Add a process; processes are stopped in reverse order."""
        self._children.append(Child(name, main))

    def run(self, announce: Callable[[], None]) -> None:
        """Start all processes and supervise them until a signal; call `announce` when all are
        ready.

        Raises:
            ProcessEnded: a process ended before all were ready, or had to be killed.
        """
        with handled(self._on_signal, (*_SIGNALS, signal.SIGCHLD)):
            before = signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
            try:
                self._run(announce)
            finally:
                signal.set_wakeup_fd(before)

    def _on_signal(self, number: int, _frame: object) -> None:
        if number in _SIGNALS:
            self._signals += 1

    def _run(self, announce: Callable[[], None]) -> None:
        for child in self._children:
            self._start(child)
        while not self._signals:
            self._wait()
            ended = self._reap()
            if ended and not self._restarts and not self._signals:
                self._stop()
                raise ProcessEnded(f"{ended[0].name} ended before all were ready")
            if not self._restarts and all([child.ready for child in self._children]):
                self._restarts = True
                announce()
            for child in self._children:
                if child.due <= SYSTEM_CLOCK.monotonic():
                    self._start(child)
        killed = self._stop()
        if killed:
            raise ProcessEnded(
                f"{', '.join(killed)} did not stop within {self._stop_seconds:g} s: killed"
            )

    def _wait(self, until: float = inf) -> None:
        """Wait for a signal, a report of a child, a due restart, or the time `until`."""
        until = min([until, *[child.due for child in self._children]])
        said = {child.said: child for child in self._children if child.said >= 0}
        left = None if until == inf else max(0.0, until - SYSTEM_CLOCK.monotonic())
        readable, _, _ = select.select([self._woken.fileno(), *said], [], [], left)
        for end in readable:
            if end not in said:
                self._woken.recv(_WAKES_READ)
            else:
                said[end].ready = os.read(end, 1) == _READY
                os.close(end)
                said[end].said = -1

    def _start(self, child: Child) -> None:
        child.said, says = os.pipe()
        child.ready, child.due = False, inf
        child.started = SYSTEM_CLOCK.monotonic()
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        child.pid = os.fork()
        if child.pid == 0:
            self._become(child, says)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        os.close(says)

    def _become(self, child: Child, says: int) -> NoReturn:
        """Run `main` of a child in the forked process, and exit when it returns."""
        status = FORCED_STATUS
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all of them
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            os.close(self._held)
            _name_in_logs(child.name)
            os.environ.pop(VARIABLE, None)  # only the parent notifies systemd
            child.main(self._alive, lambda: _say_ready(says))
            status = 0
        except (PenstockError, OSError) as error:
            click.echo(f"penstock: {child.name}: {describe(error)}", err=True)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    def _reap(self) -> list[Child]:
        """Return the children that have ended since the last call; schedule their restarts."""
        ended = []
        for child in self._children:
            if not child.pid:
                continue
            pid, status = os.waitpid(child.pid, os.WNOHANG)
            if pid:
                ended.append(child)
                self._ended(child, os.waitstatus_to_exitcode(status))
        return ended

    def _ended(self, child: Child, code: int) -> None:
        now, pid = SYSTEM_CLOCK.monotonic(), child.pid
        if child.said >= 0:
            os.close(child.said)
        child.pid, child.said, child.ready = 0, -1, False
        if self._signals or not self._restarts:
            return
        child.failures = 1 if now - child.started > FORGOTTEN_SECONDS else child.failures + 1
        pause_seconds = RESTARTS.pause_seconds(child.failures)
        child.due = now + pause_seconds
        how = f"was ended by signal {-code}" if code < 0 else f"ended with status {code}"
        logger.error(
            "%s (process %d) %s; restarting it in %.1f s", child.name, pid, how, pause_seconds
        )

    def _stop(self) -> list[str]:
        """Stop all children in reverse order; return the names of those that had to be killed."""
        killed = []
        self._restarts = False
        notify_stopping(round(len(self._children) * self._stop_seconds * 1000))
        for child in self._children:
            child.due = inf
        for child in reversed(self._children):
            deadline = SYSTEM_CLOCK.monotonic() + self._stop_seconds
            if child.pid:
                os.kill(child.pid, signal.SIGTERM)
            while child.pid:
                if self._signals > 1:
                    self._kill_all()
                    os._exit(FORCED_STATUS)
                if SYSTEM_CLOCK.monotonic() >= deadline:
                    killed.append(child.name)
                    os.kill(child.pid, signal.SIGKILL)
                    deadline = inf
                self._wait(deadline)
                self._reap()
        return killed

    def _kill_all(self) -> None:
        for child in self._children:
            if child.pid:
                os.kill(child.pid, signal.SIGKILL)


# In the child processes


def _say_ready(says: int) -> None:
    os.write(says, _READY)
    os.close(says)


def _broker(
    configuration: Configuration, notices: SocketNotices, alive: int, ready: Callable[[], None]
) -> None:
    import uvloop

    async def serve() -> None:
        await serve_until(_stop_event(alive), configuration, lambda _: ready(), notices)

    uvloop.run(serve())


def _front(
    settings: BrokerSettings,
    address: Address,
    front: Front,
    alive: int,
    ready: Callable[[], None],
) -> None:
    async def serve() -> None:
        stop = _stop_event(alive)
        try:
            await front.start(address)
        except OSError as error:
            raise PortUnavailable(unbound(settings, error)) from None
        ready()
        await stop.wait()
        await front.stop()

    gc.enable()
    asyncio.run(serve())


def _stop_event(alive: int) -> asyncio.Event:
    """Return an event that SIGTERM or the end of the parent process sets."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()

    def gone() -> None:
        loop.remove_reader(alive)
        logger.error("the parent process has ended; stopping")
        stop.set()

    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_reader(alive, gone)
    return stop


def _name_in_logs(name: str) -> None:
    def named(record: logging.LogRecord) -> bool:
        record.msg = f"{name}: {record.msg}"
        return True

    for handler in logging.getLogger().handlers:
        handler.addFilter(named)
