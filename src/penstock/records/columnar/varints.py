"""Zigzag varints, read and written by columns: all records at once, one byte position at a time.

A varint has seven bits a byte, low bits first, the high bit set on all but the last; zigzag maps
0, -1, 1, -2 to 0, 1, 2, 3. Reading takes the first bytes of all records in one gather; while
any of them goes on, it takes the next ones. Nearly all varints of a log have one or two bytes,
so that is one or two rounds. Gathers clip at the buffer's end instead of failing: what a
damaged length pointed at is noticed later, when a record does not end where it said.

Source: Kafka's `ByteUtils.readVarint` and `writeVarlong`; Protocol Buffers' encoding.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock.records.columnar.arrays import Bytes, Ints
from penstock.records.errors import CorruptBatch

_INT_BYTES_MAX: Final = 5
_LONG_BYTES_MAX: Final = 10
_UINT32_MAX: Final = 2**32 - 1
_NONE: Final = np.empty(0, np.int64)


def read_ints(data: Bytes, at: Ints) -> tuple[Ints, Ints]:
    """Read a 32-bit varint at every position; return the values and where each one ends.

    Raises:
        CorruptBatch: a varint with more than 32 bits.
    """
    return _read(data, at, _INT_BYTES_MAX)


def read_longs(data: Bytes, at: Ints) -> tuple[Ints, Ints]:
    """Read a 64-bit varint at every position; return the values and where each one ends.

    Raises:
        CorruptBatch: a varint with more than ten bytes.
    """
    return _read(data, at, _LONG_BYTES_MAX)


def read_lengths(data: Bytes, at: Ints) -> tuple[Ints, Ints]:
    """Read a length of one or two bytes at positions that may hold none.

    What has more bytes, or is negative, comes back as some negative length.
    """
    values, after, _ = _read_short(data, at)
    return values, after


def _read(data: Bytes, at: Ints, bytes_max: int) -> tuple[Ints, Ints]:
    values, after, longer = _read_short(data, at)
    if longer.size:
        values[longer], after[longer] = _read_long(data, at[longer], bytes_max)
    return values, after


def _read_short(data: Bytes, at: Ints) -> tuple[Ints, Ints, Ints]:
    """Read one or two bytes, in the narrowest arithmetic there is; -1 what has more.

    Returns the values, where each one ends, and which ones have more.
    """
    first: Bytes = data.take(at, mode="clip")
    goes_on = first >> 7
    after = at + 1
    if not goes_on.any():
        return _signed(first.view(np.int8)), after, _NONE
    second = data.take(after, mode="clip")
    second *= goes_on
    after += goes_on
    raw = second.astype(np.int16)
    raw <<= 7
    raw &= 0x3F80
    raw |= first & 0x7F
    values = _signed(raw)
    longer = np.flatnonzero(second >> 7)
    if longer.size:
        values[longer] = -1
    return values, after, longer


def _signed(raw: npt.NDArray[np.int8] | npt.NDArray[np.int16]) -> Ints:
    """Undo zigzag; the raw values have their top bit clear."""
    return ((raw >> 1) ^ -(raw & 1)).astype(np.int64)


def _read_long(data: Bytes, at: Ints, bytes_max: int) -> tuple[Ints, Ints]:
    """Read varints of any size, those that have ended adding nothing to their last rounds."""
    raw = np.zeros(at.size, np.int64)
    after = at.copy()
    goes_on: npt.NDArray[Any] = np.ones(at.size, np.uint8)
    for shift in range(0, 7 * bytes_max, 7):
        following = data.take(after, mode="clip")
        following *= goes_on
        raw |= (following & 0x7F).astype(np.int64) << shift
        after += goes_on
        goes_on = following >> 7
        if not goes_on.any():
            if bytes_max == _INT_BYTES_MAX and raw.max() > _UINT32_MAX:
                break
            return (raw.view(np.uint64) >> np.uint64(1)).view(np.int64) ^ -(raw & 1), after
    raise CorruptBatch(f"a varint of a record has more than {bytes_max} bytes or 32 bits")


def zigzag(values: Ints) -> Ints:
    """Map signed values to the unsigned ones that varints carry (as the same 64 bits)."""
    return (values << 1) ^ (values >> 63)


def sizes(raw: Ints) -> Ints:
    """How many bytes the varint of each zigzagged value takes, 1 to 10."""
    unsigned = raw.view(np.uint64)
    result = np.ones(raw.size, np.int64)
    if raw.size == 0:
        return result
    largest = int(unsigned.max())
    for bits in range(7, 64, 7):
        if largest >> bits == 0:
            break
        result += unsigned >= np.uint64(1 << bits)
    return result


def write(target: Bytes, at: Ints, raw: Ints, size: Ints) -> None:
    """Write the varint of each zigzagged value at its position in `target`.

    Where sizes differ by one, the byte after a short varint is overwritten too: the caller
    writes what follows afterwards, and `target` has a byte to spare at its end.
    """
    longest, shortest = int(size.max()), int(size.min())
    if longest > 4:
        _write_masked(target, at, raw, size)
        return
    rest = raw.astype(np.uint32)
    for index in range(longest - 1, -1, -1):
        low = (rest >> np.uint32(7 * index) if index else rest).astype(np.uint8)
        if index + 1 < shortest:
            low |= 0x80
        elif index + 1 < longest:
            low &= 0x7F
            low |= (size > index + 1).view(np.uint8) << 7
        where = at + index if index else at
        if index > shortest:
            chosen = size > index
            target[where[chosen]] = low[chosen]
        else:
            target[where] = low


def _write_masked(target: Bytes, at: Ints, raw: Ints, size: Ints) -> None:
    rest = raw.view(np.uint64)
    for index in range(int(size.max())):
        chosen = size > index
        low = ((rest >> np.uint64(7 * index)) & np.uint64(0x7F)).astype(np.uint8)
        low |= (size > index + 1).view(np.uint8) << 7
        target[at[chosen] + index] = low[chosen]


def varint_column(values: Ints) -> tuple[Bytes, Ints]:
    """The varints of signed values back to back, and the bounds of each (one more than values)."""
    raw = zigzag(values)
    size = sizes(raw)
    bounds = np.zeros(values.size + 1, np.int64)
    np.cumsum(size, out=bounds[1:])
    target = np.empty(int(bounds[-1]) + 1, np.uint8)
    if values.size:
        write(target, bounds[:-1], raw, size)
    return target[:-1], bounds
