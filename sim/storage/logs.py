"""What a log is, as far as it can be seen; and looking at a recovered one in every way there is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from tests.storage.batches import read_all
from tests.storage.transactions import check as check_transactions
from tests.storage.transactions import history_of

from penstock.records import BatchHeader, split_batches
from penstock.storage import PartitionLog
from penstock.storage.files.values import TXN_INDEX

PRODUCER = 7
"""The idempotent producer of the scripts."""


class Violation(AssertionError):
    """A rule that does not hold."""


class Log(NamedTuple):
    """What a log is. `carried`: the last sequence that it was told of when it began anew."""

    topic_id: UUID
    batches: tuple[bytes, ...] = ()
    start: int = 0
    promised: int = -1
    limbo: int = -1
    carried: int = -1

    @property
    def end(self) -> int:
        return next_offset(self.batches[-1]) if self.batches else self.start

    @property
    def held(self) -> tuple[object, ...]:
        """What can be seen of it."""
        batches = tuple(batch for batch in self.batches if next_offset(batch) > self.start)
        return self.topic_id, batches, self.start, self.end, self.promised, self.limbo

    def __str__(self) -> str:
        offsets = [split_batches(batch)[0].base_offset for batch in self.batches]
        return (
            f"[{self.start}, {self.end}) of batches at {offsets}, promised {self.promised},"
            f" limbo {self.limbo}"
        )


def next_offset(batch: bytes) -> int:
    return split_batches(batch)[0].next_offset


def require(holds: bool, what: str) -> None:
    if not holds:
        raise Violation(what)


def look(log: PartitionLog, *, closely: bool = True) -> Log:
    """What a log holds. All its ways to the same batches must agree, looked at `closely`.

    Raises:
        Violation: they do not.
    """
    where = log.topic_partition
    end = log.log_end_offset
    log.load()
    require(log.state.damage is None, f"{where} is damaged: {log.state.damage}")
    require(
        end == log.log_end_offset or log.state.parts.settings.log_flush_policy != "group",
        f"{where} ended at {end} before it was loaded, and at {log.log_end_offset} then",
    )
    start, end = log.log_start_offset, log.log_end_offset
    require(log.durable_offset == end, f"{where} is durable to {log.durable_offset}, ends at {end}")
    data = read_all(log, max_bytes=700 if closely else 1 << 20)
    headers = split_batches(data)
    batches, position = list[bytes](), 0
    for header in headers:
        batches.append(data[position : position + header.size_bytes])
        position += header.size_bytes
        epoch = log.latest_epoch_at(max(header.base_offset, start))
        require(
            epoch == header.partition_leader_epoch,
            f"{where} has epoch {epoch} at {header.base_offset}, its batch has"
            f" {header.partition_leader_epoch}",
        )
    begun = [epoch for epoch, offset in log.state.epochs.entries if offset < end and epoch]
    stored = sorted({header.partition_leader_epoch for header in headers} - {0})
    require(begun == stored, f"{where} knows epochs {begun}, its batches have {stored}")
    if closely:
        for header in headers:
            _read_by_offset(log, header, start, end)
        _look_at_times(log, headers)
    if closely and any(header.is_transactional for header in headers):
        check_transactions(log, history_of(log))
    known = [entry for segment in log.state.segments for entry in _aborted(segment, end)]
    require(not known, f"{where}: {TXN_INDEX} has {known}, which is beyond the end {end}")
    seen = Log(log.topic_id, tuple(batches), start, log.replica.promised, log.replica.limbo)
    require(seen.end == end, f"{where} ends at {end}, its batches at {seen.end}")
    return seen


def _read_by_offset(log: PartitionLog, header: BatchHeader, start: int, end: int) -> None:
    for offset in {max(header.base_offset, start), header.last_offset}:
        read = log.read(offset, max_bytes=1, end_offset=end)
        found = split_batches(bytes(read.buffers[0]))[0] if read.buffers else None
        require(
            found is not None and found.base_offset == header.base_offset,
            f"{log.topic_partition}: a read at {offset} finds {found}, not {header.base_offset}",
        )


def _aborted(segment: object, end: int) -> list[object]:
    index = getattr(segment, "transactions", None)
    if index is None:
        return []
    return [one for place in range(len(index)) if (one := index.at(place)).last_offset >= end]


def _look_at_times(log: PartitionLog, headers: Sequence[BatchHeader]) -> None:
    """A walk to a time must not begin behind the first batch that has it."""
    files, interval_bytes = log.state.parts.segment_files, log.config.index_interval_bytes
    for place, segment in enumerate(log.state.segments):
        later = log.state.segments[place + 1 :]
        end = later[0].base_offset if later else log.log_end_offset
        mine = [header for header in headers if segment.base_offset <= header.base_offset < end]
        if not segment.written_bytes or not mine:
            continue
        files.index_of(segment, interval_bytes)
        highest = max(header.max_timestamp for header in mine)
        require(
            segment.max_timestamp == highest,
            f"{segment.path}: the highest timestamp is {segment.max_timestamp}, not {highest}",
        )
        for header in mine:
            first = next(other for other in mine if other.max_timestamp >= header.max_timestamp)
            walk = files.walk_to_time(segment, header.max_timestamp, interval_bytes)
            found = next(walk)[1]
            require(
                found.base_offset <= first.base_offset,
                f"{segment.path}: a walk to {header.max_timestamp} begins at {found.base_offset},"
                f" behind {first.base_offset}",
            )


def look_at_producers(log: PartitionLog, held: Sequence[Log]) -> None:
    """The sequence that a log remembers must be that of its batches, of all that it ever had."""
    seen = max(
        [
            producer.last_sequence
            for producer in log.producers()
            if producer.producer_id == PRODUCER
        ],
        default=-1,
    )
    require(
        any(_remembers(producer, seen) for producer in held),
        f"{log.topic_partition} remembers sequence {seen}, its batches say"
        f" {[last_sequence(producer.batches) for producer in held]}",
    )


def _remembers(held: Log, seen: int) -> bool:
    below = [batch for batch in held.batches if next_offset(batch) <= held.start]
    expected = max(held.carried, last_sequence(held.batches))
    return seen == expected or (expected == last_sequence(below) and seen == -1)


def last_sequence(batches: Sequence[bytes]) -> int:
    headers = [split_batches(batch)[0] for batch in batches]
    return max(
        [header.last_sequence for header in headers if header.producer_id == PRODUCER], default=-1
    )
