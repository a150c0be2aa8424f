"""One plain record at a time: for a handful, a few steps of Python take less than any column.

Source: as in `decode`.
"""

from __future__ import annotations

from typing import Final

_INT_BYTES_MAX: Final = 5
_LONG_BYTES_MAX: Final = 10


class Unusual(Exception):
    """Bytes that the column decoder has to look at."""


def read_record(data: bytes, at: int) -> tuple[int, int, int, bytes | None, bytes | None]:
    """One record without headers: its end, offset and timestamp deltas, key and value.

    Raises:
        Unusual: it has headers, or is wrong.
        IndexError: it reaches beyond the data.
    """
    length, at = _varint(data, at)
    end = at + length
    timestamp_delta, at = _varint(data, at + 1, _LONG_BYTES_MAX)
    offset_delta, at = _varint(data, at)
    size, at = _varint(data, at)
    key = value = None
    if size >= 0:
        key = data[at : at + size]
        at += size
    elif size != -1:
        raise Unusual
    size, at = _varint(data, at)
    if size >= 0:
        value = data[at : at + size]
        at += size
    elif size != -1:
        raise Unusual
    if data[at] or at + 1 != end:
        raise Unusual
    return end, offset_delta, timestamp_delta, key, value


def _varint(data: bytes, at: int, bytes_max: int = _INT_BYTES_MAX) -> tuple[int, int]:
    byte = data[at]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at + 1
    raw = byte & 0x7F
    for shift in range(7, 7 * bytes_max, 7):
        at += 1
        byte = data[at]
        raw |= (byte & 0x7F) << shift
        if byte < 0x80 and raw >> 64 == 0:
            return (raw >> 1) ^ -(raw & 1), at + 1
    raise Unusual
