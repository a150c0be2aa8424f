"""Record headers by column: scanned by `header_scan`, assembled by Arrow.

Source: KIP-82.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.records.columnar.arrays import Bytes, Ints
from penstock.records.columnar.gather import binary_column
from penstock.records.columnar.header_scan import Slots, scan_headers
from penstock.records.columnar.schema import HEADERS_TYPE

_NO_HEADERS: Final = pa.nulls(0, HEADERS_TYPE.value_type)


def decode_headers(data: Bytes, at: Ints, count: Ints, record_ends: Ints) -> Any:
    """Return the headers of every record; `at` is where the first one begins.

    Raises:
        CorruptBatch: headers that do not fill their record exactly, or a null header key.
    """
    if not count.any():
        offsets = pa.array(np.zeros(count.size + 1, np.int32))
        return pa.ListArray.from_arrays(offsets, _NO_HEADERS, type=HEADERS_TYPE)
    bounds, slots = scan_headers(data, at, count, record_ends)
    return _assemble(data, pa.array(bounds.astype(np.int32)), slots)


def _assemble(data: Bytes, offsets: Any, slots: Slots) -> Any:
    keys = _text(binary_column(data, slots[0], slots[1]))
    values = binary_column(data, slots[2], slots[3])
    fields = [HEADERS_TYPE.value_type.field(index) for index in range(2)]
    pairs = pa.StructArray.from_arrays([keys, values], fields=fields)
    return pa.ListArray.from_arrays(offsets, pairs, type=HEADERS_TYPE)


def _text(keys: Any) -> Any:
    """Keys as text; malformed UTF-8 is replaced, as Java's readers do."""
    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([key.decode("utf-8", "replace") for key in keys.to_pylist()], pa.string())
