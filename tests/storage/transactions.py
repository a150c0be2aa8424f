"""Logs with transactions, and what their batches say of them, computed in the plainest way."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from penstock.base.settings import LONG_MAX
from penstock.records import split_batches
from penstock.records.header import TRANSACTIONAL_FLAG
from penstock.records.transactions import UNGUARDED, AbortedTransaction, Marker, decode_marker
from penstock.storage import LogConfig, PartitionLog
from tests.storage.batches import Harness, batch, read_all

ROLLING = LogConfig(segment_bytes=500, index_interval_bytes=100, retention_ms=-1)


class Sent(NamedTuple):
    """A batch or a marker as the log has it."""

    offset: int
    next_offset: int
    producer_id: int
    commit: bool | None


def open_in(history: list[Sent]) -> dict[int, int]:
    """First offsets of open transactions, by producer."""
    first: dict[int, int] = {}
    for step in history:
        if step.commit is None:
            first.setdefault(step.producer_id, step.offset)
        else:
            first.pop(step.producer_id, None)
    return first


def aborted_in(history: list[Sent], start: int, end: int) -> list[AbortedTransaction]:
    """Return the aborted transactions with batches in the range."""
    found, first = [], dict[int, int]()
    for step in history:
        if step.commit is None:
            first.setdefault(step.producer_id, step.offset)
            continue
        began = first.pop(step.producer_id, None)
        if began is not None and not step.commit and step.offset >= start and began < end:
            stable = min(first.values(), default=step.next_offset)
            found.append(AbortedTransaction(step.producer_id, began, step.offset, stable))
    return sorted(found, key=lambda each: each.first_offset)


class Transactional:
    """A log, what is done to it, and what was done."""

    def __init__(self, directory: Path, **options: object) -> None:
        self.harness = Harness(directory, config=ROLLING, **options)  # type: ignore[arg-type]
        self.history: list[Sent] = []

    @property
    def log(self) -> PartitionLog:
        return self.harness.log()

    def put(self, producer_id: int, count: int = 1, *, commit: bool = True) -> int:
        last = {producer.producer_id: producer.last_sequence for producer in self.log.producers()}
        sequence = last.get(producer_id, -1) + 1
        data = batch(
            count,
            producer_id=producer_id,
            epoch=0,
            sequence=sequence,
            attributes=TRANSACTIONAL_FLAG,
        )
        offset = self.log.append(data, now_ms=self.harness.clock.ms, guard=UNGUARDED).base_offset
        self.history.append(Sent(offset, offset + count, producer_id, None))
        if commit:
            assert self.harness.commit() is None
        return offset

    def end(self, producer_id: int, *, commit: bool, durable: bool = True) -> int:
        marker = Marker(producer_id, 0, 1, commit)
        offset = self.log.transactions.append_marker(
            marker, now_ms=self.harness.clock.ms
        ).base_offset
        self.history.append(Sent(offset, offset + 1, producer_id, commit))
        if durable:
            assert self.harness.commit() is None
        return offset

    def cut(self, offset: int) -> None:
        end = self.log.replica.truncate(offset, floor=0)
        assert self.harness.commit() is None
        self.history = [batch for batch in self.history if batch.next_offset <= end]

    def check(self) -> None:
        assert end_of(self.history) == self.log.log_end_offset
        check(self.log, self.history)


def end_of(history: list[Sent]) -> int:
    return history[-1].next_offset if history else 0


def history_of(log: PartitionLog) -> list[Sent]:
    """The transactional batches and the markers of a log, which begins at 0, by its bytes."""
    history, position = list[Sent](), 0
    data = read_all(log, max_bytes=1 << 20)
    for header in split_batches(data):
        commit = None
        if header.is_control:
            commit = decode_marker(data[position : position + header.size_bytes], header).commit
        if header.is_transactional:
            offsets = header.base_offset, header.next_offset
            history.append(Sent(*offsets, header.producer_id, commit))
        position += header.size_bytes
    return history


def check(log: PartitionLog, history: list[Sent]) -> None:
    """The log knows of its transactions what these batches and markers say."""
    log.load()
    known = {
        producer.producer_id: producer.txn_start_offset
        for producer in log.producers()
        if producer.txn_start_offset >= 0
    }
    assert known == open_in(history)
    transactions = log.producer_states.transactions
    transactions.committed_to(log.durable_offset)
    assert transactions.first_unstable_offset == min(known.values(), default=LONG_MAX)
    begin, end = log.log_start_offset, log.log_end_offset
    for start in {begin, (2 * begin + end) // 3, (begin + end) // 2, max(end - 3, begin), end}:
        for upto in {start, start + 1, (start + end) // 2, end}:
            assert log.transactions.aborted(start, upto) == aborted_in(history, start, upto)
