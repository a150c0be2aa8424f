"""Handling of blocking clients when their process forks, and when it ends.

A forked child has the parent's sockets, but not its threads. If both processes wrote frames to one
stream, they would corrupt it. So all clients are closed in the child, without a message to the
agent. The locks of all clients are held during the fork, so that the child finds each client in a
consistent state.

At the end of the interpreter, clients that were not closed deliver outstanding publications within
a time limit.

Source: `os.register_at_fork`; `logging` handles its locks in the same way.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import weakref
from typing import Final

from penstock.host.client import futures
from penstock.host.client.engine import Engine

_FORK_WAIT_SECONDS: Final = 1.0
"""Maximum time in seconds to wait for a client's lock before a fork."""

_engines: weakref.WeakSet[Engine] = weakref.WeakSet()
_held: list[tuple[Engine, threading.Lock]] = []


def register(engine: Engine) -> None:
    """Handle forks and the end of the process for an engine, until `forget`."""
    _engines.add(engine)


def forget(engine: Engine) -> None:
    """Forget an engine that has stopped."""
    _engines.discard(engine)


def _before_fork() -> None:
    _held.extend(
        (engine, engine.lock)
        for engine in list(_engines)
        if engine.lock.acquire(timeout=_FORK_WAIT_SECONDS)
    )


def _after_fork_in_parent() -> None:
    while _held:
        _held.pop()[1].release()


def _after_fork_in_child() -> None:
    _held.clear()
    futures.after_fork_in_child()
    for engine in list(_engines):
        with contextlib.suppress(Exception):
            engine.after_fork_in_child()
    _engines.clear()


def _at_exit() -> None:
    left = list(_engines)
    for engine in left:
        with contextlib.suppress(Exception):
            engine.close(engine.now_ms() + engine.options.exit_timeout_ms)


os.register_at_fork(
    before=_before_fork,
    after_in_parent=_after_fork_in_parent,
    after_in_child=_after_fork_in_child,
)
atexit.register(_at_exit)
