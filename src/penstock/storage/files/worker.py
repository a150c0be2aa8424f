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
from contextlib import suppress
from typing import Any

from penstock.base.metrics import Metrics, counter, gauge

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

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call `callback` in the next turn of the event loop; at once without an open loop."""
        if self._call_soon is not None:
            with suppress(RuntimeError):  # the loop is closed
                self._call_soon(callback)
                return
        callback()

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


class Counters(Metrics, prefix="penstock_storage_"):
    """Counters of a store, and gauges that it assigns when samples are requested."""

    groups = counter("groups_total", "Groups of appends made durable.")
    inline_groups = counter(
        "inline_groups_total", "Groups of appends that the event loop wrote and synced itself."
    )
    duplicates = counter("duplicate_batches_total", "Duplicate batches of producers.")
    journal_written_bytes = counter("journal_written_bytes_total", "Bytes written to the journal.")
    journal_syncs = counter("journal_syncs_total", "Syncs of journal files.")
    written_bytes = counter("segment_written_bytes_total", "Bytes written to segments.")
    reads = counter("reads_total", "Reads answered from segment files.")
    read_bytes = counter("read_bytes_total", "Bytes read from segment files.")
    tail_reads = counter("tail_reads_total", "Reads answered from memory.")
    rolled_segments = counter("segments_rolled_total", "Segments closed.")
    removed_segments = counter("segments_removed_total", "Segments removed by retention.")
    checkpoints = counter("checkpoints_total", "Checkpoints completed.")
    disk_full = counter("refused_writes_total", "Writes that failed before a sync.")
    corruptions = counter("damaged_partitions_total", "Partitions found damaged.")
    damaged_ranges = counter(
        "damaged_ranges_total",
        "Ranges of stored records that were found damaged when they were read.",
    )
    mended_bytes = counter(
        "mended_bytes_total", "Bytes of damaged records that were fetched from another replica."
    )
    compactions = counter("compactions_total", "Completed compaction passes over logs.")
    compaction_read_bytes = counter(
        "compaction_read_bytes_total", "Bytes of segments that compaction read."
    )
    compaction_written_bytes = counter(
        "compaction_written_bytes_total", "Bytes of segments that compaction wrote."
    )
    compaction_read_records = counter(
        "compaction_read_records_total", "Records of the segments that compaction rewrote."
    )
    compaction_kept_records = counter(
        "compaction_kept_records_total", "Records of rewritten segments that compaction kept."
    )
    compaction_max_dirty_ratio: float = gauge(
        "compaction_max_dirty_ratio", "Highest share of uncompacted bytes of a log, 0 to 1."
    )
    compaction_idle_seconds: float = gauge(
        "compaction_idle_seconds", "Seconds since the last compaction pass ended, or the start."
    )
    compaction_uncleanable_partitions = gauge(
        "compaction_uncleanable_partitions", "Partitions whose compaction failed."
    )
    failed = gauge("failed", "1 if the store rejects all appends after a failed sync.")
    partitions = gauge("partitions", "Partition logs in the data directory.")
    open_files = gauge("open_files", "Segment and index files held open.")
    tail_cache_bytes = gauge("tail_cache_bytes", "Bytes of the newest batches in memory.")
    index_cache_bytes = gauge("index_cache_bytes", "Bytes of closed segments' indexes in memory.")
    pending_bytes = gauge("pending_bytes", "Appended bytes that wait for the journal.")
    unwritten_bytes = gauge("unwritten_bytes", "Durable bytes that wait for their segment write.")
    journal_files = gauge("journal_files", "Journal files on disk.")
    journal_files_in_use = gauge(
        "journal_files_in_use", "Journal files that recovery after a crash would read."
    )
    recovered_entries = gauge("recovered_entries", "Journal entries replayed at the last start.")
