"""Where the keys and values of record headers lie: round `n` reads the n-th header of all records.

Headers are few per record and the same few on most records, so the rounds are few; when less
than `TOGETHER_MIN` records are left, each of those is finished by a plain loop, so that one record
with a million headers costs what its bytes cost and no more.

Source: KIP-82. A header is: key length, key (UTF-8), value length (-1: null), value.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from penstock.records.columnar.arrays import Bytes, Ints
from penstock.records.columnar.varints import read_ints
from penstock.records.errors import CorruptBatch

Slots = npt.NDArray[np.int32]

TOGETHER_MIN: Final = 64
_HEADER_BYTES_MIN: Final = 2


def scan_headers(data: Bytes, at: Ints, count: Ints, record_ends: Ints) -> tuple[Ints, Slots]:
    """Where every header of every record lies; `at` is where a record's first one begins.

    Returns the bounds of each record's headers among all of them (one more than records), and
    four rows with a column for each header: where its key is, the key's length, and the same of
    its value (length -1: null).

    Raises:
        CorruptBatch: headers that do not fill their record exactly, or a null header key.
    """
    if (count * _HEADER_BYTES_MIN > record_ends - at).any():
        raise CorruptBatch("a record has more headers than fit into it")
    bounds = np.zeros(count.size + 1, np.int64)
    np.cumsum(count, out=bounds[1:])
    slots = np.empty((4, int(bounds[-1])), np.int32)
    rows = np.flatnonzero(count)
    position, done = at[rows], 0
    while rows.size >= TOGETHER_MIN:
        position = _read_round(data, position, slots, bounds[rows] + done)
        done += 1
        finished = count[rows] == done
        if finished.any():
            _check_ends(position[finished], record_ends[rows[finished]])
            going_on = ~finished
            rows, position = rows[going_on], position[going_on]
        if (position >= record_ends[rows]).any():
            raise _misfit()
    for row, start in zip(rows.tolist(), position.tolist(), strict=True):
        into = slots[:, bounds[row] + done : bounds[row + 1]]
        _read_rest(data, start, int(record_ends[row]), into)
    return bounds, slots


def _read_round(data: Bytes, position: Ints, slots: Slots, into: Ints) -> Ints:
    key_length, key_at = read_ints(data, position)
    value_length, value_at = read_ints(data, key_at + np.maximum(key_length, 0))
    if key_length.min() < 0 or value_length.min() < -1:
        raise _misfit()
    slots[0, into], slots[1, into] = key_at, key_length
    slots[2, into], slots[3, into] = value_at, value_length
    return value_at + np.maximum(value_length, 0)


def _check_ends(position: Ints, ends: Ints) -> None:
    if not np.array_equal(position, ends):
        raise _misfit()


def _read_rest(data: Bytes, position: int, end: int, into: Slots) -> None:
    view = data.data
    columns: list[tuple[int, int, int, int]] = []
    for _ in range(into.shape[1]):
        key_length, key_at = _read_int(view, position, end)
        if key_length < 0:
            raise _misfit()
        value_length, value_at = _read_int(view, key_at + key_length, end)
        if value_length < -1:
            raise _misfit()
        columns.append((key_at, key_length, value_at, value_length))
        position = value_at + max(value_length, 0)
    if position != end:
        raise _misfit()
    into[:] = np.array(columns, np.int32).reshape(-1, 4).T


def _read_int(view: memoryview, position: int, end: int) -> tuple[int, int]:
    raw = 0
    for shift in range(0, 35, 7):
        if position >= end:
            break
        byte = view[position]
        position += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (raw >> 1) ^ -(raw & 1), position
    raise _misfit()


def _misfit() -> CorruptBatch:
    return CorruptBatch("the headers of a record do not fill it")
