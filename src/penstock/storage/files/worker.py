"""Threads for blocking file work, whose results are handled on the event loop's thread.

After `attach`, a job runs on the worker's thread. Its callback `done` runs on the event loop's
thread, called by the loop or by `drain`, which waits for all submitted jobs. Before `attach`, a job
runs at once on the thread that submits it, so that tests and tools need no threads.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from msgspec import Struct

Job = Callable[[], Any]
Done = Callable[[Any, BaseException | None], None]


class Worker:
    """Single thread, started by its first job, that runs jobs in order."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._call_soon: Callable[..., object] | None = None
        self._jobs: queue.SimpleQueue[tuple[Job, Done] | None] = queue.SimpleQueue()
        self._results: deque[tuple[Done, Any, BaseException | None]] = deque()
        self._finished = threading.Event()
        self._thread: threading.Thread | None = None
        self.outstanding = 0

    def attach(self, call_soon_threadsafe: Callable[..., object]) -> None:
        self._call_soon = call_soon_threadsafe

    @property
    def attached(self) -> bool:
        return self._call_soon is not None

    def submit(self, job: Job, done: Done) -> None:
        """Run `job`; then call `done(result, None)` or `done(None, error)`."""
        if self._call_soon is None:
            done(*_run(job))
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
        self.outstanding += 1
        self._jobs.put((job, done))

    def drain(self) -> None:
        """Wait for all jobs, including jobs that `done` callbacks submit."""
        while self.outstanding:
            self._finished.wait()
            self._finished.clear()
            self._collect()

    def close(self) -> None:
        """Complete all jobs and stop the thread."""
        self.drain()
        self._call_soon = None
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
            self._thread = None

    def _work(self) -> None:
        while (item := self._jobs.get()) is not None:
            job, done = item
            self._results.append((done, *_run(job)))
            self._finished.set()
            call_soon = self._call_soon
            if call_soon is not None:
                try:
                    call_soon(self._collect)
                except RuntimeError:
                    # The loop is closed; `drain` collects the result.
                    continue

    def _collect(self) -> None:
        while self._results:
            self._collect_one()

    def _collect_one(self) -> None:
        done, result, error = self._results.popleft()
        self.outstanding -= 1
        done(result, error)


class SideBySide:
    """Pool of threads that runs several jobs in parallel while the caller waits."""

    def __init__(self, name: str, threads_max: int) -> None:
        self._name = name
        self._threads_max = threads_max
        self._pool: ThreadPoolExecutor | None = None

    def run(self, jobs: Sequence[Job]) -> None:
        """Run all jobs; then raise the first error."""
        pool = self._pool
        if pool is None and len(jobs) > 1:
            pool = self._pool = ThreadPoolExecutor(self._threads_max, self._name)
        others = [] if pool is None else [pool.submit(job) for job in jobs[1:]]
        errors = [_run(job)[1] for job in jobs[:1]]
        for error in (*errors, *[future.exception() for future in others]):
            if error is not None:
                raise error

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()


def _run(job: Job) -> tuple[Any, BaseException | None]:
    try:
        return job(), None
    except BaseException as error:
        return None, error


class Counters(Struct):
    checkpoints: int = 0
    compaction_kept_records: int = 0
    compaction_read_bytes: int = 0
    compaction_read_records: int = 0
    compaction_written_bytes: int = 0
    compactions: int = 0
    corruptions: int = 0
    damaged_ranges: int = 0
    disk_full: int = 0
    duplicates: int = 0
    groups: int = 0
    inline_groups: int = 0
    mended_bytes: int = 0
    read_bytes: int = 0
    reads: int = 0
    removed_segments: int = 0
    rolled_segments: int = 0
    written_bytes: int = 0
    tail_reads: int = 0
