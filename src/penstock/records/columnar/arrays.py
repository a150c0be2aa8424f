"""Columns of records as NumPy arrays; brokers use them without loading Arrow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Positions = npt.NDArray[np.int64] | npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]
Bounds = npt.NDArray[np.int32]

NO_BYTES: Final = np.empty(0, np.uint8)
_NO_BOUNDS: Final = np.empty(0, np.int32)
_IN_ORDER: Final = np.empty(0, np.int64)
_LENGTH_BYTES_MAX: Final = 5
_NUMBERS_BYTES_MAX: Final = 31
"""Upper bound of a record's bytes for length, attributes, timestamp, offset and counts."""


class Column(NamedTuple):
    """Column of byte strings in one buffer, as `kernels.record_writing` describes it."""

    data: Bytes = NO_BYTES
    starts: Bounds = _NO_BOUNDS
    ends: Bounds = _NO_BOUNDS
    valid: Bytes = NO_BYTES
    shift: int = 0

    def bytes_max(self) -> int:
        """Return an upper bound of the bytes of all elements, including their length fields."""
        taken = int(self.ends[-1]) - int(self.starts[0]) if self.starts.size else 0
        return taken + self.starts.size * _LENGTH_BYTES_MAX

    def lengths(self) -> Ints:
        """Return the bytes of each element; empty if all are null."""
        return np.subtract(self.ends, self.starts, dtype=np.int64)

    def item(self, index: int) -> bytes | None:
        bit = index + self.shift
        present = not self.valid.size or self.valid[bit >> 3] >> (bit & 7) & 1
        if not self.starts.size or not present:
            return None
        return self.data[self.starts[index] : self.ends[index]].tobytes()

    @classmethod
    def of(cls, items: Sequence[bytes | None]) -> Column:
        """Return a column with copies of these byte strings; None is a null."""
        ends = np.cumsum([len(item or b"") for item in items], dtype=np.int32)
        starts = np.concatenate((np.zeros(1, np.int32), ends[:-1]))[: len(items)]
        data = np.frombuffer(b"".join(item or b"" for item in items), np.uint8)
        present = np.array([item is not None for item in items], np.bool_)
        valid = NO_BYTES if present.all() else np.packbits(present, bitorder="little")
        return cls(data=data, starts=starts, ends=ends, valid=valid)


NULLS: Final = Column()


class Headers(NamedTuple):
    """Headers of all rows: keys and values, and at which of them each row begins."""

    bounds: Bounds = _NO_BOUNDS
    keys: Column = NULLS
    values: Column = NULLS


NO_HEADERS: Final = Headers()


class Input(Struct, frozen=True, kw_only=True):
    """Columns of the records to encode; `order` has the indexes of selected rows, None for all."""

    value: Column
    timestamps: Ints
    key: Column = NULLS
    headers: Headers = NO_HEADERS
    order: Ints | None = None

    @property
    def size(self) -> int:
        return self.timestamps.size if self.order is None else self.order.size

    def bytes_max(self) -> int:
        """Return an upper bound of all records' bytes, if each row is selected at most once."""
        columns = (self.key, self.value, self.headers.keys, self.headers.values)
        return self.size * _NUMBERS_BYTES_MAX + sum(column.bytes_max() for column in columns)

    def select(self, rows: slice | Ints) -> Input:
        """Return some of the rows, by a slice or by indexes in any order; values are not copied."""
        order = np.arange(self.timestamps.size) if self.order is None else self.order
        return replace(self, order=order[rows])

    def columns(self) -> tuple[Any, ...]:
        bounds, keys, values = self.headers
        order = _IN_ORDER if self.order is None else self.order
        return (
            order, tuple(self.key), tuple(self.value), self.timestamps, bounds, tuple(keys),
            tuple(values),
        )  # fmt: skip
