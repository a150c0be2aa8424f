"""Batches, stores and fake files for the tests of the storage."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

from penstock.base.files import MACHINE_FILES, Files
from penstock.base.ids import TopicPartition
from penstock.records import BatchHeader, encode_header, seal, split_batches, stamp
from penstock.storage import (
    LogConfig,
    LogStore,
    PartitionLog,
    Read,
    StorageError,
    StorageSettings,
)
from tests.records.reference import Record, encode_record

TOPIC_ID = UUID(int=7)
WHERE = TopicPartition("orders", 0)


class FakeClock:
    """A clock that stands still until it is moved."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self.ms = now_ms

    def now_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return self.ms / 1000


def batch(
    count: int = 1,
    *,
    size: int = 40,
    fill: int = 0,
    timestamp: int = 1000,
    producer_id: int = -1,
    epoch: int = -1,
    sequence: int = -1,
    attributes: int = 0,
    kept: int | None = None,
) -> memoryview:
    """A batch of records without a key: `size` bytes of them, unless so many do not fit.

    All are empty but the last one, whose value is `fill`, up to the last byte but one. `kept` is
    how many of its records a compaction has left, if there was one.
    """
    body = section(count, size, fill)
    header = BatchHeader(
        0, 49 + len(body), -1, 2, 0, attributes, count - 1, timestamp, timestamp,
        producer_id, epoch, sequence, count if kept is None else kept,
    )  # fmt: skip
    data = bytearray(encode_header(header) + body)
    seal(data)
    return memoryview(data)


def section(count: int, size: int, fill: int) -> bytes:
    """The records of a batch: `count`, in `size` bytes where they fit."""
    records = [encode_record(Record(n, 0, None, None), 0, 0) for n in range(count - 1)]
    left = size - sum(map(len, records))
    last = encode_record(Record(count - 1, 0, None, None), 0, 0)
    for length in range(max(left - 16, 0), max(left - 6, 0)):
        value = bytes([fill % 256]) * length
        longer = encode_record(Record(count - 1, 0, None, value), 0, 0)
        if len(longer) <= left:
            last = longer
    return b"".join([*records, last])


def stamped(count: int, offset: int, leader_epoch: int, **options: int) -> memoryview:
    """A batch as a leader of that epoch has stamped it."""
    data = batch(count, **options)
    stamp(data, 0, offset, len(data) - 12, leader_epoch)
    return data


class Owner:
    """Log owner that records its notifications."""

    def __init__(self, seen: list[object]) -> None:
        self._seen = seen

    def became_durable(self, offset: int) -> bool:
        self._seen.append(offset)
        return True

    def log_moved(self) -> None:
        self._seen.append("moved")


class Harness:
    """A store in a directory, with what tests do to it over and over."""

    def __init__(
        self,
        directory: Path,
        *,
        config: LogConfig | None = None,
        files: Files = MACHINE_FILES,
        clock: FakeClock | None = None,
        replicated: Callable[[TopicPartition], bool] | None = lambda where: False,
        **settings: Any,
    ) -> None:
        self.directory = directory
        self.config = config or LogConfig(retention_ms=-1)
        self.clock = clock or FakeClock()
        self.settings = StorageSettings(**settings)
        self.files = files
        self.replicated = replicated
        self.store = self._open()

    def _open(self) -> LogStore:
        return LogStore.open(
            self.directory,
            self.settings,
            clock=self.clock,
            config_of=lambda topic: self.config,
            files=self.files,
            replicated=self.replicated,
        )

    def reopen(self) -> None:
        """Close cleanly and open again."""
        self.store.close()
        self.store = self._open()

    def crash(self) -> None:
        """Lose everything in memory, keep everything that reached the files; open again."""
        abandon(self.store)
        self.store = self._open()

    def log(self, partition: int = 0, topic: str = WHERE.topic) -> PartitionLog:
        where = TopicPartition(topic, partition)
        found = self.store.partitions.get(where)
        if found is None:
            found = self.store.create(where, topic_id=TOPIC_ID, leader_epoch=0)
        return found

    def append(self, data: memoryview, partition: int = 0) -> int:
        """Append without a commit; returns the base offset."""
        return (
            self.log(partition).append(memoryview(bytearray(data)), now_ms=self.clock.ms)
        ).base_offset

    def commit(self) -> StorageError | None:
        """Flush and commit; returns the error."""
        answers: list[StorageError | None] = []
        self.store.flush(answers.append)
        self.store.commit_pending()
        assert len(answers) == 1
        return answers[0]

    def put(self, data: memoryview, partition: int = 0) -> int:
        base_offset = self.append(data, partition)
        error = self.commit()
        assert error is None, error
        return base_offset


def abandon(store: LogStore) -> None:
    """Simulate kill -9: the files stay as they are, the lock is free, no checkpoint."""
    store._journal.close()
    store._parts.segment_files.descriptors.close()
    store._closed = True
    store._files.close(store._lock)


def read_all(log: PartitionLog, *, max_bytes: int = 1000, start: int | None = None) -> bytes:
    """Everything from the log's start to its high watermark."""
    offset = log.log_start_offset if start is None else start
    parts: list[bytes] = []
    while offset < log.durable_offset:
        read: Read = log.read(offset, max_bytes=max_bytes, end_offset=2**62)
        assert read.next_offset > offset, (read, offset, log)
        parts.extend(bytes(buffer) for buffer in read.buffers)
        assert read.size_bytes == sum(map(len, read.buffers))
        offset = read.next_offset
    return b"".join(parts)


def offsets(data: bytes) -> list[tuple[int, int]]:
    """(base offset, next offset) of batches back to back."""
    return [(header.base_offset, header.next_offset) for header in split_batches(data)]
