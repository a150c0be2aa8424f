"""Maintenance: retention, expiry of producers, checkpoint triggers, removal of files.

Each call does a bounded part; a sweep over all partitions begins every
`log.retention.check.interval.ms`. Logs of tiered topics are swept at
`remote.log.manager.task.interval.ms` instead. Deleted segments get Kafka's `.deleted` suffix and
stay for `file.delete.delay.ms`, for readers that have them open; deleted partitions are renamed and
stay as long.

A segment is removed only when the checkpoint on disk points beyond it and contains the log's new
start offset, so that no replay restores a part of it.
"""

from __future__ import annotations

import logging
import os
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from functools import partial
from threading import Event
from typing import NamedTuple

from penstock.base.files import Files, sync_directory
from penstock.base.ids import TopicPartition
from penstock.storage.files.errors import (
    HOUSEKEEPING_FILES_MAX,
    HOUSEKEEPING_LOGS_MAX,
    HOUSEKEEPING_SEGMENTS_MAX,
    REPLAYED_LOGS_MAX,
    StorageError,
    StorageFailed,
)
from penstock.storage.files.journal import Journal
from penstock.storage.files.values import DELETED, SEGMENT_SUFFIXES, is_deleted_directory
from penstock.storage.files.worker import Worker
from penstock.storage.log.partition_log import PartitionLog
from penstock.storage.log.state import LogState, StoreParts, expired_count, kept_here, segment_facts
from penstock.storage.writing.checkpointing import (
    Checkpointer,
    kept_snapshots,
    remove_old_snapshots,
)

logger = logging.getLogger(__name__)


class Dropped(NamedTuple):
    """Segment files to remove from a log, and the offsets of the producer snapshots to keep."""

    directory: str
    paths: list[str]
    snapshots: set[int]
    delay_ms: int


