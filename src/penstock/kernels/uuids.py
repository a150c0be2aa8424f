"""Conversion of binary UUIDs to text."""

from __future__ import annotations

from typing import Any, Final

from penstock.kernels.columns import AT, COLUMNS, COUNT, TEXT_AT, TEXT_ROOM, USED
from penstock.kernels.compiling import kernel
from penstock.kernels.types import READ, int64

_BYTES: Final = 16
_TEXT_BYTES: Final = 36


@kernel("int64(int64)", inlined=True)
def _hex(digit: int) -> int:
    return digit + (0x30 if digit < 10 else 0x57)


@kernel(f"boolean({COLUMNS}, int64, {READ}, int64)")
def put_uuid(
    table: Any, valid: Any, words: Any, octets: Any, column: int, data: Any, at: int
) -> bool:
    """Append sixteen bytes as the 36 characters of a UUID; return False if there is no room."""
    used = table[column, USED]
    if used + _TEXT_BYTES > table[column, TEXT_ROOM]:
        return False
    to = table[column, TEXT_AT] + used
    for number in range(_BYTES):
        if 4 <= number <= 10 and number % 2 == 0:
            octets[to] = 0x2D
            to += 1
        byte = int64(data[at + number])
        octets[to] = _hex(byte >> 4)
        octets[to + 1] = _hex(byte & 15)
        to += 2
    entry = table[column, AT] + table[column, COUNT]
    valid[entry] = 1
    words[entry + 1] = used + _TEXT_BYTES
    table[column, USED] = used + _TEXT_BYTES
    table[column, COUNT] += 1
    return True
