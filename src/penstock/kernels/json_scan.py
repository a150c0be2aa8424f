"""Scanner of JSON tokens: blanks, texts and numbers. It accepts only certainly valid ones.

Source: RFC 8259.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.kernels.compiling import kernel
from penstock.kernels.json_layout import LOOK
from penstock.kernels.types import READ, int64


def _classes() -> Any:
    """Return a table by byte: 1 for quotation marks, backslashes and controls; else 0."""
    made = np.zeros(256, np.uint8)
    made[:32] = 1
    made[[34, 92]] = 1
    return made


def _digits() -> Any:
    """Return a table by byte: the value of a hexadecimal digit; 255 for other bytes."""
    made = np.full(256, 255, np.uint8)
    made[48:58] = np.arange(10)
    made[65:71] = made[97:103] = np.arange(10, 16)
    return made


def _escapes() -> Any:
    """Return a table by byte: the character that it means after a backslash; 0 if not allowed."""
    made = np.zeros(256, np.uint8)
    for escape, meaning in zip(b'"\\/bfnrt', b'"\\/\b\f\n\r\t', strict=True):
        made[escape] = meaning
    return made


_STOPS = _classes()
_HEX = _digits()
_ESCAPES = _escapes()


@kernel(f"int64({READ}, int64, int64)", inlined=True)
def byte_at(data: Any, at: int, end: int) -> Any:
    return int64(data[at]) if at < end else 0


@kernel(f"int64({READ}, int64, int64)", inlined=True)
def skip_blanks(data: Any, at: int, end: int) -> Any:
    """Return the position of the next byte that is not a blank."""
    while at < end:
        byte = data[at]
        if byte > 32 or (byte != 32 and byte != 10 and byte != 13 and byte != 9):
            break
        at += 1
    return at


@kernel(f"int64({READ}, int64, int64)", inlined=True)
def plain_end(data: Any, at: int, end: int) -> Any:
    """Return the position of the next byte that ends plain text."""
    while at < end and _STOPS[data[at]] == 0:
        at += 1
    return at


@kernel(f"int64({READ}, int64, int64)")
def hex_unit(data: Any, at: int, end: int) -> Any:
    """Return the number of four hexadecimal digits; or LOOK."""
    if at + 4 > end:
        return LOOK
    unit = 0
    for step in range(4):
        digit = int64(_HEX[data[at + step]])
        if digit > 15:
            return LOOK
        unit = unit << 4 | digit
    return unit


@kernel(f"Tuple((int64, int64))({READ}, int64, int64)")
def code_point(data: Any, at: int, end: int) -> Any:
    """Return the character of a `u` escape and the position after it; LOOK for half a pair."""
    unit = hex_unit(data, at, end)
    if unit < 0xD800 or unit > 0xDFFF:
        return unit, at + 4
    if unit > 0xDBFF or byte_at(data, at + 4, end) != 92 or byte_at(data, at + 5, end) != 117:
        return LOOK, at
    low = hex_unit(data, at + 6, end)
    if low < 0xDC00 or low > 0xDFFF:
        return LOOK, at
    return 0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00), at + 10


@kernel("int64(uint8[::1], int64, int64)")
def put_utf8(target: Any, at: int, point: int) -> Any:
    if point < 0x80:
        target[at] = point
        return at + 1
    if point < 0x800:
        target[at] = 0xC0 | point >> 6
    elif point < 0x10000:
        target[at] = 0xE0 | point >> 12
    else:
        target[at] = 0xF0 | point >> 18
        at += 1
        target[at] = 0x80 | (point >> 12 & 0x3F)
    if point >= 0x800:
        at += 1
        target[at] = 0x80 | (point >> 6 & 0x3F)
    target[at + 1] = 0x80 | (point & 0x3F)
    return at + 2


@kernel(f"Tuple((int64, int64))({READ}, int64, int64, uint8[::1], int64)")
def unescape(data: Any, at: int, end: int, heap: Any, size: int) -> Any:
    """Copy a text, from after its quotation mark, to `heap[size:]`, with its escapes replaced.

    Return the position after its closing quotation mark, and the end of the text in the heap. The
    position is LOOK if the text does not end or has a wrong escape. The heap must have room for all
    bytes of the text.
    """
    while at < end:
        byte = int64(data[at])
        if byte == 34:
            return at + 1, size
        if byte < 32:
            return LOOK, size
        if byte != 92:
            heap[size] = byte
            size += 1
            at += 1
            continue
        kind = byte_at(data, at + 1, end)
        point = int64(_ESCAPES[kind])
        at += 2
        if kind == 117:
            point, at = code_point(data, at, end)
        elif point == 0:
            return LOOK, size
        if point < 0:
            return LOOK, size
        size = put_utf8(heap, size, point)
    return LOOK, size


@kernel(f"Tuple((int64, int64))({READ}, int64, int64)", inlined=True)
def digit_run(data: Any, at: int, end: int) -> Any:
    """Return the number that the digits at `at` form, and the position after them.

    The number is right for up to 18 digits.
    """
    value = int64(0)
    while at < end:
        digit = int64(data[at]) - 48
        if digit < 0 or digit > 9:
            break
        value = value * 10 + digit
        at += 1
    return value, at


@kernel(f"int64({READ}, int64, int64)")
def exponent_end(data: Any, at: int, end: int) -> Any:
    """Return the position after an optional exponent; `end` + 1 if it has no digits."""
    if byte_at(data, at, end) | 32 != 101:
        return at
    at += 1
    sign = byte_at(data, at, end)
    if sign == 43 or sign == 45:
        at += 1
    start = at
    while at < end and 48 <= data[at] <= 57:
        at += 1
    return at if at > start else end + 1


@kernel(f"Tuple((int64, int64, int64))({READ}, int64, int64)", inlined=True)
def scan_number(data: Any, at: int, end: int) -> Any:
    """Return three ends: of the digits before the point, of those after it, and of the number.

    `at` is the position after the sign. The first end is LOOK if there is no valid number.
    """
    start = at
    while at < end and 48 <= data[at] <= 57:
        at += 1
    if at == start or (at > start + 1 and data[start] == 48):
        return LOOK, at, at
    whole = at
    if byte_at(data, at, end) == 46:
        at += 1
        while at < end and 48 <= data[at] <= 57:
            at += 1
        if at == whole + 1:
            return LOOK, at, at
    return whole, at, exponent_end(data, at, end)
