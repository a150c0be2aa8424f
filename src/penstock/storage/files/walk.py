"""Walk over the batches of a segment, for loading, rebuilds, verification and repair; damage.

`walk` reads headers in order and stops at the first bytes that are not a batch. `Survey` verifies
every batch, and continues behind damage at the next intact batch with valid offsets.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from typing import ClassVar, Final, NamedTuple

from penstock.base.crc import crc32c
from penstock.base.files import Files, read_range
from penstock.base.settings import LONG_MAX
from penstock.records import HEADER_BYTES, BatchHeader, CorruptBatch, decode_header, verify_crc
from penstock.records.header import CHECKED_FROM, LENGTH_OVERHEAD_BYTES, MAGIC
from penstock.storage.files.errors import SCAN_BYTES, CorruptLog
from penstock.storage.files.segment import Segment
from penstock.storage.files.values import Buffer

# Detection of damaged batches, and the extent of the damage.
#
# Every batch read from a segment is verified before it is returned: its checksum, its leader epoch,
# and that offsets rise. The checksum covers neither leader epoch nor base offset. A wrong base
# offset is detected because it contradicts the next batch.
#
# After a mismatch a survey searches behind the damage for the next complete batch
# with valid offsets. The damage is then a range of bytes and of offsets, and only reads of that
# range fail. If a file is truncated or missing, the damage has offsets but no bytes: the segments
# of a log are contiguous, except where compaction removed batches.
#
# Source: Kafka's `LogSegment.recover`, which truncates the segment instead.


_BATCH: Final = Struct(">qiibI2xi")
"""Base offset, length, leader epoch, magic, checksum and last offset delta."""
_LENGTH_MIN: Final = HEADER_BYTES - LENGTH_OVERHEAD_BYTES


class Damage(NamedTuple):
    """Damaged range of a segment: the bytes [position, end_position), which held the batches of the
    offsets [first_offset, next_offset). If a file ends too early, the byte range is empty."""

    path: str
    segment_base: int
    position: int
    end_position: int
    first_offset: int
    next_offset: int
    reason: str


class DamagedRecords(CorruptLog):
    """Stored records that cannot be read, although records before and after them can."""

    code: ClassVar[str] = "corrupt_message"

    def __init__(self, damage: Damage) -> None:
        super().__init__(
            Path(damage.path),
            damage.position,
            f"{damage.reason}; offsets {damage.first_offset} to {damage.next_offset - 1} cannot be"
            " read",
        )
        self.damage = damage


def whole_batches(data: Buffer, epoch: int) -> tuple[int, int]:
    """Return the bytes of the intact batches at the beginning of `data`, and the offset after them.

    Batches must have leader epoch `epoch`, unless it is -1. If a batch begins below the end of its
    predecessor, the result is (0, -1), because either of the two may be wrong.
    """
    view = memoryview(data)
    position, following, end = 0, -1, len(view)
    unpack = _BATCH.unpack_from
    while end - position >= HEADER_BYTES:
        base, length, of, magic, checksum, delta = unpack(view, position)
        after = position + length + LENGTH_OVERHEAD_BYTES
        if base < following:
            return 0, -1
        if length < _LENGTH_MIN or after > end or magic != MAGIC or delta < 0:
            break
        if of != epoch >= 0 or crc32c(view[position + CHECKED_FROM : after]) != checksum:
            break
        position, following = after, base + delta + 1
    return position, following


RELATIVE_OFFSET_MAX: Final = 2**31 - 1
"""Maximum distance of an offset from its segment's base offset, as an index can store it."""
_OFFSET_AND_LENGTH: Final = Struct(">qi")
_MAGIC_AT: Final = 16
_SEARCH_BYTES: Final = 1 << 20
_FIRST_SEARCH_BYTES: Final = 64 << 10


class Walked(NamedTuple):
    """Batch in a segment file, which is open as descriptor `file`."""

    position: int
    header: BatchHeader
    files: Files
    file: int

    def read(self) -> bytes:
        return read_range(self.files, self.file, self.header.size_bytes, self.position)


