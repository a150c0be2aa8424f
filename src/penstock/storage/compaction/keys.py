"""Keys of records, and the map from keys to last offsets.

The map stores a 128-bit hash of each key instead of the key; a secret of the pass is the key of the
hash function. A slot has 24 bytes, and `log.cleaner.dedupe.buffer.size` bounds the map's memory.
When the map is full, the pass compacts only the log up to the last key in it; the next pass
continues from that offset.

Source: Kafka's `SkimpyOffsetMap` and `Cleaner.buildOffsetMap`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from penstock.base.files import Files, read_range
from penstock.kernels import compaction as kernels
from penstock.records import CorruptBatch
from penstock.records.columnar.batches import Piece, check_crcs, open_batches
from penstock.records.columnar.walk import explained
from penstock.records.header import CODEC_MASK, DECOMPRESSED_BYTES_MAX
from penstock.records.transactions import AbortedTransaction
from penstock.storage.files.errors import CorruptLog
from penstock.storage.files.transaction_index import TransactionIndex
from penstock.storage.log.compaction import Source

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
    """Key hash, position and kind of each record of some batches, for `kernels.compaction`.

    `pieces` have the bytes of the batches, decompressed where necessary; `spans` are positions in
    the pieces.
    """

    pieces: list[Piece]
    hashes: npt.NDArray[np.uint64]
    spans: npt.NDArray[np.int64]
    kinds: Bytes


def read_rows(view: memoryview, table: Ints, secret: Secret) -> Rows:
    """Read the keys of all records in the batches that a table of `kernels.list_batches` lists.

    If any batch is compressed, the positions in the table, which are positions in `view`, are
    replaced by positions in the decompressed pieces of the result.

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
        """Replace the empty map by one for `keys` keys, even beyond its memory limit.

        `keys` is the number of records of one batch that the map has no room for. Without a larger
        map no pass could compact this batch.
        """
        self._slots_max = max(self._slots_max, 1 << (int(keys * _FULL)).bit_length())
        self.slots = self._made(keys)

    def live(self, bases: Ints, end_offset: int) -> Ints:
        """Return for each batch how many keys have their last offset in it.

        `bases` are the base offsets of adjacent batches, which end at `end_offset`.
        """
        counts, begins = np.zeros(len(bases) + 1, np.int64), bases.astype(np.uint64)
        for low in range(0, len(self.slots), _COUNTED_SLOTS):
            ends = self.slots[low : low + _COUNTED_SLOTS, 2]
            ends = ends[(ends > 0) & (ends <= end_offset)]
            counts += np.bincount(np.searchsorted(begins, ends), minlength=len(counts))
        return counts[1:]

    def note(self, rows: Rows) -> None:
        self.known = kernels.note_keys(
            rows.hashes, rows.spans, rows.kinds, 0, len(rows.kinds), self.slots, self.known
        )


# Transactions of a compaction pass: aborted batches, and markers that may be removed.
#
# A marker stays as long as its transaction has a batch, even an empty one, because readers need the
# marker to recognise aborted transactions.
#
# Source: Kafka's `CleanedTransactionMetadata`; KIP-98.


class PassedTransactions:
    """Transactions that a pass meets, while it visits batches and markers in log order.

    Compaction removes the batches of aborted transactions, and markers without batches.
    """

    __slots__ = ("_coming", "_open", "_seen", "index")

    def __init__(self, aborted: Sequence[AbortedTransaction]) -> None:
        """Create the state; `aborted` has the aborted transactions of the pass, by first offset."""
        self._coming = deque(aborted)
        self._open: dict[int, AbortedTransaction] = {}
        self._seen: set[int] = set()
        self.index = TransactionIndex()
        """Aborted transactions whose markers were visited since the last `take_index`."""

    def met_batch(self, producer_id: int, last_offset: int) -> bool:
        """Record a transactional batch; return whether its transaction was aborted."""
        self._begin(last_offset)
        self._seen.add(producer_id)
        one = self._open.get(producer_id)
        return one is not None and last_offset < one.last_offset

    def met_marker(self, producer_id: int, offset: int) -> bool:
        """Record a marker; return whether it may be removed, because its transaction has no batch
        left in the log."""
        self._begin(offset)
        one = self._open.pop(producer_id, None)
        empty = producer_id not in self._seen
        self._seen.discard(producer_id)
        if one is not None and not empty and one.last_offset == offset:
            self.index.add(one)
        return empty

    def take_index(self) -> bytes:
        """Return the `.txnindex` entries of aborted transactions whose markers the pass has visited
        since the last call."""
        index, self.index = self.index, TransactionIndex()
        return bytes(index.entries)

    def _begin(self, offset: int) -> None:
        while self._coming and self._coming[0].first_offset <= offset:
            one = self._coming.popleft()
            self._open[one.producer_id] = one


