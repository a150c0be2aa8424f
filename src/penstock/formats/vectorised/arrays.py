"""From positions and numbers of cursors to Arrow arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.base.errors import BugError
from penstock.formats.vectorised.cursor import Cursors, Flags, Longs, Octets
from penstock.formats.vectorised.texts import invalid_texts

TIMESTAMP: Final = pa.timestamp("us", "UTC")
TIMESTAMP_NTZ: Final = pa.timestamp("us")
_HEX: Final = np.frombuffer(b"0123456789abcdef", np.uint8)
_UUID_BYTES: Final = 16
_DASHES: Final = (8, 12, 16, 20)
"""The digits that have a dash before them."""
_DECIMAL_BYTES_MAX: Final = 16


def binaries(octets: Octets, start: Longs, size: Longs) -> pa.Array:
    """The bytes of ranges that follow each other in the buffer, as an array of type binary.

    The ranges and the gaps between them are one array without a copy; `take` leaves the gaps out.
    """
    count = start.size
    if not count:
        return pa.array([], pa.binary())
    end = np.where(size > 0, start + size, 0)
    end = np.maximum.accumulate(end)
    start = np.where(size > 0, start, end)
    offsets = np.empty(2 * count, np.int32)
    offsets[0::2] = start
    offsets[1::2] = end
    if (np.diff(offsets) < 0).any():
        raise BugError("ranges of bytes are not in the order of their cursors")
    whole = pa.Array.from_buffers(
        pa.binary(), 2 * count - 1, [None, pa.py_buffer(offsets), pa.py_buffer(octets.data)]
    )
    return whole.take(pa.array(np.arange(0, 2 * count, 2)))


def texts(cursors: Cursors, start: Longs, size: Longs, where: str) -> pa.Array:
    """As `binaries`, as text; cursors that are not UTF-8 fail and have no text."""
    made = binaries(cursors.octets, start, size)
    wrong = invalid_texts(made)
    if wrong is not None:
        cursors.fail(wrong, f"{where}text is not UTF-8")
        made = binaries(cursors.octets, start, np.where(wrong, 0, size))
    return as_text(made)


def as_text(values: pa.Array) -> pa.Array:
    """An array of type binary whose values are known to be UTF-8, as strings, without a copy."""
    return pa.Array.from_buffers(
        pa.string(), len(values), values.buffers(), values.null_count, values.offset
    )


def spread(values: pa.Array, rows: Longs, count: int) -> pa.Array:
    """An array of `count` values, null but for those at `rows`."""
    if rows.size == count:
        return values
    found = np.zeros(count, np.int64)
    found[rows] = np.arange(rows.size)
    missing = np.ones(count, np.bool_)
    missing[rows] = False
    return values.take(pa.array(found, mask=missing))


def lists(counts: Longs, values: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(_offsets(counts)), values)


def maps(counts: Longs, keys: pa.Array, values: pa.Array) -> pa.Array:
    """Maps of entries in order; of entries with equal keys the last one stays."""
    owner = np.repeat(np.arange(counts.size), counts)
    codes = keys.dictionary_encode().indices.to_numpy(zero_copy_only=False)
    order = np.lexsort((codes, owner))
    same = (np.diff(owner[order]) == 0) & (np.diff(codes[order]) == 0)
    if same.any():
        keep = np.ones(owner.size, np.bool_)
        keep[order[:-1][same]] = False
        counts = np.bincount(owner[keep], minlength=counts.size)
        kept = pa.array(np.flatnonzero(keep))
        keys, values = keys.take(kept), values.take(kept)
    return pa.MapArray.from_arrays(pa.array(_offsets(counts)), keys, values)


def _offsets(counts: Longs) -> npt.NDArray[np.int32]:
    offsets = np.zeros(counts.size + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    return offsets


def structs(
    names: Sequence[str], columns: Sequence[pa.Array], missing: Flags | None = None
) -> pa.Array:
    fields = [
        pa.field(name, column.type) for name, column in zip(names, columns, strict=True)
    ]  # fmt: skip
    mask = None if missing is None or not missing.any() else pa.array(missing)
    return pa.StructArray.from_arrays(list(columns), fields=fields, mask=mask)


def choose(words: Sequence[str], index: Longs) -> pa.Array:
    """Words by their index."""
    return pa.array(list(words), pa.string()).take(pa.array(index))


def as_type(values: npt.NDArray[np.generic], data_type: pa.DataType) -> pa.Array:
    """Numbers whose bits are those of an Arrow type (dates, timestamps)."""
    return pa.Array.from_buffers(
        data_type, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))]
    )


def decimals(
    cursors: Cursors, start: Longs, size: Longs, precision: int, scale: int, where: str
) -> pa.Array:
    """Decimals of big-endian two's complement numbers of at most 16 bytes."""
    too_long = size > _DECIMAL_BYTES_MAX
    fits = np.where(too_long, 0, size)
    end = start + fits
    low = cursors.octets.word(end - 8).byteswap()
    high = cursors.octets.word(end - 16).byteswap()
    low, high = _extended(low, high, fits)
    wrong = too_long | _beyond(low, high, 10**precision)
    cursors.fail(wrong, f"{where}has more digits than decimal({precision},{scale})")
    low[wrong] = 0
    high[wrong] = 0
    both = np.empty(2 * low.size, np.uint64)
    both[0::2] = low
    both[1::2] = high
    return pa.Array.from_buffers(
        pa.decimal128(precision, scale), low.size, [None, pa.py_buffer(both)]
    )


