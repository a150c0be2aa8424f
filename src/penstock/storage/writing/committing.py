"""Group commit: appends of one turn of the event loop share a journal write and a sync.

While the writer thread commits one group, new appends gather in the next group, so under load more
requests share each sync. A small group is written and synced on the event loop's thread if it has
one request, or if that took less than `INLINE_SECONDS_MAX` last time, because two thread switches
take half a millisecond under load. After a slower commit, the thread commits the next group, after
a second slow one the next three, and so on up to `THREADED_GROUPS_MAX`.

A large append is written to its segment and synced there first; the journal then stores only its
position. The exception is a log whose truncation a replay might still repeat: its large appends go
into the journal like small ones.

After the sync, in this order: durable offsets of logs advance and their owners are notified,
callbacks run (they send responses), `on_advance` wakes waiting consumers, segments are written.

| policy     | written to | callbacks after             | synced by                           |
|------------|------------|-----------------------------|-------------------------------------|
| `group`    | journal    | the sync                    | each group                          |
| `interval` | journal    | the write                   | `log.flush.interval.ms`, flush.ms   |
| `os`       | segments   | the write                   | checkpoints, flush.messages/.ms     |

With `interval` and `os`, a group that brings a partition to `flush.messages` is synced as with
`group`. With `os`, the append of a single batch is written without a group if possible
(`write_through`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

from msgspec import Struct

from penstock.base.files import sync_directory, write_all
from penstock.base.settings import LONG_MAX
from penstock.records import BatchHeader
from penstock.records.appends import AppendResult, placed
from penstock.storage.files.appended import Appended, Control, Queued, Wide, separate
from penstock.storage.files.errors import (
    COPIED_APPEND_BYTES_MAX,
    INLINE_COMMIT_BYTES_MAX,
    SEGMENT_SYNCS_MAX,
    StorageError,
    StorageFailed,
)
from penstock.storage.files.journal import Journal, row_count
from penstock.storage.files.settings import LogConfig
from penstock.storage.files.values import Lease, LogOwner
from penstock.storage.files.worker import SideBySide, Worker
from penstock.storage.log.state import LogState, StoreParts
from penstock.storage.writing.segment_writing import (
    Direct,
    SegmentWriter,
    storage_error,
    write_direct,
)

logger = logging.getLogger(__name__)

OnDurable = Callable[[StorageError | None], None]

INLINE_SECONDS_MAX: Final = 0.0005
"""Longest commit on the event loop's thread after which the next one may run there, too."""
THREADED_GROUPS_MAX: Final = 63
"""Most groups that the thread commits before one is tried again on the event loop's thread."""


class Group(Struct, eq=False):
    """Appends that become durable together, and the callbacks that wait for them."""

    items: list[Queued[LogState]]
    callbacks: list[OnDurable]
    size_bytes: int
    requests: int
    """Number of requests that the callbacks answer."""
    controls: bool
    """Whether the items include controls."""
    direct: tuple[Direct, ...] = ()
    """Large appends that are written to segments first."""


