"""The segments' files of one store: open descriptors, indexes, and finding batches by them.

A batch is found by bisecting the index and walking headers from there. The first of them must be as
the entry says: indexes have no checksum, and one that is wrong would lead past what is looked for;
such an index is made anew. Where a read ends is found the same way: the last indexed position
before the limit, and a walk from there, so a read of a megabyte looks at a few headers and not at
all of them.

Source: Kafka's `LogSegment`.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple

from penstock.base.files import Files, read_file, read_range
from penstock.base.settings import LONG_MAX
from penstock.records import HEADER_BYTES, BatchHeader, decode_header
from penstock.storage.counters import Counters
from penstock.storage.descriptors import Descriptors
from penstock.storage.errors import CorruptLog
from penstock.storage.formats.index import (
    OFFSET_ENTRY_BYTES,
    TIME_ENTRY_BYTES,
    Entry,
    SparseIndex,
    TimeEntry,
)
from penstock.storage.formats.transaction_index import TransactionIndex
from penstock.storage.names import INDEX, TIME_INDEX, TXN_INDEX
from penstock.storage.segment import UNKNOWN, Segment, not_loaded, walk
from penstock.storage.values import Read

logger = logging.getLogger(__name__)

_LENGTH_OVERHEAD_BYTES: Final = 12
_LOOK_BYTES: Final = 4096 + 1024
"""A walk between two index entries: about one interval."""


class Place(NamedTuple):
    """A batch in a segment."""

    position: int
    header: BatchHeader


class IndexCache:
    """Indexes of closed segments, the least recently used dropped; a bound in bytes."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._segments: OrderedDict[Segment, int] = OrderedDict()
        self.size_bytes = 0

    def used(self, segment: Segment) -> None:
        """A closed segment's index was looked at."""
        if segment in self._segments:
            self._segments.move_to_end(segment)
            return
        if segment.index is None:
            return
        self._segments[segment] = segment.index.size_bytes
        self.size_bytes += segment.index.size_bytes
        while self.size_bytes > self._limit_bytes:
            oldest, size = self._segments.popitem(last=False)
            self.size_bytes -= size
            if not oldest.unsaved():
                oldest.index = None
                if oldest.transactions:
                    oldest.transactions = None

    def forget(self, segment: Segment) -> None:
        self.size_bytes -= self._segments.pop(segment, 0)


