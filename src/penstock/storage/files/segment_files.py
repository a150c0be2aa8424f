"""Segment files of one store: open descriptors, indexes, and lookups of batches.

A batch is found by bisecting the index and reading the headers from there on. Indexes have no
checksum, and a wrong entry could point behind the batch. The first header must therefore match the
index entry; otherwise the index is rebuilt. The end of a read is found in the same way, so a read
of a megabyte examines only a few headers.

Source: Kafka's `LogSegment`.
"""

from __future__ import annotations

import errno
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain
from operator import methodcaller
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

from penstock.base.files import Buffer, Files, read_file, read_range
from penstock.base.settings import LONG_MAX
from penstock.records import BatchHeader
from penstock.storage.files.errors import SCAN_BYTES, CorruptLog
from penstock.storage.files.index import (
    OFFSET_ENTRY_BYTES,
    TIME_ENTRY_BYTES,
    Entry,
    SparseIndex,
    TimeEntry,
)
from penstock.storage.files.segment import UNKNOWN, Segment, not_loaded
from penstock.storage.files.transaction_index import TransactionIndex, checksum
from penstock.storage.files.values import INDEX, SEGMENT_SUFFIXES, TIME_INDEX, TXN_INDEX, Read
from penstock.storage.files.walk import RELATIVE_OFFSET_MAX, Damage, Survey, walk, whole_batches
from penstock.storage.files.worker import Counters

NOT_OPEN: Final = -1
"""Descriptor of a file that is not open."""


class Handle:
    """Open file, or one that is to be created. A thread other than the event loop's may use it only
    while it is pinned (`users` is above 0)."""

    __slots__ = ("closing", "descriptor", "path", "users")

    def __init__(self, path: str, descriptor: int = NOT_OPEN) -> None:
        self.path = path
        self.descriptor = descriptor
        self.users = 0
        self.closing = False

    @property
    def is_open(self) -> bool:
        return self.descriptor != NOT_OPEN

    def create(self, files: Files) -> None:
        """Open or create the file unless it is open, on the thread for which it is pinned."""
        if not self.is_open:
            self.descriptor = files.open(self.path, create=True)


class Descriptors:
    """Cache of open files that closes the least recently used; files in use stay open.

    Used only on the event loop's thread; call `pin` before passing a handle to another thread.
    """

    def __init__(self, files: Files, limit: int) -> None:
        self._files = files
        self._limit = limit
        self._open: OrderedDict[str, Handle] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def get(self, path: str, *, create: bool = False) -> Handle:
        """Return the open file of a path; on a read-only disk it is opened for reading."""
        handle = self._open.get(path)
        if handle is not None and handle.is_open:
            self._open.move_to_end(path)
            return handle
        self.forget(path)  # another thread may be creating the file
        try:
            descriptor = self._files.open(path, create=create)
        except OSError as error:
            if create or error.errno != errno.EROFS:
                raise
            descriptor = self._files.open_file(path)
        return self._keep(Handle(path, descriptor))

    def reserve(self, path: str) -> Handle:
        """Return the open file of a path, or a handle to `create` on another thread."""
        return self._open.get(path) or self._keep(Handle(path))

    def pin(self, handle: Handle) -> Handle:
        handle.users += 1
        return handle

    def unpin(self, handle: Handle) -> None:
        handle.users -= 1
        if handle.closing and handle.users == 0:
            self._close(handle)
        elif len(self._open) > self._limit:
            self._evict()

    def forget(self, path: str) -> None:
        handle = self._open.pop(path, None)
        if handle is None:
            return
        if handle.users:
            handle.closing = True
        else:
            self._close(handle)

    def close(self) -> None:
        for path in list(self._open):
            self.forget(path)

    def _keep(self, handle: Handle) -> Handle:
        if len(self._open) >= self._limit:
            self._evict()
        self._open[handle.path] = handle
        return handle

    def _close(self, handle: Handle) -> None:
        if handle.is_open:
            self._files.close(handle.descriptor)

    def _evict(self) -> None:
        idle = next((path for path, handle in self._open.items() if handle.users == 0), None)
        if idle is not None:
            self.forget(idle)