def _extended(
    low: npt.NDArray[np.uint64], high: npt.NDArray[np.uint64], size: Longs
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """Two words of which only `size` bytes count, with the sign carried through the rest."""
    # Shifting by 64 is undefined: in two halves it gives the zero that is meant here.
    bits = np.clip(64 - 8 * size, 0, 64)
    half, rest = bits // 2, bits - bits // 2
    signed = (low.view(np.int64) << half << rest) >> half >> rest
    upper = np.clip(128 - 8 * size, 0, 64)
    half, rest = upper // 2, upper - upper // 2
    top = (high.view(np.int64) << half << rest) >> half >> rest
    low = np.where(size >= 8, low, signed.view(np.uint64))
    top = np.where(size > 8, top, np.where(low.view(np.int64) < 0, -1, 0))
    return low, top.view(np.uint64)


def _beyond(
    low: npt.NDArray[np.uint64], high: npt.NDArray[np.uint64], bound: int
) -> npt.NDArray[np.bool_]:
    """Whether the absolute value of a number of 128 bits is `bound` or more."""
    negative = high.view(np.int64) < 0
    flipped = ~low + np.uint64(1)
    carry = (flipped == 0).astype(np.uint64)
    top = np.where(negative, ~high + carry, high)
    bottom = np.where(negative, flipped, low)
    limit_top, limit_bottom = np.uint64(bound >> 64), np.uint64(bound & (2**64 - 1))
    beyond: Flags = (top > limit_top) | ((top == limit_top) & (bottom >= limit_bottom))
    return beyond


def uuids(octets: Octets, start: Longs) -> pa.Array:
    """Sixteen bytes each as the 36 characters of a UUID."""
    held = octets.data[start[:, None] + np.arange(_UUID_BYTES)]
    digits = np.empty((start.size, 2 * _UUID_BYTES), np.uint8)
    digits[:, 0::2] = _HEX[held >> 4]
    digits[:, 1::2] = _HEX[held & 15]
    text = np.insert(digits, _DASHES, ord("-"), axis=1)
    offsets = np.arange(start.size + 1, dtype=np.int32) * np.int32(text.shape[1])
    return pa.Array.from_buffers(
        pa.string(),
        start.size,
        [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(text))],
    )
