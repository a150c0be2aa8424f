"""Walk over the records of a small uncompressed batch, without the kernels.

A call of a compiled kernel costs some 5 µs, and the first one half a second to load it; most
batches of a quiet topic have one record. `is_chain` accepts no batch that the kernel
(`kernels.records`) rejects; the kernel decides about others.
"""

from __future__ import annotations

from typing import Final

from penstock.base.crc import Readable

CHAIN_RECORDS_MAX: Final = 4
"""Most records that are walked here: above, the kernel is faster."""

_LONG_BITS: Final = 63
_INT_BITS: Final = 28


def is_chain(data: Readable, count: int) -> bool:
    """Whether `data` is `count` records with the offset deltas 0, 1, 2, … and nothing else."""
    at = 0
    try:
        for number in range(count):
            length, at = _varint(data, at, _INT_BITS)
            end = at + length
            _, at = _varint(data, at + 1, _LONG_BITS)
            delta, at = _varint(data, at, _INT_BITS)
            key, at = _varint(data, at, _INT_BITS)
            value, at = _varint(data, at + max(key, 0), _INT_BITS)
            headers, at = _varint(data, at + max(value, 0), _INT_BITS)
            if delta != number or min(key, value) < -1 or headers < 0:
                return False
            if headers:
                at = _headers_end(data, at, end, headers)
            if at != end:
                return False
    except (IndexError, ValueError):
        return False
    return at == len(data)


def _headers_end(data: Readable, at: int, end: int, count: int) -> int:
    """Return where the headers of a record end; ValueError if a header does not fit."""
    for _ in range(count):
        key, at = _varint(data, at, _INT_BITS)
        value, at = _varint(data, at + key, _INT_BITS)
        at += max(value, 0)
        if key < 0 or value < -1 or at > end:
            raise ValueError("a header that is none")
    return at


def _varint(data: Readable, at: int, bits: int) -> tuple[int, int]:
    """Return the zigzag varint at an offset, and the offset behind it.

    Raises:
        IndexError: it is cut.
        ValueError: its last byte would begin above `bits`, which the kernel checks more closely.
    """
    byte = data[at]
    if byte < 0x80:
        return byte >> 1 ^ -(byte & 1), at + 1
    raw, shift = byte & 0x7F, 7
    while True:
        at += 1
        byte = data[at]
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > bits:
            raise ValueError("a varint that may be too long")
    if bits == _INT_BITS and raw >> 32:
        raise ValueError("a varint with too many bits")
    return raw >> 1 ^ -(raw & 1), at + 1
