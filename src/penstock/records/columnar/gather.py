"""Slices of one buffer as an Arrow array, copied out in one go.

The slices and the gaps between them are laid over the buffer as the elements of one binary
array, slice, gap, slice, gap; Arrow's `take` of the even elements then copies the slices
together (8 ns for 100 bytes, where memcpy takes 2 to 6).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.records.columnar.schema import Bytes, Flags, Positions

_EVEN_ELEMENTS: Final = 1 << 16
_UNCHECKED: Final = pc.TakeOptions(boundscheck=False)
_evens: list[Any] = [pa.array(np.arange(0, 2 * _EVEN_ELEMENTS, 2, dtype=np.int32))]


def binary_column(data: Bytes, at: Positions, length: Positions) -> Any:
    """Return `data[at : at + length]` of every record as a binary array; length -1 is null.

    The slices are in ascending order and do not overlap.
    """
    count = at.size
    if count == 0:
        return pa.array([], pa.binary())
    smallest, largest = int(length.min()), int(length.max())
    if largest == -1:
        return pa.nulls(count, pa.binary())
    bounds = np.empty(2 * count + 1, np.int32)
    bounds[0:-1:2] = at
    if smallest < 0:
        bounds[1::2] = at + np.maximum(length, 0)
    else:
        np.add(at, length, out=bounds[1::2], casting="unsafe")
    bounds[-1] = bounds[-2]
    laid = pa.Array.from_buffers(
        pa.binary(), 2 * count, [None, pa.py_buffer(bounds), pa.py_buffer(data)]
    )
    taken = pc.call_function("array_take", [laid, _even_elements(count)], _UNCHECKED)
    if smallest == -1:
        _, offsets, values = taken.buffers()
        return pa.Array.from_buffers(pa.binary(), count, [validity(length >= 0), offsets, values])
    return taken


def validity(valid: Flags) -> Any:
    """Arrow's bitmap of a flag per element."""
    return pa.py_buffer(np.packbits(valid, bitorder="little"))


def _even_elements(count: int) -> Any:
    if count <= _EVEN_ELEMENTS:
        return _evens[0].slice(0, count)
    return pa.array(np.arange(0, 2 * count, 2, dtype=np.int32))
