"""Bounded thread pool for blocking calls that event loops await.

A call costs two thread switches (about 50 µs), and never runs in the calling thread. Calls beyond
the limit are rejected at once. If a caller is cancelled, its call still runs to its end, and the
result is discarded.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar

from penstock.objects.port import StoreClosed, StoreThrottled

CLOSE_TIMEOUT_SECONDS: Final = 10.0
"""Time for which closing waits for running calls."""

T = TypeVar("T")
_Complete = Callable[[Any, BaseException | None], None]


class Threads:
    """A pool of up to `threads_max` threads, which are started on demand."""

    def __init__(self, name: str, *, threads_max: int, waiting_max: int) -> None:
        self._name = name
        self._threads_max = threads_max
        self._calls_max = threads_max + waiting_max
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Any], _Complete] | None] = (
            queue.SimpleQueue()
        )
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._outstanding = 0
        self._closed = False
        self._idle: Callable[[], object] | None = None

    @property
    def outstanding(self) -> int:
        return self._outstanding

    async def run(self, job: Callable[[], T]) -> T:
        """Run a job on a thread; return its result, or raise what it raises.

        Raises:
            StoreThrottled: too many calls run or wait.
            StoreClosed: `close` was called before.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def complete(result: Any, error: BaseException | None) -> None:
            try:
                loop.call_soon_threadsafe(_complete, future, result, error)
            except RuntimeError:
                return  # The loop is closed; no caller waits.

        self._submit(job, complete)
        return await future

    async def close(self) -> None:
        """Reject new jobs, wait for running ones, and stop the threads.

        The wait ends after `CLOSE_TIMEOUT_SECONDS`.
        """
        loop = asyncio.get_running_loop()
        finished = asyncio.Event()
        with self._lock:
            self._closed = True
            self._idle = partial(loop.call_soon_threadsafe, finished.set)
            if not self._outstanding:
                finished.set()
        try:
            await asyncio.wait_for(finished.wait(), CLOSE_TIMEOUT_SECONDS)
        except TimeoutError:
            return  # A call hangs in the file system; its thread is a daemon.
        finally:
            threads, self._threads = self._threads, []
            for _ in threads:
                self._jobs.put(None)
        for thread in threads:
            thread.join()

    def _submit(self, job: Callable[[], Any], complete: _Complete) -> None:
        with self._lock:
            if self._closed:
                raise StoreClosed(f"{self._name} is closed")
            if self._outstanding >= self._calls_max:
                raise StoreThrottled(
                    f"{self._name}: {self._outstanding} calls run or wait, "
                    f"the limit is {self._calls_max}"
                )
            self._outstanding += 1
            if self._outstanding > len(self._threads) < self._threads_max:
                name = f"{self._name}-{len(self._threads)}"
                thread = threading.Thread(target=self._work, name=name, daemon=True)
                self._threads.append(thread)
                thread.start()
        self._jobs.put((job, complete))

    def _work(self) -> None:
        while (item := self._jobs.get()) is not None:
            job, complete = item
            result, error = None, None
            try:
                result = job()
            except BaseException as raised:
                error = raised
            del item, job
            complete(result, error)
            del result, error, complete
            with self._lock:
                self._outstanding -= 1
                if self._idle is not None and not self._outstanding:
                    self._idle()


def _complete(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
