"""Checkpoints: sync segments, and free the journal files that recovery then no longer needs.

1. The event loop's thread has all durable appends written to their segments.

2. The worker's thread writes index entries, producer snapshots and epoch files, syncs everything
that changed since the last checkpoint, and replaces `partitions.checkpoint`.

3. Journal files whose entries the checkpoint covers become free.

The first checkpoint after a crash waits until every log with entries in the journal is loaded; logs
are loaded a few at a time. After a crash at any point, the disk has either the old checkpoint and
the journal entries behind it, or the new checkpoint. After a failed sync the store rejects all
appends until it is reopened; the journal still has everything that was acknowledged.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from operator import attrgetter
from typing import NamedTuple

from penstock.base.files import Files, replace_file, sync_directory, write_all
from penstock.storage.files.checkpoint import (
    RecoveryPoint,
    encode_checkpoint,
    encode_recovery_point,
    write_checkpoint,
)
from penstock.storage.files.epochs import encode_epochs
from penstock.storage.files.errors import StorageError, StorageFailed, disk_full
from penstock.storage.files.journal import Journal
from penstock.storage.files.producers import encoded_snapshots
from penstock.storage.files.segment import Segment
from penstock.storage.files.values import (
    CHECKPOINT_FILE,
    EPOCHS_FILE,
    RECENT_BATCHES,
    SNAPSHOT,
    offset_name,
    parse_offset_name,
)
from penstock.storage.files.worker import Worker
from penstock.storage.log.state import Changes, LogState, StoreParts
from penstock.storage.writing.segment_writing import SegmentWriter

logger = logging.getLogger(__name__)

Then = Callable[[StorageError | None], None]


class Plan(NamedTuple):
    """Files that a worker writes and syncs in a checkpoint, listed on the event loop's thread."""

    sequence: int
    changes: Changes
    points: list[tuple[LogState, RecoveryPoint]]
    saved: list[tuple[Segment, tuple[int, int, int]]]
    paths: list[str]
    appends: list[tuple[str, int, bytes]]
    writes: list[tuple[str, bytes]]
    checkpoint: bytes


