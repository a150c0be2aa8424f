"""Detection of damaged batches, and the extent of the damage.

Every batch read from a segment is verified before it is returned: its checksum, its leader epoch,
and that offsets rise. The checksum covers neither leader epoch nor base offset. A wrong base offset
is detected because it contradicts the next batch.

After a mismatch a survey (`log/walk.py`) searches behind the damage for the next complete batch
with valid offsets. The damage is then a range of bytes and of offsets, and only reads of that range
fail. If a file is truncated or missing, the damage has offsets but no bytes: the segments of a log
are contiguous, except where compaction removed batches.

Source: Kafka's `LogSegment.recover`, which truncates the segment instead.
"""

from __future__ import annotations

from pathlib import Path
from struct import Struct
from typing import ClassVar, Final, NamedTuple

from penstock.base.crc import crc32c
from penstock.records import HEADER_BYTES
from penstock.records.header import CHECKED_FROM, LENGTH_OVERHEAD_BYTES, MAGIC
from penstock.storage.errors import CorruptLog
from penstock.storage.values import Buffer

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