# Reading of a segment's file in chunks of complete batches.
#
# Each chunk has a table with a row for each batch. Damage ends the read.


_BATCHES_MAX: Final = 1 << 14
"""Maximum number of rows of a table."""
_COMPRESSED_BYTES: Final = 256 << 10
"""Maximum compressed bytes that are decompressed together."""
NOTED_BATCHES_MAX: Final = 1 << 16
"""Maximum number of batches whose rows of 160 bytes a pass keeps."""
_COUNTED_SLOTS: Final = 1 << 20
"""Number of slots of a key map that are counted together."""


class Chunk:
    """Adjacent complete batches of a segment, with their bytes `view`, from byte `position` on.

    `table` has a row of header fields and decisions for each batch (`kernels.compaction`). `live`
    has for each batch how many of its records are the newest of their keys; None if unknown.
    """

    __slots__ = ("_view", "live", "position", "table")

    def __init__(
        self,
        view: memoryview | Callable[[Chunk], memoryview],
        table: Ints,
        position: int,
        live: Ints | None = None,
    ) -> None:
        """Create a chunk; instead of its bytes, `view` may be a function that reads them once they
        are needed."""
        self._view = view
        self.table = table
        self.position = position
        self.live = live

    @property
    def view(self) -> memoryview:
        """Bytes of the batches; raises CorruptLog or OSError if they cannot be read."""
        if not isinstance(self._view, memoryview):
            self._view = self._view(self)
        return self._view

    @property
    def size_bytes(self) -> int:
        return int(self.table[-1, kernels.END])


Noted = dict[str, list[tuple[int, "Ints", "Ints"]]]
"""Position, table and `live` of the chunks of some segments, by the paths of the segments."""


class NotedBatches:
    """Tables of the batches whose keys a pass has noted, so that it need not read them again.

    The pass drops a batch without reading it if none of its records is the newest of its key.
    Segments beyond `NOTED_BATCHES_MAX` batches are read twice.
    """

    def __init__(self) -> None:
        self._tables: dict[str, list[tuple[int, Ints]]] = {}
        self._unfinished: list[tuple[int, Ints]] = []
        self._count = self._end_offset = 0

    def add(self, chunk: Chunk) -> None:
        """Add the next chunk of a segment, whose batches count once `end` is called."""
        self._count += len(chunk.table)
        if self._count <= NOTED_BATCHES_MAX:
            self._unfinished.append((chunk.position, chunk.table.copy()))

    def end(self, source: Source) -> None:
        """End a segment, all chunks of which were added."""
        tables, self._unfinished = self._unfinished, []
        if self._count > NOTED_BATCHES_MAX:
            return
        self._end_offset = source.next_offset
        if tables:
            # The last batch, which often stays without records, becomes a chunk of its own.
            position, table = tables.pop()
            last = table[-1:]
            start = int(last[0, kernels.POSITION])
            last[:, [kernels.BEGIN, kernels.END, kernels.POSITION]] -= start
            tables += [(position, table[:-1])] if len(table) > 1 else []
            self._tables[source.path] = [*tables, (position + start, last)]

    def chunks(self, keys: KeyMap) -> Noted:
        """Return the chunks of all segments that were added; `keys` has their keys."""
        tables = [table for chunks in self._tables.values() for _, table in chunks]
        if not tables:
            return {}
        bases = np.concatenate([table[:, kernels.BASE_OFFSET] for table in tables])
        live, place = keys.live(bases, self._end_offset), 0
        found: Noted = {}
        for path, chunks in self._tables.items():
            for position, table in chunks:
                part = live[place : place + len(table)]
                found.setdefault(path, []).append((position, table, part))
                place += len(table)
        return found


