"""Rows of PostgreSQL's logical replication messages: places of columns, and copies of them.

A row message is Insert ('I'), Update ('U') or Delete ('D'). It has the relation's id (4 bytes) and
tuples, each behind a letter: 'K' the old key, 'O' the old row, 'N' the new row. A tuple is a number
of columns (2 bytes), and for each column a letter: 'n' null, 'u' unchanged and not sent, 't' text
with its size (4 bytes).

Source: PostgreSQL documentation, "Logical Replication Message Formats".
"""

from __future__ import annotations

from typing import Any, Final

from penstock.kernels.compiling import kernel
from penstock.kernels.memory import append_bytes
from penstock.kernels.types import READ, int64

NULL: Final = -1
UNCHANGED: Final = -2
ABSENT: Final = -3
"""Sizes of columns without a text: null, unchanged and not sent, or in no tuple of the message."""
HEAD_BYTES: Final = 5
KEY, OLD, NEW = 75, 79, 78
_NULL, _UNCHANGED, _TEXT = 110, 117, 116
_UPDATE, _DELETE = 85, 68


@kernel(f"int64({READ}, int64, int64, int64, int64, int64[:, ::1], int64[:, ::1], int64)")
def _read_tuple(
    data: Any, at: int, end: int, first: int, columns: int, places: Any, sizes: Any, row: int
) -> int:
    """Write the places of a tuple's columns; return the position after it, -1 if it is damaged."""
    if end - at < 2 or (int64(data[at]) << 8 | int64(data[at + 1])) != columns:
        return -1
    at += 2
    for column in range(first, first + columns):
        if at >= end:
            return -1
        kind = int64(data[at])
        at += 1
        if kind == _NULL:
            sizes[column, row] = NULL
        elif kind == _UNCHANGED:
            sizes[column, row] = UNCHANGED
        elif kind == _TEXT and end - at >= 4:
            high = int64(data[at]) << 24 | int64(data[at + 1]) << 16
            size = high | int64(data[at + 2]) << 8 | int64(data[at + 3])
            at += 4
            if size > end - at:
                return -1
            places[column, row] = at
            sizes[column, row] = size
            at += size
        else:
            return -1
    return at


@kernel(f"int64({READ}, int64[::1], int64[::1], int64, int64[:, ::1], int64[:, ::1], uint8[::1])")
def read_changes(
    data: Any, starts: Any, ends: Any, columns: int, places: Any, sizes: Any, olds: Any
) -> int:
    """Write the places and sizes of the columns of row messages of one relation.

    Args:
        data: bytes that contain the messages.
        starts: position of each message; `ends` its end.
        columns: number of the relation's columns.
        places: for each column of the old tuple, then of the new tuple, and each message: the
            position of the text.
        sizes: size of the text in bytes, or NULL, UNCHANGED, ABSENT.
        olds: letter of each message's old tuple, `KEY` or `OLD`; 0 if there is none.

    Returns:
        -1, or the index of the first damaged message.
    """
    for row in range(starts.size):
        for column in range(2 * columns):
            places[column, row] = 0
            sizes[column, row] = ABSENT
        olds[row] = 0
        has_new = False
        at, end = starts[row] + HEAD_BYTES, ends[row]
        while at < end:
            letter = int64(data[at])
            if has_new or (letter != KEY and letter != OLD and letter != NEW):
                return row
            has_new = letter == NEW
            first = columns if has_new else 0
            if not has_new:
                if olds[row] > 0:
                    return row
                olds[row] = letter
            at = _read_tuple(data, at + 1, end, first, columns, places, sizes, row)
            if at < 0:
                return row
        kind = int64(data[starts[row]])
        if has_new == (kind == _DELETE) or (kind != _UPDATE and has_new == (olds[row] > 0)):
            return row
    return -1


@kernel(f"void({READ}, int64[::1], int64[::1], uint8[::1])")
def copy_texts(data: Any, places: Any, sizes: Any, target: Any) -> None:
    """Copy texts one after the other into `target`; sizes below 0 count as 0."""
    at = 0
    for row in range(places.size):
        if sizes[row] > 0:
            append_bytes(target, at, data, places[row], sizes[row])
            at += sizes[row]