class Checkpointer:
    """Checkpoints of a store: the event loop's thread plans them, a worker writes and syncs."""

    def __init__(
        self,
        parts: StoreParts,
        journal: Journal,
        segment_writer: SegmentWriter,
        worker: Worker,
        logs: Callable[[], Iterable[LogState]],
        sequence: int,
    ) -> None:
        self._clock = parts.clock
        self._files = parts.segment_files.files
        self._queue = parts.queue
        self._changes = parts.changes
        self._counters = parts.counters
        self._root = parts.root
        self._path = os.path.join(parts.root, CHECKPOINT_FILE)
        self._journaled = parts.settings.log_flush_policy == "group"
        self._journal = journal
        self._segment_writer = segment_writer
        self._worker = worker
        self._logs = logs
        self._then: list[Then] = []
        self._running = False
        self._again = False
        self._behind: list[tuple[Callable[[], object], Then]] = []
        self.recovered: list[LogState] = []
        """Logs with journal entries from before the start of the store; loaded logs are removed."""
        self.sequence = sequence
        self.last_ms = self._clock.now_ms()

    @property
    def running(self) -> bool:
        return self._running

    def start(self, then: Then | None = None) -> None:
        """Begin a checkpoint, and call `then` with its error or None when it ends.

        While a checkpoint is running, queue another one only if `then` is given.
        """
        if then is not None:
            self._then.append(then)
        if self._running:
            self._again = self._again or then is not None
            return
        if self._queue.failed is not None:
            self._end(self._queue.failed)
            return
        try:
            self.load_some(len(self.recovered))
        except (StorageError, OSError) as error:
            logger.error("the checkpoint failed: %s", error)
            self._end(error if isinstance(error, StorageError) else StorageError(str(error)))
            return
        self._running = True
        # The writer thread may have synced a group that is not applied to the logs yet.
        sequence = self._journal.applied_sequence
        self._segment_writer.write_all(partial(self._committed, sequence))

    def load_some(self, count: int) -> bool:
        """Load up to `count` of the logs in `recovered`; return whether all of them are loaded.

        Raises:
            StorageError, OSError: a log cannot be loaded.
        """
        for _ in range(min(count, len(self.recovered))):
            log = self.recovered[-1]
            if log.closed is None:
                log.load()
            self.recovered.pop()
        return not self.recovered

    def save_recovery_points(self, then: Then | None = None) -> None:
        """Write the recovery points of all logs to disk.

        Without `then`, they are on disk at return. With `then`, the worker writes them, once for
        all waiting callers, and calls `then` afterwards with the error or None.
        """
        if then is not None:
            self.save_points_and(_nothing, then)
            return
        if self._running:
            self._worker.drain()
        data = self._encoded(self.sequence, clean=False)
        try:
            write_checkpoint(self._files, self._root, data)
        except OSError as error:
            raise disk_full(error, self._path) or StorageError(
                f"cannot write {self._path}: {error}"
            ) from error

    def save_points_and(self, work: Callable[[], object], then: Then) -> None:
        """Have the worker write the recovery points and then do `work`; finally call `then` with
        the error, or None."""
        self._behind.append((work, then))
        if not self._running:
            self._save_behind()

    def _save_behind(self) -> None:
        if not self._behind:
            return
        self._running = True
        behind, self._behind = self._behind, []
        data = self._encoded(self.sequence, clean=False)

        def perform_all() -> None:
            write_checkpoint(self._files, self._root, data)
            for work, _ in behind:
                work()

        self._worker.submit(perform_all, partial(self._saved, [then for _, then in behind]))

    def _saved(self, waiting: list[Then], _: object, error: BaseException | None) -> None:
        self._running = False
        failure = None
        if error is not None:
            failure = StorageError(f"cannot write {self._path}: {error}")
            if isinstance(error, OSError):
                failure = disk_full(error, self._path) or failure
        for then in waiting:
            then(failure)
        if self._running:  # for one of them, which continues as below when it ends
            return
        again, self._again = self._again, False
        if again:
            self.start()
        else:
            self._save_behind()

    def close(self) -> None:
        write_checkpoint(self._files, self._root, self._encoded(self.sequence, clean=True))

    def _encoded(self, sequence: int, *, clean: bool, rows: list[bytes] | None = None) -> bytes:
        if rows is None:
            rows = [log.recovery_point_bytes for log in self._logs()]
        return encode_checkpoint(
            sequence,
            rows,
            clean=clean,
            journaled=self._journaled,
            journal_bytes=self._journal.synced_bytes,
        )

    def _committed(self, sequence: int, error: StorageError | None) -> None:
        if error is not None:
            self._running = False
            self._end(error)
            return
        try:
            plan = self._plan(sequence)
        except OSError as failure:
            self._running = False
            self._end(StorageError(f"cannot prepare a checkpoint: {failure}"))
            return
        work = partial(self._perform, plan)
        self._worker.submit(work, partial(self._done, plan))

    def _perform(self, plan: Plan) -> None:
        """Sync the journal entries that the checkpoint covers, then write the checkpoint."""
        if self._journal.durable_sequence < plan.sequence:
            self._journal.sync()
        perform(self._files, self._root, plan)

    def _plan(self, sequence: int) -> Plan:
        changes = self._changes.take()
        directories = changes.directories
        points: list[tuple[LogState, RecoveryPoint]] = []
        saved: list[tuple[Segment, tuple[int, int, int]]] = []
        paths: list[str] = []
        appends: list[tuple[str, int, bytes]] = []
        writes: list[tuple[str, bytes]] = []
        for log, changed in changes.logs.items():
            if log.closed is not None:
                continue
            points.append((log, log.current_recovery_point()))
            for segment in sorted(changed, key=attrgetter("base_offset")):
                if segment.written_bytes == 0:
                    continue
                saved.append((segment, segment.indexed()))
                paths.append(segment.path)
                for path, position, data in segment.unsaved():
                    if position == 0:
                        directories.add(log.directory)
                    appends.append((path, position, data))
            self._plan_small_files(log, writes, directories)
        new_points = dict(points)
        rows = [
            log.recovery_point_bytes
            if (point := new_points.get(log)) is None
            else encode_recovery_point(log.key, point)
            for log in self._logs()
        ]
        checkpoint = self._encoded(sequence, clean=False, rows=rows)
        return Plan(
            sequence,
            changes,
            points,
            saved,
            paths,
            appends,
            writes,
            checkpoint,
        )

    def _plan_small_files(
        self, log: LogState, writes: list[tuple[str, bytes]], directories: set[str]
    ) -> None:
        """Plan the writes of a log's snapshots and epoch file, as of the last byte in its segments.

        Later appends, which only the journal has, do not count.
        """
        if not log.loaded or log.damage is not None:
            return
        written, states, epochs = log.when_written()
        due = [due_snapshot for due_snapshot in log.due_snapshots if due_snapshot[0] <= written]
        log.due_snapshots = [
            due_snapshot for due_snapshot in log.due_snapshots if due_snapshot[0] > written
        ]
        if len(states) or len(log.producer_states):
            due.append(encoded_snapshots(written, *states.snapshot()))
        for offset, last, batches in due:
            for suffix, data in (SNAPSHOT, last), (RECENT_BATCHES, batches):
                writes.append((os.path.join(log.directory, offset_name(offset, suffix)), data))
        if log.epochs_dirty:
            begun = [entry for entry in epochs.entries if entry[1] <= written]
            log.epochs_dirty = len(begun) < len(epochs.entries)
            data = encode_epochs(begun)
            writes.append((os.path.join(log.directory, EPOCHS_FILE), data))
        if writes:
            directories.add(log.directory)

    def _done(self, plan: Plan, _: object, error: BaseException | None) -> None:
        self._running = False
        if error is not None:
            self._failed(plan, error)
            return
        self.sequence = plan.sequence
        self.last_ms = self._clock.now_ms()
        self._counters.checkpoints += 1
        for segment, lengths in plan.saved:
            segment.saved(lengths)
        for log, point in plan.points:
            start = log.log_start_offset
            log.set_recovery_point(point._replace(log_start_offset=start))
            if len(log.producer_states) and log.closed is None:
                remove_old_snapshots(self._files, log.directory, kept_snapshots(log))
        self._journal.free(plan.sequence)
        again, self._again = self._again, False
        if again:
            self.start()
            return
        self._end(None)

    def _failed(self, plan: Plan, error: BaseException) -> None:
        full = disk_full(error, self._path) if isinstance(error, OSError) else None
        if full is not None:
            for log in plan.changes.logs:
                log.epochs_dirty = True
            self._changes.give_back(plan.changes)
            self._counters.disk_full += 1
            self._end(full)
            return
        failure = (
            error
            if isinstance(error, StorageFailed)
            else StorageFailed(f"a checkpoint failed: {error!r}")
        )
        logger.critical("the log rejects all appends from now on: %s", failure)
        self._queue.fail(failure)
        self._end(failure)

    def _end(self, error: StorageError | None) -> None:
        waiting, self._then = self._then, []
        for then in waiting:
            then(error)
        if not self._running:
            self._save_behind()


