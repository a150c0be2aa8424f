"""Rewriting of batches during compaction, and the files of the new segment.

A batch whose records all stay is copied unchanged. Any other batch is rebuilt from the records that
stay, behind a header with a new length, count and checksum. Its base offset, last offset, producer,
epoch and sequence stay. Compressed batches are recompressed with the same codec.

The files get the suffix `.cleaned`, and are synced.

Source: Kafka's `MemoryRecords.filterTo` and `Cleaner.createNewCleanedSegment`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from penstock.base.files import Files, write_all, write_file
from penstock.kernels import compaction as kernels
from penstock.records import compress, seal
from penstock.records.header import CODEC_MASK, HEADER_BYTES
from penstock.storage.names import CLEANED, INDEX, LOG, TIME_INDEX, TXN_INDEX, offset_name
from penstock.storage.values import Buffer

if TYPE_CHECKING:
    from penstock.records.columnar.arrays import Bytes, Ints
    from penstock.storage.compaction.chunks import Chunk
    from penstock.storage.compaction.retaining import Retained

_GROWTH_BYTES: Final = 12
"""Maximum bytes by which a record grows when the base timestamp of its batch changes."""
_TIME_ENTRY: Final = np.dtype([("timestamp", ">i8"), ("offset", ">i4")])


def rewritten(chunk: Chunk, retained: Retained) -> list[memoryview]:
    """Return the retained bytes of a chunk, by the modes in its table; set the new sizes there."""
    table, data = chunk.table, np.frombuffer(chunk.view, np.uint8)
    mode = table[:, kernels.MODE]
    if (mode == kernels.WHOLE).all():
        table[:, kernels.OUT_SIZE] = table[:, kernels.SIZE]
        table[:, kernels.OUT_TIMESTAMP] = table[:, kernels.MAX_TIMESTAMP]
        return [chunk.view]
    rebuilt = (mode == kernels.REBUILD) & (table[:, kernels.KEPT] > 0)
    if not (table[retained.opened, kernels.ATTRIBUTES] & CODEC_MASK).any():
        return [_copied(data, table, 0, len(table), retained)]
    parts: list[memoryview] = []
    low = 0
    for batch in np.flatnonzero(rebuilt).tolist():
        parts.append(_copied(data, table, low, batch, retained))
        parts.append(_packed(data, table, batch, retained))
        low = batch + 1
    return [*parts, _copied(data, table, low, len(table), retained)]


def _copied(data: Bytes, table: Ints, low: int, high: int, retained: Retained) -> memoryview:
    """Return the batches `low` to `high`, none of which is both compressed and rebuilt."""
    part = table[low:high]
    part = part[part[:, kernels.MODE] != kernels.DROP]
    growing = part[part[:, kernels.HORIZON] >= 0, kernels.COUNT].sum() * _GROWTH_BYTES
    target: Any = np.empty(int(part[:, kernels.SIZE].sum() + growing), np.uint8)
    end = kernels.rewrite(data, table, low, high, retained.rows.spans, retained.keep, target, 0)
    view = memoryview(target)[:end]
    sizes = table[low:high, kernels.OUT_SIZE]
    ends = sizes.cumsum()
    for at in (ends - sizes)[table[low:high, kernels.MODE] == kernels.REBUILD].tolist():
        seal(view, at)
    return view


def _packed(data: Bytes, table: Ints, batch: int, retained: Retained) -> memoryview:
    """Return one rebuilt batch, which is recompressed if it was compressed."""
    place = int(np.searchsorted(retained.opened, batch))
    piece = next(part for part in retained.rows.pieces if part.low <= place < part.high)
    row = table[batch]
    first, count = int(row[kernels.FIRST_ROW]), int(row[kernels.COUNT])
    codec = int(row[kernels.ATTRIBUTES]) & CODEC_MASK
    spans = retained.rows.spans
    size = int(spans[first + count - 1, kernels.AFTER] - spans[first, kernels.START])
    records: Any = np.empty(size + count * _GROWTH_BYTES, np.uint8)
    size = kernels.copy_kept(
        piece.data, spans, retained.keep, first, first + count, row[kernels.HORIZON], records, 0
    )
    packed: Buffer = memoryview(records)[:size]
    if codec:
        packed = compress(codec, packed)
    batch_bytes = bytearray(HEADER_BYTES) + packed
    target = np.frombuffer(batch_bytes, np.uint8)
    kernels.put_header(data, table, batch, target, 0, len(batch_bytes))
    view = memoryview(batch_bytes)
    seal(view)
    return view


class CleanedSegment:
    """Files of one new segment, created by the first write."""

    def __init__(self, files: Files, directory: str, base_offset: int, interval_bytes: int) -> None:
        self._files = files
        self._stem = os.path.join(directory, offset_name(base_offset, ""))
        self._file = -1
        self._base_offset = base_offset
        self._interval_bytes = interval_bytes
        self._state = np.zeros(kernels.INDEX_STATE_FIELDS, np.int64)
        self._state[[kernels.HIGHEST, kernels.HIGHEST_OFFSET, kernels.INDEXED_TIME]] = -1
        self._offsets: list[bytes] = []
        self._times: list[bytes] = []
        self.size_bytes = 0

    def index(self, table: Ints) -> None:
        offsets, times = np.empty((2, len(table), 2), np.int64)
        found, found_times = kernels.index_batches(
            table, self._base_offset, self._interval_bytes, self._state, offsets, times
        )
        self._offsets.append(offsets[:found].astype(">i4").tobytes())
        self._add_times(times[:found_times])

    def write(self, parts: Sequence[Buffer]) -> None:
        """Append bytes of batches; raises OSError."""
        buffers = [part for part in parts if len(part)]
        if not buffers:
            return
        if self._file < 0:
            self._file = self._files.open(self._stem + LOG + CLEANED, create=True, truncate=True)
        self.size_bytes = write_all(self._files, self._file, self.size_bytes, buffers)
        self._files.start_write_back(self._file)

    def _add_times(self, times: Ints) -> None:
        entries = np.empty(len(times), _TIME_ENTRY)
        entries["timestamp"], entries["offset"] = times[:, 0], times[:, 1]
        self._times.append(entries.tobytes())

    def finish(self, transactions: bytes) -> None:
        """Write the indexes and sync all files; raises OSError.

        `transactions` is the content of the index of aborted transactions.
        """
        highest, offset, indexed = self._state[
            [kernels.HIGHEST, kernels.HIGHEST_OFFSET, kernels.INDEXED_TIME]
        ].tolist()
        if highest > indexed:
            self._add_times(np.array([[highest, offset - self._base_offset]], np.int64))
        self._files.sync_file(self._file)
        for suffix, data in (
            (INDEX, b"".join(self._offsets)),
            (TIME_INDEX, b"".join(self._times)),
            (TXN_INDEX, transactions),
        ):
            write_file(self._files, self._stem + suffix + CLEANED, data, sync=True)

    def close(self) -> None:
        if self._file >= 0:
            self._files.close(self._file)
