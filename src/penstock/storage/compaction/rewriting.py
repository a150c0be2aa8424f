"""Rewriting of batches during compaction, and the files of the new segment.

A batch whose records all stay is copied unchanged. Any other batch is rebuilt from the records that
stay, behind a header with a new length, count and checksum. Its base offset, last offset, producer,
epoch and sequence stay. Compressed batches are recompressed with the same codec.

The files get the suffix `.cleaned`, and are synced.

Source: Kafka's `MemoryRecords.filterTo` and `Cleaner.createNewCleanedSegment`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from penstock.base.files import Files, read_file, read_range, write_all, write_file
from penstock.base.settings import INT_MAX
from penstock.kernels import compaction as kernels
from penstock.records import HEADER_BYTES, CorruptBatch, compress, decode_header, seal
from penstock.records.errors import RecordTooLarge, UnsupportedCodec
from penstock.records.header import CODEC_MASK
from penstock.storage.compaction.keys import (
    Chunk,
    KeyMap,
    Noted,
    NotedBatches,
    PassedTransactions,
    Secret,
    chunks,
    read_noted,
)
from penstock.storage.compaction.retaining import Retained, Retention, note_keys
from penstock.storage.files.errors import CorruptLog
from penstock.storage.files.values import (
    CLEANED,
    INDEX,
    LOG,
    TIME_INDEX,
    TXN_INDEX,
    Buffer,
    offset_name,
)
from penstock.storage.log.compaction import Cleaned, Figures, PassPlan, Source
from penstock.storage.log.swapping import discard

if TYPE_CHECKING:
    from penstock.records.columnar.arrays import Bytes, Ints


_GROWTH_BYTES: Final = 12
"""Maximum bytes by which a record grows when the base timestamp of its batch changes."""
_TIME_ENTRY: Final = np.dtype([("timestamp", ">i8"), ("offset", ">i4")])


def unchanged(table: Ints) -> bool:
    """Return whether compaction keeps all batches of a table; if so, set their new sizes in it."""
    if (table[:, kernels.MODE] != kernels.WHOLE).any():
        return False
    table[:, kernels.OUT_SIZE] = table[:, kernels.SIZE]
    table[:, kernels.OUT_TIMESTAMP] = table[:, kernels.MAX_TIMESTAMP]
    return True


def rewritten(chunk: Chunk, retained: Retained) -> list[memoryview]:
    """Return the batches of a chunk that compaction keeps, unchanged or rebuilt as the modes in the
    chunk's table demand; set the batches' new sizes in the table."""
    table = chunk.table
    mode = table[:, kernels.MODE]
    if unchanged(table):
        return [chunk.view]
    if (mode == kernels.DROP).all():
        return []
    data = np.frombuffer(chunk.view, np.uint8)
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


# Compaction pass over a log, on any thread: collect keys, then rewrite segments by groups.
#
# 1. Record the last offset of each key, from the first dirty offset on, until the key map is full.
# After the pass, the log is clean up to the offset that was reached.
#
# 2. Rewrite all segments below that offset. Adjacent small segments of one leader epoch form a
#    group and are merged.
#
# The log cleaner swaps each new segment in before the next group is written, so that old records
# disappear before the tombstones that deleted them. Groups that would not change are skipped. The
# segments do not change during the pass: they are closed, synced and committed, and all their
# transactions are decided.
#
# Source: Kafka's `Cleaner.clean`, `buildOffsetMap`, `groupSegmentsBySize` and `cleanSegments`.


Spend = Callable[[int], None]
_COPY_BYTES: Final = 1 << 20


class CleaningPass:
    """Compaction pass over one log. Call `step` on any thread, one call at a time."""

    def __init__(
        self, files: Files, plan: PassPlan, *, map_bytes: int, chunk_bytes: int, secret: Secret,
        spend: Spend,
    ) -> None:  # fmt: skip
        """Create a pass. `spend` is called with a number of bytes before they are read or written.

        It raises CompactionStopped if the pass must stop.
        """
        self._files = files
        self._plan = plan
        self._map_bytes = map_bytes
        self._chunk_bytes = chunk_bytes
        self._secret = secret
        self._spend = spend
        self._steps: Iterator[Cleaned] | None = None
        self._noted: Noted = {}
        self.figures = Figures()
        self.end_offset = plan.first_dirty
        """Offset up to which the log is clean once `step` has returned None."""

    def step(self) -> Cleaned | None:
        """Compact the next group of adjacent segments into one; return None when no group is left.

        Raises:
            CorruptLog: a segment is damaged.
            CompactionStopped: raised by `spend`.
            OSError: a file cannot be read or written.
        """
        if self._steps is None:
            self._steps = self._groups()
        return next(self._steps, None)

    def _groups(self) -> Iterator[Cleaned]:
        plan = self._plan
        offsets = plan.sources[-1].next_offset - plan.first_dirty
        keys = KeyMap(self._map_bytes, offsets, self._secret)
        noted = NotedBatches()
        self.end_offset = self._note_keys(keys, noted)
        self._noted = noted.chunks(keys)
        retention = Retention(
            keys,
            plan.aborted,
            plan.live,
            end_offset=self.end_offset,
            now_ms=plan.now_ms,
            delete_retention_ms=plan.delete_retention_ms,
        )
        for group in self._grouped():
            base_offset = group[0].base_offset
            try:
                size_bytes = self._rewrite(group, retention)
                if size_bytes is None:
                    continue
            except BaseException:
                discard(self._files, plan.directory, base_offset)
                raise
            yield Cleaned([source.base_offset for source in group], size_bytes)

    # -- keys --------------------------------------------------------------------------------

    def _note_keys(self, keys: KeyMap, noted: NotedBatches) -> int:
        """Fill the key map; return the offset below which the map has all keys."""
        plan = self._plan
        transactions = PassedTransactions(plan.aborted)
        end = plan.first_dirty
        for source in plan.sources:
            if source.next_offset <= plan.first_dirty:
                continue
            dirty = source.base_offset >= plan.first_dirty
            for chunk in chunks(self._files, source, self._chunk_bytes, self._spent):
                with _located(source, chunk):
                    full = note_keys(chunk, keys, plan.first_dirty, transactions)
                if full >= 0:
                    return full
                if dirty:
                    noted.add(chunk)
            if dirty:
                noted.end(source)
            end = source.next_offset
        return end

    def _spent(self, size_bytes: int) -> None:
        self._spend(size_bytes)
        self.figures.read_bytes += size_bytes

    # -- groups ------------------------------------------------------------------------------

    def _grouped(self) -> Iterator[list[Source]]:
        """Yield the groups of segments to merge, up to `end_offset`.

        Empty segments join the group of another segment.
        """
        plan = self._plan
        group: list[Source] = []
        size_bytes = index_bytes = 0
        for source in map(self._with_epoch, plan.sources):
            if source.base_offset >= self.end_offset:
                break
            its_index, its_size = self._index_size(source), self._size_left(source)
            fits = (
                size_bytes + its_size <= plan.segment_bytes
                and index_bytes + its_index <= plan.index_bytes
                and bool(group)
                and source.next_offset - group[0].base_offset <= INT_MAX
                and (source.epoch in (_epoch_of(group), -1) or _epoch_of(group) == -1)
            )
            if group and not fits:
                yield group
                group, size_bytes, index_bytes = [], 0, 0
            group.append(source)
            size_bytes += its_size
            index_bytes += its_index
        if group:
            yield group

    def _size_left(self, source: Source) -> int:
        """Return an upper bound of the bytes of a segment that stay.

        Segments of which little stays are merged, and so need only one swap.
        """
        noted = self._noted.get(source.path)
        if noted is None:
            return source.size_bytes
        left = 0
        for _, table, live in noted:
            emptied = (live == 0) & (table[:, kernels.TOMBSTONES] >= 0)
            left += int(np.where(emptied, HEADER_BYTES, table[:, kernels.SIZE]).sum())
        return left

    def _with_epoch(self, source: Source) -> Source:
        if source.size_bytes < HEADER_BYTES:
            return source
        head = read_file(self._files, source.path, HEADER_BYTES)
        try:
            return source._replace(epoch=decode_header(head).partition_leader_epoch)
        except CorruptBatch as error:
            raise CorruptLog(Path(source.path), 0, str(error)) from None

    def _index_size(self, source: Source) -> int:
        try:
            return self._files.size_of(source.path[: -len(LOG)] + INDEX)
        except FileNotFoundError:
            return 0

    def _rewrite(self, group: Sequence[Source], retention: Retention) -> int | None:
        """Write the retained batches of a group as one segment.

        Return its size in bytes, or None if the group would not change.
        """
        plan = self._plan
        last = max((place for place, part in enumerate(group) if part.size_bytes), default=-1)
        if last < 0:
            return None
        target = CleanedSegment(
            self._files, plan.directory, group[0].base_offset, plan.interval_bytes
        )
        changed = len(group) > 1
        try:
            for place, source in enumerate(group):
                for chunk in self._chunks(source):
                    ends = chunk.position + chunk.size_bytes == source.size_bytes
                    retained = self._decide(source, chunk, retention, ends and place == last)
                    if not changed and not unchanged(chunk.table):
                        changed = True
                        self._copy(source, chunk.position, target)
                    if changed:
                        with _located(source, chunk):
                            parts = rewritten(chunk, retained)
                        self._write(target, parts)
                    target.index(chunk.table)
            transactions = retention.transactions.take_index()
            if not changed:
                return None
            target.finish(transactions)
        finally:
            target.close()
        return target.size_bytes

    def _chunks(self, source: Source) -> Iterator[Chunk]:
        """Yield the chunks of a segment; those with noted keys are read only if necessary."""
        noted = self._noted.get(source.path)
        if noted is None:
            yield from chunks(self._files, source, self._chunk_bytes, self._spent)
            return
        read = partial(read_noted, self._files, source, self._spent)
        for position, table, live in noted:
            yield Chunk(read, table, position, live)

    def _decide(self, source: Source, chunk: Chunk, retention: Retention, last: bool) -> Retained:
        with _located(source, chunk):
            retained = retention.decide(chunk, last=last)
        table = chunk.table
        counts = table[:, kernels.COUNT]
        whole = table[:, kernels.MODE] == kernels.WHOLE
        rebuilt = table[:, kernels.MODE] == kernels.REBUILD
        self.figures.read_records += int(counts.sum())
        self.figures.kept_records += int(counts[whole].sum() + table[rebuilt, kernels.KEPT].sum())
        return retained

    def _write(self, target: CleanedSegment, parts: Sequence[memoryview]) -> None:
        size_bytes = sum(map(len, parts))
        self._spend(size_bytes)
        target.write(parts)
        self.figures.written_bytes += size_bytes

    def _copy(self, source: Source, end: int, target: CleanedSegment) -> None:
        file = self._files.open_file(source.path)
        try:
            while target.size_bytes < end:
                size = min(_COPY_BYTES, end - target.size_bytes)
                data = read_range(self._files, file, size, target.size_bytes)
                if len(data) < size:
                    raise CorruptLog(Path(source.path), target.size_bytes, "the file is too short")
                self._write(target, [memoryview(data)])
        finally:
            self._files.close(file)


@contextmanager
def _located(source: Source, chunk: Chunk) -> Iterator[None]:
    """Turn errors about the records of a chunk into a CorruptLog that names the place."""
    try:
        yield
    except (CorruptBatch, RecordTooLarge, UnsupportedCodec) as error:
        raise CorruptLog(Path(source.path), chunk.position, str(error)) from None


def _epoch_of(group: Sequence[Source]) -> int:
    return max(source.epoch for source in group)
