"""Logs of records with keys: what was sent to one, what a consumer sees, and what it must see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from penstock.records import split_batches
from penstock.records.columnar import decode_batches, encode_batches
from penstock.records.transactions import UNGUARDED, Marker, ranges_until
from penstock.storage import LogConfig, PartitionLog
from tests.storage.batches import FakeClock, Harness, read_all

COMPACTED = LogConfig(
    cleanup_policy=("compact",),
    segment_bytes=700,
    index_interval_bytes=100,
    retention_ms=-1,
    file_delete_delay_ms=0,
    min_cleanable_dirty_ratio=0.0,
    delete_retention_ms=1000,
)

Pair = tuple[bytes | None, bytes | None]


class Record(NamedTuple):
    """Record as a consumer receives it."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None


class Sent(NamedTuple):
    """A record that was sent; `decided` is None while its transaction is open."""

    record: Record
    decided: bool | None


class Keyed:
    """A compacted log, what is done to it, and what was sent."""

    def __init__(self, directory: Path, *, config: LogConfig = COMPACTED, **options: Any) -> None:
        options = {
            "log_cleaner_backoff_ms": 0, "log_retention_check_interval_ms": 1, **options
        }  # fmt: skip
        clock = FakeClock()
        self.harness = Harness(directory, config=config, clock=clock, **options)
        self.sent: list[Sent] = []
        self.open: dict[int, list[int]] = {}
        """Offsets of records whose transactions are open, by producer."""
        self.marked = -1
        """The offset of the last marker."""

    @property
    def log(self) -> PartitionLog:
        return self.harness.log()

    @property
    def now_ms(self) -> int:
        return self.harness.clock.ms

    def configure(self, **changes: Any) -> None:
        self.harness.config = replace(self.harness.config, **changes)

    def send(
        self, pairs: Sequence[Pair], *, codec: int = 0, producer_id: int = -1,
        transactional: bool = False, timestamps: Sequence[int] | None = None,
    ) -> int:  # fmt: skip
        """Append one batch; returns its base offset. Committed at once."""
        times = list(timestamps or [self.now_ms] * len(pairs))
        last = {producer.producer_id: producer.last_sequence for producer in self.log.producers()}
        columns = {
            "key": pa.array([key for key, _ in pairs], pa.binary()),
            "value": pa.array([value for _, value in pairs], pa.binary()),
            "timestamp": pa.array(times, pa.int64()),
        }
        known = producer_id >= 0
        (encoded,) = encode_batches(
            pa.table(columns), now_ms=self.now_ms, codec=codec, producer_id=producer_id,
            producer_epoch=0 if known else -1, transactional=transactional,
            base_sequence=last.get(producer_id, -1) + 1 if known else -1,
        )  # fmt: skip
        placed = self.log.append(
            memoryview(bytearray(encoded.data)), now_ms=self.now_ms,
            internal=any(key is None for key, _ in pairs),
            guard=UNGUARDED if transactional else None,
        )  # fmt: skip
        self.note_sent(placed.base_offset, pairs, times, producer_id if transactional else None)
        assert self.harness.commit() is None
        return placed.base_offset

    def end(self, producer_id: int, *, commits: bool) -> None:
        marker = Marker(producer_id, 0, 1, commits)
        self.note_end(
            self.log.transactions.append_marker(marker, now_ms=self.now_ms).base_offset,
            producer_id,
            commits,
        )
        assert self.harness.commit() is None

    def note_sent(
        self, offset: int, pairs: Sequence[Pair], times: Sequence[int], opener: int | None
    ) -> None:
        """A batch is in the log; `opener` is the producer whose transaction it is part of."""
        for delta, ((key, value), time) in enumerate(zip(pairs, times, strict=True)):
            record = Record(offset + delta, time, key, value)
            if opener is not None:
                self.open.setdefault(opener, []).append(record.offset)
            self.sent.append(Sent(record, None if opener is not None else True))

    def note_end(self, offset: int, producer_id: int, commits: bool) -> None:
        """A marker is in the log."""
        self.marked = offset
        ended = set(self.open.pop(producer_id, []))
        self.sent = [
            sent._replace(decided=commits) if sent.record.offset in ended else sent
            for sent in self.sent
        ]

    def settle(self) -> None:
        """Close the segment that is written to, and have a checkpoint sync all."""
        self.log.state.roll()
        self.harness.store.checkpoint()

    def compact(self) -> None:
        """Have everything compacted that may be."""
        self.settle()
        self.harness.store.housekeeping(self.now_ms)
        before = -1
        while self.passes > before:
            before = self.passes
            self.harness.store.checkpoint()
            self.harness.store.housekeeping(self.now_ms)
        assert not self.harness.store.uncleanable, self.harness.store.uncleanable

    @property
    def passes(self) -> int:
        return self.harness.store._parts.counters.compactions

    # -- what is seen ------------------------------------------------------------------------

    def view(self) -> dict[bytes, bytes]:
        """The last value of each key, of what is committed."""
        return folded([sent.record for sent in self.committed()])

    def committed(self) -> list[Sent]:
        """Return the committed records below the first open transaction."""
        stable = min([offsets[0] for offsets in self.open.values()], default=1 << 62)
        return [sent for sent in self.sent if sent.decided and sent.record.offset < stable]

    def read(self) -> list[Record]:
        """Read the log as a read_committed consumer does."""
        return consumed(self.log)

    def check(self) -> list[Record]:
        """Check that every record was sent, and that the last record of each key is there, or
        was a tombstone."""
        records = self.read()
        sent = {item.record.offset: item.record for item in self.committed()}
        for record in records:
            assert sent.get(record.offset) == record
        assert [record.offset for record in records] == sorted(
            {record.offset for record in records}
        )
        assert folded(records) == self.view()
        return records

    def check_clean(self) -> None:
        """Below what is clean no key has two records."""
        clean = self.harness.store._clean_offsets.of(self.log.topic_partition)
        keys = [record.key for record in self.read() if record.offset < clean]
        assert len(keys) == len(set(keys))


