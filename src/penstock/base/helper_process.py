"""Process of lower priority that computes what would block the caller's event loop.

A thread does not suffice for long computations in Python or C++ that hold the interpreter's lock:
the event loop waits for the lock. The process starts on demand, ends after some time without a
request, and is restarted if it dies. It imports only the module that answers its requests.

Requests and responses are objects that `pickle` can serialise, or bytes, in any number.
"""

from __future__ import annotations

import gc
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

IDLE_SECONDS: Final = 300.0
"""Time without a request after which the process ends."""

_NICE: Final = 10
_MEMORY: Final = {"MALLOC_MMAP_THRESHOLD_": str(256 << 10)}
"""Environment that makes glibc return large blocks to the system as soon as they are freed."""
_TRIES: Final = 2
"""Attempts to send a request to the process, which may just have ended because it was idle."""

R = TypeVar("R")


class HelperProcess:
    """A process that serves requests by the function `serve` of a module, one at a time.

    Threads must not call `ask` and `end` at the same time.
    """

    def __init__(self, module: str, idle_seconds: float = IDLE_SECONDS) -> None:
        self._module = module
        self._idle_seconds = idle_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection
        self.closed = False

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def ask(self, exchange: Callable[[Connection], R]) -> R:
        """Return the result of `exchange`, which sends a request and receives its response.

        It is called again, with another process, if the first process ends. If it raises
        TimeoutError, the process is killed.

        Raises:
            TimeoutError: from `exchange`.
            OSError, EOFError: the process cannot be started, ended twice, or `close` was called.
        """
        for left in reversed(range(_TRIES)):
            try:
                return exchange(self._connected())
            except (OSError, EOFError) as error:
                self.end()
                if self.closed or not left or isinstance(error, TimeoutError):
                    raise
        raise AssertionError

    def _connected(self) -> Connection:
        if self._process is None:
            from multiprocessing.connection import Connection

            ours, theirs = socket.socketpair()
            with theirs:
                self._connection = Connection(ours.detach())
                code = f"from {__name__} import run; run({self._module!r}, {self._idle_seconds})"
                command = [sys.executable, "-c", f"import os; os.nice({_NICE}); {code}"]
                self._process = subprocess.Popen(
                    command, stdin=theirs.fileno(), process_group=0, env=os.environ | _MEMORY
                )
        return self._connection

    def end(self) -> None:
        """Kill the process if it runs, and wait for its end."""
        process, self._process = self._process, None
        if process is not None:
            self._connection.close()
            process.kill()
            process.wait()

    def close(self) -> None:
        """Kill the process; a request in progress then fails. Callable from any thread."""
        self.closed = True
        process = self._process
        if process is not None:
            process.kill()


def run(module: str, idle_seconds: float) -> None:
    """Serve requests from standard input until its end, or `idle_seconds` without a request."""
    from multiprocessing.connection import Connection

    serve: Callable[[Connection], None] = import_module(module).serve
    connection = Connection(0)
    while connection.poll(idle_seconds):
        try:
            serve(connection)
        except EOFError:
            return
        gc.collect()  # errors refer to the data of their requests
