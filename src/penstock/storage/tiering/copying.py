"""Reading of a segment's batches for the archive: verified and reindexed.

Every batch is verified first, so that damage is not archived. The indexes are built from the copy,
not taken from the file: a copy may begin within a segment, if an earlier leader cut its segments at
other offsets, and a damaged index does no harm.

Offset gaps, which a compaction left before the topic was tiered, are filled with batches without
records: the archive has every offset.

Source: Kafka's `LogSegment.append` and `recover`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from penstock.base.crc import crc32c
from penstock.base.files import Buffer, Files, read_range
from penstock.records import (
    HEADER_BYTES,
    BatchHeader,
    CorruptBatch,
    decode_header,
    empty_batches,
    verify_crc,
)
from penstock.storage.errors import CorruptLog
from penstock.storage.formats.index import SparseIndex
from penstock.storage.segment import Segment, not_loaded

PIECE_BYTES: Final = 4 << 20
"""Bytes that are read at once."""


class SegmentCopy:
    """Reader of whole batches of one leader epoch, piece by piece; for one thread at a time."""

    def __init__(
        self,
        files: Files,
        path: str,
        *,
        position: int,
        end: int,
        base_offset: int,
        next_offset: int,
        interval_bytes: int,
    ) -> None:
        """Open the bytes [position, end), all of [base, next offset); raises OSError."""
        self._files = files
        self._path = path
        self._descriptor = files.open(path)
        self._position, self._end = position, end
        self._interval_bytes = interval_bytes
        self._made = Segment("", base_offset)
        self._last_offset: int | None = next_offset
        self.next_offset = base_offset
        self.leader_epoch = -1
        self.checksum = 0
        self._fillers: list[tuple[int, bytes]] = []

    @property
    def size_bytes(self) -> int:
        """Bytes that were read so far."""
        return self._made.written_bytes

    @property
    def max_timestamp(self) -> int:
        return self._made.max_timestamp

    def piece(self) -> memoryview | None:
        """Return the next batches; None at the end, or before another epoch; raises CorruptLog."""
        wanted = min(PIECE_BYTES, self._end - self._position)
        while wanted:
            data = memoryview(read_range(self._files, self._descriptor, wanted, self._position))
            if len(data) < wanted:
                raise self._damaged(f"the file is {wanted - len(data)} bytes too short")
            taken, needed = self._take(data)
            if taken:
                self._position += taken
                return self._checked(data[:taken])
            if needed <= wanted or wanted == self._end - self._position:
                break
            wanted = min(needed, self._end - self._position)
        end, self._last_offset = self._last_offset, None
        if end is None or end <= self.next_offset or self.leader_epoch < 0:
            return None
        self._fill(0, end)
        self.next_offset = end
        return self._checked(memoryview(b""))

    def _checked(self, data: memoryview) -> memoryview:
        if self._fillers:
            parts, begun = list[Buffer](), 0
            for at, filler in self._fillers:
                parts += [data[begun:at], filler]
                begun = at
            data, self._fillers = memoryview(b"".join([*parts, data[begun:]])), []
        self.checksum = crc32c(data, self.checksum)
        return data

    def _fill(self, at: int, offset: int) -> None:
        """Add batches without records at a byte position, up to an offset."""
        for filler in empty_batches(self.next_offset, offset, self.leader_epoch):
            self._fillers.append((at, filler))
            header = decode_header(filler)
            self._made.add(header, header.base_offset, self._interval_bytes)

    def indexes(self) -> tuple[bytes, bytes]:
        self._made.close_index()
        index = self._index()
        return bytes(index.offsets), bytes(index.times)

    def close(self) -> None:
        self._files.close(self._descriptor)

    def _take(self, data: memoryview) -> tuple[int, int]:
        """Verify and index whole batches; return their bytes, and those that the next one needs."""
        at = 0
        while len(data) - at >= HEADER_BYTES:
            header = self._header(data, at)
            if header.size_bytes > len(data) - at:
                if header.size_bytes > self._end - self._position - at:
                    raise self._damaged("a batch reaches beyond the end of the segment")
                return at, header.size_bytes
            try:
                verify_crc(data, header, at)
            except CorruptBatch as error:
                raise self._damaged(str(error)) from None
            if self.leader_epoch < 0:
                self.leader_epoch = header.partition_leader_epoch
            elif header.partition_leader_epoch != self.leader_epoch:
                self._end, self._last_offset = self._position + at, None
                return at, 0
            if header.base_offset > self.next_offset:
                self._fill(at, header.base_offset)
            self._made.add(header, header.base_offset, self._interval_bytes)
            self.next_offset = header.next_offset
            at += header.size_bytes
        if len(data) > at and self._position + len(data) == self._end:
            raise self._damaged(f"the last {len(data) - at} bytes are not a batch")
        return at, HEADER_BYTES

    def _header(self, data: memoryview, at: int) -> BatchHeader:
        try:
            header = decode_header(data, at)
        except CorruptBatch as error:
            raise self._damaged(str(error)) from None
        if header.base_offset < self.next_offset:
            raise self._damaged(
                f"a batch begins at offset {header.base_offset}, after {self.next_offset}"
            )
        return header

    def _index(self) -> SparseIndex:
        if self._made.index is None:
            raise not_loaded(self._made)
        return self._made.index

    def _damaged(self, reason: str) -> CorruptLog:
        return CorruptLog(Path(self._path), self._position, reason)
