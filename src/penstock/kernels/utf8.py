"""Validation of UTF-8.

Source: RFC 3629, section 4.
"""

from __future__ import annotations

from typing import Any

from numpy import uint64

from penstock.kernels.compiling import kernel
from penstock.kernels.memory import load_word
from penstock.kernels.types import READ, int64


@kernel(f"int64({READ}, int64, int64, int64)")
def _following(data: Any, at: int, end: int, lead: int) -> int:
    """Return the number of bytes after a lead byte; -1 if they are invalid."""
    more = 1 if lead < 0xE0 else 2 if lead < 0xF0 else 3
    if lead < 0xC2 or lead > 0xF4 or at + more > end:
        return -1
    # Some lead bytes allow only some of the continuation bytes as the second.
    low, high = 0x80, 0xBF
    if lead == 0xE0:
        low = 0xA0
    elif lead == 0xED:
        high = 0x9F
    elif lead == 0xF0:
        low = 0x90
    elif lead == 0xF4:
        high = 0x8F
    if data[at] < low or data[at] > high:
        return -1
    for place in range(at + 1, at + more):
        if data[place] & 0xC0 != 0x80:
            return -1
    return more


@kernel(f"boolean({READ}, int64, int64)")
def _is_mixed(data: Any, at: int, end: int) -> bool:
    """Whether bytes, some of which are not ASCII, are valid UTF-8."""
    while at < end:
        lead = int64(data[at])
        at += 1
        if lead >= 0x80:
            more = _following(data, at, end, lead)
            if more < 0:
                return False
            at += more
    return True


@kernel(f"boolean({READ}, int64, int64)", inlined=True)
def is_utf8(data: Any, at: int, end: int) -> bool:
    seen = uint64(0)
    place = at
    while place <= end - 8:
        seen |= load_word(data, place)
        place += 8
    for rest in range(place, end):
        seen |= uint64(data[rest])
    return not seen & uint64(0x8080808080808080) or _is_mixed(data, at, end)
