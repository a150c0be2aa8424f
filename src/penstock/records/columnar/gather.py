"""Many slices of memory, copied out in one go by Arrow's `take`.

The slices and the gaps between them are laid over the buffer as the elements of one binary
array, slice, gap, slice, gap; Arrow's `take` of the even elements then copies the slices
together (8 ns for 100 bytes, where memcpy takes 2 to 6). `take` reads nothing of an array but
the bounds of the elements asked for: so the slices may stand in any order, and those of several
buffers are one array that is laid over the memory from the lowest buffer to the highest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.records.columnar.arrays import Bytes, Ints

_EVEN_ELEMENTS: Final = 1 << 16
_UNCHECKED: Final = pc.TakeOptions(boundscheck=False)
# Made without `pa.array`, whose first call imports pandas where it is installed: a quarter of a
# second in every process that loads this module.
_evens: list[Any] = [
    pa.Array.from_buffers(
        pa.int32(),
        _EVEN_ELEMENTS,
        [None, pa.py_buffer(np.arange(0, 2 * _EVEN_ELEMENTS, 2, dtype=np.int32))],
    )
]


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of every record: its address, its size (or that of all), and who owns the memory."""

    owner: Any
    at: Ints
    size: Ints | np.int64

    @classmethod
    def of(cls, data: Bytes, bounds: Ints) -> Piece:
        """The pieces of `data` between consecutive bounds."""
        return cls(data, bounds[:-1] + data.ctypes.data, np.diff(bounds))

    @property
    def total_bytes(self) -> int:
        return int(np.sum(self.size)) * (1 if np.ndim(self.size) else self.at.size)


@dataclass(frozen=True, slots=True)
class Gathered:
    """Records laid out back to back in writable memory, and where each one begins."""

    content: memoryview
    begins: Ints


def gather(pieces: Sequence[Piece], records: Ints, heads: Piece, tail: Piece) -> Gathered:
    """Copy all pieces of record 0, of record 1, … and the one `tail` into one buffer.

    `heads` takes the place of the first piece of those `records`. The last of `begins` is that
    of the tail.
    """
    count, width = pieces[0].at.size, len(pieces)
    everything = (*pieces, heads, tail)
    base = min(int(piece.at.min()) for piece in everything)
    bounds = np.empty(2 * count * width + 3, np.int64)
    grid = bounds[:-3].reshape(count, width, 2)
    for index, piece in enumerate(pieces):
        begins = grid[:, index, 0]
        np.subtract(piece.at, base, out=begins)
        np.add(begins, piece.size, out=grid[:, index, 1])
    grid[records, 0, 0] = heads.at - base
    grid[records, 0, 1] = heads.at - base + heads.size
    bounds[-3] = tail.at[0] - base
    bounds[-2] = bounds[-3] + tail.size
    # Arrow reserves the mean size of all elements, gaps too, by the first bound and the last.
    bounds[-1] = bounds[0] + 2 * sum(piece.total_bytes for piece in everything)
    content, begins = copy_slices(bounds, base, everything)
    return Gathered(content, begins[::width])


def copy_slices(bounds: Ints, base: int, owners: Any) -> tuple[memoryview, Ints]:
    """Copy slices of memory into one buffer; returns it, and where in it each slice begins.

    `bounds` has begin and end of every slice, counted from the address `base`, and at last what
    Arrow is to believe is the end of the memory: it reserves twice the share of the slices.
    """
    # So that is the size to declare; the slices themselves may lie beyond it.
    memory = pa.foreign_buffer(base, int(bounds[-1]), owners)
    laid = pa.Array.from_buffers(
        pa.large_binary(), bounds.size - 1, [None, pa.py_buffer(bounds), memory]
    )
    count = bounds.size // 2
    taken = pc.call_function("array_take", [laid, _even_elements(count)], _UNCHECKED)
    _, offsets, content = taken.buffers()
    ends = np.frombuffer(offsets, np.int64)[: count + 1]
    return memoryview(content).cast("B")[: int(ends[-1])], ends[:-1]


def _even_elements(count: int) -> Any:
    if count <= _EVEN_ELEMENTS:
        return _evens[0].slice(0, count)
    return pa.array(np.arange(0, 2 * count, 2, dtype=np.int32))
