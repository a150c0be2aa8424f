"""Futures of publications: `concurrent.futures.Future` without the cost of a condition.

A standard future creates a condition, which is a lock and a queue. Most publications are awaited by
the thread that made them, or not at all. So the condition is created only when
`concurrent.futures.wait` or `as_completed` needs it. `result` and `exception` do not need it: the
calling thread receives on the socket until the answer has arrived.

A publication cannot be withdrawn, so `cancel` returns False.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final, Protocol

logger = logging.getLogger(__name__)

_RUNNING: Final = "RUNNING"
_FINISHED: Final = "FINISHED"
"""States of `concurrent.futures`."""

_conditions = threading.Lock()


def after_fork_in_child() -> None:
    """Replace the module's lock, which another thread of the parent may have held."""
    global _conditions
    _conditions = threading.Lock()


class Waits(Protocol):
    """Interface of the engine that a future uses to wait for its result."""

    def wait_for(self, future: PublishFuture, timeout: float | None) -> None:
        """Return when the future has ended.

        Raises:
            TimeoutError: it has not ended after `timeout` seconds.
        """
        ...


class PublishFuture(Future[None]):
    """Result of one frame: None if the agent accepted it, otherwise an error."""

    # What a new future has; each has its own only when it becomes something else.
    _state = _RUNNING
    _result = None
    _exception: BaseException | None = None
    _waiters: list[Any] = []
    _done_callbacks: list[Callable[[Future[None]], object]] = []
    _made: threading.Condition | None = None
    gates: list[Any] | None = None
    """Gates of threads that wait while another thread leads; guarded by the engine."""

    def __init__(self, engine: Waits) -> None:
        # Not the base's: it would make the condition.
        self._engine = engine

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]
        if self._made is None:
            with _conditions:
                if self._made is None:
                    self._waiters = []
                    self._made = threading.Condition()
        return self._made

    # The base's other methods take the condition; these need none.

    def cancel(self) -> bool:
        """Return False, because a publication cannot be withdrawn."""
        return False

    def cancelled(self) -> bool:
        return False

    def running(self) -> bool:
        return self._state != _FINISHED

    def done(self) -> bool:
        return self._state == _FINISHED

    def result(self, timeout: float | None = None) -> None:
        """Return when the agent has accepted the frame.

        Raises:
            TimeoutError: it has not answered after `timeout` seconds; the publication continues.
            PenstockError: the error of the frame.
        """
        if self._state != _FINISHED:
            self._engine.wait_for(self, timeout)
        if self._exception is not None:
            try:
                raise self._exception
            finally:
                self = None  # type: ignore[assignment]  # no cycle with the traceback

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the error of the frame, or None when the agent has accepted it.

        Raises:
            TimeoutError: the agent has not answered after `timeout` seconds.
        """
        if self._state != _FINISHED:
            self._engine.wait_for(self, timeout)
        return self._exception

    def add_done_callback(self, fn: Callable[[Future[None]], object]) -> None:
        """Call `fn` with this future when it has ended, or at once if it already has.

        `fn` runs on the thread that processes the answer, and without any lock of the client.
        """
        with _conditions:
            if "_done_callbacks" not in self.__dict__:
                self._done_callbacks = []
        # Under the interpreter's lock: either this thread sees the end, or `finish` the callback.
        callbacks = self._done_callbacks
        callbacks.append(fn)
        if self._state == _FINISHED:
            try:
                callbacks.remove(fn)
            except ValueError:
                return  # the thread that ended it has taken the callback
            self._call(fn)

    # For the engine

    def finish(self, error: BaseException | None) -> bool:
        """Set the result; return whether there are callbacks for `call_back`."""
        self._exception = error
        with _conditions:
            made = self._made
            if made is None:
                self._state = _FINISHED
        if made is not None:
            with made:
                self._state = _FINISHED
                for waiter in self._waiters:
                    if error is None:
                        waiter.add_result(self)
                    else:
                        waiter.add_exception(self)
                made.notify_all()
        return bool(self._done_callbacks)

    def forget_waiters(self) -> None:
        """Discard the gates and the condition, in a forked process without the waiting threads."""
        self._made = None
        self._waiters = []
        self._done_callbacks = []

    def call_back(self) -> None:
        """Run the callbacks, each once, even if several threads call this method."""
        callbacks = self._done_callbacks
        while callbacks:
            try:
                fn = callbacks.pop(0)
            except IndexError:
                return
            self._call(fn)

    def _call(self, fn: Callable[[Future[None]], object]) -> None:
        try:
            fn(self)
        except Exception:
            logger.exception("exception calling callback for %r", self)
