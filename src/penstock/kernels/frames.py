"""Header of a schema registry before values; `formats/framing.py` shows its layout."""

from __future__ import annotations

from typing import Any

from penstock.kernels.compiling import kernel
from penstock.kernels.numbers import read_zigzag
from penstock.kernels.types import READ

TOO_SHORT, NO_MAGIC, OTHER_MESSAGE = 3, 4, 5


@kernel(f"int64({READ}, int64, int64, int64[::1])")
def _skip_indexes(data: Any, at: int, end: int, indexes: Any) -> int:
    count, at = read_zigzag(data, at, end)
    if at >= 0 and count == 0 and indexes.size == 1 and indexes[0] == 0:
        return at
    if at >= 0 and count != indexes.size:
        return -OTHER_MESSAGE
    for expected in indexes:
        if at >= 0:
            index, at = read_zigzag(data, at, end)
            if at >= 0 and index != expected:
                at = -OTHER_MESSAGE
    return at


@kernel(f"void({READ}, int64[::1], int64[::1], int64[::1], int64[::1], int64, int64)")
def skip_frames(
    data: Any,
    starts: Any,
    ends: Any,
    problems: Any,
    indexes: Any,
    header_bytes: int,
    place: int,
) -> None:
    """Move the start of each value to after its header; set a problem for a value without one.

    Args:
        indexes: the message indexes that the header must have; empty if the format has none.
        place: added to the number of a problem with the indexes, to name the part of the schema.
    """
    for row in range(starts.size):
        if problems[row] != 0:
            continue
        at = starts[row]
        if ends[row] - at < header_bytes:
            problems[row] = TOO_SHORT
        elif data[at] != 0:
            problems[row] = NO_MAGIC
        else:
            at += header_bytes
            if indexes.size:
                at = _skip_indexes(data, at, ends[row], indexes)
            if at < 0:
                problems[row] = place - at
            else:
                starts[row] = at
