"""Records of batches as Arrow columns, read and copied by the kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.kernels import records as kernels
from penstock.records.columnar.arrays import Bytes, Ints
from penstock.records.columnar.batches import Piece
from penstock.records.columnar.schema import HEADERS_TYPE
from penstock.records.columnar.walk import corrupt
from penstock.records.errors import CorruptBatch
from penstock.records.header import TIMESTAMP_TYPE_FLAG

_BYTES_COLUMNS: Final = ("key", "value")
_WANTED: Final = {
    "offset": kernels.OFFSET,
    "timestamp": kernels.TIMESTAMP,
    "key": kernels.KEY,
    "value": kernels.VALUE,
    "headers": kernels.HEADERS,
    "timestamp_type": 0,
}
_HEADER_FIELDS: Final = [HEADERS_TYPE.value_type.field(index) for index in range(2)]
_NO_HEADERS: Final = pa.nulls(0, HEADERS_TYPE.value_type)


class Rows:
    """Reader of the records of some batches into Arrow columns."""

    def __init__(self, pieces: list[Piece], table: Ints) -> None:
        self._pieces = pieces
        self._table = table
        self._state = np.zeros(kernels.STATE_FIELDS, np.int64)
        self._ends: list[int] = []
        self.size = 0

    def read(self, columns: Sequence[str], start: int, end: int, *, views: bool) -> None:
        """Read these columns of the records with offsets in [start, end).

        Raises:
            CorruptBatch: the records do not match their batch's header.
        """
        wanted = sum({_WANTED[name] for name in columns}) | (kernels.VIEWS if views else 0)
        room = int(self._table[:, kernels.COUNT].sum())
        copied = "value" in columns and not views
        self._viewed = views
        self._views = np.empty((2, room if views else 0, 2), np.uint64)
        self._longs = np.empty((2, room), np.int64)
        self._bounds = np.empty((3, room + 1), np.int32)
        self._bounds[:, 0] = 0
        self._positions = np.empty((2, room), np.int32)
        self._valid = np.full((2, room // 8 + 1), 0xFF, np.uint8)
        total = sum(piece.data.size for piece in self._pieces)
        self._values = np.empty(total if copied else 0, np.uint8)
        for index, piece in enumerate(self._pieces):
            problem = kernels.read_records(
                piece.data, self._table, piece.low, piece.high, wanted, start, end, index,
                self._longs, self._views, self._bounds, self._positions, self._values, self._valid,
                self._state,
            )  # fmt: skip
            if problem:
                raise self._corrupt(problem)
            self._ends.append(int(self._state[kernels.RECORDS]))
        self.size = int(self._state[kernels.RECORDS])

    def _corrupt(self, problem: int) -> CorruptBatch:
        row = self._table[self._state[kernels.BATCH]]
        error = corrupt(problem, self._state)
        return CorruptBatch(
            f"batch with base offset {row[kernels.BASE_OFFSET]}, record {error.record} of"
            f" {row[kernels.COUNT]}: {error}",
            record=error.record,
        )

    def array(self, name: str) -> Any:
        if name in _BYTES_COLUMNS:
            return self._bytes(_BYTES_COLUMNS.index(name))
        if name == "headers":
            return self._headers()
        if name == "timestamp_type":
            kinds = (self._table[:, kernels.ATTRIBUTES] & TIMESTAMP_TYPE_FLAG != 0).view(np.int8)
            return _array(pa.int8(), self.size, kinds.repeat(self._table[:, kernels.KEPT]))
        return _array(pa.int64(), self.size, self._longs[int(name == "timestamp")])

    def _bytes(self, column: int) -> Any:
        valid = None
        if self._state[kernels.NULL_KEYS + column]:
            valid = pa.py_buffer(self._valid[column])
        if self._viewed:
            buffers = [valid, pa.py_buffer(self._views[column])]
            buffers += [pa.py_buffer(piece.data) for piece in self._pieces]
            return pa.Array.from_buffers(pa.binary_view(), self.size, buffers)
        bounds = self._bounds[column]
        size = int(bounds[self.size])
        copies = self._values[:size] if column else self._keys(size)
        return _array(pa.binary(), self.size, bounds, copies, valid=valid)

    def _keys(self, size: int) -> Bytes:
        keys = np.empty(size, np.uint8)
        low = 0
        for piece, high in zip(self._pieces, self._ends, strict=True):
            if size:
                kernels.gather(keys, self._bounds[0], piece.data, self._positions[0], low, high)
            low = high
        return keys

    def _headers(self) -> Any:
        lists = self._bounds[2]
        count = int(lists[self.size])
        pairs = _NO_HEADERS
        if count:
            keys = np.empty((int(self._state[kernels.HEADER_KEY_BYTES]),), np.uint8)
            values = np.empty((int(self._state[kernels.HEADER_VALUE_BYTES]),), np.uint8)
            bounds = np.empty((2, count + 1), np.int32)
            bounds[:, 0] = 0
            valid = np.full(count // 8 + 1, 0xFF, np.uint8)
            low, nulls = 0, 0
            for piece, high in zip(self._pieces, self._ends, strict=True):
                nulls += kernels.copy_headers(
                    piece.data, self._positions[1], lists, low, high, bounds, keys, values, valid
                )
                low = high
            present = pa.py_buffer(valid) if nulls else None
            columns = [
                _text(count, bounds[0], keys),
                _array(pa.binary(), count, bounds[1], values, valid=present),
            ]
            pairs = pa.StructArray.from_arrays(columns, fields=_HEADER_FIELDS)
        buffers = [None, pa.py_buffer(lists)]
        return pa.Array.from_buffers(HEADERS_TYPE, self.size, buffers, children=[pairs])


def _array(kind: Any, size: int, *parts: Any, valid: Any = None) -> Any:
    return pa.Array.from_buffers(kind, size, [valid, *map(pa.py_buffer, parts)])


def _text(count: int, bounds: Any, keys: Bytes) -> Any:
    """Return header keys as text; invalid UTF-8 is replaced, as by Java's readers."""
    if keys.size == 0 or int(keys.max()) < 0x80:
        return _array(pa.string(), count, bounds, keys)
    array = _array(pa.binary(), count, bounds, keys)
    try:
        return array.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([key.decode("utf-8", "replace") for key in array.to_pylist()], pa.string())