def read_noted(
    files: Files, source: Source, spend: Callable[[int], None], chunk: Chunk
) -> memoryview:
    """Read the bytes of a chunk again, and verify them; raises CorruptLog, OSError."""
    spend(chunk.size_bytes)
    file = files.open_file(source.path)
    try:
        view = memoryview(read_range(files, file, chunk.size_bytes, chunk.position))
        if len(view) < chunk.size_bytes:
            raise CorruptLog(Path(source.path), chunk.position, "the file is too short")
        check_crcs(view, chunk.table)
    except CorruptBatch as error:
        raise CorruptLog(Path(source.path), chunk.position, str(error)) from None
    finally:
        files.close(file)
    return view


def chunks(
    files: Files, source: Source, chunk_bytes: int, spend: Callable[[int], None]
) -> Iterator[Chunk]:
    """Yield the verified chunks of a segment; call `spend` with the size of each read before it.

    Raises:
        CorruptLog: bytes are not complete batches, or a checksum is wrong.
        OSError: the file cannot be read.
    """
    file = files.open_file(source.path)
    try:
        position, wanted = 0, chunk_bytes
        while position < source.size_bytes:
            size = min(wanted, source.size_bytes - position)
            spend(size)
            data = read_range(files, file, size, position)
            view, at = memoryview(data), 0
            wanted = chunk_bytes
            try:
                for chunk in tables(view, position, check=True):
                    yield chunk
                    at += chunk.size_bytes
            except CorruptBatch as error:
                raise CorruptLog(Path(source.path), position + at, str(error)) from None
            if at == 0:
                wanted = _next_size(source, view, position, size)
            position += at
    finally:
        files.close(file)


def tables(view: memoryview, position: int = 0, *, check: bool = False) -> Iterator[Chunk]:
    """Yield chunks of the complete batches in `view`, which begins at byte `position` of a segment.

    Raises:
        CorruptBatch: with `check`, a checksum is wrong.
    """
    data = np.frombuffer(view, np.uint8)
    state = np.zeros(2, np.int64)
    at = 0
    while True:
        table = np.empty((_BATCHES_MAX, kernels.FIELDS), np.int64)
        count = kernels.list_batches(data, at, table, state)
        if count == 0:
            return
        table = table[: _bounded(table[:count])]
        part = view[at : int(table[-1, kernels.END])]
        end = at + len(part)
        table[:, [kernels.BEGIN, kernels.END, kernels.POSITION]] -= at
        if check:
            check_crcs(part, table)
        yield Chunk(part, table, position + at)
        at = end


def _bounded(table: Ints) -> int:
    """Return how many batches of a table may form one chunk, so that decompression uses a bounded
    amount of memory."""
    if not (table[:, kernels.ATTRIBUTES] & CODEC_MASK).any():
        return len(table)
    sizes = table[:, kernels.SIZE].cumsum()
    return max(1, int(np.searchsorted(sizes, _COMPRESSED_BYTES, "right")))


def _next_size(source: Source, view: memoryview, position: int, size: int) -> int:
    """Return the size of the incomplete batch at the beginning of `view`; raises CorruptLog."""
    state = np.zeros(2, np.int64)
    kernels.list_batches(
        np.frombuffer(view, np.uint8), 0, np.empty((1, kernels.FIELDS), np.int64), state
    )
    needed = int(state[1])
    if needed <= size or needed > source.size_bytes - position:
        reason = f"the last {source.size_bytes - position} bytes do not begin with a valid batch"
        raise CorruptLog(Path(source.path), position, reason)
    return needed
