"""Conversion of numbers that are not 64 bits wide to the words of columns."""

from __future__ import annotations

from typing import Any, Final

from penstock.kernels.compiling import intrinsic, kernel
from penstock.kernels.sources import NATIVE
from penstock.kernels.types import READ, int64

if NATIVE is None:
    from llvmlite import ir
    from numba import types

_WORD_BYTES: Final = 8
_PAIR_BYTES: Final = 16
_SIGN: Final = -(2**63)


@kernel(f"int64({READ}, int64)", inlined=True)
def load_half(data: Any, at: int) -> int:
    """Return the signed 32-bit number, little endian, at any position."""
    low = int64(data[at]) | int64(data[at + 1]) << 8 | int64(data[at + 2]) << 16
    return (low | int64(data[at + 3]) << 24) << 32 >> 32  # type: ignore[no-any-return]


@intrinsic
def _widened(context: Any, bits: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        half = builder.trunc(arguments[0], ir.IntType(32))
        value = builder.fpext(builder.bitcast(half, ir.FloatType()), ir.DoubleType())
        return builder.bitcast(value, ir.IntType(64))

    return types.int64(bits), generate


@kernel("int64(int64)", inlined=True)
def widened(bits: int) -> int:
    """Return the bits of the double that equals a float, given the float's bits."""
    return _widened(bits)  # type: ignore[no-any-return]


def _number_bits(value: Any, real: Any, bits: Any) -> tuple[Any, Any]:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        made = builder.bitcast(builder.sitofp(arguments[0], real), bits)
        return made if bits.width == 64 else builder.sext(made, ir.IntType(64))

    return types.int64(value), generate


@intrinsic
def _float_bits(context: Any, value: Any) -> Any:
    return _number_bits(value, ir.FloatType(), ir.IntType(32))


@intrinsic
def _double_bits(context: Any, value: Any) -> Any:
    return _number_bits(value, ir.DoubleType(), ir.IntType(64))


@kernel("int64(int64)", inlined=True)
def float_bits(value: int) -> int:
    """Return the bits of the float that is nearest to a number."""
    return _float_bits(value)  # type: ignore[no-any-return]


@kernel("int64(int64)", inlined=True)
def double_bits(value: int) -> int:
    """Return the bits of the double that is nearest to a number."""
    return _double_bits(value)  # type: ignore[no-any-return]


@kernel(f"Tuple((int64, int64, boolean))({READ}, int64, int64, int64, int64)")
def read_decimal(
    data: Any, at: int, size: int, bound_low: int, bound_high: int
) -> tuple[int, int, bool]:
    """Return low and high word of a big-endian two's complement number, and whether it fits.

    It fits if its absolute value is below the bound; otherwise both words are 0. Any number of
    leading bytes may only repeat the sign.
    """
    while size > _PAIR_BYTES:
        sign = 0xFF if data[at + 1] >= 0x80 else 0
        if data[at] != sign:
            return 0, 0, False
        at += 1
        size -= 1
    low = high = -1 if size > 0 and data[at] >= 0x80 else 0
    for place in range(at, at + size):
        high = high << 8 | (low >> 56 & 0xFF)
        low = low << 8 | int64(data[place])
    absolute_low, absolute_high = low, high
    if high < 0:
        absolute_low, absolute_high = -low, ~high + (low == 0)
    # Compare as unsigned numbers: flipping the highest bit keeps their order.
    below = (absolute_high ^ _SIGN) < (bound_high ^ _SIGN) or (
        absolute_high == bound_high and (absolute_low ^ _SIGN) < (bound_low ^ _SIGN)
    )
    return (low, high, True) if below else (0, 0, False)


# Varints: groups of seven bits, least significant first, as Avro and Protobuf write them.
#
# A reader returns the value and the position after it. If there is a problem, the position is the
# negative number of the problem.


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
