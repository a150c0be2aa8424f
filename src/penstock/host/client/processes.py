"""Handling of blocking clients when their process forks, and when it ends.

A forked child has the parent's socket, but not the parent's threads, and two processes that write
frames to one stream would ruin it. So in the child every client is closed, without a word to the
agent. All locks are taken around the fork, so that the child finds no client in the middle of
something.

At the end of the interpreter clients that were not closed deliver what is left, within a bound.

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
"""A lock is never held for long; should one be, the fork goes on without it."""

_engines: weakref.WeakSet[Engine] = weakref.WeakSet()
_held: list[tuple[Engine, threading.Lock]] = []


def register(engine: Engine) -> None:
    """Look after an engine until it has stopped."""
    _engines.add(engine)


def forget(engine: Engine) -> None:
    """The engine has stopped."""
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
