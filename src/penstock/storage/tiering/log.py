"""What of a log may be copied to the archive: its closed segments, and what they say of aborts.

A segment that is closed is never written to again, and what of it is committed is never cut, so
it is read from its file while the log goes on.

Source: KIP-405; Kafka's `RemoteLogManager.candidateLogSegments`.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from penstock.base.files import Files
from penstock.storage.formats.transaction_index import TransactionIndex
from penstock.storage.segment import segment_place
from penstock.storage.transactional import TransactionalLog


class ClosedSegment(NamedTuple):
    """A segment that another one follows; `epoch` is that of its first record."""

    path: str
    base_offset: int
    next_offset: int
    size_bytes: int
    epoch: int


class TieredLog(TransactionalLog):
    """See the module's text. Every log of a store is one, tiered or not."""

    __slots__ = ()

    @property
    def files(self) -> Files:
        """The file system that the log lies in."""
        return self._parts.segment_files.files

    def closed_segments(self, offset: int) -> list[ClosedSegment]:
        """Those that reach beyond an offset, oldest first, without the one that is written to."""
        self.load()
        place = segment_place(self.segments, offset)
        return [
            ClosedSegment(
                one.path,
                one.base_offset,
                after.base_offset,
                one.end_position,
                self.epochs.epoch_at(one.base_offset),
            )
            for one, after in pairwise(self.segments[place:])
            if after.base_offset > offset and one.end_position
        ]

    @property
    def newest_timestamp(self) -> int:
        """The highest timestamp of the segment that is written to; -1 while it has none."""
        self.write_segments()
        segment = self.segments[-1]
        if segment.end_position:
            self._parts.segment_files.index_of(segment, self.config.index_interval_bytes)
        return segment.max_timestamp

    def position_in(self, segment: ClosedSegment, offset: int) -> int:
        """Where in a segment's file the batch that holds an offset begins; all of it is there.

        Raises:
            CorruptLog: the segment is damaged.
        """
        self.write_segments()
        if offset <= segment.base_offset:
            return 0
        found = self.segments[segment_place(self.segments, offset)]
        files = self._parts.segment_files
        place = files.locate(found, offset, self.config.index_interval_bytes)
        files.indexes.used(found)
        return segment.size_bytes if place is None else place.position

    def aborted_within(self, start: int, end: int) -> bytes:
        """The transaction index of a segment that has [start, end): of the markers in there.

        Raises:
            CorruptLog: the files that say so are damaged.
        """
        index = TransactionIndex()
        for one in sorted(self.aborted(start, end), key=lambda one: one.last_offset):
            if start <= one.last_offset < end:
                index.add(one)
        return bytes(index.entries)