def walk(
    files: Files,
    descriptor: int,
    path: str,
    position: int,
    end: int,
    *,
    verify: bool,
    chunk_bytes: int = SCAN_BYTES,
) -> Iterator[tuple[int, BatchHeader]]:
    """Yield (position, header) of the batches in [position, end).

    Raises:
        CorruptLog: bytes are not a batch, a batch reaches beyond `end` or begins below the end of
            its predecessor or, with `verify`, has a wrong checksum.
    """
    chunk = memoryview(b"")
    chunk_at, following = position, 0
    while position < end:
        offset = position - chunk_at
        needed = HEADER_BYTES if len(chunk) - offset < HEADER_BYTES else 0
        if needed == 0:
            header = _header(chunk, offset, path, position, end)
            size = header.batch_length + 12
            if not verify or len(chunk) - offset >= size:
                if verify:
                    _verify(chunk, header, offset, path, position)
                if header.base_offset < following:
                    reason = f"base offset {header.base_offset}, expected at least {following}"
                    raise CorruptLog(Path(path), position, reason)
                following = header.next_offset
                yield position, header
                position += size
                continue
            needed = size
        wanted = min(max(needed, chunk_bytes), end - position)
        chunk = memoryview(read_range(files, descriptor, wanted, position))
        chunk_at = position
        if len(chunk) < min(needed, wanted) or wanted < HEADER_BYTES:
            raise CorruptLog(
                Path(path), position, f"the last {len(chunk)} bytes are not a complete batch"
            )


def walk_file(files: Files, path: str, position: int = 0, end: int = LONG_MAX) -> Iterator[Walked]:
    """Yield the batches of a segment file, from the batch at `position` on; read only headers.

    Raises:
        CorruptLog: as `walk`.
        OSError: the file cannot be read.
    """
    file = files.open_file(path)
    try:
        end = min(end, files.size(file))
        for at, header in walk(files, file, path, position, end, verify=False):
            yield Walked(at, header, files, file)
    finally:
        files.close(file)


def _header(chunk: memoryview, offset: int, path: str, position: int, end: int) -> BatchHeader:
    try:
        header = decode_header(chunk, offset)
    except CorruptBatch as error:
        raise CorruptLog(Path(path), position, str(error)) from None
    if header.batch_length + 12 > end - position:
        raise CorruptLog(
            Path(path),
            position,
            f"the batch header states {header.size_bytes} bytes, but only {end - position} follow",
        )
    return header


def _verify(chunk: memoryview, header: BatchHeader, offset: int, path: str, position: int) -> None:
    try:
        verify_crc(chunk, header, offset)
    except CorruptBatch as error:
        raise CorruptLog(Path(path), position, str(error)) from None


