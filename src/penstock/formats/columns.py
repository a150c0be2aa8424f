"""Tree of columns that kernels fill and `leaves.py` converts to Arrow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

TIMESTAMP: Final = pa.timestamp("us", "UTC")
TIMESTAMP_NTZ: Final = pa.timestamp("us")
_NARROW: Final = {1: np.uint8, 8: np.int8, 16: np.int16, 32: np.int32}
"""The words of types of few bits, by how many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """Column of a tree, with the type of its values.

    `names` are those of an enum, stored as their index, or as one of `numbers` if it has some. A
    list or map has its item or entry as its only part, a struct its fields. Parts of other columns
    are read but not returned; but a column with the type of its only part is that part.
    """

    type: pa.DataType
    parts: tuple[Column, ...] = ()
    names: tuple[str, ...] = ()
    numbers: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """Number of columns with all its parts."""
        return 1 + sum(part.size for part in self.parts)


def column_of(data_type: pa.DataType) -> Column:
    if pa.types.is_struct(data_type):
        return struct_of([(part.name, column_of(part.type)) for part in data_type])
    if pa.types.is_map(data_type):
        return map_of(column_of(data_type.key_type), column_of(data_type.item_type))
    if pa.types.is_list(data_type):
        return list_of(column_of(data_type.value_type))
    return Column(type=data_type)


def struct_of(parts: list[tuple[str, Column]]) -> Column:
    made = pa.struct([pa.field(name, part.type) for name, part in parts])
    return Column(type=made, parts=tuple(part for _, part in parts))


def list_of(item: Column) -> Column:
    return Column(type=pa.list_(item.type), parts=(item,))


def map_of(key: Column, value: Column) -> Column:
    """Return a map; of entries with equal keys the last one counts."""
    made = pa.map_(key.type, value.type)
    entry = pa.struct([made.key_field, made.item_field])
    return Column(type=made, parts=(Column(type=entry, parts=(key, value)),))


def enum_of(names: tuple[str, ...], numbers: tuple[int, ...] = ()) -> Column:
    return Column(type=pa.string(), names=names, numbers=numbers)


def validity(present: npt.NDArray[Any]) -> pa.Buffer | None:
    """Return the bitmap of the entries that are not null; None if all are valid."""
    if present.all():
        return None
    return pa.py_buffer(np.packbits(present.astype(np.bool_), bitorder="little"))


def narrow(words: npt.NDArray[np.int64], bits: int) -> Any:
    if bits not in _NARROW:
        return words
    made = words.astype(_NARROW[bits])
    return np.packbits(made, bitorder="little") if bits == 1 else made
