"""Keys of records, and the map from keys to last offsets.

The map stores a 128-bit hash of each key, keyed by a secret of the pass, never the key; at 24 bytes
a slot, its memory is bounded by `log.cleaner.dedupe.buffer.size`. A pass ends where the map is
full, and the next one continues.

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
"""Two words of 64 bits."""

SLOT_BYTES: Final = 8 * kernels.SLOT_FIELDS
_SLOTS_MIN: Final = 64
_FULL: Final = 4 / 3
"""Slots per key: in a fuller map, a lookup of a missing key takes many steps."""


class Rows(NamedTuple):
    """Records in the form of `kernels.compaction`; each piece has those of some batches."""

    pieces: list[Piece]
    hashes: npt.NDArray[np.uint64]
    spans: npt.NDArray[np.int64]
    kinds: Bytes


def read_rows(view: memoryview, table: Ints, secret: Secret) -> Rows:
    """Read the records of a table's batches, which `list_batches` has filled.

    If any batch is compressed, the positions of all batches of the table refer to the pieces.

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
        """Create a map of up to `size_bytes`, not larger than `offsets` keys need."""
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
        """Make room for `keys` keys at once, so that a pass advances by at least one batch."""
        self._slots_max = max(self._slots_max, 1 << (int(keys * _FULL)).bit_length())
        self.slots = self._made(keys)

    def note(self, rows: Rows) -> None:
        self.known = kernels.note_keys(
            rows.hashes, rows.spans, rows.kinds, 0, len(rows.kinds), self.slots, self.known
        )
