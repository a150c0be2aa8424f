"""Micro-batch reader of a stream: start position, end of each micro-batch, and tasks.

At every trigger Spark asks for the end of the next batch. If it equals the start, no batch runs.
Spark stores a batch's range in the checkpoint before the batch runs, so a repeated batch reads the
same offsets. The reader itself keeps only the target of `Trigger.AvailableNow` and the time of the
last batch (for `maxTriggerDelay`).

A query that needs a batch at a certain time, for example to retry records, writes the time to a
`wakeFile`. At that time the position changes, and a batch runs even without new records.

The driver's listener (`penstock.spark.reads.listener`) commits the progress to a consumer group,
because Spark calls the reader's `commit` one batch late.

A limit per trigger is divided among the partitions in proportion to their backlogs, so that their
event times stay close together. As in Spark's Kafka source, the record limit counts offsets. That
is the number of records unless the topic is compacted.

Source: the rate limit of Spark's `KafkaMicroBatchStream`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from penstock.base.ids import TopicPartition
from penstock.base.settings import LONG_MAX
from penstock.base.system import SYSTEM_CLOCK, Clock
from penstock.records.extents import EARLIEST, LATEST
from penstock.spark.errors import DataLoss
from penstock.spark.options import Bound, SourceOptions
from penstock.spark.reads.broker_log import BrokerLog
from penstock.spark.reads.chunks import RECORD_BYTES_GUESS, Task
from penstock.spark.reads.extents import extents_of
from penstock.spark.reads.log import Log, caught_up, check_lineage, latest, resolve, written
from penstock.spark.reads.planning import Range, plan
from penstock.spark.reads.positions import Position, Positions, from_json
from penstock.spark.schema import Opening

# Batch reader: one offset range per partition, with the end fixed at `load()`.
#
# Spark may plan a DataFrame several times. Because the end offsets are fixed, every plan reads the
# same records. The start `earliest` is resolved only during planning, because retention may delete
# records in between. Filters are left to Spark: if the source took one, Spark would apply it to
# every use of the DataFrame (decision 0057).


FROM_START: Final = Bound(option="startingOffsets", kind="offset", everywhere=EARLIEST)
TO_END: Final = Bound(option="endingOffsets", kind="offset", everywhere=LATEST)


class PenstockReader(DataSourceReader):
    """Batch reader of the offsets [start, end) of the selected partitions."""

    def __init__(
        self, options: SourceOptions, end: Positions, opening: Opening | None = None
    ) -> None:
        self._options = options
        self._opening = opening
        self._end = end

    def partitions(self) -> list[Task]:
        """Return the tasks of a plan; Spark calls this on the driver, once per plan."""
        extents = extents_of(self._options)
        options = self._options
        log = BrokerLog(options.bootstrap, options.isolation_level, options.security)
        try:
            tasks = plan(self._ranges(log), extents, parallelism=self._options.parallelism)
        finally:
            log.close()
            if extents is not None:
                extents.close()
        return tasks or [Task(())]

    def read(self, partition: Task) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        """Return a task's records; Spark calls this on an executor."""
        from penstock.spark.reads.reading import reader_of  # planners do without what opens records

        return reader_of(self._options, self._opening).read(partition)

    def _ranges(self, log: Log) -> dict[TopicPartition, Range]:
        options = self._options
        start = caught_up(log, lambda: resolve(log, options, options.start or FROM_START))
        check_lineage(start, self._end, require_progress=False)
        caught_up(log, lambda: check_lineage(self._end, latest(log, options)))
        first = resolve(log, options, FROM_START)
        ranges: dict[TopicPartition, Range] = {}
        for at, position in self._end.partitions.items():
            low = start.offset(at)
            if low is None:
                continue
            floor = first.partitions[at].offset
            if low < floor and options.fail_on_data_loss:
                raise DataLoss(at.topic, at.partition, low, floor)
            ranges[at] = (max(low, floor), position.offset)
        return ranges


# Wake file: requests a batch of a stream at a given time, even without new records.
#
# The query's driver writes the file, and the source's planner process on the same machine reads it.
# The file is always replaced as a whole. It is not synced to disk, because a lost file only delays
# a batch.


TEXT_CHARS_MAX: Final = 32


def write(path: Path, at_ms: int | None, *, by: str) -> None:
    """Request a batch at a time in milliseconds since 1970; None withdraws the request.

    Args:
        path: the wake file.
        at_ms: requested time.
        by: name of the caller, which is part of the temporary file's name. Concurrent callers need
            different names.
    """
    draft = path.with_name(f"{path.name}.{by}.draft")
    draft.write_text("" if at_ms is None else str(at_ms), encoding="ascii")
    os.replace(draft, path)


