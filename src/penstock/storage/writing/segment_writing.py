"""Segment writing: durable appends are written to their segments, unsynced.

These writes may wait, because the journal has the appends. Small appends of a partition gather
until they reach `SEGMENT_WRITE_BYTES`, and are then written in one call. An append that still uses
its receive buffer (`Lease`) is written at once, so that the buffer is released. One job runs at a
time. After a failed job, for example on a full disk, the appends stay in memory and in the journal
for a retry.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Final, NamedTuple

from penstock.base.files import Files, sync_directory, write_all
from penstock.storage.files.appended import Appended, Queued, Wide
from penstock.storage.files.errors import (
    INLINE_WRITE_BYTES_MAX,
    SEGMENT_WRITE_BYTES,
    SEGMENT_WRITE_LOGS_MAX,
    SEGMENT_WRITE_SHARE,
    StorageError,
    StorageFailed,
    disk_full,
    write_error,
)
from penstock.storage.files.journal import Journal
from penstock.storage.files.segment import Segment
from penstock.storage.files.segment_files import Handle
from penstock.storage.files.values import Buffer
from penstock.storage.files.worker import SideBySide, Worker
from penstock.storage.log.state import LogState, StoreParts

logger = logging.getLogger(__name__)


class Run(NamedTuple):
    """Adjacent bytes of one segment, which one call writes."""

    handle: Handle
    position: int
    buffers: list[Buffer]


class Direct(NamedTuple):
    """Append that is written directly to its segment; `directory` is synced too, unless None."""

    handle: Handle
    segment: Segment
    position: int
    data: Buffer
    directory: str | None


class Job(NamedTuple):
    """Segment writes that are performed together, and the appends that they contain."""

    runs: list[Run]
    logs: list[tuple[LogState, list[Appended[LogState]]]]
    size_bytes: int


NOTHING: Final = Job([], [], 0)


class SegmentWriter:
    """Segment writes of a store: the event loop's thread plans them, a worker performs them."""

    def __init__(self, parts: StoreParts, journal: Journal, worker: Worker) -> None:
        self._journal = journal
        self._root = parts.root
        self._settings = parts.settings
        self._logs_max = min(SEGMENT_WRITE_LOGS_MAX, parts.settings.open_files_max // 2)
        """Logs whose segments one job writes: their files are open at the same time."""
        self._segment_files = parts.segment_files
        self._files = parts.segment_files.files
        self._descriptors = parts.segment_files.descriptors
        self._queue = parts.queue
        self._tails = parts.tails
        self._changes = parts.changes
        self._counters = parts.counters
        self._worker = worker
        self._wanted: dict[LogState, None] = {}
        self._unwritten: dict[LogState, None] = {}
        self._busy = False
        self._when_idle: list[Callable[[StorageError | None], None]] = []
        self.error: StorageError | None = None

    def large_in(self, items: list[Queued[LogState]], size_bytes: int) -> list[Appended[LogState]]:
        """Mark and return the large appends of a group: they are written before the journal entry.

        `size_bytes` is the size of the whole group.
        """
        least = self._settings.journal_append_bytes_max
        if size_bytes <= least:
            return []
        covered = self._journal.checkpoint_sequence
        large = []
        for item in items:
            if isinstance(item, Wide):
                continue
            item.in_segment = (
                item.size_bytes > least
                and bool(item.headers)
                and item.log.tail.cut_sequence <= covered
            )
            if item.in_segment:
                large.append(item)
        return large

    def open_for(self, large: list[Appended[LogState]]) -> tuple[Direct, ...]:
        """Open and pin the segments of large appends; raises OSError."""
        found: list[Direct] = []
        try:
            for item in large:
                segment = item.segment
                handle = self._descriptors.get(segment.path, create=True)
                directory = None if segment.named else item.log.directory
                self._descriptors.pin(handle)
                found.append(Direct(handle, segment, item.position, item.data, directory))
        except OSError:
            self.wrote_direct(found, None)
            raise
        return tuple(found)

    def wrote_direct(self, direct: Sequence[Direct], error: StorageError | None) -> None:
        """Unpin the segments of direct appends; after an error, truncate the segments to their
        previous size if possible."""
        for write in reversed(direct):
            if error is None:
                write.segment.named = True
            elif not isinstance(error, StorageFailed):
                with suppress(OSError):
                    self._files.truncate(write.handle.descriptor, write.position)
            self._descriptors.unpin(write.handle)

    def became_durable(self, items: list[Queued[LogState]]) -> None:
        """Record appends that became durable, and start the segment writes that are due."""
        queue, unwritten, wanted = self._queue, self._unwritten, self._wanted
        for item in items:
            queue.unwritten_bytes += item.size_bytes
            if isinstance(item, Wide):
                unwritten.update(dict.fromkeys(item.rows))  # creates the rows
                for log, size_bytes in zip(item.logs, item.sizes, strict=True):
                    log.unwritten_bytes += size_bytes
                    if log.unwritten_bytes >= SEGMENT_WRITE_BYTES:
                        wanted[log] = None
                continue
            log = item.log
            log.unwritten_bytes += item.size_bytes
            unwritten[log] = None
            if item.lease is not None or log.unwritten_bytes >= SEGMENT_WRITE_BYTES:
                wanted[log] = None
        if queue.unwritten_bytes * SEGMENT_WRITE_SHARE > self._settings.tail_cache_bytes:
            wanted.update(unwritten)
        if self._tails.crowded:
            blocking = self._tails.shrink()
            if blocking is not None and blocking in unwritten:
                wanted.update(unwritten)
        if wanted:
            self.run()

    def run(self) -> None:
        if self._busy or not self._wanted:
            return
        logs = list(islice(self._wanted, self._logs_max))
        for log in logs:
            del self._wanted[log]
        try:
            job = self.plan(logs)
        except OSError as error:
            self._failed(error)
            return
        self._busy = True
        small = job.size_bytes <= INLINE_WRITE_BYTES_MAX and not self._wanted
        lone = small and all([run.handle.is_open for run in job.runs])
        if lone or not self._worker.attached:
            self._done(job, None, _attempt(self._files, job))
        else:
            work = partial(perform, self._files, job)
            self._worker.submit(work, partial(self._done, job))

    def write_all(self, then: Callable[[StorageError | None], None]) -> None:
        """Write all durable appends to their segments; then call `then` with the error or None."""
        self._wanted.update(self._unwritten)
        self._when_idle.append(then)
        self.error = None
        self.run()
        self._report_idle()

    def write_now(self, log: LogState) -> None:
        """Write one log's durable appends before returning; raises StorageError."""
        if self._busy:
            self._worker.drain()
        self._wanted.pop(log, None)
        job = NOTHING
        try:
            job = self.plan([log])
            perform(self._files, job)
        except OSError as error:
            self.release(job)
            raise storage_error(self._root, error) from error
        self.finish(job)

    def write_group(self, logs: list[LogState], *, sync: bool) -> Job:
        """Write the appends of logs, also those that are not durable yet; return what to `finish`.

        Raises:
            OSError: a segment cannot be written.
            StorageFailed: a sync failed.
        """
        written: list[tuple[LogState, list[Appended[LogState]]]] = []
        for start in range(0, len(logs), self._logs_max):
            job = self.plan(logs[start : start + self._logs_max], durable_only=False)
            try:
                perform(self._files, job)
                if sync:
                    sync_segments(self._files, job)
            finally:
                self.release(job)
            written += job.logs
        return NOTHING._replace(logs=written)

    def forget(self, log: LogState) -> None:
        self._wanted.pop(log, None)
        self._unwritten.pop(log, None)

    def plan(self, logs: list[LogState], *, durable_only: bool = True) -> Job:
        """Return a job that writes the unwritten appends of logs; open files with earlier ones."""
        runs: list[Run] = []
        parts: list[tuple[LogState, list[Appended[LogState]]]] = []
        total = 0
        for log in logs:
            items = log.tail.unwritten()
            if durable_only:
                end = log.durable_offset
                while items and items[-1].next_offset > end:
                    items.pop()
            if not items or log.closed is not None:
                continue
            parts.append((log, items))
            try:
                total += self._gather(log, items, runs)
            except BaseException:
                self.release(Job(runs, parts, total))
                raise
        return Job(runs, parts, total)

    def _gather(self, log: LogState, items: list[Appended[LogState]], runs: list[Run]) -> int:
        segment = None
        total = 0
        buffers: list[Buffer] = []
        for item in items:
            if item.in_segment:
                segment = None
                if item.segment.index is None:
                    interval_bytes = log.config.index_interval_bytes
                    self._segment_files.index_of(item.segment, interval_bytes)
                continue
            if item.segment is not segment:
                segment = item.segment
                if segment.index is None:
                    self._segment_files.index_of(segment, log.config.index_interval_bytes)
                if segment.written_bytes:
                    handle = self._descriptors.get(segment.path, create=True)
                else:
                    self._changes.directories.add(log.directory)
                    handle = self._descriptors.reserve(segment.path)
                buffers = []
                runs.append(Run(self._descriptors.pin(handle), item.position, buffers))
            buffers.append(item.data)
            total += item.size_bytes
        return total

    def _done(self, job: Job, _: object, error: BaseException | None) -> None:
        self._busy = False
        if error is None:
            self.finish(job)
        else:
            self.release(job)
            self._failed(error)
        if self.error is None:
            self.run()
        self._report_idle()

    def _failed(self, error: BaseException) -> None:
        self.error = storage_error(self._root, error)
        self._queue.write_error = self.error
        self._counters.disk_full += 1
        logger.error("writing segments failed, retrying: %s", error)

    def release(self, job: Job) -> None:
        """Release the files of a job; unless it is finished, its appends stay unwritten."""
        for run in job.runs:
            self._descriptors.unpin(run.handle)

    def finish(self, job: Job) -> None:
        """Index the appends of a completed job, and evict from the tail cache."""
        if job.logs:
            self._queue.write_error = None
        self.release(job)
        for log, items in job.logs:
            if log.closed is None:
                log.note_written(items)
            if log.unwritten_bytes <= 0:
                self._unwritten.pop(log, None)
        self._tails.shrink()

    def _report_idle(self) -> None:
        if not self._busy and self._when_idle and (self.error or not self._wanted):
            callbacks, self._when_idle = self._when_idle, []
            for callback in callbacks:
                callback(self.error)


def perform(files: Files, job: Job) -> None:
    """Perform the writes of a job, on any thread; create the files that do not exist.

    The creation of a file takes up to a millisecond.
    """
    for run in job.runs:
        run.handle.create(files)
        write_all(files, run.handle.descriptor, run.position, run.buffers)


def sync_segments(files: Files, job: Job) -> None:
    """Sync the files of a job; raises StorageFailed."""
    try:
        for run in job.runs:
            files.sync_file(run.handle.descriptor)
    except OSError as error:
        raise StorageFailed(f"syncing a segment failed: {error}") from error


def write_direct(
    files: Files, root: str, direct: Sequence[Direct], syncs: SideBySide | None
) -> None:
    """Write appends to their segments and sync them, on any thread.

    All writes start before the first sync; `syncs` runs several syncs in parallel.

    Raises:
        StorageError: an append could not be written; all of them fail.
        StorageFailed: a sync failed.
    """
    try:
        for append in direct:
            write_all(files, append.handle.descriptor, append.position, [append.data])
            files.start_write_back(append.handle.descriptor)
    except OSError as error:
        raise write_error(error, root, f"cannot write segments in {root}") from error
    try:
        descriptors = dict.fromkeys([append.handle.descriptor for append in direct])
        if syncs is None:
            for descriptor in descriptors:
                files.sync_file(descriptor)
        else:
            syncs.run([partial(files.sync_file, descriptor) for descriptor in descriptors])
        for directory in dict.fromkeys([append.directory for append in direct]):
            if directory is not None:
                sync_directory(files, directory)
    except OSError as error:
        raise StorageFailed(f"syncing a segment failed: {error}") from error


def _attempt(files: Files, job: Job) -> OSError | None:
    try:
        perform(files, job)
    except OSError as error:
        return error
    return None


def storage_error(root: str, error: BaseException) -> StorageError:
    """Return the error to report to callers after a failed write."""
    if isinstance(error, OSError):
        return disk_full(error, root) or StorageError(f"cannot write segments in {root}: {error}")
    return StorageError(f"cannot write segments in {root}: {error!r}")
