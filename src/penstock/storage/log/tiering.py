"""Closed segments of a log for the archive, and their aborted transactions.

A closed segment is never written again, and its committed part is never cut, so its file can be
read while the log grows.

Source: KIP-405; Kafka's `RemoteLogManager.candidateLogSegments`.
"""

from __future__ import annotations

from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple

from penstock.base.files import Files
from penstock.storage.formats.transaction_index import TransactionIndex
from penstock.storage.log.state import LogState
from penstock.storage.log.transactions import Transactions
from penstock.storage.segment import segment_place


class ClosedSegment(NamedTuple):
    """Closed segment; `epoch` is that of its first record."""

    path: str
    base_offset: int
    next_offset: int
    size_bytes: int
    epoch: int


class Tiering:
    """Closed segments of one log, which may be archived."""

    __slots__ = ("_state", "_transactions")

    def __init__(self, state: LogState, transactions: Transactions) -> None:
        self._state = state
        self._transactions = transactions

    @property
    def files(self) -> Files:
        return self._state.parts.segment_files.files

    def closed_segments(self, offset: int) -> list[ClosedSegment]:
        """Return the closed segments that reach beyond an offset, oldest first."""
        state = self._state
        state.load()
        place = segment_place(state.segments, offset)
        return [
            ClosedSegment(
                segment.path,
                segment.base_offset,
                after.base_offset,
                segment.end_position,
                state.epochs.epoch_at(segment.base_offset),
            )
            for segment, after in pairwise(state.segments[place:])
            if after.base_offset > offset and segment.end_position
        ]

    @property
    def newest_timestamp(self) -> int:
        """Highest timestamp of the active segment; -1 without one."""
        state = self._state
        state.write_segments()
        segment = state.segments[-1]
        if segment.end_position:
            state.parts.segment_files.index_of(segment, state.config.index_interval_bytes)
        return segment.max_timestamp

    def position_in(self, segment: ClosedSegment, offset: int) -> int:
        """Return the position in a written segment of an offset's batch; raises CorruptLog."""
        state = self._state
        state.write_segments()
        if offset <= segment.base_offset:
            return 0
        found = state.segments[segment_place(state.segments, offset)]
        files = state.parts.segment_files
        place = files.locate(found, offset, state.config.index_interval_bytes)
        files.indexes.used(found)
        return segment.size_bytes if place is None else place.position

    def aborted_within(self, start: int, end: int) -> bytes:
        """Return the index of the aborts with markers in [start, end); raises CorruptLog."""
        index = TransactionIndex()
        for txn in sorted(self._transactions.aborted(start, end), key=attrgetter("last_offset")):
            if start <= txn.last_offset < end:
                index.add(txn)
        return bytes(index.entries)
