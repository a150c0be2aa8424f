"""Zigzag varints, read and written by columns: all records at once, one byte position at a time.

A varint has seven bits a byte, low bits first, the high bit set on all but the last; zigzag maps
0, -1, 1, -2 to 0, 1, 2, 3. Reading takes the first bytes of all records in one gather; while
any of them goes on, it takes the next ones. Nearly all varints of a log have one or two bytes,
so that is one or two rounds. Gathers clip at the buffer's end instead of failing: what a
damaged length pointed at is noticed later, when a record does not end where it said.

Source: Kafka's `ByteUtils.readVarint` and `writeVarlong`; Protocol Buffers' encoding.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from penstock.records.columnar.schema import Bytes, Flags, Ints
from penstock.records.errors import CorruptBatch

_INT_BYTES_MAX: Final = 5
_LONG_BYTES_MAX: Final = 10
_UINT32_MAX: Final = 2**32 - 1


def read_ints(data: Bytes, at: Ints) -> tuple[Ints, Ints]:
    """Read a 32-bit varint at every position; return the values and where each one ends.

    Raises:
        CorruptBatch: a varint with more than 32 bits.
    """
    raw, after = _read(data, at, _INT_BYTES_MAX)
    if raw.size and raw.max() > _UINT32_MAX:
        raise CorruptBatch("a varint of a record has more than 32 bits")
    return (raw >> 1) ^ -(raw & 1), after


def read_longs(data: Bytes, at: Ints) -> tuple[Ints, Ints]:
    """Read a 64-bit varint at every position; return the values and where each one ends.

    Raises:
        CorruptBatch: a varint with more than ten bytes.
    """
    raw, after = _read(data, at, _LONG_BYTES_MAX)
    return (raw.view(np.uint64) >> np.uint64(1)).view(np.int64) ^ -(raw & 1), after


def _read(data: Bytes, at: Ints, bytes_max: int) -> tuple[Ints, Ints]:
    first = data.take(at, mode="clip")
    raw = first.astype(np.int64)
    going_on = first >= 0x80
    if not going_on.any():
        return raw, at + 1
    raw &= 0x7F
    after = at + 1
    everyone = bool(going_on.all())
    for shift in range(7, 7 * bytes_max, 7):
        if not everyone:
            return _read_rest(data, raw, after, going_on, shift, bytes_max)
        following = data.take(after, mode="clip")
        raw |= (following & 0x7F).astype(np.int64) << shift
        after += 1
        going_on = following >= 0x80
        if not going_on.any():
            return raw, after
        everyone = bool(going_on.all())
    raise CorruptBatch(f"a varint of a record has more than {bytes_max} bytes")


def _read_rest(
    data: Bytes, raw: Ints, after: Ints, going_on: Flags, shift: int, bytes_max: int
) -> tuple[Ints, Ints]:
    """Finish varints of different lengths: those that have ended add zero bits and stay put."""
    while shift < 7 * bytes_max:
        following = data.take(after, mode="clip")
        following *= going_on
        raw |= (following & 0x7F).astype(np.int64) << shift
        after += going_on
        going_on = following >= 0x80
        if not going_on.any():
            return raw, after
        shift += 7
    raise CorruptBatch(f"a varint of a record has more than {bytes_max} bytes")


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


def write(target: Bytes, at: Ints, raw: Ints, size: Ints, *, exact: bool = False) -> None:
    """Write the varint of each zigzagged value at its position in `target`.

    Where sizes differ by one, the byte after a short varint is overwritten too: the caller
    writes what follows afterwards, and `target` has a byte to spare at its end. Not so when
    `exact`.
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
        if index > shortest or (exact and index == shortest):
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