class SegmentFiles:
    """Belongs to the owner's thread."""

    __slots__ = ("_counters", "descriptors", "files", "indexes")

    def __init__(
        self, files: Files, counters: Counters, *, open_files_max: int, index_cache_bytes: int
    ) -> None:
        self._counters = counters
        self.files = files
        self.descriptors = Descriptors(files, open_files_max)
        self.indexes = IndexCache(index_cache_bytes)

    # -- indexes -----------------------------------------------------------------------------

    def index_of(self, segment: Segment, interval_bytes: int) -> SparseIndex:
        """The indexes of a segment: as saved if they can be right, else made by a walk."""
        if segment.index is not None:
            return segment.index
        saved = self.saved_index(segment)
        if saved is None:
            self._rebuild_index(segment, interval_bytes)
        else:
            self.resume_index(segment, saved, interval_bytes)
        if segment.index is None:
            raise not_loaded(segment)
        return segment.index

    def saved_index(
        self, segment: Segment, *, next_offset: int = LONG_MAX, position: int = LONG_MAX
    ) -> SparseIndex | None:
        """The indexes as saved, of what is below an offset and a position.

        None if a file is missing, or its content doubtful: also if the newest entry is not about a
        batch that is there. What a checkpoint was writing when power was lost may be torn, and look
        like another entry then; those before it were synced.
        """
        try:
            index = SparseIndex(
                segment.base_offset,
                read_file(self.files, segment.sibling(INDEX)),
                read_file(self.files, segment.sibling(TIME_INDEX)),
            )
        except FileNotFoundError:
            return None
        if index.doubt(segment.written_bytes):
            return None
        index.cut(next_offset, position)
        newest = index.newest
        if newest.position and self._walk_from(segment, newest) is None:
            return None
        time = index.by_time(LONG_MAX)
        return index if self._is_true(segment, index, time) else None

    def newest_timestamp(self, segment: Segment, interval_bytes: int) -> int:
        """The highest timestamp of a closed segment; -1 without one.

        Of its indexes the ends are read alone, which are megabytes otherwise: where the newest
        entries are about the last batches, and these are as they say. Else as `index_of`.
        """
        if segment.max_timestamp == UNKNOWN and not self._read_newest(segment):
            self.index_of(segment, interval_bytes)
            self.indexes.used(segment)
        return segment.max_timestamp

    def _read_newest(self, segment: Segment) -> bool:
        """Take the highest timestamp from the ends of the indexes, if they are right."""
        try:
            index = SparseIndex(
                segment.base_offset,
                self._last_bytes(segment.sibling(INDEX), OFFSET_ENTRY_BYTES),
                self._last_bytes(segment.sibling(TIME_INDEX), TIME_ENTRY_BYTES),
            )
        except FileNotFoundError:
            return False
        if index.doubt(segment.written_bytes):
            return False
        with suppress(CorruptLog):
            batches = self._walk_from(segment, index.newest) or ()
            highest = max([header.max_timestamp for _, header in batches], default=-1)
            if highest == index.last_timestamp >= 0:
                segment.max_timestamp = highest
                return True
        return False

    def _last_bytes(self, path: str, count: int) -> bytes:
        """The last entry of an index, of so many bytes; what it has if that is less."""
        file = self.files.open_file(path)
        try:
            size = self.files.size(file)
            return self.files.read_at(file, count, max(0, size - size % count - count))
        finally:
            self.files.close(file)

    def _walk_from(
        self, segment: Segment, entry: Entry
    ) -> Iterator[tuple[int, BatchHeader]] | None:
        """Walk headers from where an entry says that its batch begins; None where it does not."""
        batches = self.headers_from(segment, entry.position)
        if entry.position == 0:
            return batches
        try:
            first = next(batches, None)
        except CorruptLog:
            return None
        if first is None or first[1].last_offset != entry.last_offset:
            return None
        return chain((first,), batches)

    def _is_true(self, segment: Segment, index: SparseIndex, entry: TimeEntry) -> bool:
        """Whether a batch has the timestamp and the offset of an entry."""
        if entry.timestamp < 0:
            return True
        batches = self._walk_from(segment, index.by_offset(entry.last_offset)) or ()
        with suppress(CorruptLog):
            for _, header in batches:
                if header.last_offset >= entry.last_offset:
                    return (header.max_timestamp, header.last_offset) == entry
        return False

    def _rebuild_index(self, segment: Segment, interval_bytes: int) -> None:
        """Make the indexes by a walk over the whole segment."""
        self.resume_index(segment, SparseIndex(segment.base_offset), interval_bytes)
        segment.saved_offsets = segment.saved_times = 0
        for suffix in (INDEX, TIME_INDEX):
            self.descriptors.forget(segment.sibling(suffix))
            with suppress(FileNotFoundError):
                self.files.remove(segment.sibling(suffix))

    def _made_anew(self, segment: Segment, interval_bytes: int) -> SparseIndex:
        logger.error("%s: its index is wrong, and is made anew", segment.path)
        self._rebuild_index(segment, interval_bytes)
        return self.index_of(segment, interval_bytes)

    def resume_index(
        self, segment: Segment, index: SparseIndex, interval_bytes: int, *, end: int | None = None
    ) -> None:
        """Take saved indexes over and walk what they do not cover, up to `end`.

        Where the segment is damaged the index ends; who reads there finds the damage itself.
        """
        end = segment.written_bytes if end is None else end
        position = index.newest.position
        segment.index = index
        segment.saved_offsets, segment.saved_times = len(index.offsets), len(index.times)
        segment.max_timestamp = index.last_timestamp
        segment.max_timestamp_offset = index.last_timestamp_offset
        handle = self.descriptors.get(segment.path)
        segment.written_bytes = position
        segment.bytes_since_entry = 0
        batches = walk(self.files, handle.descriptor, segment.path, position, end, verify=False)
        try:
            for _, header in batches:
                segment.add(header, header.base_offset, interval_bytes)
        except CorruptLog as error:
            logger.error("the index ends where the segment is damaged: %s", error)
        segment.written_bytes = end

    def transactions_of(self, segment: Segment) -> TransactionIndex:
        """The aborted transactions of a segment.

        Raises:
            CorruptLog: their file is damaged.
        """
        if segment.transactions is None:
            path = segment.sibling(TXN_INDEX)
            try:
                index = TransactionIndex(read_file(self.files, path))
            except FileNotFoundError:
                index = TransactionIndex()
            doubt = index.doubt(segment.base_offset)
            if doubt is not None:
                raise CorruptLog(Path(path), 0, doubt)
            segment.transactions = index
            segment.saved_transactions = len(index.entries)
        return segment.transactions

    # -- batches -----------------------------------------------------------------------------

    def first_timestamp(self, segment: Segment) -> int:
        """The timestamp of the segment's first batch, -1 when it is empty."""
        if segment.first_timestamp == UNKNOWN:
            segment.first_timestamp = -1
            handle = self.descriptors.get(segment.path)
            data = read_range(self.files, handle.descriptor, HEADER_BYTES, 0)
            if len(data) == HEADER_BYTES:
                segment.first_timestamp = decode_header(data).max_timestamp
        return segment.first_timestamp

    def headers_from(self, segment: Segment, position: int) -> Iterator[tuple[int, BatchHeader]]:
        """Walk the headers of what is written, a little at a time."""
        return walk(
            self.files,
            self.descriptors.get(segment.path).descriptor,
            segment.path,
            position,
            segment.written_bytes,
            verify=False,
            chunk_bytes=_LOOK_BYTES,
        )

    def walk_to(
        self, segment: Segment, entry: Callable[[SparseIndex], Entry], interval_bytes: int
    ) -> Iterator[tuple[int, BatchHeader]]:
        """Walk headers from an entry of the index, which is made anew where that is wrong."""
        found = entry(self.index_of(segment, interval_bytes))
        batches = self._walk_from(segment, found)
        if batches is None:
            found = entry(self._made_anew(segment, interval_bytes))
            batches = self.headers_from(segment, found.position)
        return batches

    def walk_to_time(
        self, segment: Segment, timestamp: int, interval_bytes: int
    ) -> Iterator[tuple[int, BatchHeader]]:
        """Walk headers from where no batch before has a record at or after a time."""
        index = self.index_of(segment, interval_bytes)
        time = index.by_time(timestamp)
        if not self._is_true(segment, index, time):
            time = self._made_anew(segment, interval_bytes).by_time(timestamp)
        return self.walk_to(segment, lambda one: one.by_offset(time.last_offset), interval_bytes)

    def locate(self, segment: Segment, offset: int, interval_bytes: int) -> Place | None:
        """The first batch whose last offset is not below `offset`; None beyond what is written."""
        if not segment.written_bytes:
            return None
        for at, header in self.walk_to(segment, lambda one: one.by_offset(offset), interval_bytes):
            if header.last_offset >= offset:
                return Place(at, header)
        return None

    def end_before(
        self, segment: Segment, start: int, limit: int, interval_bytes: int
    ) -> tuple[int, int]:
        """The last batch boundary in (start, limit], and the offset after it.

        `start` must be a boundary; the batch there counts even if it reaches beyond the limit.
        """
        index = self.index_of(segment, interval_bytes)
        if index.by_position(limit).position > start:
            batches = self.walk_to(segment, lambda one: one.by_position(limit), interval_bytes)
        else:
            batches = self.headers_from(segment, start)
        end, next_offset = start, -1
        for at, header in batches:
            after = at + header.batch_length + _LENGTH_OVERHEAD_BYTES
            if after > limit and at > start:
                return at, next_offset if next_offset >= 0 else header.base_offset
            end, next_offset = after, header.next_offset
            if end >= limit:
                break
        return end, next_offset

    def read(
        self,
        segment: Segment,
        offset: int,
        *,
        max_bytes: int,
        end_offset: int | None,
        at_least_one: bool,
        interval_bytes: int,
    ) -> Read | None:
        """Whole batches from the one that holds `offset`; None when there is none here.

        A batch that holds `end_offset` ends the read; None when the segment has nothing there.
        """
        first = self.locate(segment, offset, interval_bytes)
        if first is None or (end_offset is not None and first.header.next_offset > end_offset):
            return None
        start = first.position
        size_bytes = first.header.batch_length + _LENGTH_OVERHEAD_BYTES
        if size_bytes > max_bytes and not at_least_one:
            return Read([], 0, offset)
        end, next_offset = start + size_bytes, first.header.next_offset
        if size_bytes < max_bytes:
            limit = min(start + max_bytes, segment.written_bytes)
            if end_offset is not None:
                beyond = self.locate(segment, end_offset, interval_bytes)
                limit = limit if beyond is None else min(limit, beyond.position)
            end, next_offset = self.end_before(segment, start, limit, interval_bytes)
        handle = self.descriptors.get(segment.path)
        data = read_range(self.files, handle.descriptor, end - start, start)
        self._counters.reads += 1
        self._counters.read_bytes += len(data)
        return Read([data], len(data), next_offset)