class LogMaintenance:
    """Periodic maintenance of a store's logs; used only on the event loop's thread."""

    def __init__(
        self,
        parts: StoreParts,
        journal: Journal,
        checkpointer: Checkpointer,
        worker: Worker,
        logs: Mapping[TopicPartition, PartitionLog],
    ) -> None:
        self._root = parts.root
        self._settings = parts.settings
        self._clock = parts.clock
        self._segment_files = parts.segment_files
        self._files = parts.segment_files.files
        self._queue = parts.queue
        self._tails = parts.tails
        self._changes = parts.changes
        self._counters = parts.counters
        self._journal = journal
        self._checkpointer = checkpointer
        self._worker = worker
        self._flusher = Worker("penstock-flush")
        self._remover = Worker("penstock-removal")
        """Separate thread for file removal, which may take seconds, so that no checkpoint waits for
        it."""
        self._stop = Event()
        self._flush_scheduled = False
        self._flush_within_ms: int | None = None
        self.kept_producers: set[int] = set()
        self._logs = logs
        self._sweep: OrderedDict[TopicPartition, None] = OrderedDict()
        """Logs that wait for their sweep. Each is listed once, because a sweep counts the segments
        to drop before it drops any."""
        self._swept_ms = self._clock.now_ms()
        self._tiers_apart = False
        """Whether tiered topics are swept by `sweep`, at their own interval."""
        self._removals: deque[tuple[int, str]] = deque()
        self._drops: list[Dropped] = []
        self._dropping = False

    def attach(self, call_soon_threadsafe: Callable[..., object]) -> None:
        self._flusher.attach(call_soon_threadsafe)
        self._remover.attach(call_soon_threadsafe)

    def close(self) -> None:
        self._stop.set()
        self._flusher.close()
        self._remover.close()

    def run(self, now_ms: int) -> None:
        settings = self._settings
        self._remove_files(now_ms)
        self._rename_dropped(now_ms)
        if self._queue.failed is not None:
            return
        interval_ms = settings.log_retention_check_interval_ms
        if now_ms - self._swept_ms >= interval_ms and not self._sweep:
            self._swept_ms = now_ms
            self._sweep.update(
                (where, None)
                for where, log in self._logs.items()
                if not (self._tiers_apart and log.config.remote_storage_enable)
            )
        self._sweep_some(now_ms)
        waited = now_ms - self._checkpointer.last_ms
        due = waited >= settings.log_checkpoint_interval_ms and self._changes.logs
        loaded = self._load_some()
        if (due or self._queue.write_error is not None) and loaded:
            self._checkpointer.start()
        if not self._flusher.attached:
            self._flush_now()

    def sweep(self, tiered: Iterable[TopicPartition]) -> None:
        self._tiers_apart = True
        self._sweep.update(dict.fromkeys(tiered))

    def journal_grew(self, flush_within_ms: int | None) -> None:
        """Start a checkpoint or a sync if it is due.

        `flush_within_ms` is the lowest `flush.ms` of the logs in the group; None without one.
        """
        journal = self._journal
        limit = self._settings.log_checkpoint_bytes
        if (journal.crowded or journal.bytes_since_checkpoint >= limit) and (
            not self._checkpointer.running and self._load_some()
        ):
            self._checkpointer.start()
        within = self._flush_within_ms
        if flush_within_ms is not None:
            within = min(flush_within_ms, within or flush_within_ms)
            self._flush_within_ms = within
        if journal.sequence > journal.durable_sequence:
            interval_ms = self._settings.log_flush_interval_ms
            within = interval_ms if within is None else min(within, interval_ms)
        if within is not None and self._flusher.attached and not self._flush_scheduled:
            self._flush_scheduled = True
            self._flusher.submit(partial(self._stop.wait, within / 1000), self._flush_due)

    def _load_some(self) -> bool:
        """Load more of the logs that the next checkpoint waits for; return whether it may begin."""
        try:
            return self._checkpointer.load_some(REPLAYED_LOGS_MAX)
        except (OSError, StorageError) as error:
            logger.error("loading a log failed, retrying: %s", error)
            return False

    def remove_log(self, log: LogState, name: str, then: Callable[[], None]) -> None:
        """Rename the directory of a deleted log when the running checkpoint ends, then call `then`.

        No write of the log may be running.
        """
        while log.tail.first_offset is not None:
            self._tails.drop(log.tail.pop_oldest())
        self._queue.unwritten_bytes -= log.unwritten_bytes
        self._changes.logs.pop(log, None)
        for segment in log.segments:
            self._segment_files.forget(segment)
        target = os.path.join(self._root, name)
        delay_ms = log.config.file_delete_delay_ms

        def renamed(_: object, error: BaseException | None) -> None:
            if error is None:
                self._removals.append((self._clock.now_ms() + delay_ms, target))
            else:
                logger.error(
                    "cannot rename %s, so the next start restores the deleted partition: %s",
                    log.directory, error,
                )  # fmt: skip
            then()

        self._worker.submit(partial(self._files.rename, log.directory, target), renamed)

    def remove_later(self, paths: Collection[str], delay_ms: int) -> None:
        when = self._clock.now_ms() + delay_ms
        self._removals += [(when, path) for path in paths]

    def find_deleted(self) -> None:
        """Schedule the removal of directories whose partitions were deleted before this start."""
        for name in self._files.names_in(self._root):
            if is_deleted_directory(name):
                self._removals.append((0, os.path.join(self._root, name)))

    def _remove_files(self, now_ms: int) -> None:
        due: list[str] = []
        for _ in range(min(len(self._removals), HOUSEKEEPING_FILES_MAX)):
            when, path = self._removals.popleft()
            if when <= now_ms:
                due.append(path)
            else:
                self._removals.append((when, path))
        if due:
            self._remover.submit(partial(_remove, self._files, due), _ignore)

    def _sweep_some(self, now_ms: int) -> None:
        """Apply retention to some logs of the current sweep; later calls continue with the others.

        Bounded in logs and segments, so that the event loop is not blocked.
        """
        victims: list[tuple[LogState, int]] = []
        left = HOUSEKEEPING_SEGMENTS_MAX
        for _ in range(min(len(self._sweep), HOUSEKEEPING_LOGS_MAX)):
            if left <= 0:
                break
            hosted = self._logs.get(self._sweep.popitem(last=False)[0])
            if hosted is None:
                continue
            log = hosted.state
            if log.closed is not None or log.damage is not None or log.fence is not None:
                continue
            if log.swapping:
                self._sweep[log.topic_partition] = None
                continue
            loaded = log.loaded
            try:
                count = self._expire(log, now_ms, left)
            except (OSError, StorageError) as error:
                logger.error("maintenance of %s failed: %s", log.topic_partition, error)
                continue
            if count == left:
                self._sweep[log.topic_partition] = None
            left -= max(1, count) if loaded else len(log.segments)
            if count:
                victims.append((log, count))
        if victims:
            self._drop_segments(victims, now_ms)

    def _expire(self, log: LogState, now_ms: int, most: int) -> int:
        """Expire producers and roll an expired active segment; return how many segments to drop."""
        expiration_ms = self._settings.producer_id_expiration_ms
        log.producer_states.expire(now_ms, expiration_ms, self.kept_producers)
        committed = min(log.durable_offset, log.committed_offset)
        config, committed = kept_here(log.config, committed, log.tiered_offset)
        kept_for_ever = config.retention_ms < 0 and config.retention_bytes < 0
        if kept_for_ever and log.loaded and log.segments[0].base_offset >= log.log_start_offset:
            return 0
        log.load()
        count = expired_count(
            segment_facts(
                log.segments, log.log_end_offset, self._segment_files, config.index_interval_bytes
            ),
            size_bytes=log.size_bytes,
            config=config,
            now_ms=now_ms,
            log_start_offset=log.log_start_offset,
            committed_offset=committed,
            most=most,
        )
        if count == len(log.segments):
            log.roll()
        return min(count, len(log.segments) - 1)

    def _drop_segments(self, victims: list[tuple[LogState, int]], now_ms: int) -> None:
        """Move the logs' start offsets, save them, and then rename the files."""
        covered: list[tuple[LogState, int]] = []
        for log, wanted in victims:
            bases = [segment.base_offset for segment in log.segments[:wanted]]
            count = sum([base < log.recovery_point.segment_base for base in bases])
            if count < wanted:
                self._changes.of(log)  # otherwise an idle log keeps its last segment
                self._checkpointer.start()
                self._sweep[log.topic_partition] = None
            if count:
                covered.append((log, count))
                start = log.segments[count].base_offset
                if start > log.log_start_offset:
                    log.move_start(start)
        self._drops += [self._forget_segments(log, count) for log, count in covered]
        self._rename_dropped(now_ms)

    def _forget_segments(self, log: LogState, count: int) -> Dropped:
        """Detach the first `count` segments of a log; readers with open files can continue."""
        paths = [
            segment.sibling(suffix)
            for segment in log.segments[:count]
            for suffix in SEGMENT_SUFFIXES
        ]
        for segment in log.segments[:count]:
            self._segment_files.forget(segment)
        self._changes.forget(log, log.segments[:count])
        del log.segments[:count]
        self._counters.removed_segments += count
        return Dropped(log.directory, paths, kept_snapshots(log), log.config.file_delete_delay_ms)

    def _rename_dropped(self, now_ms: int) -> None:
        """Have the worker save the start offsets, and then rename the dropped files."""
        if not self._drops or self._dropping:
            return
        self._dropping = True
        drops, self._drops = self._drops, []
        self._checkpointer.save_points_and(
            partial(_rename, self._files, drops), partial(self._renamed, drops, now_ms)
        )

    def _renamed(self, drops: list[Dropped], now_ms: int, error: StorageError | None) -> None:
        self._dropping = False
        if error is not None:
            logger.error("removing segments failed, retrying: %s", error)
            self._drops = drops + self._drops
            return
        for drop in drops:
            self._removals += [(now_ms + drop.delay_ms, path + DELETED) for path in drop.paths]

    def _flush_due(self, _: object, error: BaseException | None) -> None:
        self._flush_scheduled = False
        self._flush_now()

    def _flush_now(self) -> None:
        """Sync the bytes that `interval` or `flush.ms` left unsynced."""
        asked = self._flush_within_ms is not None
        self._flush_within_ms = None
        if self._journal.sequence > self._journal.durable_sequence:
            self._worker.submit(self._journal.sync, self._flushed)
        elif asked and self._settings.log_flush_policy == "os":
            self._checkpointer.start()

    def _flushed(self, _: object, error: BaseException | None) -> None:
        if isinstance(error, StorageFailed):
            self._queue.fail(error)


def _rename(files: Files, drops: list[Dropped]) -> None:
    for drop in drops:
        for path in drop.paths:
            with suppress(FileNotFoundError):
                files.rename(path, path + DELETED)
        with suppress(FileNotFoundError):
            remove_old_snapshots(files, drop.directory, drop.snapshots)


def _remove(files: Files, paths: list[str]) -> None:
    """Remove segment files and deleted directories.

    The renames of directories are synced first: if a crash undid one of them, a partly removed
    directory would count as a damaged log.
    """
    directories = [path for path in paths if not path.endswith(DELETED)]
    for parent in {os.path.dirname(path) for path in directories}:
        sync_directory(files, parent)
    for path in paths:
        if path.endswith(DELETED):
            with suppress(FileNotFoundError):
                files.remove(path)
    for path in directories:
        files.remove_tree(path)


def _ignore(_: object, error: BaseException | None) -> None:
    if error is not None:
        logger.error("removing files failed: %s", error)
