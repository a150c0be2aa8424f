"""Varints: groups of seven bits, least significant first, as Avro and Protobuf write them.

A reader returns the value and the position after it. If there is a problem, the position is the
negative number of the problem.
"""

from __future__ import annotations

from typing import Any, Final

from penstock.kernels.compiling import kernel
from penstock.kernels.types import READ, int64

ENDS_EARLY, TOO_MANY_BITS = 1, 2
_BYTES_MAX: Final = 10


@kernel(f"UniTuple(int64, 2)({READ}, int64, int64)", inlined=True)
def read_varint(data: Any, at: int, end: int) -> tuple[int, int]:
    """Read a number of up to 64 bits; return it as the signed number with the same bits."""
    value = 0
    for step in range(_BYTES_MAX):
        if at + step >= end:
            return 0, -ENDS_EARLY
        byte = int64(data[at + step])
        if step == _BYTES_MAX - 1 and byte > 1:
            break
        value |= (byte & 0x7F) << (7 * step)
        if byte < 0x80:
            return value, at + step + 1
    return 0, -TOO_MANY_BITS


@kernel("int64(int64)", inlined=True)
def unzigzag(value: int) -> int:
    return ((value >> 1) & 0x7FFFFFFFFFFFFFFF) ^ -(value & 1)


@kernel(f"UniTuple(int64, 2)({READ}, int64, int64)", inlined=True)
def read_zigzag(data: Any, at: int, end: int) -> tuple[int, int]:
    """Read a signed number from a varint whose lowest bit is the sign."""
    value, behind = read_varint(data, at, end)
    return unzigzag(value), behind
