"""Tree of columns, which kernels fill and `leaves.py` converts to Arrow arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

TIMESTAMP: Final = pa.timestamp("us", "UTC")
TIMESTAMP_NTZ: Final = pa.timestamp("us")
_NARROW: Final = {1: np.uint8, 8: np.int8, 16: np.int16, 32: np.int32}
"""NumPy types of values with fewer than 64 bits, by their number of bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """Column of a tree, with the Arrow type of its values.

    `parts` are the fields of a struct, or the one item or entry of a list or map. Parts of other
    columns (such as a time's seconds and nanoseconds) are filled but not returned. A column with
    the type of its only part (a wrapper) is returned as that part. An enum has `names`; its values
    are stored as indexes of them, or as the enum's `numbers` if these are given.
    """

    type: pa.DataType
    parts: tuple[Column, ...] = ()
    names: tuple[str, ...] = ()
    numbers: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """Number of columns in the tree: this one and all of its parts."""
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
    """Return a map column; of entries with equal keys, the last one is kept."""
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
