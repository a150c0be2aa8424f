"""Event loop in a thread of its own, for components that a test starts and stops."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

from penstock.base.errors import BugError, UnavailableError

START_TIMEOUT_SECONDS: Final = 30.0
END_TIMEOUT_SECONDS: Final = 30.0

T = TypeVar("T")
End = Callable[[], Awaitable[None]]


class LoopThread(Generic[T]):
    """Thread with an event loop, which starts a component and stops it.

    `begin` starts the component. It returns a result for `start`, and the function that `stop` runs
    to end the component.
    """

    def __init__(self, name: str, begin: Callable[[], Awaitable[tuple[T, End]]]) -> None:
        self._name = name
        self._begin = begin
        self._thread = threading.Thread(target=self._run, name=f"penstock-{name}", daemon=True)
        self._started = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._begun: T | None = None
        self._error: BaseException | None = None

    def start(self) -> T:
        """Start the thread and the component; return the result of `begin`.

        Raises:
            UnavailableError: it took longer than `START_TIMEOUT_SECONDS`; or any error that `begin`
                raised.
        """
        self._thread.start()
        if not self._started.wait(START_TIMEOUT_SECONDS):
            raise UnavailableError(
                f"the {self._name} did not start in {START_TIMEOUT_SECONDS:.0f} s"
            )
        if self._error is not None:
            self._thread.join(END_TIMEOUT_SECONDS)
            raise self._error
        if self._begun is None:
            raise BugError(f"the {self._name} started without a result")
        return self._begun

    def stop(self) -> None:
        """Stop the component and the thread.

        Raises:
            UnavailableError: it took longer than `END_TIMEOUT_SECONDS`; or the error that ended the
                thread.
        """
        if self._loop is not None and self._stop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(END_TIMEOUT_SECONDS)
        if self._thread.is_alive():
            raise UnavailableError(f"the {self._name} did not stop in {END_TIMEOUT_SECONDS:.0f} s")
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        import uvloop

        try:
            uvloop.run(self._serve())
        except BaseException as error:  # raised in the waiting thread
            self._error = error
        finally:
            self._started.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._begun, end = await self._begin()
        self._started.set()
        await self._stop.wait()
        await end()