def read(path: str) -> int | None:
    """Return the requested time in milliseconds since 1970; None if there is no request."""
    try:
        with open(path, encoding="ascii") as file:
            text = file.read(TEXT_CHARS_MAX).strip()
    except (OSError, ValueError):
        return None
    return int(text) if text.isdecimal() else None


MILLISECONDS: Final = 1_000

Offsets = Mapping[TopicPartition, int]


class PenstockStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reader of a stream, in the planner process of one query run."""

    def __init__(
        self,
        options: SourceOptions,
        opening: Opening | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._options = options
        self._opening = opening
        self._clock = clock
        self._log = BrokerLog(options.bootstrap, options.isolation_level, options.security)
        self._extents = extents_of(options)
        self._frozen: Positions | None = None
        self._last_batch_at = clock.monotonic()

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the start of a query without a checkpoint; by default the end of the log."""
        start = self._options.start or TO_END
        return caught_up(self._log, lambda: resolve(self._log, self._options, start)).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return whether a micro-batch is limited; `latestOffset` applies the limits themselves."""
        return ReadMaxRows(LONG_MAX) if self._options.limited else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the log's present end as the offset at which an `availableNow` query ends."""
        self._frozen = latest(self._log, self._options)

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        return (self._frozen or latest(self._log, self._options)).to_json()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end of the next batch; `start` itself if there is nothing to read.

        Raises:
            TopicRecreated, OffsetWentBack: the log is not the one that `start` was taken from.
        """
        begin = from_json(start)
        if self._frozen is None:
            now = caught_up(self._log, lambda: self._ends(begin), self._clock)
        else:
            now = self._frozen
            check_lineage(begin, now, require_progress=False)
        froms, tos = self._spans(begin, now)
        if not isinstance(limit, ReadAllAvailable) and self._options.limited:
            tos = self._limited(froms, tos)
        end = replace(_moved(begin, now, tos), wake_ms=self._woken(begin.wake_ms))
        if end.same_place(begin):
            return start
        self._last_batch_at = self._clock.monotonic()
        return end.to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[Task]:
        """Return the tasks of the batch from `start` to `end`.

        Raises:
            TopicRecreated: the topic in the checkpoint was deleted and created again.
            DataLoss: records of the batch were deleted (see the option `failOnDataLoss`).
        """
        begin, stop = from_json(start), from_json(end)
        first = resolve(self._log, self._options, FROM_START)
        check_lineage(stop, first, require_progress=False)
        ranges: dict[TopicPartition, Range] = {}
        for at, position in stop.partitions.items():
            floor = first.offset(at)
            low = begin.offset(at)
            if floor is None:
                continue
            if low is not None and low < floor and self._options.fail_on_data_loss:
                raise DataLoss(at.topic, at.partition, low, floor)
            ranges[at] = (floor if low is None else max(low, floor), position.offset)
        return plan(ranges, self._extents, parallelism=self._options.parallelism)

    def read(self, partition: Task) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        """Return a task's records; Spark calls this on an executor."""
        from penstock.spark.reads.reading import reader_of  # planners do not need its imports

        return reader_of(self._options, self._opening).read(partition)

    def stop(self) -> None:
        self._log.close()
        if self._extents is not None:
            self._extents.close()

    def __getstate__(self) -> dict[str, Any]:
        # Spark ships the reader to executors for `read`; connections stay on the driver.
        return {"options": self._options, "opening": self._opening}

    def __setstate__(self, state: dict[str, Any]) -> None:
        PenstockStreamReader.__init__(self, state["options"], state["opening"])

    def _woken(self, before_ms: int) -> int:
        """Return the time in the `wakeFile` if it has passed, else `before_ms` from the position.

        A changed time changes the position, so Spark runs a batch. The time may be below
        `before_ms` if the clock was set back.
        """
        if self._options.wake_file is None:
            return before_ms
        asked_ms = read(self._options.wake_file)
        due = asked_ms is not None and before_ms != asked_ms <= self._clock.now_ms()
        return asked_ms if due and asked_ms is not None else before_ms

    def _ends(self, begin: Positions) -> Positions:
        now = latest(self._log, self._options)
        check_lineage(begin, written(self._log, begin, now))
        return now

    def _spans(
        self, begin: Positions, now: Positions
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        froms = {at: position.offset for at, position in begin.partitions.items()}
        added = [at for at in now.partitions if at not in froms]
        if added:  # new partitions and topics are read from their start
            first = resolve(self._log, self._options, FROM_START)
            froms.update({at: first.partitions[at].offset for at in added})
        tos = {at: position.offset for at, position in now.partitions.items()}
        return {at: froms[at] for at in tos}, {at: max(froms[at], tos[at]) for at in tos}

    def _limited(
        self, froms: Mapping[TopicPartition, int], tos: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        options = self._options
        waited_ms = int((self._clock.monotonic() - self._last_batch_at) * MILLISECONDS)
        if (
            options.trigger_records_min is not None
            and self._frozen is None
            and worth_waiting(
                froms,
                tos,
                records_min=options.trigger_records_min,
                waited_ms=waited_ms,
                delay_max_ms=options.trigger_delay_max_ms,
            )
        ):
            return dict(froms)
        ends = dict(tos)
        if options.trigger_records_max is not None:
            ends = share_records(froms, ends, options.trigger_records_max)
        if options.trigger_bytes_max is not None:
            sizes = {at: self._size_bytes(at, froms[at], end) for at, end in ends.items()}
            ends = share_bytes(froms, ends, sizes, options.trigger_bytes_max)
        return ends

    def _size_bytes(self, at: TopicPartition, start: int, end: int) -> int:
        if start >= end:
            return 0
        if self._extents is None:
            return (end - start) * RECORD_BYTES_GUESS
        floor = self._log.offsets(at.topic, -2)[at.partition]
        low = max(start, floor)
        if low >= end:
            return 0
        # Without extents the size in bytes is unknown.
        known = self._extents.extents(at, low, end).size_bytes
        return known or (end - low) * RECORD_BYTES_GUESS


def _moved(begin: Positions, now: Positions, ends: Mapping[TopicPartition, int]) -> Positions:
    # The position of a deleted topic is kept: if the topic is recreated, it has another id.
    partitions = dict(begin.partitions)
    for at, offset in ends.items():
        partitions[at] = Position(offset=offset, leader_epoch=now.partitions[at].leader_epoch)
    return Positions(
        topic_ids={**begin.topic_ids, **now.topic_ids},
        partitions=partitions,
        bootstrap=now.bootstrap,
        group_id=now.group_id,
    )


def backlog(start: Offsets, latest: Offsets) -> dict[TopicPartition, int]:
    """Return the number of unread offsets by partition; never negative."""
    return {at: max(0, end - start[at]) for at, end in latest.items()}


def share_records(start: Offsets, latest: Offsets, records_max: int) -> dict[TopicPartition, int]:
    """Return end offsets such that at most `records_max` offsets are read in total.

    Each partition gets a share in proportion to its backlog, at least one record. If there are more
    partitions with a backlog than `records_max`, the following calls let the others advance.
    """
    waiting = backlog(start, latest)
    if sum(waiting.values()) <= records_max:
        return dict(latest)
    ready = sorted(at for at, count in waiting.items() if count)
    # The sum grows by `records_max` with each batch, so that all partitions get their turn.
    turn = sum(start.values()) % len(ready)
    chosen = [*ready[turn:], *ready[:turn]][:records_max]
    rest = sum(waiting[at] - 1 for at in chosen)
    ends, passed, shared = dict(start), 0, records_max - len(chosen)
    for at in chosen:
        before, passed = passed, passed + waiting[at] - 1
        ends[at] += 1 + passed * shared // max(1, rest) - before * shared // max(1, rest)
    return {at: ends[at] for at in latest}


def share_bytes(
    start: Offsets, latest: Offsets, sizes_bytes: Mapping[TopicPartition, int], bytes_max: int
) -> dict[TopicPartition, int]:
    """Return end offsets such that about `bytes_max` bytes of the log are read in total.

    `sizes_bytes` has the stored (compressed) size of [start, latest) by partition. All records are
    assumed to have equal size. Every partition with a backlog advances by at least one record.
    """
    total = sum(sizes_bytes.values())
    if total <= bytes_max:
        return dict(latest)
    waiting = backlog(start, latest)
    return {
        at: start[at] + min(count, max(1, count * bytes_max // total) if count else 0)
        for at, count in waiting.items()
    }


def worth_waiting(
    start: Offsets, latest: Offsets, *, records_min: int, waited_ms: int, delay_max_ms: int
) -> bool:
    """Return whether to skip a trigger so that the next batch gets more records.

    This is so if fewer than `records_min` are unread and `delay_max_ms` has not passed.
    """
    return sum(backlog(start, latest).values()) < records_min and waited_ms < delay_max_ms