def folded(records: Sequence[Record], view: dict[bytes, bytes] | None = None) -> dict[bytes, bytes]:
    """Return the last value of each key, as a consumer would keep it."""
    found = {} if view is None else view
    for record in records:
        if record.key is None:
            continue
        if record.value is None:
            found.pop(record.key, None)
        else:
            found[record.key] = record.value
    return found


def stable_offset(log: PartitionLog) -> int:
    transactions = log.producer_states.transactions
    transactions.committed_to(log.durable_offset)
    return min(log.durable_offset, transactions.first_unstable_offset)


def consumed(log: PartitionLog, start: int = 0, *, max_bytes: int = 1 << 20) -> list[Record]:
    """The committed records of a log from an offset on."""
    records: list[Record] = []
    offset, end = max(start, log.log_start_offset), stable_offset(log)
    while offset < end:
        some, offset = fetched(log, offset, max_bytes)
        records += some
    return records


def fetched(log: PartitionLog, offset: int, max_bytes: int) -> tuple[list[Record], int]:
    """Return the records of one read_committed fetch, and the next fetch offset."""
    read = log.read(offset, max_bytes=max_bytes, end_offset=stable_offset(log))
    assert read.next_offset > offset, (read, offset, log)
    data = b"".join(bytes(buffer) for buffer in read.buffers)
    headers = split_batches(data)
    aborted = log.transactions.aborted(offset, read.next_offset)
    markers = [(header.producer_id, header.base_offset) for header in headers if header.is_control]
    ranges = ranges_until([txn[:2] for txn in aborted], markers)
    table = decode_batches(data, start_offset=offset, aborted=ranges)
    columns = [table.column(name).to_pylist() for name in Record._fields]
    return [Record(*row) for row in zip(*columns, strict=True)], read.next_offset


def batches_of(log: PartitionLog) -> list[Any]:
    """The headers of all batches."""
    return split_batches(read_all(log, max_bytes=1 << 20))