class Committer:
    """Group commit of a store: the event loop's thread forms groups, a worker writes them."""

    def __init__(
        self, parts: StoreParts, journal: Journal, segment_writer: SegmentWriter, worker: Worker
    ) -> None:
        self._root = parts.root
        self._files = parts.segment_files.files
        self._descriptors = parts.segment_files.descriptors
        self._queue = parts.queue
        self._counters = parts.counters
        self._journal = journal
        self._segment_writer = segment_writer
        self._worker = worker
        self._syncs = SideBySide("penstock-syncs", SEGMENT_SYNCS_MAX)
        self._policy = parts.settings.log_flush_policy
        self._monotonic = parts.clock.monotonic
        self._callbacks: list[OnDurable] = []
        self._requests = 0
        self._threaded = self._backoff = 0
        """Number of next groups with several requests that the thread commits, and the number that
        it committed after the last commit on the event loop's thread."""
        self._in_flight: Group | None = None
        self._waiting_for_room = False
        self._committing = False
        self._flush_within_ms: int | None = None
        self.root_synced = True
        """Whether the store's directory is synced. Code that creates or renames a name in it
        clears this flag, and the next group syncs the directory."""
        self.on_advance: Callable[[Collection[LogOwner]], None] = _nobody
        self.on_written: Callable[[int | None], None] = _nobody
        self.make_room: Callable[[], None] = _nothing
        self.before_failure: Callable[[], None] = _nothing

    def flush(self, on_durable: OnDurable, requests: int) -> None:
        self._callbacks.append(on_durable)
        self._requests += requests

    def commit(self) -> None:
        if self._in_flight is not None or self._committing:
            return
        self._committing = True
        try:
            while (self._queue.pending or self._callbacks) and self._in_flight is None:
                self._start(self._take())
        finally:
            self._committing = False

    def room_was_made(self, error: StorageError | None) -> None:
        if not self._waiting_for_room:
            return
        self._waiting_for_room = False
        group, self._in_flight = self._in_flight, None
        if group is None:
            return
        if error is not None:
            self._finish(group, error)
        else:
            # Logs may have been deleted while the group waited; their bytes are gone.
            items = [item for item in separate(group.items) if item.log.closed is None]
            group.items = [*items]
            with self._alone():
                self._start(group)
        self.commit()

    def write_through(
        self,
        log: LogState,
        batches: memoryview,
        headers: list[BatchHeader],
        config: LogConfig,
        now_ms: int,
        lease: Lease | None,
        stamped: bool,
    ) -> AppendResult | None:
        """Append as `LogState.accept`, and write the batches to their segment at once.

        Return None, without an effect, if they must be queued for a group: the write would not make
        them durable, other appends wait, or the write fails, which the group reports.
        """
        size_bytes, queue = len(batches), self._queue
        if (
            self._policy != "os"
            or queue.pending
            or not log.may_write_through(headers, size_bytes, config, stamped)
        ):
            return None
        segment, base_offset, owner = log.segments[-1], log.log_end_offset, log.owner
        position = segment.end_position
        next_offset, undos = log.stamp_batches(batches, headers, now_ms, stamped)
        copied = size_bytes <= COPIED_APPEND_BYTES_MAX
        data = bytes(batches) if copied else batches
        try:
            handle = self._descriptors.get(segment.path, create=True)
            write_all(self._files, handle.descriptor, position, (data,))
        except OSError:
            for undo in reversed(undos or ()):
                log.producer_states.undo(undo)
            return None
        item = Appended(
            log, segment, position, base_offset, next_offset, size_bytes, [], data, stamped=stamped
        )
        log.wrote_through(item, headers, config, kept=copied or lease is None)
        queue.write_error = None
        self._counters.groups += 1
        if owner.became_durable(next_offset):
            self.on_advance((owner,))
        return placed((base_offset, -1, log.log_start_offset, False, None, None))

    def close(self) -> None:
        self._syncs.close()

    def _take(self) -> Group:
        items, size_bytes, controls = self._queue.take()
        callbacks, self._callbacks = self._callbacks, []
        requests, self._requests = self._requests, 0
        return Group(items, callbacks, size_bytes, requests, controls)

    def _start(self, group: Group) -> None:
        if self._queue.failed is not None:
            self._finish(group, self._queue.failed)
        elif not group.items:
            self._finish(group, None)
        elif self._policy == "os":
            self._write_segments(group)
        else:
            self._write_journal(group)

    def _write_journal(self, group: Group) -> None:
        sync = self._policy == "group" or self._flush_is_due(separate(group.items))
        large = self._segment_writer.large_in(group.items, group.size_bytes) if sync else []
        in_journal = group.size_bytes
        if large:
            in_journal -= sum([item.size_bytes for item in large])
        if not self._journal.has_room(in_journal + 512 * row_count(group.items)):
            self._in_flight = group
            self._waiting_for_room = True
            self.make_room()
            return
        if large:
            try:
                group.direct = self._segment_writer.open_for(large)
            except OSError as error:
                self._finish(group, storage_error(self._root, error))
                return
        work = partial(self._perform, group, sync)
        threaded = group.requests > 1 and self._threaded > 0
        if (
            not threaded and group.size_bytes <= INLINE_COMMIT_BYTES_MAX
        ) or not self._worker.attached:
            self._commit_inline(group, work)
            return
        self._threaded -= threaded
        self._in_flight = group
        self._worker.submit(work, self._done)

    def _commit_inline(self, group: Group, work: Callable[[], None]) -> None:
        self._counters.inline_groups += 1
        several = group.requests > 1
        begun = self._monotonic() if several else 0.0
        try:
            work()
        except StorageError as error:
            self._finish(group, error)
            return
        if several:
            fast = self._monotonic() - begun <= INLINE_SECONDS_MAX
            self._backoff = 0 if fast else min(2 * self._backoff + 1, THREADED_GROUPS_MAX)
            self._threaded = self._backoff
        self._finish(group, None)

    def _perform(self, group: Group, sync: bool) -> None:
        if not self.root_synced:
            try:
                sync_directory(self._files, self._root)
            except OSError as error:
                raise StorageFailed(f"syncing {self._root} failed: {error}") from error
            self.root_synced = True
        if group.direct:
            syncs = self._syncs if self._worker.attached else None
            write_direct(self._files, self._root, group.direct, syncs)
        self._journal.write(group.items, group.size_bytes, sync=sync)

    def _flush_is_due(self, appends: list[Appended[LogState]]) -> bool:
        """Return whether `flush.messages` or `flush.ms` demands a sync of these appends.

        Counts the unsynced records of each log, and records the lowest `flush.ms` above 0.
        """
        due = False
        for item in appends:
            log = item.log
            config = log.appended_config or log.config
            if config.flush_messages != LONG_MAX:
                log.unflushed_records += item.next_offset - item.base_offset
                if log.unflushed_records >= config.flush_messages:
                    log.unflushed_records = 0
                    due = True
            if config.flush_ms == 0:
                due = True
            elif config.flush_ms != LONG_MAX:
                within = self._flush_within_ms
                self._flush_within_ms = min(config.flush_ms, within or config.flush_ms)
        return due

    def _done(self, _: object, error: BaseException | None) -> None:
        group, self._in_flight = self._in_flight, None
        if group is not None:
            if error is not None and not isinstance(error, StorageError):
                error = StorageFailed(f"the journal's writer failed: {error!r}")
            with self._alone():
                self._finish(group, error)
        # At the end of the turn, so that the requests that have arrived meanwhile join the group.
        self._worker.call_soon(self.commit)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Prevent callbacks from starting another group before this group is finished."""
        committing, self._committing = self._committing, True
        try:
            yield
        finally:
            self._committing = committing

    def _write_segments(self, group: Group) -> None:
        items = separate(group.items)
        sync = self._flush_is_due(items)
        logs = list(dict.fromkeys(item.log for item in items))
        try:
            written = self._segment_writer.write_group(logs, sync=sync)
        except StorageFailed as failure:
            self._finish(group, failure)
            return
        except OSError as error:
            self._finish(group, storage_error(self._root, error))
            return
        # Mark as written before the tails are read again: a second write of an append would use a
        # receive buffer that was already returned and refilled.
        for item in items:
            item.log.unwritten_bytes += item.size_bytes
            self._queue.unwritten_bytes += item.size_bytes
        self._segment_writer.finish(written)
        self._finish(group, None)

    def _finish(self, group: Group, error: StorageError | None) -> None:
        appends = group.items
        if group.direct:
            self._segment_writer.wrote_direct(group.direct, error)
        if group.controls and error is None:
            appends, error = self._perform_controls(appends)
        if error is not None:
            self._fail(group, error)
            return
        sequence = self._journal.sequence
        advanced: dict[LogOwner, None] = {}
        for item in appends:
            ends: Iterable[tuple[LogState, int]]
            if isinstance(item, Wide):
                ends = zip(item.logs, item.next_offsets, strict=True)
            else:
                ends = ((item.log, item.next_offset),)
            for log, end in ends:
                log.durable_offset = end
                owner = log.owner
                if owner.became_durable(end):
                    advanced[owner] = None
        self._counters.groups += 1
        _notify(group.callbacks, None)
        if group.items:
            self.on_advance(advanced)
            if self._policy != "os":
                self._segment_writer.became_durable(appends)
            self._journal.applied_sequence = sequence
            within, self._flush_within_ms = self._flush_within_ms, None
            self.on_written(within)

    def _perform_controls(
        self, items: list[Queued[LogState]]
    ) -> tuple[list[Queued[LogState]], StorageError | None]:
        """Perform the controls of a group that is now in the journal, such as truncations of files.

        Returns the group's appends, which are written to segments afterwards, and the error of a
        failed control or None.
        """
        appends: list[Queued[LogState]] = []
        for item in items:
            if not isinstance(item, Control):
                appends.append(item)
            elif item.log.closed is None:
                item.cuts_behind(self._journal.sequence)
                try:
                    item.perform()
                except OSError as error:
                    where = item.log.topic_partition
                    failure = StorageFailed(
                        f"cannot change the files of {where} as its journal entry states: {error}"
                    )
                    return appends, failure
        return appends, None

    def _fail(self, group: Group, error: StorageError) -> None:
        """Undo a failed group and every append accepted after it."""
        self.before_failure()
        later = self._take()
        if isinstance(error, StorageFailed):
            self._queue.fail(error)
            logger.critical("the log rejects all appends from now on: %s", error)
        else:
            self._counters.disk_full += 1
            logger.error("a group of appends was rejected: %s", error)
            for item in reversed(separate(group.items + later.items)):
                if item.log.closed is not None:
                    continue
                if isinstance(item, Control):
                    item.take_back()
                    item.cuts_behind(self._journal.sequence)
                else:
                    item.log.undo(item)
        _notify(group.callbacks + later.callbacks, error)


def _notify(callbacks: list[OnDurable], error: StorageError | None) -> None:
    for callback in callbacks:
        try:
            callback(error)
        except Exception:
            logger.exception("a callback of flush failed")


def _nobody(what: object) -> None:
    return


def _nothing() -> None:
    return
