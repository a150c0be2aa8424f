"""A compaction pass over the batches of a partition, in memory.

The pass first collects the keys of dirty batches in a map. It then filters all batches by that map.
A batch that loses all records is replaced by an empty batch, because the batch index has no gaps.
The next pass merges empty batches.

Source: `storage/compaction`, which decides what to keep; Kafka's `Cleaner`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.kernels import compaction as kernels
from penstock.storage.compaction.keys import KeyMap, PassedTransactions, Secret, tables
from penstock.storage.compaction.retaining import Retention, note_keys
from penstock.storage.compaction.rewriting import rewritten

if TYPE_CHECKING:
    from penstock.archive.segments import GrowingSegment
    from penstock.diskless.compaction.choosing import Cleanable
    from penstock.records.transactions import AbortedTransaction
    from penstock.storage.log.compaction import Live


class CompactionPass:
    """Collects the keys of a partition and rewrites its batches.

    Methods may be called on any thread, one call at a time, in the order of offsets.
    """

    def __init__(
        self,
        found: Cleanable,
        aborted: Sequence[AbortedTransaction],
        live: Live,
        *,
        map_bytes: int,
        secret: Secret,
        now_ms: int,
        delete_retention_ms: int,
    ) -> None:
        self.end_offset = found.end_offset
        """The partition's clean offset after the pass."""
        self.read_records = self.kept_records = 0
        self._first_dirty = found.first_dirty
        self._keys = KeyMap(map_bytes, found.end_offset - found.first_dirty, secret)
        self._noted = PassedTransactions(aborted)
        self._aborted, self._live = aborted, live
        self._now_ms, self._delete_retention_ms = now_ms, delete_retention_ms
        self._retention: Retention | None = None

    def note(self, view: memoryview) -> bool:
        """Collect the keys of batches.

        Return False if the map is full, which ends the pass at `end_offset`.

        Raises:
            CorruptBatch, RecordTooLarge, UnsupportedCodec: records cannot be read.
        """
        for chunk in tables(view):
            end = note_keys(chunk, self._keys, self._first_dirty, self._noted)
            if end >= 0:
                self.end_offset = end
                return False
        return True

    def rewrite(self, view: memoryview, segment: GrowingSegment) -> bool:
        """Add the kept records to a segment; return whether that changes any batch.

        Raises the errors of `note`.
        """
        if self._retention is None:
            self._retention = Retention(
                self._keys,
                self._aborted,
                self._live,
                end_offset=self.end_offset,
                now_ms=self._now_ms,
                delete_retention_ms=self._delete_retention_ms,
            )
        changed = False
        for chunk in tables(view):
            retained = self._retention.decide(chunk, last=False)
            for part in rewritten(chunk, retained):
                segment.add(part)
            table = chunk.table
            mode, counts = table[:, kernels.MODE], table[:, kernels.COUNT]
            filler = (counts == 0) & (table[:, kernels.PRODUCER] < 0)
            changed = changed or bool(((mode != kernels.WHOLE) & ~filler).any())
            rebuilt = table[mode == kernels.REBUILD, kernels.KEPT].sum()
            self.read_records += int(counts.sum())
            self.kept_records += int(counts[mode == kernels.WHOLE].sum() + rebuilt)
        return changed