class Survey:
    """Scan of one segment for intact batches and the damage between them.

    The segment's offsets end at `end_offset`. With `gaps`, missing offsets count as compacted.
    Without, a batch behind damage is accepted only if the next batch adjoins it.
    """

    def __init__(
        self,
        files: Files,
        descriptor: int,
        segment: Segment,
        *,
        end_offset: int,
        epoch: int,
        gaps: bool,
    ) -> None:
        self._files = files
        self._descriptor = descriptor
        self._segment = segment
        self._end = segment.written_bytes
        self._end_offset = end_offset
        self._epoch = epoch
        self._gaps = gaps

    def batches(
        self, position: int, expected: int
    ) -> Iterator[tuple[int, BatchHeader | None, Damage | None]]:
        """Yield intact batches with their positions, and the damage between them.

        At `position`, a batch with base offset `expected` or a higher one must begin.
        """
        while position < self._end:
            header, reason = self._look(position, expected)
            if header is not None:
                if header.base_offset > expected and not self._gaps:
                    reason = f"a batch begins at offset {header.base_offset}, expected {expected}"
                    missing = position, position, expected, header.base_offset
                    yield position, None, self._damage(*missing, reason)
                yield position, header, None
                position += header.size_bytes
                expected = header.next_offset
                continue
            found, following = self._behind(position, expected)
            if following > expected:
                yield position, None, self._damage(position, found, expected, following, reason)
            position, expected = found, following
        if expected < self._end_offset and not self._gaps:
            reason = f"the file ends at offset {expected}, expected {self._end_offset}"
            yield (
                self._end,
                None,
                self._damage(self._end, self._end, expected, self._end_offset, reason),
            )

    def _damage(self, position: int, end: int, first: int, following: int, reason: str) -> Damage:
        base = self._segment.base_offset
        return Damage(self._segment.path, base, position, end, first, following, reason)

    def _look(self, position: int, expected: int) -> tuple[BatchHeader | None, str]:
        header, reason = self.at(position)
        if header is None:
            return None, reason
        last = min(self._end_offset - 1, self._segment.base_offset + RELATIVE_OFFSET_MAX)
        if not expected <= header.base_offset <= header.last_offset <= last:
            return None, (
                f"a batch has the offsets {header.base_offset} to {header.last_offset}, which are"
                f" not within {expected} to {self._end_offset - 1}"
            )
        if header.base_offset > expected:
            # Either offsets are missing or the base offset is wrong: compare with the next batch.
            after, _ = self.at(position + header.size_bytes)
            if after is not None and after.base_offset < header.next_offset:
                reason = f"a batch begins at offset {header.base_offset}, expected {expected}"
                return None, reason
        return header, ""

    def _behind(self, position: int, expected: int) -> tuple[int, int]:
        """Return the position and base offset of the next intact batch behind damage.

        The end that the damaged batch's header states is tried first, so that contents of records
        are not taken for batches. Otherwise `_search` finds the batch.
        """
        try:
            header = decode_header(self._read(HEADER_BYTES, position))
        except CorruptBatch:
            return self._search(position + 1, expected)
        behind = position + header.size_bytes
        following, _ = self._look(behind, expected)
        if following is not None and self._leads_on(behind, following):
            return behind, following.base_offset
        whole, _ = self.at(position)
        return self._search(position + 1 if whole is None else behind, expected)

    def _leads_on(self, position: int, header: BatchHeader) -> bool:
        """Return whether the next batch confirms this one's base offset.

        The checksum of a batch does not cover its base offset.
        """
        behind = position + header.size_bytes
        if self._gaps:
            return True
        if behind >= self._end:
            return self._end_offset in (header.next_offset, LONG_MAX)
        after, _ = self.at(behind)
        return after is not None and after.base_offset == header.next_offset

    def at(self, position: int) -> tuple[BatchHeader | None, str]:
        """Return the header of the batch at a position, or None and the reason if it is damaged.

        Adjacent batches are not considered.
        """
        try:
            header = decode_header(self._read(HEADER_BYTES, position))
        except CorruptBatch as error:
            return None, str(error)
        try:
            verify_crc(self._read(header.size_bytes, position), header)
        except CorruptBatch:
            return None, f"a batch of {header.size_bytes} bytes is truncated or damaged"
        if header.partition_leader_epoch != self._epoch >= 0:
            epoch = header.partition_leader_epoch
            return None, f"a batch has leader epoch {epoch}, but its segment has {self._epoch}"
        return header, ""

    def _read(self, size_bytes: int, position: int) -> bytes:
        """Return bytes of the segment, or b"" if the disk fails to read them."""
        size_bytes = min(size_bytes, self._end - position)
        try:
            return read_range(self._files, self._descriptor, max(0, size_bytes), position)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return b""

    def _search(self, position: int, expected: int) -> tuple[int, int]:
        """Return position and offset of the next intact batch, or the end of the segment."""
        wanted = _FIRST_SEARCH_BYTES
        while position < self._end:
            data = self._read(wanted, position)
            last = len(data) - HEADER_BYTES
            at = data.find(b"\x02", _MAGIC_AT) - _MAGIC_AT
            while 0 <= at <= last:
                base, length = _OFFSET_AND_LENGTH.unpack_from(data, at)
                if expected <= base < self._end_offset and length >= _LENGTH_MIN:
                    header, _ = self._look(position + at, expected)
                    if header is not None and self._leads_on(position + at, header):
                        return position + at, header.base_offset
                at = data.find(b"\x02", at + 1 + _MAGIC_AT) - _MAGIC_AT
            if len(data) < HEADER_BYTES:
                if position + wanted >= self._end:
                    break
                position += wanted  # skip bytes that the disk fails to read
            else:
                position += last + 1
            wanted = _SEARCH_BYTES
        return self._end, self._end_offset
