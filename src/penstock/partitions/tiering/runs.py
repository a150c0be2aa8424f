"""Verified batches of an archived segment in memory, for consumers.

The batches are unchanged, because they got their offsets when they were appended. Their aborted
transactions are kept with them, for consumers that read only committed records.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.archive.assembly import Run
from penstock.archive.errors import CorruptObject
from penstock.control.tiers.values import TierSegment
from penstock.records import (
    HEADER_BYTES,
    CorruptBatch,
    LegacyBatch,
    decode_header,
    verify_crc,
)
from penstock.records.transactions import AbortedTransaction


class TierRun(Run):
    """`Run` with its aborted transactions, and the offset at which reading ahead starts.

    The first batch after the run holds the offset `following`; -1 if unknown.
    """

    __slots__ = ("aborted", "ahead_from", "following")

    def __init__(
        self, data: memoryview, offsets: list[int], ends: list[int], next_offset: int
    ) -> None:
        super().__init__(data, offsets, ends, next_offset)
        self.aborted: Sequence[AbortedTransaction] = ()
        self.ahead_from = offsets[len(offsets) // 2]
        self.following = -1


def run_of(segment: TierSegment, start: int, data: memoryview, offset: int) -> TierRun | int:
    """Return the complete batches in `data` that end above `offset`.

    `data` has the segment's bytes from `start` on. If it has no such batch, return the number of
    bytes that are needed from `start` on, or 0 if the segment has no such batch.

    Raises:
        CorruptObject: the bytes are not batches of the segment.
    """
    offsets: list[int] = []
    ends: list[int] = []
    at = first = 0
    next_offset = -1
    whole = start + len(data) >= segment.size_bytes
    while len(data) - at >= HEADER_BYTES:
        try:
            header = decode_header(data, at)
            if header.size_bytes > len(data) - at:
                if not offsets and not whole:
                    return at + header.size_bytes
                break
            verify_crc(data, header, at)
        except (CorruptBatch, LegacyBatch) as error:
            raise CorruptObject(f"object {segment.key} at byte {start + at}: {error}") from None
        if not segment.base_offset <= header.base_offset or header.base_offset < next_offset:
            raise CorruptObject(
                f"object {segment.key} at byte {start + at}: a batch begins at offset"
                f" {header.base_offset}, expected at least {max(segment.base_offset, next_offset)}"
            )
        if header.base_offset >= segment.next_offset:
            break
        at += header.size_bytes
        next_offset = header.next_offset
        if next_offset <= offset:
            first = at
            continue
        offsets.append(header.base_offset)
        ends.append(at - first)
    if not offsets:
        return 0 if whole else at + HEADER_BYTES
    return TierRun(data[first : first + ends[-1]], offsets, ends, next_offset)
