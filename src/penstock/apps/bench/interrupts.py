"""Ctrl-C and its like, so that a measurement leaves nothing behind.

SIGINT, SIGTERM and SIGHUP raise `KeyboardInterrupt`, and what was made is removed on its way up.
Two things must not be torn by it: the moment in which something is made that has to be removed
(`deferred`), and an event loop, whose main task is cancelled instead (`run_async`).
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeVar

from penstock.apps.daemon import handled

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

T = TypeVar("T")


@contextmanager
def interruptible() -> Iterator[None]:
    """Let all of the signals raise `KeyboardInterrupt`."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    with handled(interrupt, SIGNALS):
        yield


@contextmanager
def deferred() -> Iterator[None]:
    """Raise the `KeyboardInterrupt` of a signal that comes meanwhile at the end of the context."""
    came: list[int] = []
    with handled(lambda number, frame: came.append(number), SIGNALS):
        yield
    if came:
        raise KeyboardInterrupt


def run_async(
    work: Coroutine[Any, Any, T],
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> T:
    """`asyncio.run`, whose loop is closed in good order whenever a signal comes.

    Raises:
        KeyboardInterrupt: a signal came; `work` was cancelled.
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
