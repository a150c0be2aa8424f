"""Stored batches that are not what was written: how they are told from good ones, and how far they
reach.

What is read of a segment is verified batch by batch before anybody gets it: checksum, leader epoch,
and that offsets rise, as the checksum covers neither of these. A base offset that is wrong
contradicts the batch behind it.

Where something is wrong, a survey looks at every batch from a place that index and batch agree
on, and finds its way behind what is damaged: to the next bytes that are a whole batch of offsets
that may follow. So the damage is known as a range of bytes and the range of offsets that lay there,
and nothing else is refused. A file that is cut, or gone, is a range whose bytes are not there:
segments follow each other without gaps, but where compaction has been.

Source: Kafka's `LogSegment.recover`, which cuts a segment there instead.
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
from penstock.storage.errors import CorruptLog
from penstock.storage.segment import Segment
from penstock.storage.values import Buffer

_BATCH: Final = Struct(">qiibI2xi")
"""Base offset, length, leader epoch, magic, checksum and last offset delta."""
RELATIVE_OFFSET_MAX: Final = 2**31 - 1
"""Between a segment's first offset and any of its others, as its index tells it."""
_MAGIC_AT: Final = 16
_LENGTH_MIN: Final = HEADER_BYTES - LENGTH_OVERHEAD_BYTES
_SEARCH_BYTES: Final = 1 << 20
_FIRST_SEARCH_BYTES: Final = 64 << 10


class Damage(NamedTuple):
    """The bytes [position, end_position) of a segment are not the batches of [first_offset,
    next_offset) that lay there; no bytes where a file ends too early."""

    path: str
    segment_base: int
    position: int
    end_position: int
    first_offset: int
    next_offset: int
    reason: str


class DamagedRecords(CorruptLog):
    """Records that are stored and cannot be read; those before and behind them can."""

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
    """How many bytes at the beginning are batches as they were written, and the offset behind them.

    They are of a leader epoch, if that is not -1. None are where a batch begins below the end of
    the one before it, as nobody knows which of both is wrong.
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


class Survey:
    """Looks at the batches of one segment, whatever is between them.

    The offsets of the segment end at `end_offset`. With `gaps` some may be missing without any
    damage, because of compaction; without, a batch behind damage must lead up to the next one.
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
        """Good batches with their positions, and the damage between them, from a good place on,
        where `expected` or a higher offset begins."""
        while position < self._end:
            header, reason = self._look(position, expected)
            if header is not None:
                if header.base_offset > expected and not self._gaps:
                    reason = f"a batch at offset {header.base_offset}, {expected} was due"
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
            reason = f"the file ends at offset {expected}, {self._end_offset} follows"
            yield (
                self._end,
                None,
                self._damage(self._end, self._end, expected, self._end_offset, reason),
            )

    def _damage(self, position: int, end: int, first: int, following: int, reason: str) -> Damage:
        base = self._segment.base_offset
        return Damage(self._segment.path, base, position, end, first, following, reason)

    def _look(self, position: int, expected: int) -> tuple[BatchHeader | None, str]:
        """The batch that begins at a position, if there is a good one, else why there is none."""
        header, reason = self.at(position)
        if header is None:
            return None, reason
        last = min(self._end_offset - 1, self._segment.base_offset + RELATIVE_OFFSET_MAX)
        if not expected <= header.base_offset <= header.last_offset <= last:
            return None, (
                f"a batch has the offsets {header.base_offset} to {header.last_offset}, of"
                f" {expected} to {self._end_offset - 1}"
            )
        if header.base_offset > expected:
            # Some may be missing before it, or its base offset is wrong: ask the next one.
            after, _ = self.at(position + header.size_bytes)
            if after is not None and after.base_offset < header.next_offset:
                return None, f"a batch at offset {header.base_offset}, {expected} was due"
        return header, ""

    def _behind(self, position: int, expected: int) -> tuple[int, int]:
        """As `_search`, behind what is damaged at a position; first where its header says that it
        ends, so that what records hold is not taken for batches of the log."""
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
        """Whether a batch behind damage says where it is: its base offset has no checksum."""
        behind = position + header.size_bytes
        if self._gaps:
            return True
        if behind >= self._end:
            return self._end_offset in (header.next_offset, LONG_MAX)
        after, _ = self.at(behind)
        return after is not None and after.base_offset == header.next_offset

    def at(self, position: int) -> tuple[BatchHeader | None, str]:
        """The whole batch at a position, by itself; or why there is none."""
        try:
            header = decode_header(self._read(HEADER_BYTES, position))
        except CorruptBatch as error:
            return None, str(error)
        try:
            verify_crc(self._read(header.size_bytes, position), header)
        except CorruptBatch:
            return None, f"a batch of {header.size_bytes} bytes is cut, or has another checksum"
        if header.partition_leader_epoch != self._epoch >= 0:
            epoch = header.partition_leader_epoch
            return None, f"a batch of leader epoch {epoch}, the segment's is {self._epoch}"
        return header, ""

    def _read(self, size_bytes: int, position: int) -> bytes:
        """Bytes of what is written; what the disk cannot read is not there."""
        size_bytes = min(size_bytes, self._end - position)
        try:
            return read_range(self._files, self._descriptor, max(0, size_bytes), position)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return b""

    def _search(self, position: int, expected: int) -> tuple[int, int]:
        """The next position from one on with a good batch of offsets that may follow, and its base
        offset; the end of the segment's bytes and offsets without one."""
        wanted = _FIRST_SEARCH_BYTES
        while position < self._end:
            data = self._read(wanted, position)
            last = len(data) - HEADER_BYTES
            at = data.find(b"\x02", _MAGIC_AT) - _MAGIC_AT
            while 0 <= at <= last:
                base, length, *_ = _BATCH.unpack_from(data, at)
                if expected <= base < self._end_offset and length >= _LENGTH_MIN:
                    header, _ = self._look(position + at, expected)
                    if header is not None and self._leads_on(position + at, header):
                        return position + at, header.base_offset
                at = data.find(b"\x02", at + 1 + _MAGIC_AT) - _MAGIC_AT
            if len(data) < HEADER_BYTES:
                if position + wanted >= self._end:
                    break
                position += wanted  # what the disk cannot read
            else:
                position += last + 1
            wanted = _SEARCH_BYTES
        return self._end, self._end_offset
