"""Header of a schema registry before values; `formats/framing.py` shows its layout."""

from __future__ import annotations

from typing import Any, Final

from penstock.kernels.compiling import kernel
from penstock.kernels.numbers import read_zigzag
from penstock.kernels.types import READ, int64

TOO_SHORT, NO_MAGIC, OTHER_MESSAGE = 3, 4, 5
NO_ID: Final = -1
BY_GUID: Final = -2
"""Numbers in place of an id: the header cannot be read, or has a GUID."""
ID_HEADER_BYTES: Final = 5
GUID_HEADER_BYTES: Final = 17


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


@kernel(f"void({READ}, int64[::1], int64[::1], int64[::1], int64[::1])")
def read_frames(data: Any, starts: Any, ends: Any, problems: Any, ids: Any) -> None:
    """Write the id of each value, and move its start to after the id.

    A value without a header gets a problem and `NO_ID`. One with a GUID gets `BY_GUID`; the GUID is
    in the sixteen bytes before its new start.
    """
    for row in range(starts.size):
        ids[row] = NO_ID
        if problems[row] != 0:
            continue
        at = starts[row]
        magic = int64(data[at]) if at < ends[row] else 0
        size = GUID_HEADER_BYTES if magic == 1 else ID_HEADER_BYTES
        if magic > 1 or ends[row] - at < size:
            problems[row] = NO_MAGIC if magic else TOO_SHORT
        else:
            ids[row] = BY_GUID
            if magic == 0:
                high = int64(data[at + 1]) << 24 | int64(data[at + 2]) << 16
                ids[row] = high | int64(data[at + 3]) << 8 | int64(data[at + 4])
            starts[row] = at + size


@kernel(f"void({READ}, int64[::1], int64[::1], int64[::1], int64[::1], int64)")
def skip_message_indexes(
    data: Any, starts: Any, ends: Any, problems: Any, indexes: Any, place: int
) -> None:
    """Move the start of each value to after its message indexes; set a problem for other ones.

    Args:
        indexes: the message indexes that each value must have.
        place: added to the number of a problem, to name the part of the schema.
    """
    for row in range(starts.size):
        if problems[row] == 0:
            at = _skip_indexes(data, starts[row], ends[row], indexes)
            if at < 0:
                problems[row] = place - at
            else:
                starts[row] = at
