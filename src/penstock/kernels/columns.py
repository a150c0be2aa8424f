"""Columns in the caller's memory, to which kernels append entries.

A schema is a tree of columns, numbered from the root on, each before its parts. The table has a row
for each column:

    KIND       WORD, PAIR, TEXT, ITEMS or PARTS
    AT         position of its entries: entry n is valid[AT + n] and words[AT + n]
    ROOM       number of entries that it has room for
    TEXT_AT    TEXT: position of its bytes in octets
    TEXT_ROOM  TEXT: number of bytes that it has room for
    COUNT      number of entries
    USED       TEXT: number of bytes
    BEHIND     number of the first column after its last part

The word of an entry is a number, or the bits of a float. A PAIR has two words, the low one first.
The words of TEXT and ITEMS are offsets: words[AT] is 0, and entry n ends at words[AT + n + 1]. The
items of ITEMS are in the next column. PARTS (a struct) have no words. All columns outside of lists
have the same number of entries and the same room.
"""

from __future__ import annotations

from typing import Any, Final

from penstock.kernels.compiling import kernel
from penstock.kernels.memory import copy_bytes
from penstock.kernels.types import READ

KIND, AT, ROOM, TEXT_AT, TEXT_ROOM, COUNT, USED, BEHIND = range(8)
TABLE_WIDTH: Final = 8
WORD, PAIR, TEXT, ITEMS, PARTS = range(5)
COMPARED_MAX: Final = 16
"""Most entries of a map whose keys the kernel compares with each other."""
COLUMNS: Final = "int64[:, ::1], uint8[::1], int64[::1], uint8[::1]"
"""Types of the arguments table, valid (a byte per entry), words and octets."""


@kernel("void(int64[:, ::1], int64[:, ::1])", inlined=True)
def mark_row(table: Any, marks: Any) -> None:
    """Store the present ends of all columns in `marks`, for `undo_row`."""
    for column in range(table.shape[0]):
        marks[column, 0] = table[column, COUNT]
        marks[column, 1] = table[column, USED]


@kernel("void(int64[:, ::1], int64[:, ::1])")
def undo_row(table: Any, marks: Any) -> None:
    """Remove the entries that were appended after `mark_row`."""
    for column in range(table.shape[0]):
        table[column, COUNT] = marks[column, 0]
        table[column, USED] = marks[column, 1]


@kernel("void(int64[:, ::1], uint8[::1], int64[::1], int64)", inlined=True)
def put_nothing(table: Any, valid: Any, words: Any, column: int) -> None:
    """Append a null to a column and its parts."""
    behind = table[column, BEHIND]
    while column < behind:
        count = table[column, COUNT]
        at = table[column, AT]
        kind = table[column, KIND]
        table[column, COUNT] = count + 1
        valid[at + count] = 0
        if kind == TEXT:
            words[at + count + 1] = table[column, USED]
        elif kind == PAIR:
            words[at + 2 * count] = 0
            words[at + 2 * count + 1] = 0
        elif kind == WORD:
            words[at + count] = 0
        elif kind == ITEMS:
            words[at + count + 1] = table[column + 1, COUNT]
            column = table[column, BEHIND] - 1
        column += 1


@kernel("void(int64[:, ::1], uint8[::1], int64)", inlined=True)
def put_parts(table: Any, valid: Any, column: int) -> None:
    count = table[column, COUNT]
    valid[table[column, AT] + count] = 1
    table[column, COUNT] = count + 1


@kernel("void(int64[:, ::1], uint8[::1], int64[::1], int64, int64)", inlined=True)
def put_word(table: Any, valid: Any, words: Any, column: int, value: int) -> None:
    at = table[column, AT] + table[column, COUNT]
    valid[at] = 1
    words[at] = value
    table[column, COUNT] += 1


@kernel("void(int64[:, ::1], uint8[::1], int64[::1], int64, int64, int64)", inlined=True)
def put_pair(table: Any, valid: Any, words: Any, column: int, low: int, high: int) -> None:
    count = table[column, COUNT]
    at = table[column, AT]
    valid[at + count] = 1
    words[at + 2 * count] = low
    words[at + 2 * count + 1] = high
    table[column, COUNT] = count + 1


@kernel("void(int64[:, ::1], uint8[::1], int64[::1], int64)", inlined=True)
def put_items(table: Any, valid: Any, words: Any, column: int) -> None:
    """Append a list of the items that were appended since the last list of the column."""
    count = table[column, COUNT]
    at = table[column, AT]
    valid[at + count] = 1
    words[at + count + 1] = table[column + 1, COUNT]
    table[column, COUNT] = count + 1


@kernel(f"boolean({COLUMNS}, int64, {READ}, int64, int64)", inlined=True)
def set_text(
    table: Any, valid: Any, words: Any, octets: Any, column: int, data: Any, at: int, size: int
) -> bool:
    """Write bytes as the next entry of a TEXT column; return False if there is no room.

    COUNT does not change, so a later value of the same field can replace the entry.
    """
    count = table[column, COUNT]
    entry = table[column, AT] + count
    start = words[entry]
    if start + size > table[column, TEXT_ROOM]:
        return False
    copy_bytes(octets, table[column, TEXT_AT] + start, data, at, size)
    valid[entry] = 1
    words[entry + 1] = start + size
    table[column, USED] = start + size
    return True


@kernel(f"boolean({COLUMNS}, int64, {READ}, int64, int64)", inlined=True)
def put_text(
    table: Any, valid: Any, words: Any, octets: Any, column: int, data: Any, at: int, size: int
) -> bool:
    done: bool = set_text(table, valid, words, octets, column, data, at, size)
    if done:
        table[column, COUNT] += 1
    return done


@kernel("boolean(int64[:, ::1], int64[::1], uint8[::1], int64, int64, int64)", inlined=True)
def _same(table: Any, words: Any, octets: Any, column: int, one: int, other: int) -> bool:
    at, kind = table[column, AT], table[column, KIND]
    if kind == PAIR:
        one, other = at + 2 * one, at + 2 * other
        return bool(words[one] == words[other] and words[one + 1] == words[other + 1])
    if kind == WORD:
        return bool(words[at + one] == words[at + other])
    size = words[at + one + 1] - words[at + one]
    if size != words[at + other + 1] - words[at + other]:
        return False
    start = table[column, TEXT_AT] + words[at + one]
    second = table[column, TEXT_AT] + words[at + other]
    place = 0
    while place < size and octets[start + place] == octets[second + place]:
        place += 1
    return bool(place == size)


@kernel("boolean(int64[:, ::1], int64[::1], uint8[::1], int64)")
def keys_differ(table: Any, words: Any, octets: Any, column: int) -> bool:
    """Whether no map of a column has a key twice; False if one is too large to compare."""
    at = table[column, AT]
    for entry in range(table[column, COUNT]):
        first, behind = words[at + entry], words[at + entry + 1]
        if behind - first > COMPARED_MAX:
            return False
        for key in range(first + 1, behind):
            for other in range(first, key):
                if _same(table, words, octets, column + 2, key, other):
                    return False
    return True