def _nothing() -> None:
    """Do nothing after the recovery points are saved."""


def perform(files: Files, root: str, plan: Plan) -> None:
    """Write and sync all files of a planned checkpoint, the checkpoint last; on any thread."""
    for target, position, data in plan.appends:
        with _opened(files, target, create=True) as descriptor:
            write_all(files, descriptor, position, [data])
            _sync(files, descriptor, target)
    for target, data in plan.writes:
        replace_file(files, target, data, durable=False)
    for target in plan.paths:
        with suppress(FileNotFoundError), _opened(files, target) as descriptor:
            _sync(files, descriptor, target)
    try:
        for directory in sorted(plan.changes.directories):
            with suppress(FileNotFoundError):
                sync_directory(files, directory)
        if plan.changes.directories:
            sync_directory(files, root)
    except OSError as error:
        raise StorageFailed(f"syncing a directory failed: {error}") from error
    write_checkpoint(files, root, plan.checkpoint)


@contextmanager
def _opened(files: Files, path: str, *, create: bool = False) -> Iterator[int]:
    """Open a file for one sync, and yield its descriptor.

    A checkpoint of many files therefore has only one of them open at a time. A sync through any
    descriptor of a file also covers writes through its other descriptors, and reports a write-back
    error that was not reported before (since Linux 4.16).
    """
    descriptor = files.open(path, create=create)
    try:
        yield descriptor
    finally:
        files.close(descriptor)


def _sync(files: Files, descriptor: int, path: str) -> None:
    try:
        files.sync_file(descriptor)
    except OSError as error:
        raise StorageFailed(f"syncing {path} failed: {error}") from error


def remove_old_snapshots(files: Files, directory: str, keep: set[int]) -> None:
    """Remove snapshots below the highest of `keep` that are not in `keep`."""
    for name in files.names_in(directory):
        parsed = parse_offset_name(name)
        if parsed is None or parsed[1] not in (SNAPSHOT, RECENT_BATCHES):
            continue
        if parsed[0] not in keep and parsed[0] < max(keep):
            with suppress(OSError):
                files.remove(os.path.join(directory, name))


def kept_snapshots(log: LogState) -> set[int]:
    """Return the offsets of the snapshots to keep, up to the log's recovery point."""
    newest = log.recovery_point.recovery_offset
    bases = {segment.base_offset for segment in log.segments}
    return {base for base in bases if base <= newest} | {newest}
