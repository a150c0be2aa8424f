"""Shared parts of processes: logging, signals, and notifications of systemd.

Logs are written to stderr, as text or as one JSON object per line. A systemd unit of `Type=notify`
is started when its process sends a message over a datagram socket, which NOTIFY_SOCKET names.
Without that variable, nothing is sent.

Benchmarks remove created resources after Ctrl-C. For that purpose SIGINT, SIGTERM and SIGHUP raise
`KeyboardInterrupt`. `deferred` postpones the exception while a resource is created. `run_async`
cancels the main task of its loop instead.

Source: `sd_notify(3)`, the section on implementing the protocol without its library.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeVar

from penstock.base.urls import without_credentials_in

logger = logging.getLogger(__name__)

COLLECT_AFTER_OBJECTS: Final = 10_000
"""New objects between two garbage collections. Requests make almost no cycles, and each collection
scans the objects that they keep in memory, such as the newest batches.
"""
FORCED_STATUS: Final = 1
FORMATS: Final = ("text", "json")
LEVELS: Final = ("debug", "info", "warning", "error")
VARIABLE: Final = "NOTIFY_SOCKET"
READY: Final = "READY=1"
STOPPING: Final = "STOPPING=1"
MICROSECONDS_PER_MS: Final = 1000


class TextFormatter(logging.Formatter):
    """Formatter of log lines as text, without credentials in URLs."""

    def format(self, record: logging.LogRecord) -> str:
        return without_credentials_in(super().format(record))


class JsonFormatter(logging.Formatter):
    """Formatter of log lines as JSON objects, without credentials in URLs.

    An object has time, level, logger and message, and the traceback of an exception as `error`.
    """

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S") + f".{int(record.msecs):03d}",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": without_credentials_in(record.getMessage()),
        }
        if record.exc_info:
            line["error"] = without_credentials_in(self.formatException(record.exc_info))
        return json.dumps(line)


def set_up(log_format: str, level: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    if log_format == "json":
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(TextFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


@contextmanager
def handled(handler: Callable[[int, Any], None], numbers: Iterable[int]) -> Iterator[None]:
    """Install a handler of signals during a context, and restore the former handlers at its end."""
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        for number in before:
            signal.signal(number, handler)
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def stop_event() -> asyncio.Event:
    """Return an event that SIGTERM or SIGINT sets; a second signal ends the process at once."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _on_signal, stop)
    return stop


def _on_signal(stop: asyncio.Event) -> None:
    if stop.is_set():
        os._exit(FORCED_STATUS)
    stop.set()


def notify_ready(environment: Mapping[str, str] = os.environ) -> bool:
    """Notify systemd that clients can connect; return whether the message was sent."""
    return notify(READY, environment=environment)


def notify_stopping(within_ms: int, environment: Mapping[str, str] = os.environ) -> bool:
    """Notify systemd that the process is stopping; return whether the message was sent.

    systemd then waits for `within_ms`, even if the unit's own limit is shorter.
    """
    extension = f"EXTEND_TIMEOUT_USEC={within_ms * MICROSECONDS_PER_MS}"
    return notify(STOPPING, extension, environment=environment)


def notify(*states: str, environment: Mapping[str, str] = os.environ) -> bool:
    """Send states, as `READY=1`, to systemd in one message; return whether the message was sent.

    Never blocks and never raises, since the process can serve without systemd.
    """
    address = environment.get(VARIABLE, "")
    if not address.startswith(("/", "@")):
        return False
    if address.startswith("@"):  # a name in the abstract namespace
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.setblocking(False)
            sender.sendto("\n".join(states).encode(), address)
    except OSError as error:
        logger.warning("%s=%s did not receive %s: %s", VARIABLE, address, states, error)
        return False
    return True


SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

T = TypeVar("T")


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise `KeyboardInterrupt` on SIGINT, SIGTERM and SIGHUP during a context."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    with handled(interrupt, SIGNALS):
        yield


@contextmanager
def deferred() -> Iterator[None]:
    """Postpone the `KeyboardInterrupt` of a signal to the end of a context."""
    came: list[int] = []
    with handled(lambda number, frame: came.append(number), SIGNALS):
        yield
    if came:
        raise KeyboardInterrupt


def run_async(
    work: Coroutine[Any, Any, T],
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> T:
    """Run a coroutine as `asyncio.run` does, but let signals cancel it and close its loop.

    Raises:
        KeyboardInterrupt: a signal arrived.
    """
    came: list[int] = []
    task: asyncio.Task[Any] | None = None

    def interrupt(number: int, frame: object) -> None:
        came.append(number)
        if task is not None:
            with suppress(RuntimeError):  # the loop is closed already
                task.get_loop().call_soon_threadsafe(task.cancel)

    async def main() -> T:
        nonlocal task
        task = asyncio.current_task()
        if came:
            work.close()
            raise asyncio.CancelledError
        return await work

    try:
        with handled(interrupt, SIGNALS), asyncio.Runner(loop_factory=loop_factory) as runner:
            result = runner.run(main())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    if came:
        raise KeyboardInterrupt
    return result
