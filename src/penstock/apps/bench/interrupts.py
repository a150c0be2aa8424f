"""Signals of benchmarks: remove created resources after Ctrl-C.

SIGINT, SIGTERM and SIGHUP raise `KeyboardInterrupt`. `deferred` postpones it while a resource is
created; `run_async` cancels the loop's main task instead.
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
    """Make the signals raise `KeyboardInterrupt`."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    with handled(interrupt, SIGNALS):
        yield


@contextmanager
def deferred() -> Iterator[None]:
    """Postpone the `KeyboardInterrupt` of a signal to the end of the context."""
    came: list[int] = []
    with handled(lambda number, frame: came.append(number), SIGNALS):
        yield
    if came:
        raise KeyboardInterrupt


def run_async(
    work: Coroutine[Any, Any, T],
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> T:
    """Run a coroutine as `asyncio.run` does; close its loop cleanly after a signal.

    Raises:
        KeyboardInterrupt: a signal arrived; `work` was cancelled.
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
