"""A log store in memory, for tests of the Kafka front alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from penstock.base.ids import TopicPartition
from penstock.records import OffsetOutOfRange
from penstock.records.appends import AppendResult
from penstock.records.header import (
    HEADER_BYTES,
    check_single,
    split_batches,
    stamp,
    validate_batch,
    verify_crc,
)
from penstock.storage.files.producers import ProducerStates
from penstock.storage.files.settings import LogConfig
from penstock.storage.files.values import OffsetAndTimestamp


class FakeLog:
    def __init__(self, where: TopicPartition, topic_id: UUID, leader_epoch: int) -> None:
        self.state = self.transactions = self.replica = self
        self.topic_partition = where
        self.topic_id = topic_id
        self.leader_epoch = leader_epoch
        self.promised = -1
        self.config = LogConfig(record_validation="full")  # its requests are not joined
        self.log_start_offset = self.log_end_offset = self.durable_offset = 0
        self.owner: Any = None
        self.producer_states = ProducerStates()
        self.size_bytes = 0
        self.batches: list[tuple[int, int, bytes, int]] = []
        self.fail_next: Exception | None = None

    def append(self, batches: memoryview, *, now_ms: int, single: bool, **more: Any) -> Any:
        if single:
            check_single(batches)
        if self.fail_next is not None:
            error, self.fail_next = self.fail_next, None
            raise error
        position, base = 0, self.log_end_offset
        headers = split_batches(batches)
        for header in headers:
            verify_crc(batches, header, position)
            validate_batch(header)
            position += header.size_bytes
        position = 0
        for header in headers:
            end = self.log_end_offset + header.record_count
            stamp(batches, position, self.log_end_offset, header.batch_length, self.leader_epoch)
            data = bytes(batches[position : position + header.size_bytes])
            self.batches.append((self.log_end_offset, end, data, header.max_timestamp))
            self.log_end_offset = end
            position += header.size_bytes
        return AppendResult(base, -1, 0)

    def read(
        self, offset: int, *, max_bytes: int, end_offset: int, at_least_one: bool = True
    ) -> Any:
        if not self.log_start_offset <= offset <= self.durable_offset:
            raise OffsetOutOfRange(
                self.topic_partition, offset, self.log_start_offset, self.durable_offset
            )
        buffers: list[bytes] = []
        size, following = 0, offset
        for _, end, data, _ in self.batches:
            if end <= offset:
                continue
            fits = size + len(data) <= max_bytes or (at_least_one and not buffers)
            if end > end_offset or not fits:
                break
            buffers.append(data)
            size, following = size + len(data), end
        return SimpleNamespace(buffers=buffers, size_bytes=size, next_offset=following)

    def offset_for_timestamp(self, timestamp_ms: int) -> OffsetAndTimestamp | None:
        for base, _, _, newest in self.batches:
            if newest >= timestamp_ms:
                return OffsetAndTimestamp(base, newest, 0)
        return None

    def offset_of_max_timestamp(self) -> OffsetAndTimestamp | None:
        best = max(self.batches, key=lambda batch: batch[3], default=None)
        if best is None:
            return None
        return OffsetAndTimestamp(best[0], best[3], 0)

    def aborted(self, start: int, end: int) -> tuple[()]:
        return ()

    def latest_epoch_at(self, offset: int) -> int:
        return self.leader_epoch

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        return (epoch, self.log_end_offset) if epoch == self.leader_epoch else (-1, -1)

    def set_leader_epoch(self, epoch: int) -> None:
        self.leader_epoch = epoch
        if self.owner is not None:
            self.owner.log_moved()


class FakeStore:
    policy = "group"

    def __init__(self, directory: str = "") -> None:
        self.directory = directory
        self.partitions: dict[TopicPartition, FakeLog] = {}
        self.on_advance: Callable[[list[Any]], None] = lambda logs: None
        self.failed = None
        self.held = False
        self.sync_error: Exception | None = None
        self.closed = False
        self._callbacks: list[Callable[[Exception | None], None]] = []

    def attach(self, call_soon_threadsafe: Any) -> None:
        return

    def before_failure(self, callback: Callable[[], None]) -> None:
        return

    def create(self, where: TopicPartition, *, topic_id: UUID, leader_epoch: int) -> FakeLog:
        log = self.partitions[where] = FakeLog(where, topic_id, leader_epoch)
        return log

    def delete(self, where: TopicPartition) -> None:
        del self.partitions[where]

    def flush(self, on_durable: Callable[[Exception | None], None], requests: int = 1) -> None:
        self._callbacks.append(on_durable)

    def commit_pending(self) -> None:
        if self.held:
            return
        if self.sync_error is not None:
            callbacks, self._callbacks = self._callbacks, []
            for callback in callbacks:
                callback(self.sync_error)
            return
        grown = [log for log in self.partitions.values() if log.durable_offset < log.log_end_offset]
        for log in grown:
            log.durable_offset = log.log_end_offset
            log.state.owner.became_durable(log.durable_offset)
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(None)
        if grown:
            self.on_advance([log.state.owner for log in grown])

    housekeeping_seconds = 1.0

    def housekeeping(self, now_ms: int) -> None:
        return

    def samples(self) -> Iterable[Any]:
        return ()

    def close(self) -> None:
        self.closed = True


assert HEADER_BYTES == 61
