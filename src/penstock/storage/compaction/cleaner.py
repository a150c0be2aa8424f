"""Log cleaner: selects logs to compact, runs the threads, and swaps their results in.

Every `log.cleaner.backoff.ms` it examines all compacted logs, a bounded number per call. Logs that
are dirty enough, or overdue, are compacted, the dirtiest first; each of the `log.cleaner.threads`
threads compacts one log at a time. A thread writes one segment. The event loop's thread then swaps
it with the segments that it replaces, while no checkpoint runs, and the checkpoints' worker syncs
the new names. Then the thread writes the next segment.

A log whose pass failed is reported in `uncleanable` and skipped until the next start, because the
pass would fail again. After a full disk, the pass is retried.

Source: Kafka's `LogCleaner` and `LogCleanerManager`.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Mapping
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, Final
from uuid import UUID

from penstock.base.errors import PenstockError
from penstock.base.ids import TopicPartition
from penstock.base.settings import LONG_MAX
from penstock.base.system import Clock
from penstock.objects.rate_limit import TokenBucket
from penstock.storage.compaction.offsets import CleanOffsets
from penstock.storage.files.errors import (
    HOUSEKEEPING_LOGS_MAX,
    CompactionStopped,
    CorruptLog,
    DiskFull,
    StorageFailed,
    disk_full,
)
from penstock.storage.files.segment import Segment
from penstock.storage.files.worker import Worker
from penstock.storage.log.compaction import Cleanable, Cleaned, PassPlan, Source
from penstock.storage.log.partition_log import PartitionLog
from penstock.storage.log.state import StoreParts
from penstock.storage.log.swapping import decide, discard, put_in_place, release
from penstock.storage.writing.checkpointing import Checkpointer

if TYPE_CHECKING:
    from penstock.storage.compaction.rewriting import CleaningPass

logger = logging.getLogger(__name__)

RemoveLater = Callable[[Collection[str], int], None]

_BURST_SECONDS: Final = 0.1
"""Burst of the rate limit, in seconds at the full rate."""


class Throttle:
    """Limit on the bytes per second that all compaction threads together read and write.

    The threads share it without a lock, so it is slightly inexact.
    """

    def __init__(self, clock: Clock, bytes_per_second: int) -> None:
        self._clock = clock
        self._bucket: TokenBucket | None = None
        if bytes_per_second < LONG_MAX:
            now = clock.monotonic()
            self._bucket = TokenBucket(bytes_per_second, now=now, burst_seconds=_BURST_SECONDS)

    def spend(self, wait: Callable[[float], bool], size_bytes: int) -> None:
        """Wait until `size_bytes` may be read or written.

        `wait` pauses for the given seconds. If the pass must stop, it returns True at once.

        Raises:
            CompactionStopped: the pass must stop.
        """
        bucket = self._bucket
        pause = 0.0 if bucket is None else bucket.take(self._clock.monotonic(), size_bytes)
        if wait(pause):
            raise CompactionStopped("the compaction pass was stopped")


class _Slot:
    """Compaction thread, and the log that it compacts."""

    def __init__(self, number: int) -> None:
        self.worker = Worker(f"penstock-cleaner-{number}")
        self.stop = Event()
        self.log: PartitionLog | None = None
        self.work: CleaningPass | None = None
        self.segments: dict[int, Segment] = {}
        """Segments that the pass still reads, by base offset."""
        self.end_offset = 0
        """End offset of the segments that the pass reads."""
        self.cleaned: Cleaned | None = None
        """Written segment that is not swapped in yet."""
        self.due = self.going = False
        self.waiting = False
        """Whether `cleaned` waits for the end of a checkpoint."""


class LogCleaner:
    """Compaction of a store's logs; used on the event loop's thread."""

    def __init__(
        self,
        parts: StoreParts,
        checkpointer: Checkpointer,
        worker: Worker,
        logs: Mapping[TopicPartition, PartitionLog],
        offsets: CleanOffsets,
        new_uuid: Callable[[], UUID],
        remove_later: RemoveLater,
    ) -> None:
        """Create a cleaner.

        `worker` is the checkpoints' worker. `remove_later` removes files after a delay, which is
        given in milliseconds.
        """
        settings = parts.settings
        self._parts = parts
        self._files = parts.segment_files.files
        self._checkpointer = checkpointer
        self._worker = worker
        self._logs = logs
        self._offsets = offsets
        self._new_uuid = new_uuid
        self._remove_later = remove_later
        self._throttle = Throttle(parts.clock, settings.log_cleaner_io_max_bytes_per_second)
        count = settings.log_cleaner_threads if settings.log_cleaner_enable else 0
        self._slots = [_Slot(number) for number in range(count)]
        self._closed = False
        self._sweep: deque[TopicPartition] = deque()
        self._ratios: dict[TopicPartition, float] = {}
        self.dirty_ratios: dict[TopicPartition, float] = {}
        """Share of uncompacted bytes (0 to 1) by compacted log, as of the last complete search."""
        self._candidates: list[tuple[float, TopicPartition]] = []
        self._looked_ms = parts.clock.now_ms()
        self._ended_ms = self._looked_ms
        self.uncleanable: dict[TopicPartition, str] = {}
        """Reasons of failed passes, by log."""

    @property
    def idle_ms(self) -> int:
        return max(0, self._parts.clock.now_ms() - self._ended_ms)

    def attach(self, call_soon_threadsafe: Callable[..., object]) -> None:
        for slot in self._slots:
            slot.worker.attach(call_soon_threadsafe)

    def close(self) -> None:
        """Stop running passes; the store's next start completes a swap of segments that has its
        `.swap` file."""
        self._closed = True
        for slot in self._slots:
            slot.stop.set()
            slot.worker.close()

    def forget(self, log: PartitionLog, then: Callable[[], None]) -> None:
        """Forget a deleted log; call `then` once no thread uses its files."""
        self.uncleanable.pop(log.topic_partition, None)
        data = self._offsets.encoded_without(log.topic_partition)
        if data is not None:
            self._worker.submit(partial(self._offsets.save, data), _logged)
        for slot in self._slots:
            if slot.log is log:
                slot.stop.set()
                slot.worker.submit(_nothing, lambda *_: then())
                return
        then()

    def lower_clean_offset(self, tp: TopicPartition, offset: int) -> None:
        """Lower a log's clean offset before a truncation, and stop a pass that reads beyond it.

        The new offset is on disk at return.

        Raises:
            StorageError: the offset cannot be saved.
        """
        for slot in self._slots:
            if slot.log is not None and slot.log.topic_partition == tp and slot.end_offset > offset:
                slot.stop.set()
        self._offsets.lower(tp, offset)

    def wait_stopped(self) -> None:
        for slot in self._slots:
            if slot.stop.is_set():
                slot.worker.drain()

    def run(self, now_ms: int) -> None:
        """Perform a bounded part of the due work: swaps, the search for dirty logs, new passes."""
        if self._parts.queue.failed is not None or self._closed:
            return
        for slot in self._slots:
            if slot.cleaned is not None:
                self._swap(slot)
        idle = [slot for slot in self._slots if slot.log is None]
        if not idle:
            return
        backoff_ms = self._parts.settings.log_cleaner_backoff_ms
        if not self._sweep and not self._candidates and now_ms - self._looked_ms >= backoff_ms:
            self._looked_ms = now_ms
            self._ratios = {}
            self._sweep.extend(self._logs)
        if self._sweep:
            self._look(now_ms)
        if not self._sweep:
            for slot in idle:
                self._begin_next(slot, now_ms)

    # -- choosing ----------------------------------------------------------------------------

    def _look(self, now_ms: int) -> None:
        for _ in range(min(len(self._sweep), HOUSEKEEPING_LOGS_MAX)):
            log = self._logs.get(self._sweep.popleft())
            if log is None or not self._is_wanted(log):
                continue
            found = self._cleanable(log, now_ms)
            if found is None:
                continue
            self._ratios[log.topic_partition] = found.dirty_ratio
            if _is_due(found, log):
                self._candidates.append((found.dirty_ratio, log.topic_partition))
        if not self._sweep:
            self.dirty_ratios = self._ratios
            self._candidates.sort(key=_ratio)

    def _is_wanted(self, log: PartitionLog) -> bool:
        taken = any(slot.log is log for slot in self._slots)
        failed = log.topic_partition in self.uncleanable
        return not taken and not failed and log.compaction.is_compacted

    def _cleanable(self, log: PartitionLog, now_ms: int) -> Cleanable | None:
        try:
            log.load()
            max_lag_ms = log.config.max_compaction_lag_ms
            if max_lag_ms < LONG_MAX:
                log.compaction.roll_if_older(max_lag_ms, now_ms)
            return log.compaction.cleanable(self._clean_offset(log), now_ms)
        except (OSError, PenstockError) as error:
            self._failed(log, error)
            return None

    def _clean_offset(self, log: PartitionLog) -> int:
        """Return a log's clean offset; 0, so that the whole log is compacted again, if the recorded
        offset is above the log's end."""
        offset = self._offsets.of(log.topic_partition)
        return offset if offset <= log.log_end_offset else 0

    def _begin_next(self, slot: _Slot, now_ms: int) -> None:
        while self._candidates and slot.log is None:
            _, where = self._candidates.pop()
            log = self._logs.get(where)
            if log is None or not self._is_wanted(log) or log.state.swapping:
                continue
            found = self._cleanable(log, now_ms)
            if found is None or not _is_due(found, log):
                continue
            try:
                plan = _plan(log, found, now_ms)
            except (OSError, PenstockError) as error:
                self._failed(log, error)
                continue
            slot.segments = {item.segment.base_offset: item.segment for item in found.segments}
            slot.end_offset = plan.sources[-1].next_offset
            self._begin(slot, log, plan)

    # -- one pass ----------------------------------------------------------------------------

    def _begin(self, slot: _Slot, log: PartitionLog, plan: PassPlan) -> None:
        settings = self._parts.settings
        threads = len(self._slots)
        secret = self._new_uuid().int
        slot.stop.clear()
        slot.log = log
        spend = partial(self._throttle.spend, slot.stop.wait)

        def first_step() -> Cleaned | None:
            # Imported on first use, because kernels take 0.3 s to load.
            from penstock.storage.compaction.rewriting import CleaningPass

            slot.work = CleaningPass(
                self._files,
                plan,
                map_bytes=settings.log_cleaner_dedupe_buffer_size // threads,
                chunk_bytes=settings.log_cleaner_io_buffer_size // threads,
                secret=(secret >> 64, secret & (1 << 64) - 1),
                spend=spend,
            )
            return slot.work.step()

        slot.worker.submit(first_step, partial(self._stepped, slot))

    def _continue(self, slot: _Slot) -> None:
        """Have the slot's thread compact the next segment of its log.

        Without threads, `submit` runs the step and its callback `_stepped` before it returns, and
        the callback calls this method again. Such a call only sets `due`, and the loop in the
        first call starts the step; otherwise each step would deepen the recursion.
        """
        slot.due = True
        if slot.going:
            return
        slot.going = True
        while slot.due and slot.work is not None:
            slot.due = False
            slot.worker.submit(slot.work.step, partial(self._stepped, slot))
        slot.going = False

    def _stepped(self, slot: _Slot, cleaned: Cleaned | None, error: BaseException | None) -> None:
        log, work = slot.log, slot.work
        if log is None:
            return
        if error is not None or work is None:
            segments = list(slot.segments.values())
            changed = log.compaction.place_of(segments) < 0  # truncated or removed
            if not (changed or isinstance(error, CompactionStopped) or log.closed is not None):
                self._failed(log, error)
            self._abandon(slot)
        elif cleaned is not None:
            slot.cleaned = cleaned
            self._swap(slot)
        elif slot.stop.is_set():
            self._abandon(slot)
        else:
            self._finish(slot, log, work)

    def _swap(self, slot: _Slot) -> None:
        log, cleaned = slot.log, slot.cleaned
        if log is None or cleaned is None or log.state.swapping:
            return
        if slot.stop.is_set() or log.closed is not None:
            self._abandon(slot)
        elif self._checkpointer.running:
            if not slot.waiting:
                slot.waiting = True
                self._checkpointer.save_points_and(_nothing, partial(self._swap_again, slot))
        elif log.state.may_swap:
            gone = [slot.segments[base] for base in cleaned.bases]
            if not log.compaction.begin_swap(gone):
                self._abandon(slot)
                return
            work = partial(decide, self._files, log.state.directory, cleaned.bases[0])
            then = partial(self._decided, slot, log, gone)
            if log.state.recovery_point.has_holes:
                self._worker.submit(work, lambda _, error: then(error))
            else:  # otherwise removed offsets would count as lost after a crash
                log.compaction.note_holes()
                self._checkpointer.save_points_and(work, then)

    def _swap_again(self, slot: _Slot, _: BaseException | None) -> None:
        """Swap the segment that waited for the end of a checkpoint, if it still waits."""
        slot.waiting = False
        self._swap(slot)

    def _decided(
        self, slot: _Slot, log: PartitionLog, gone: list[Segment], error: BaseException | None
    ) -> None:
        cleaned, base_offset = slot.cleaned, gone[0].base_offset
        if log.closed is not None:
            self._abandon(slot)
            return
        if error is not None or cleaned is None:
            log.state.swapping = False
            self._failed(log, error)
            self._abandon(slot)
            return
        slot.cleaned = None
        try:
            removed = put_in_place(self._files, log.state.directory, cleaned.bases)
        except OSError as failure:
            # The next start completes it; until then the set of files is unknown.
            path = log.compaction.path_of(base_offset)
            reason = f"the swap of a compacted segment failed: {failure}"
            log.state.damage = CorruptLog(path, 0, reason)
            self._failed(log, failure)
            self._abandon(slot)
            return
        log.compaction.replace_segments(gone, cleaned.size_bytes)
        for base in cleaned.bases:
            del slot.segments[base]
        self._remove_later(removed, log.config.file_delete_delay_ms)
        work = partial(release, self._files, log.state.directory, base_offset)
        self._worker.submit(work, partial(self._released, slot, log))

    def _released(
        self, slot: _Slot, log: PartitionLog, _: object, error: BaseException | None
    ) -> None:
        if error is not None or log.closed is not None:
            if log.closed is None:
                self._failed(log, error)
            self._abandon(slot)
            return
        log.state.swapping = False
        self._continue(slot)

    def _finish(self, slot: _Slot, log: PartitionLog, work: CleaningPass) -> None:
        self._count(work)
        self._ended_ms = self._parts.clock.now_ms()
        self._parts.counters.compactions += 1
        slot.log = slot.work = None
        data = self._offsets.encoded_with(log.topic_partition, work.end_offset)
        self._worker.submit(partial(self._offsets.save, data), _logged)
        self._looked_ms = 0  # more may be due at once
        figures = work.figures
        logger.info(
            "compacted %s up to offset %d: %d of %d records kept, %d bytes read, %d bytes written",
            log.topic_partition, work.end_offset, figures.kept_records, figures.read_records,
            figures.read_bytes, figures.written_bytes,
        )  # fmt: skip

    def _count(self, work: CleaningPass) -> None:
        counters, figures = self._parts.counters, work.figures
        counters.compaction_read_bytes += figures.read_bytes
        counters.compaction_written_bytes += figures.written_bytes
        counters.compaction_read_records += figures.read_records
        counters.compaction_kept_records += figures.kept_records

    def _abandon(self, slot: _Slot) -> None:
        log, cleaned = slot.log, slot.cleaned
        slot.log = slot.work = slot.cleaned = None
        slot.due = False
        if log is not None and cleaned is not None and log.closed is None:
            discard(self._files, log.state.directory, cleaned.bases[0])

    def _failed(self, log: PartitionLog, error: BaseException | None) -> None:
        where = log.topic_partition
        if isinstance(error, StorageFailed):
            self._parts.queue.fail(error)
        full = isinstance(error, OSError) and disk_full(error, log.state.directory) is not None
        if full or isinstance(error, DiskFull):
            self._parts.counters.disk_full += 1
            logger.error("compaction of %s failed, retrying: %s", where, error)
            return
        self.uncleanable[where] = f"{type(error).__name__}: {error}"
        logger.error(
            "compaction of %s failed and is not retried until the next start: %s",
            where, error, exc_info=error,
        )  # fmt: skip


def _ratio(candidate: tuple[float, TopicPartition]) -> float:
    return candidate[0]


def _is_due(found: Cleanable, log: PartitionLog) -> bool:
    if not found.dirty_bytes:
        return False
    return found.overdue or found.dirty_ratio > log.config.min_cleanable_dirty_ratio


def _plan(log: PartitionLog, found: Cleanable, now_ms: int) -> PassPlan:
    config = log.config
    sources = [
        Source(segment.path, segment.base_offset, next_offset, segment.end_position)
        for segment, next_offset, _ in found.segments
    ]
    return PassPlan(
        log.state.directory,
        sources,
        found.first_dirty,
        log.transactions.aborted(sources[0].base_offset, sources[-1].next_offset),
        log.compaction.live_producers(),
        now_ms,
        config.delete_retention_ms,
        config.segment_bytes,
        config.segment_index_bytes,
        config.index_interval_bytes,
    )


def _nothing() -> None:
    """Do nothing: an empty job, whose callback runs once the thread has ended its running step."""


def _logged(_: object, error: BaseException | None) -> None:
    if error is not None:
        logger.error("cannot save the clean offsets of compacted logs: %s", error)
