"""Opens the compressed batches of produce requests in a thread, the clients in turn.

A batch of some kilobytes may unpack to many megabytes. The event loop serves other
connections meanwhile, and a client that sends many such requests waits for itself: the thread
takes one request of each client in turn, and sends large ones to a process (`opening.py`). A
connection has one request here at most, as its later ones wait for their order, so connections
bound what waits.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeVar

from penstock.broker.opening import Opened, OpeningProcess, Sealed

T = TypeVar("T")


class _Waiting(Generic[T]):
    """A job and who waits for its result."""

    __slots__ = ("job", "result")

    def __init__(self, job: Callable[[], T], result: asyncio.Future[T]) -> None:
        self.job = job
        self.result = result


class Opener:
    """A thread, and a queue for each client that waits for it."""

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None
        self._queues: dict[Hashable, deque[_Waiting[Any]]] = {}
        """By client, the one whose turn is next first."""
        self._busy = False
        self._process = OpeningProcess()

    async def opened(
        self, client: Hashable, batches: Sequence[Sealed], now_ms: int
    ) -> list[Opened]:
        """Open the batches of a request (`open_batches`) when it is this client's turn."""
        return await self.run(client, lambda: self._process.opened(batches, now_ms))

    async def run(self, client: Hashable, job: Callable[[], T]) -> T:
        """Return what `job` returns in the thread, when it is this client's turn.

        Raises:
            CancelledError: the caller is cancelled; a job that has begun is finished.
        """
        result: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(client, deque()).append(_Waiting(job, result))
        self._next()
        return await result

    def _next(self) -> None:
        while self._queues and not self._busy:
            client = next(iter(self._queues))
            queue = self._queues.pop(client)
            waiting = queue.popleft()
            if queue:
                self._queues[client] = queue
            if not waiting.result.cancelled():
                self._begin(waiting)

    def _begin(self, waiting: _Waiting[Any]) -> None:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "opener")
        self._busy = True
        ran = asyncio.get_running_loop().run_in_executor(self._thread, waiting.job)
        ran.add_done_callback(lambda done: self._ended(waiting.result, done))

    def _ended(self, result: asyncio.Future[Any], done: asyncio.Future[Any]) -> None:
        self._busy = False
        if done.cancelled():
            result.cancel()
        elif not result.done():
            error = done.exception()
            if error is None:
                result.set_result(done.result())
            else:
                result.set_exception(error)
        self._next()

    def close(self) -> None:
        """Begin no more jobs; those that wait are cancelled."""
        for queue in self._queues.values():
            for waiting in queue:
                waiting.result.cancel()
        self._queues.clear()
        if self._thread is not None:
            self._process.close()
            self._thread.submit(self._process.end)
            self._thread.shutdown(wait=False)
            self._thread = None
