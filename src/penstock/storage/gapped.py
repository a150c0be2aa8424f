"""Reads across offset gaps, which compaction leaves here or at the leader.

A read at a missing offset continues at the next batch. If there is none before the end of the
readable range, it returns an empty batch that no file holds, so that the reader reaches the end.
"""

from __future__ import annotations

from typing import Final

from penstock.records import HEADER_BYTES, BatchHeader, decode_header, empty_batch
from penstock.records.header import EMPTY_OFFSETS_MAX
from penstock.storage.damage import DamagedRecords
from penstock.storage.segment import segment_place
from penstock.storage.tiering.log import TieredLog
from penstock.storage.values import Read

EMPTY_READS_MAX: Final = 1_000
"""Maximum number of reads that one call combines while they return no record."""


class GappedLog(TieredLog):
    """Log whose offsets may have gaps; the base of every log of a store."""

    __slots__ = ()

    def read(
        self,
        offset: int,
        *,
        max_bytes: int,
        end_offset: int,
        at_least_one: bool = True,
        appended: bool = False,
    ) -> Read:
        """Read as `PartitionLog.read` does, skip offset gaps, and report damage.

        Batches without records are returned together with later ones, if there are any: a client
        (librdkafka) that receives several responses without a record assumes that its records are
        too large.

        Raises:
            OffsetOutOfRange: `offset` is not within [log start, where it may be read to].
            DamagedRecords: the records at `offset` cannot be read; others can.
            CorruptLog: the log's end is lost from `offset` on.
        """
        read = self._read(offset, max_bytes, end_offset, at_least_one, appended)
        if not self.has_holes:
            return read
        end = min(end_offset, self.log_end_offset if appended else self.durable_offset)
        for _ in range(EMPTY_READS_MAX):
            if not read.size_bytes or _has_records(read) or read.next_offset >= end:
                break
            left = max(0, max_bytes - read.size_bytes)
            more = self._read(read.next_offset, left, end_offset, at_least_one, appended)
            if not more.size_bytes:
                break
            buffers = [*read.buffers, *more.buffers]
            read = Read(buffers, read.size_bytes + more.size_bytes, more.next_offset)
        return read

    def _read(
        self, offset: int, max_bytes: int, end_offset: int, at_least_one: bool, appended: bool
    ) -> Read:
        try:
            read = super().read(
                offset, max_bytes=max_bytes, end_offset=end_offset, at_least_one=at_least_one,
                appended=appended,
            )  # fmt: skip
        except DamagedRecords as error:
            self.report_damage(error)
            raise
        if read.size_bytes or not at_least_one or not self.has_holes:
            return read
        end = min(end_offset, self.log_end_offset if appended else self.durable_offset)
        end = min(end, self._next_base(offset), offset + EMPTY_OFFSETS_MAX)
        if end <= offset:
            return read
        filler = empty_batch(offset, end, max(0, self.epochs.epoch_at(offset)))
        return Read([filler], len(filler), end)

    def boundary(self, offset: int) -> int:
        """Return the base offset of the batch that holds `offset`; the log's end beyond it.

        Returns `offset` itself if no batch with records holds it.
        """
        if offset >= self.log_end_offset:
            return self.log_end_offset
        base_offset, header = self._batch_at(offset)
        return offset if header is None or header.is_filler else min(offset, base_offset)

    def _batch_at(self, offset: int) -> tuple[int, BatchHeader | None]:
        """Return base offset and header of the batch that holds an offset, or of a later one of its
        append or segment; (-1, None) if there is none. The header's own base offset may be unset.
        """
        place = self.tail.from_offset(offset)
        item = None if place is None else self.tail.at(place)
        if item is not None and item.headers:
            base_offset = item.base_offset
            for header in item.headers:
                base_offset = header.base_offset if item.stamped else base_offset
                next_offset = base_offset + header.last_offset_delta + 1
                if offset < next_offset:
                    return base_offset, header
                base_offset = next_offset
        segment = self.segments[segment_place(self.segments, offset)]
        interval_bytes = self.config.index_interval_bytes
        found = self._parts.segment_files.locate(segment, offset, interval_bytes)
        return (-1, None) if found is None else (found.header.base_offset, found.header)

    def _next_base(self, offset: int) -> int:
        """Return the base offset of the next batch after a gap."""
        base_offset, header = self._batch_at(offset)
        if header is not None:
            return base_offset
        later = self.segments[segment_place(self.segments, offset) + 1 :]
        ends = [self.log_end_offset, *[segment.base_offset for segment in later[:1]]]
        first = self.tail.first_offset
        return min([*ends, first] if first is not None and first > offset else ends)


def shortened(batches: memoryview, end: int) -> memoryview:
    """Return batches cut at a log's end: only an empty first batch may begin below it."""
    header = decode_header(batches)
    if not header.is_filler or header.next_offset <= end:
        return batches
    filler = empty_batch(end, header.next_offset, header.partition_leader_epoch)
    return memoryview(bytearray(filler) + batches[header.size_bytes :])


def _has_records(read: Read) -> bool:
    """Return whether any batch has records; a batch without records is a bare header."""
    if read.size_bytes % HEADER_BYTES:
        return True
    data = memoryview(b"".join(read.buffers))
    positions = range(0, len(data), HEADER_BYTES)
    return any(decode_header(data, at).size_bytes > HEADER_BYTES for at in positions)
