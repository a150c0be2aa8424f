"""Thread that decompresses and validates batches of produce requests, fairly between clients.

A small batch may decompress to many megabytes, which would block the event loop. The thread takes
one request of each client in turn, and sends large requests to a process (`opening.py`). A
connection has at most one request in the queues.
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
    __slots__ = ("job", "result")

    def __init__(self, job: Callable[[], T], result: asyncio.Future[T]) -> None:
        self.job = job
        self.result = result


class Opener:
    """Decompression thread with a queue for each client."""

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None
        self._queues: dict[Hashable, deque[_Waiting[Any]]] = {}
        """Queues of waiting requests by client. The first client is the next in turn."""
        self._busy = False
        self._process = OpeningProcess()

    async def opened(
        self, client: Hashable, batches: Sequence[Sealed], now_ms: int
    ) -> list[Opened]:
        """Decompress and validate a request's batches (`open_batches`) in this client's turn."""
        return await self.run(client, lambda: self._process.opened(batches, now_ms))

    async def run(self, client: Hashable, job: Callable[[], T]) -> T:
        """Run `job` on the thread in this client's turn, and return its result.

        If the caller is cancelled, a waiting job is dropped, and a running one ends normally.
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
        """Cancel waiting jobs, and end the process and the thread."""
        for queue in self._queues.values():
            for waiting in queue:
                waiting.result.cancel()
        self._queues.clear()
        if self._thread is not None:
            self._process.close()
            self._thread.submit(self._process.end)
            self._thread.shutdown(wait=False)
            self._thread = None
