"""What stands before a record's key, packed in registers instead of written byte by byte.

A record's *front* is its length, attributes, timestamp delta, offset delta and key length: a few
varints of one to three bytes each. Each field of all records is a column of 64-bit words that
hold the varint's bytes, low byte first, beside a column of sizes; two fields become one by a
shift and an or. A front mostly fits into two such words, the first one's bytes moved to its upper
end and the second one's at its lower end, so that in memory they touch:

    word 0: . . . B B B B B | word 1: B B B . . . . .

The front of record `i` is then the bytes `16 i + 8 - size 0` to `16 i + 8 + size 1`, which a
gather copies out. Columns that hold one value, as most do in some table, stay scalars.

Source: Kafka's `DefaultRecord.writeTo`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock.records.columnar.arrays import Ints
from penstock.records.columnar.gather import Piece
from penstock.records.columnar.varints import sizes, varint_column, zigzag

Words = npt.NDArray[np.uint64] | np.uint64

WORD_BYTES: Final = 8
_INT_MAX: Final = 2**31 - 1
TABLE_SIZE: Final = 1 << 14
SIZE_SHIFT: Final = np.uint64(56)
CONTENT: Final = np.uint64((1 << 56) - 1)
BYTE_BITS: Final = np.uint64(8)
WORD_BITS: Final = np.uint64(64)


@dataclass(frozen=True, slots=True)
class Packed:
    """A field of every record, at most eight bytes: its bytes, their number, and the most of it."""

    word: Words
    size: Words
    size_max: int

    def then(self, other: Packed) -> Packed:
        """Both fields, one after the other."""
        return Packed(
            self.word | (other.word << (self.size * BYTE_BITS)),
            self.size + other.size,
            self.size_max + other.size_max,
        )


@dataclass(frozen=True, slots=True)
class Long:
    """A field with more than eight bytes in some record."""

    piece: Piece
    size: Words


def constant(content: bytes) -> Packed:
    """The same few bytes in every record."""
    return Packed(
        np.uint64(int.from_bytes(content, "little")), np.uint64(len(content)), len(content)
    )


def packed(values: Ints) -> Packed | Long:
    """The varints of signed values."""
    low, high = int(values.min()), int(values.max())
    if low == high and -_INT_MAX <= low <= _INT_MAX:
        return _of_one(low)
    if low >= -1 and high < TABLE_SIZE - 1:
        found = TABLE.take(values, mode="wrap")  # -1 is the last entry
        size_low, size_high = _of_one(low).size_max, _of_one(high).size_max
        if size_low == size_high:
            return Packed(found & CONTENT, np.uint64(size_low), size_low)
        size = found >> SIZE_SHIFT
        found &= CONTENT
        return Packed(found, size, size_high)
    raw = zigzag(values)
    size = sizes(raw).view(np.uint64)
    size_max = int(size.max())
    if size_max > WORD_BYTES:
        target, bounds = varint_column(values)
        return Long(Piece.of(target, bounds), size)
    return Packed(_spread(raw.view(np.uint64), size, size_max), size, size_max)


def _of_one(value: int) -> Packed:
    raw, content = (value << 1) ^ (value >> 63), bytearray()
    while raw >= 0x80:
        content.append(raw & 0x7F | 0x80)
        raw >>= 7
    content.append(raw)
    return constant(bytes(content))


def _spread(
    raw: npt.NDArray[np.uint64], size: npt.NDArray[np.uint64], size_max: int
) -> npt.NDArray[np.uint64]:
    """Seven bits to a byte, the top bit set in all but a varint's last."""
    word = raw & np.uint64(0x7F)
    for index in range(1, size_max):
        word |= (size > np.uint64(index)).astype(np.uint64) << np.uint64(8 * index - 1)
        word |= ((raw >> np.uint64(7 * index)) & np.uint64(0x7F)) << np.uint64(8 * index)
    return word


def _table() -> npt.NDArray[np.uint64]:
    """Word and size (in the top byte) of the varints of 0, 1, 2, …, and of -1 at the end."""
    raw = zigzag(np.append(np.arange(TABLE_SIZE - 1), -1))
    size = sizes(raw).view(np.uint64)
    return _spread(raw.view(np.uint64), size, 3) | (size << SIZE_SHIFT)


TABLE: Final = _table()


def pieces(fields: Sequence[Packed | Long], count: int) -> list[Piece]:
    """Lay the fields of all records into as few pieces as they fit in."""
    result: list[Piece] = []
    waiting: list[Packed] = []
    for item in _runs(fields):
        if isinstance(item, Packed):
            waiting.append(item)
        if waiting and (len(waiting) == 2 or isinstance(item, Long)):
            result.append(_slots(waiting, count))
            waiting = []
        if isinstance(item, Long):
            result.append(item.piece)
    if waiting:
        result.append(_slots(waiting, count))
    return result


def _runs(fields: Sequence[Packed | Long]) -> Iterator[Packed | Long]:
    """Join neighbouring fields as long as they fit into one word."""
    run: Packed | None = None
    for field in fields:
        if isinstance(field, Long):
            if run is not None:
                yield run
            run = None
            yield field
        elif run is not None and run.size_max + field.size_max <= WORD_BYTES:
            run = run.then(field)
        else:
            if run is not None:
                yield run
            run = field
    if run is not None:
        yield run


def _slots(words: Sequence[Packed], count: int) -> Piece:
    slots = np.empty((count, len(words)), np.uint64)
    at = np.arange(slots.ctypes.data, slots.ctypes.data + slots.nbytes, slots.strides[0])
    first = words[0]
    if len(words) == 1:
        slots[:, 0] = first.word
        return Piece(owner=slots, at=at, size=_signed(first.size))
    slots[:, 0] = first.word << (WORD_BITS - first.size * BYTE_BITS)
    slots[:, 1] = words[1].word
    at += WORD_BYTES - _signed(first.size)
    return Piece(owner=slots, at=at, size=_signed(first.size + words[1].size))


def _signed(size: Any) -> Any:
    return size.view(np.int64)
