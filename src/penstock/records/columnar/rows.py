"""Records of batches as NumPy columns, read and copied by the kernels.

1. Find the batches with requested records, drop those of aborted transactions, and verify
   checksums.
2. Decompress batches; uncompressed batches are read in place.
3. Read all records in one pass (`kernels.records`). Values are copied into one buffer, which is as
   large as all batches.
4. Copy keys and headers, whose sizes are now known. If views are requested, keys and values are
   returned as views of the given buffer instead.

Source: Kafka's `DefaultRecord`; KIP-82 (headers).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.base.crc import Readable
from penstock.kernels import records as kernels
from penstock.records.columnar.arrays import (
    NO_BYTES,
    NO_HEADERS,
    Bounds,
    Bytes,
    Column,
    Headers,
    Input,
    Ints,
)
from penstock.records.columnar.batches import (
    Piece,
    aborted_batches,
    check_crcs,
    find_batches,
    open_batches,
)
from penstock.records.columnar.walk import corrupt
from penstock.records.errors import CorruptBatch
from penstock.records.header import DECOMPRESSED_BYTES_MAX, TIMESTAMP_TYPE_FLAG
from penstock.records.transactions import AbortedRange

OFFSET_MAX: Final = 2**63 - 1
BYTES_COLUMNS: Final = ("key", "value")
RECORD_COLUMNS: Final = ("offset", "timestamp", "key", "value", "headers")
_WANTED: Final = {
    "offset": kernels.OFFSET,
    "timestamp": kernels.TIMESTAMP,
    "key": kernels.KEY,
    "value": kernels.VALUE,
    "headers": kernels.HEADERS,
    "timestamp_type": 0,
}


class Strings(NamedTuple):
    """Byte strings: element i has the bytes from `bounds[i]` to `bounds[i + 1]` of `data`.

    `valid` is a bitmap like Arrow's; it is empty if no element is null.
    """

    bounds: Bounds
    data: Bytes
    valid: Bytes = NO_BYTES

    def column(self) -> Column:
        return Column(
            data=self.data, starts=self.bounds[:-1], ends=self.bounds[1:], valid=self.valid
        )


NO_STRINGS: Final = Strings(np.zeros(1, np.int32), NO_BYTES)


class Pairs(NamedTuple):
    """Headers of all rows; row i has those from `bounds[i]` to `bounds[i + 1]`."""

    bounds: Bounds
    keys: Strings
    values: Strings


class Rows:
    """Reader of the records of some batches."""

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

    def longs(self, name: str) -> Ints:
        """Return the column `offset` or `timestamp`."""
        return self._longs[int(name == "timestamp"), : self.size]

    def timestamp_types(self) -> npt.NDArray[np.int8]:
        """Return 0 (create) or 1 (log append) for each record."""
        flags = self._table[:, kernels.ATTRIBUTES] & TIMESTAMP_TYPE_FLAG != 0
        kinds: npt.NDArray[np.int8] = flags.view(np.int8).repeat(self._table[:, kernels.KEPT])
        return kinds

    def viewed(self, name: str) -> tuple[npt.NDArray[np.uint64], list[Bytes], Bytes]:
        """Return keys or values as elements of Arrow's `binary_view`, their buffers and bitmap."""
        column = BYTES_COLUMNS.index(name)
        return self._views[column], [piece.data for piece in self._pieces], self._bitmap(column)

    def strings(self, name: str) -> Strings:
        """Return copies of the keys or values."""
        column = BYTES_COLUMNS.index(name)
        bounds = self._bounds[column, : self.size + 1]
        size = int(bounds[self.size])
        copies = self._values[:size] if column else self._keys(size)
        return Strings(bounds, copies, self._bitmap(column))

    def _bitmap(self, column: int) -> Bytes:
        return self._valid[column] if self._state[kernels.NULL_KEYS + column] else NO_BYTES

    def _keys(self, size: int) -> Bytes:
        keys = np.empty(size, np.uint8)
        low = 0
        for piece, high in zip(self._pieces, self._ends, strict=True):
            if size:
                kernels.gather(keys, self._bounds[0], piece.data, self._positions[0], low, high)
            low = high
        return keys

    def headers(self) -> Pairs:
        """Return copies of the headers."""
        lists = self._bounds[2, : self.size + 1]
        count = int(lists[self.size])
        if not count:
            return Pairs(lists, NO_STRINGS, NO_STRINGS)
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
        present = valid if nulls else NO_BYTES
        return Pairs(lists, Strings(bounds[0], keys), Strings(bounds[1], values, present))

    def input(self) -> Input:
        """Return keys, values, timestamps and headers as columns that can be encoded again."""
        pairs = self.headers()
        headers = Headers(pairs.bounds, pairs.keys.column(), pairs.values.column())
        return Input(
            key=self.strings("key").column(),
            value=self.strings("value").column(),
            timestamps=self.longs("timestamp"),
            headers=headers if pairs.bounds[-1] else NO_HEADERS,
        )


def read_rows(
    buffer: Readable,
    *,
    columns: Sequence[str] = RECORD_COLUMNS,
    start_offset: int | None = None,
    end_offset: int | None = None,
    aborted: Sequence[AbortedRange] = (),
    include_control: bool = False,
    check_crc: bool = True,
    max_decompressed_bytes: int = DECOMPRESSED_BYTES_MAX,
    views: bool = False,
) -> Rows:
    """Read adjacent batches; a batch that is cut at the end of `buffer` is ignored.

    The arguments are those of `decode_batches`. Only the named columns can be returned.

    Raises:
        CorruptBatch: a batch is invalid.
        RecordTooLarge: the decompressed records exceed the limit, or 2 GiB.
        UnsupportedCodec: Kafka does not define the codec of a batch.
    """
    view = memoryview(buffer).cast("B")
    start = max(0, 0 if start_offset is None else start_offset)
    end = OFFSET_MAX if end_offset is None else end_offset
    table = find_batches(view, start, end, include_control)
    if aborted:
        table = table[~aborted_batches(view, table, aborted)]
    if check_crc:
        check_crcs(view, table)
    rows = Rows(open_batches(view, table, max_decompressed_bytes), table)
    rows.read(columns, start, end, views=views)
    return rows
