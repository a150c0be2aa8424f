"""Memory of columns that kernels fill, and its conversion to Arrow arrays.

`kernels/columns.py` describes the layout of entries. The first allocation is an estimate; a full
column is enlarged. Values with Arrow's width are not copied.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.base.errors import InvalidError
from penstock.formats.columns import Column, narrow, validity
from penstock.formats.value_format import BATCH_BYTES_MAX
from penstock.kernels import columns as kernel

Longs = npt.NDArray[np.int64]

_ITEM_BYTES: Final = 8
"""Estimated bytes of a value for each item of a list."""
_TEXT_BYTES_MIN: Final = 1 << 10


@dataclass(slots=True)
class Leaves:
    """Memory of a tree of columns for a number of rows, which a kernel fills."""

    root: Column
    rows: int
    size_bytes: int
    """Bytes of all values."""
    table: Longs = field(init=False)
    marks: Longs = field(init=False)
    valid: npt.NDArray[np.uint8] = field(init=False)
    words: Longs = field(init=False)
    octets: npt.NDArray[np.uint8] = field(init=False)
    _columns: list[Column] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        behind: list[int] = []
        _number(self.root, self._columns, behind)
        self.table = np.zeros((len(behind), kernel.TABLE_WIDTH), np.int64)
        self.marks = np.zeros((len(behind), 2), np.int64)
        self.table[:, kernel.KIND] = [_kind(column) for column in self._columns]
        self.table[:, kernel.BEHIND] = behind
        self.table[:, kernel.ROOM] = self.rows
        texts = self.table[:, kernel.KIND] == kernel.TEXT
        share = max(2 * self.size_bytes // max(1, int(texts.sum())), _TEXT_BYTES_MIN)
        self.table[texts, kernel.TEXT_ROOM] = min(share, BATCH_BYTES_MAX)
        for number in np.flatnonzero(self.table[:, kernel.KIND] == kernel.ITEMS):
            self._widen(int(number) + 1, max(self.rows, self.size_bytes // _ITEM_BYTES))
        self._take()

    def grow(self, column: int) -> None:
        """Enlarge a full column: the memory of its list's items, or of its text.

        Raises:
            InvalidError: the text of the column has more bytes than Arrow can count.
        """
        if column and self.table[column - 1, kernel.KIND] == kernel.ITEMS:
            self._widen(column, 2 * int(self.table[column, kernel.ROOM]))
        if self.table[column, kernel.KIND] == kernel.TEXT:
            room = int(self.table[column, kernel.TEXT_ROOM])
            if room >= BATCH_BYTES_MAX:
                raise InvalidError(
                    f"a batch of values has more than {BATCH_BYTES_MAX} bytes of one column: "
                    "lower spark.sql.execution.arrow.maxRecordsPerBatch"
                )
            self.table[column, kernel.TEXT_ROOM] = min(2 * room, BATCH_BYTES_MAX)
        before, valid, words, octets = self.table.copy(), self.valid, self.words, self.octets
        self._take()
        for old, new in zip(before.tolist(), self.table.tolist(), strict=True):
            count, used = old[kernel.COUNT], old[kernel.USED]
            at, to = old[kernel.AT], new[kernel.AT]
            self.valid[to : to + count] = valid[at : at + count]
            self.words[to : to + 2 * count + 1] = words[at : at + 2 * count + 1]
            at, to = old[kernel.TEXT_AT], new[kernel.TEXT_AT]
            self.octets[to : to + used] = octets[at : at + used]

    def _widen(self, first: int, room: int) -> None:
        behind = int(self.table[first, kernel.BEHIND])
        column = first
        while column < behind:
            self.table[column, kernel.ROOM] = room
            items = self.table[column, kernel.KIND] == kernel.ITEMS
            column = int(self.table[column, kernel.BEHIND]) if items else column + 1

    def _take(self) -> None:
        # Two words an entry, and one more, suffice for all kinds; unused memory pages cost nothing.
        sizes = 2 * self.table[:, kernel.ROOM] + 1
        self.table[:, kernel.AT] = np.cumsum(sizes) - sizes
        self.valid = np.empty(int(sizes.sum()), np.uint8)
        self.words = np.empty(int(sizes.sum()), np.int64)
        self.words[self.table[:, kernel.AT]] = 0
        sizes = self.table[:, kernel.TEXT_ROOM]
        self.table[:, kernel.TEXT_AT] = np.cumsum(sizes) - sizes
        self.octets = np.empty(int(sizes.sum()), np.uint8)

    def array(self, number: int = 0) -> pa.Array:
        column = self._columns[number]
        count = int(self.table[number, kernel.COUNT])
        if pa.types.is_null(column.type):
            return pa.nulls(count)
        at = int(self.table[number, kernel.AT])
        present = self.valid[at : at + count].astype(np.bool_)
        words = self._words(number, count)
        kind = self.table[number, kernel.KIND]
        if kind == kernel.ITEMS:
            return self._items(column, number, present, words)
        if kind == kernel.TEXT:
            at, used = (int(self.table[number, place]) for place in (kernel.TEXT_AT, kernel.USED))
            octets = pa.py_buffer(self.octets[at : at + used])
            return _array(column.type, count, present, narrow(words, 32), octets)
        if kind == kernel.PARTS:
            return self._parts(column, number, present)
        if column.names:
            return _names(column, words, present)
        return _array(column.type, count, present, narrow(words, column.type.bit_width))

    def _words(self, number: int, count: int) -> Longs:
        at = int(self.table[number, kernel.AT])
        kind = int(self.table[number, kernel.KIND])
        size = 2 * count if kind == kernel.PAIR else count
        return self.words[at : at + size + (kind in (kernel.TEXT, kernel.ITEMS))]

    def _items(self, column: Column, number: int, present: Any, words: Longs) -> pa.Array:
        made = _array(
            column.type, words.size - 1, present, narrow(words, 32), part=self.array(number + 1)
        )
        if not pa.types.is_map(column.type):
            return made
        once = kernel.keys_differ(self.table, self.words, self.octets, number)
        return made if once else _last_of_keys(made)

    def _parts(self, column: Column, number: int, present: Any) -> pa.Array:
        count = int(self.table[number, kernel.COUNT])
        parts = []
        behind = number + 1
        for _ in column.parts:
            parts.append(self.array(behind))
            behind = int(self.table[behind, kernel.BEHIND])
        if pa.types.is_struct(column.type):
            return pa.Array.from_buffers(column.type, count, [validity(present)], children=parts)
        if present.all():
            return parts[0]
        return pc.if_else(pa.array(present), parts[0], pa.scalar(None, column.type))


def _kind(column: Column) -> int:
    kind = column.type
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        return kernel.ITEMS
    if pa.types.is_struct(kind) or pa.types.is_null(kind) or len(column.parts) == 1:
        return kernel.PARTS
    if pa.types.is_decimal(kind):
        return kernel.PAIR
    texts = pa.types.is_string(kind) or pa.types.is_binary(kind)
    return kernel.TEXT if texts and not column.names else kernel.WORD


def _number(column: Column, columns: list[Column], behind: list[int]) -> None:
    number = len(columns)
    columns.append(column)
    behind.append(0)
    for part in column.parts:
        _number(part, columns, behind)
    behind[number] = len(columns)


def _array(
    data_type: pa.DataType, count: int, present: Any, words: Any, *octets: Any, part: Any = None
) -> pa.Array:
    return pa.Array.from_buffers(
        data_type, count, [validity(present), pa.py_buffer(words), *octets],
        children=None if part is None else [part],
    )  # fmt: skip


def _names(column: Column, words: Longs, present: Any) -> pa.Array:
    """Return the names of enum values; a number without a name becomes its digits."""
    index, known = words, None
    if column.numbers:
        numbers = np.array(column.numbers, np.int64)
        index = np.minimum(np.searchsorted(numbers, words), numbers.size - 1)
        known = numbers[index] == words
    names = pa.array(column.names, pa.string()).take(pa.array(index, mask=~present))
    if known is None or known.all():
        return names
    digits = pa.array(words, mask=~present).cast(pa.string())
    return pc.if_else(pa.array(known), names, digits)


def _last_of_keys(values: pa.MapArray) -> pa.MapArray:
    """Return maps that keep only the last of several entries with equal keys."""
    offsets = values.offsets.to_numpy()
    counts = np.diff(offsets)
    owner = np.repeat(np.arange(counts.size), counts)
    codes = values.keys.dictionary_encode().indices.to_numpy(zero_copy_only=False)
    order = np.lexsort((codes, owner))
    same = (np.diff(owner[order]) == 0) & (np.diff(codes[order]) == 0)
    if not same.any():
        return values
    keep = np.ones(owner.size, np.bool_)
    keep[order[:-1][same]] = False
    offsets = np.concatenate([[0], np.cumsum(keep)])[offsets].astype(np.int32)
    kept = pa.array(np.flatnonzero(keep))
    mask = values.is_null() if values.null_count else None
    return pa.MapArray.from_arrays(
        pa.array(offsets), values.keys.take(kept), values.items.take(kept), mask=mask
    )
