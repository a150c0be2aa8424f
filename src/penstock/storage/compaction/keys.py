"""Keys of records, and the map from keys to last offsets.

The map stores a 128-bit hash of each key instead of the key; a secret of the pass is the key of the
hash function. A slot has 24 bytes, and `log.cleaner.dedupe.buffer.size` bounds the map's memory.
When the map is full, the pass ends, and the next pass continues there.

Source: Kafka's `SkimpyOffsetMap` and `Cleaner.buildOffsetMap`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from penstock.kernels import compaction as kernels
from penstock.records.columnar.batches import Piece, open_batches
from penstock.records.columnar.walk import explained
from penstock.records.errors import CorruptBatch
from penstock.records.limits import DECOMPRESSED_BYTES_MAX

if TYPE_CHECKING:
    import numpy.typing as npt

    from penstock.records.columnar.arrays import Bytes, Ints

Secret = tuple[int, int]
"""Key of the hash function: two words of 64 bits."""

SLOT_BYTES: Final = 8 * kernels.SLOT_FIELDS
_SLOTS_MIN: Final = 64
_FULL: Final = 4 / 3
"""Minimum number of slots per key; in a fuller map, lookups of missing keys take many steps."""


class Rows(NamedTuple):
    """Records in the arrays of `kernels.compaction`; a piece has the bytes of adjacent batches."""

    pieces: list[Piece]
    hashes: npt.NDArray[np.uint64]
    spans: npt.NDArray[np.int64]
    kinds: Bytes


def read_rows(view: memoryview, table: Ints, secret: Secret) -> Rows:
    """Return the records of the batches in a table that `kernels.list_batches` has filled.

    If any batch is compressed, all positions in the table are replaced by positions in the pieces.

    Raises:
        CorruptBatch, RecordTooLarge, UnsupportedCodec: the records cannot be read.
    """
    count = int(table[:, kernels.COUNT].sum())
    pieces = open_batches(view, table, DECOMPRESSED_BYTES_MAX)
    rows = Rows(
        pieces,
        np.empty((count, 2), np.uint64),
        np.empty((count, 4), np.int64),
        np.empty(count, np.uint8),
    )
    state = np.zeros(3, np.int64)
    row, first, second = 0, np.uint64(secret[0]), np.uint64(secret[1])
    for piece in pieces:
        row = kernels.read_keys(
            piece.data, table, piece.low, piece.high, row, first, second, rows.hashes, rows.spans,
            rows.kinds, state,
        )  # fmt: skip
        if row < 0:
            batch, record, place = state.tolist()
            base_offset = table[batch, kernels.BASE_OFFSET]
            raise CorruptBatch(
                f"batch with base offset {base_offset}, record {record} of"
                f" {table[batch, kernels.COUNT]}: {explained(-row, record, place)}",
                record=record,
            )
    return rows


class KeyMap:
    """Map from key hashes to last offsets, bounded in memory."""

    def __init__(self, size_bytes: int, offsets: int, secret: Secret) -> None:
        """Create a map of at most `size_bytes` bytes, no larger than `offsets` keys need."""
        most = 1 << max(size_bytes // SLOT_BYTES, 1).bit_length() - 1
        self._slots_max = max(_SLOTS_MIN, most)
        self.secret = secret
        self.known = 0
        self.slots = self._made(offsets)

    def _made(self, keys: int) -> npt.NDArray[np.uint64]:
        wanted = 1 << (int(keys * _FULL)).bit_length()
        slots = max(_SLOTS_MIN, min(wanted, self._slots_max))
        return np.zeros((slots, kernels.SLOT_FIELDS), np.uint64)

    @property
    def room(self) -> int:
        return int(self.slots.shape[0] / _FULL) - self.known

    def grow(self, keys: int) -> None:
        """Replace the empty map by one for `keys` keys, so that a pass gets past one batch."""
        self._slots_max = max(self._slots_max, 1 << (int(keys * _FULL)).bit_length())
        self.slots = self._made(keys)

    def note(self, rows: Rows) -> None:
        self.known = kernels.note_keys(
            rows.hashes, rows.spans, rows.kinds, 0, len(rows.kinds), self.slots, self.known
        )
