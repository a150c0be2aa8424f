"""Compaction pass over a log, on any thread: collect keys, then rewrite segments by groups.

1. Record the last offset of each key, from the first dirty offset on, until the key map is full.
After the pass, the log is clean up to the offset that was reached.

2. Rewrite all segments below that offset. Adjacent small segments of one leader epoch form a group
and are merged.

The log cleaner swaps each new segment in before the next group is written, so that old records
disappear before the tombstones that deleted them. Groups that would not change are skipped. The
segments do not change during the pass: they are closed, synced and committed, and all their
transactions are decided.

Source: Kafka's `Cleaner.clean`, `buildOffsetMap`, `groupSegmentsBySize` and `cleanSegments`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.base.files import Files, read_file, read_range
from penstock.base.settings import INT_MAX
from penstock.kernels import compaction as kernels
from penstock.records import HEADER_BYTES, CorruptBatch, decode_header
from penstock.records.errors import RecordTooLarge, UnsupportedCodec
from penstock.storage.compaction.choosing import Cleaned, Figures, PassPlan, Source
from penstock.storage.compaction.chunks import Chunk, chunks
from penstock.storage.compaction.keys import KeyMap, Secret
from penstock.storage.compaction.noting import note_keys
from penstock.storage.compaction.retaining import Retention
from penstock.storage.compaction.rewriting import CleanedSegment, rewritten
from penstock.storage.compaction.swapping import discard
from penstock.storage.compaction.transactions import PassedTransactions
from penstock.storage.errors import CorruptLog
from penstock.storage.names import INDEX, LOG

if TYPE_CHECKING:
    pass

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
        self.figures = Figures()
        self.end_offset = plan.first_dirty
        """Offset up to which the log is clean once `step` has returned None."""

    def step(self) -> Cleaned | None:
        """Write the next group; return None when no group is left.

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
        self.end_offset = self._note_keys(keys)
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

    def _note_keys(self, keys: KeyMap) -> int:
        """Fill the key map; return the offset below which the map has all keys."""
        plan = self._plan
        transactions = PassedTransactions(plan.aborted)
        end = plan.first_dirty
        for source in plan.sources:
            if source.next_offset <= plan.first_dirty:
                continue
            for chunk in chunks(self._files, source, self._chunk_bytes, self._spent):
                try:
                    end = note_keys(chunk, keys, plan.first_dirty, transactions)
                except (CorruptBatch, RecordTooLarge, UnsupportedCodec) as error:
                    raise CorruptLog(Path(source.path), chunk.position, str(error)) from None
                if end >= 0:
                    return end
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
            its_index = self._index_size(source)
            fits = (
                size_bytes + source.size_bytes <= plan.segment_bytes
                and index_bytes + its_index <= plan.index_bytes
                and bool(group)
                and source.next_offset - group[0].base_offset <= INT_MAX
                and (source.epoch in (_epoch_of(group), -1) or _epoch_of(group) == -1)
            )
            if group and not fits:
                yield group
                group, size_bytes, index_bytes = [], 0, 0
            group.append(source)
            size_bytes += source.size_bytes
            index_bytes += its_index
        if group:
            yield group

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
                for chunk in chunks(self._files, source, self._chunk_bytes, self._spent):
                    ends = chunk.position + len(chunk.view) == source.size_bytes
                    parts = self._retained(source, chunk, retention, last=ends and place == last)
                    target.index(chunk.table)
                    if not changed and parts[0] is not chunk.view:
                        changed = True
                        self._copy(source, chunk.position, target)
                    if changed:
                        self._write(target, parts)
            transactions = retention.transactions.take_index()
            if not changed:
                return None
            target.finish(transactions)
        finally:
            target.close()
        return target.size_bytes

    def _retained(
        self, source: Source, chunk: Chunk, retention: Retention, *, last: bool
    ) -> list[memoryview]:
        try:
            retained = retention.decide(chunk, last=last)
            parts = rewritten(chunk, retained)
        except (CorruptBatch, RecordTooLarge, UnsupportedCodec) as error:
            raise CorruptLog(Path(source.path), chunk.position, str(error)) from None
        table = chunk.table
        counts = table[:, kernels.COUNT]
        whole = table[:, kernels.MODE] == kernels.WHOLE
        rebuilt = table[:, kernels.MODE] == kernels.REBUILD
        self.figures.read_records += int(counts.sum())
        self.figures.kept_records += int(counts[whole].sum() + table[rebuilt, kernels.KEPT].sum())
        return parts

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


def _epoch_of(group: Sequence[Source]) -> int:
    return max(source.epoch for source in group)