logger = logging.getLogger(__name__)

_LENGTH_OVERHEAD_BYTES: Final = 12
_OFFSET: Final = Struct(">q")
READ_ENDS_MAX: Final = 1024
"""Maximum number of reads whose ends are remembered."""
_LOOK_BYTES: Final = 4096 + 1024
"""Bytes that a walk reads at once to find one batch: about one index interval."""


class Place(NamedTuple):
    """Position and header of a batch in a segment."""

    position: int
    header: BatchHeader


class IndexCache:
    """Cache of closed segments' indexes, bounded in bytes, that evicts the least recently used."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._segments: OrderedDict[Segment, int] = OrderedDict()
        self.size_bytes = 0

    def used(self, segment: Segment) -> None:
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
    """Open files and indexes of a store's segments; used on the event loop's thread."""

    __slots__ = ("_counters", "_ends", "descriptors", "files", "indexes")

    def __init__(
        self, files: Files, counters: Counters, *, open_files_max: int, index_cache_bytes: int
    ) -> None:
        self._counters = counters
        self._ends: dict[tuple[Segment, int], int] = {}
        """Position at which a read of a segment ended, by the segment and the next offset."""
        self.files = files
        self.descriptors = Descriptors(files, open_files_max)
        self.indexes = IndexCache(index_cache_bytes)

    def forget(self, segment: Segment) -> None:
        """Drop the state of a segment that is about to change or be removed; close its files."""
        self.indexes.forget(segment)
        for key in [key for key in self._ends if key[0] is segment]:
            del self._ends[key]
        for suffix in SEGMENT_SUFFIXES:
            self.descriptors.forget(segment.sibling(suffix))

    # -- indexes -----------------------------------------------------------------------------

    def index_of(self, segment: Segment, interval_bytes: int) -> SparseIndex:
        """Return the indexes of a segment: the saved ones if they are valid, else rebuilt ones."""
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
        """Return the saved indexes below an offset and a position; None if missing or wrong.

        Only the newest entries are compared with batches, because a power failure can tear only
        these; earlier checkpoints synced all other entries.
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
        """Return the highest timestamp of a closed segment; -1 without one.

        If the newest index entries match the last batches, only the ends of the index files are
        read; otherwise the whole index, which may have megabytes.
        """
        if segment.max_timestamp == UNKNOWN and not self._read_newest(segment):
            self.index_of(segment, interval_bytes)
            self.indexes.used(segment)
        return segment.max_timestamp

    def _read_newest(self, segment: Segment) -> bool:
        """Set the highest timestamp from the ends of the indexes; return whether they are valid."""
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
        """Return the last `count` bytes of an index, aligned to its entries."""
        file = self.files.open_file(path)
        try:
            size = self.files.size(file)
            return self.files.read_at(file, count, max(0, size - size % count - count))
        finally:
            self.files.close(file)

    def _walk_from(
        self, segment: Segment, entry: Entry, *, verify: bool = False
    ) -> Iterator[tuple[int, BatchHeader]] | None:
        """Walk headers from an index entry; None if the entry matches no batch."""
        batches = self.walk(segment, entry.position, verify=verify)
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
        """Return whether a batch has the timestamp and the offset of a time index entry."""
        if entry.timestamp < 0:
            return True
        batches = self._walk_from(segment, index.by_offset(entry.last_offset)) or ()
        with suppress(CorruptLog):
            for _, header in batches:
                if header.last_offset >= entry.last_offset:
                    return (header.max_timestamp, header.last_offset) == entry
        return False

    def _rebuild_index(self, segment: Segment, interval_bytes: int) -> None:
        self.resume_index(segment, SparseIndex(segment.base_offset), interval_bytes)
        segment.saved_offsets = segment.saved_times = 0
        for suffix in (INDEX, TIME_INDEX):
            self.descriptors.forget(segment.sibling(suffix))
            with suppress(FileNotFoundError):
                self.files.remove(segment.sibling(suffix))

    def _made_anew(self, segment: Segment, interval_bytes: int) -> SparseIndex:
        logger.error("%s: rebuilding the index, which does not match the segment", segment.path)
        self._rebuild_index(segment, interval_bytes)
        return self.index_of(segment, interval_bytes)

    def resume_index(
        self, segment: Segment, index: SparseIndex, interval_bytes: int, *, end: int | None = None
    ) -> None:
        """Use a saved index, and add the entries that it lacks up to the position `end`.

        Damaged batches get no entries; intact batches after them do.
        """
        end = segment.written_bytes if end is None else end
        position = index.newest.position
        segment.index = index
        segment.saved_offsets, segment.saved_times = len(index.offsets), len(index.times)
        segment.max_timestamp = index.last_timestamp
        segment.max_timestamp_offset = index.last_timestamp_offset
        segment.written_bytes = position
        segment.bytes_since_entry = 0
        try:
            for _, header in self.walk(segment, position, end, chunk_bytes=SCAN_BYTES):
                if header.last_offset - segment.base_offset > RELATIVE_OFFSET_MAX:
                    reason = f"offset {header.last_offset} is too far above the segment's first"
                    raise CorruptLog(Path(segment.path), segment.written_bytes, reason)
                segment.add_batches((header,), interval_bytes)
        except CorruptLog as error:
            logger.error("an index omits damaged batches: %s", error)
            self._index_survey(segment, end, interval_bytes)
        segment.written_bytes = end

    def _index_survey(self, segment: Segment, end: int, interval_bytes: int) -> None:
        segment.index = SparseIndex(segment.base_offset)
        segment.saved_offsets = segment.saved_times = segment.bytes_since_entry = 0
        segment.max_timestamp = segment.max_timestamp_offset = -1
        segment.written_bytes = end
        with suppress(CorruptLog):
            survey = Survey(
                self.files, self.descriptor_of(segment), segment, end_offset=LONG_MAX, epoch=-1,
                gaps=False,
            )  # fmt: skip
            for position, header, _ in survey.batches(0, segment.base_offset):
                if header is not None:
                    segment.written_bytes = position
                    segment.add_batches((header,), interval_bytes)
                    segment.written_bytes = end

    def descriptor_of(self, segment: Segment) -> int:
        """Return the descriptor of the segment's file; raises CorruptLog."""
        try:
            return self.descriptors.get(segment.path).descriptor
        except FileNotFoundError:
            raise CorruptLog(Path(segment.path), 0, "the file is missing") from None

    def transactions_of(self, segment: Segment) -> TransactionIndex:
        """Return the aborted transactions of a segment; raises CorruptLog."""
        if segment.transactions is None:
            path = segment.sibling(TXN_INDEX)
            try:
                index = TransactionIndex(read_file(self.files, path))
            except FileNotFoundError:
                index = TransactionIndex()
            saved = bytes(memoryview(index.entries)[: segment.saved_transactions])
            doubt = index.doubt(segment.base_offset)
            if doubt is None and checksum(segment.base_offset, saved) != segment.aborted_checksum:
                doubt = "the checksum of its entries differs from the saved one"
            if doubt is not None:
                raise CorruptLog(Path(path), 0, doubt)
            segment.transactions = index
            segment.saved_transactions = len(index.entries)
            segment.aborted_checksum = checksum(segment.base_offset, index.entries)
        return segment.transactions

    # -- batches -----------------------------------------------------------------------------

    def first_timestamp(self, segment: Segment) -> int:
        if segment.first_timestamp == UNKNOWN:
            segment.first_timestamp = -1
            with suppress(CorruptLog):
                for _, header in self.walk(segment, 0):
                    segment.first_timestamp = header.newest_timestamp
                    break
        return segment.first_timestamp

    def walk(
        self,
        segment: Segment,
        position: int,
        end: int | None = None,
        *,
        verify: bool = False,
        chunk_bytes: int = _LOOK_BYTES,
    ) -> Iterator[tuple[int, BatchHeader]]:
        """Walk the batches in a segment's file from `position` to `end`, by default to its end.

        Raises:
            CorruptLog: as `log.walk.walk`, or the file is missing.
        """
        return walk(
            self.files,
            self.descriptor_of(segment),
            segment.path,
            position,
            segment.written_bytes if end is None else end,
            verify=verify,
            chunk_bytes=chunk_bytes,
        )

    def walk_to(
        self,
        segment: Segment,
        entry: Callable[[SparseIndex], Entry],
        interval_bytes: int,
        *,
        verify: bool = False,
    ) -> Iterator[tuple[int, BatchHeader]]:
        """Walk headers from an index entry; rebuild the index if the entry is wrong."""
        found = entry(self.index_of(segment, interval_bytes))
        batches = self._walk_from(segment, found, verify=verify)
        if batches is None:
            found = entry(self._made_anew(segment, interval_bytes))
            batches = self.walk(segment, found.position, verify=verify)
        return batches

    def walk_to_time(
        self, segment: Segment, timestamp: int, interval_bytes: int
    ) -> Iterator[tuple[int, BatchHeader]]:
        """Walk headers from a position before the first record at or after a timestamp."""
        index = self.index_of(segment, interval_bytes)
        time = index.by_time(timestamp)
        if not self._is_true(segment, index, time):
            time = self._made_anew(segment, interval_bytes).by_time(timestamp)
        return self.walk_to(
            segment, lambda index: index.by_offset(time.last_offset), interval_bytes, verify=True
        )

    def locate(self, segment: Segment, offset: int, interval_bytes: int) -> Place | None:
        """Return the first batch that ends at or above `offset`; None beyond written bytes."""
        if not segment.written_bytes:
            return None
        entry = methodcaller("by_offset", offset)
        for at, header in self.walk_to(segment, entry, interval_bytes):
            if header.last_offset >= offset:
                return Place(at, header)
        return None

    def end_before(
        self, segment: Segment, start: int, limit: int, interval_bytes: int
    ) -> tuple[int, int]:
        """Return the last position in (start, limit] at which a batch ends, and its end offset.

        A batch begins at `start`; it counts even if it ends above `limit`.
        """
        index = self.index_of(segment, interval_bytes)
        if index.by_position(limit).position > start:
            batches = self.walk_to(segment, methodcaller("by_position", limit), interval_bytes)
        else:
            batches = self.walk(segment, start)
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
        epoch: int,
        gaps: bool,
    ) -> Read | None:
        """Return verified complete batches from the one that holds `offset`; None if there is none.

        The read ends before a batch that holds `end_offset`, and before a damaged batch. Batches
        must have the leader epoch `epoch`, unless it is -1.

        Raises:
            CorruptLog: the first batch is damaged, or no batch holds `offset` although there are no
                `gaps`.
        """
        if end_offset is None:
            read = self._read_on(segment, offset, max_bytes, epoch, gaps)
            if read is not None:
                return read
        first = self.locate(segment, offset, interval_bytes)
        if first is None:
            return None
        start, size_bytes = first.position, first.header.batch_length + _LENGTH_OVERHEAD_BYTES
        if first.header.base_offset > offset and not gaps:
            raise CorruptLog(Path(segment.path), start, f"no batch holds offset {offset}")
        if end_offset is not None and first.header.next_offset > end_offset:
            self._verified(segment, start, start + size_bytes, epoch)
            return Read([], 0, offset)
        if size_bytes > max_bytes and not at_least_one:
            return Read([], 0, offset)
        end = start + size_bytes
        if size_bytes < max_bytes:
            limit = min(start + max_bytes, segment.written_bytes)
            if end_offset is not None:
                beyond = self.locate(segment, end_offset, interval_bytes)
                limit = limit if beyond is None else min(limit, beyond.position)
            end, _ = self.end_before(segment, start, limit, interval_bytes)
        return self._verified(segment, start, end, epoch)

    def _read_on(
        self, segment: Segment, offset: int, max_bytes: int, epoch: int, gaps: bool
    ) -> Read | None:
        """Read from the start of the segment or the end of an earlier read, without the index.

        Return None if `offset` is at neither, or if no whole batch of at most `max_bytes` follows.
        """
        start = 0 if offset == segment.base_offset else self._ends.get((segment, offset))
        if start is None or max_bytes <= 0:
            return None
        size = min(max_bytes, segment.written_bytes - start)
        data = read_range(self.files, self.descriptor_of(segment), size, start)
        good, next_offset = whole_batches(data, epoch)
        found_offset = _OFFSET.unpack_from(data)[0] if good else -1
        if found_offset < offset or (found_offset > offset and not gaps):
            return None
        return self._followed(segment, data, start, good, next_offset)

    def _verified(self, segment: Segment, start: int, end: int, epoch: int) -> Read:
        """Return the intact batches at the beginning of a range; raises CorruptLog without any."""
        data = read_range(self.files, self.descriptor_of(segment), end - start, start)
        good, next_offset = whole_batches(data, epoch)
        if not good:
            raise CorruptLog(Path(segment.path), start, "the batch is damaged")
        return self._followed(segment, data, start, good, next_offset)

    def _followed(
        self, segment: Segment, data: bytes, start: int, good: int, next_offset: int
    ) -> Read:
        """Return the first `good` bytes of `data`, and remember where they end.

        Raises:
            CorruptLog: all bytes are good, but the batch behind them has a lower offset.
        """
        end = start + good
        if end < segment.written_bytes:
            if good == len(data):
                behind = read_range(self.files, self.descriptor_of(segment), _OFFSET.size, end)
                if len(behind) < _OFFSET.size or _OFFSET.unpack(behind)[0] < next_offset:
                    reason = f"no batch follows offset {next_offset - 1}"
                    raise CorruptLog(Path(segment.path), end, reason)
            if len(self._ends) >= READ_ENDS_MAX:
                del self._ends[next(iter(self._ends))]
            self._ends[segment, next_offset] = end
        part: Buffer = data
        if good < len(data):
            part = data[:good] if good < len(data) // 2 else memoryview(data)[:good]
        return self._counted(part, next_offset)

    def piece(self, segment: Segment, start: int, end: int, next_offset: int) -> Read:
        """Read the bytes [start, end) of a segment, whose batches `survey` has found intact.

        Raises:
            CorruptLog: the file is missing.
        """
        data = read_range(self.files, self.descriptor_of(segment), end - start, start)
        return self._counted(data, next_offset)

    def _counted(self, data: Buffer, next_offset: int) -> Read:
        self._counters.reads += 1
        self._counters.read_bytes += len(data)
        return Read([data], len(data), next_offset)

    def survey(
        self,
        segment: Segment,
        offset: int,
        *,
        end_offset: int,
        epoch: int,
        interval_bytes: int,
        gaps: bool,
    ) -> Iterator[tuple[int, BatchHeader | None, Damage | None]]:
        """Examine every batch of a segment, from about `offset` on; see `Survey`."""
        try:
            descriptor = self.descriptor_of(segment) if segment.written_bytes else -1
        except CorruptLog as error:
            first = segment.base_offset
            yield 0, None, Damage(segment.path, first, 0, 0, first, end_offset, error.reason)
            return
        survey = Survey(
            self.files, descriptor, segment, end_offset=end_offset, epoch=epoch,
            gaps=gaps or segment.gaps,
        )  # fmt: skip
        position, expected = 0, segment.base_offset
        entry = self.index_of(segment, interval_bytes).by_offset(offset)
        while entry.position:
            header, _ = survey.at(entry.position)
            if header is not None and header.last_offset == entry.last_offset:
                position, expected = entry.position, header.base_offset
                break
            entry = self.index_of(segment, interval_bytes).by_position(entry.position - 1)
        yield from survey.batches(position, expected)
