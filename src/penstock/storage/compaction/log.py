"""Compaction of a log: the segments that a pass may take, and the swap of its result.

A pass reads only segments that cannot change: closed, synced by a checkpoint, not part of a replay,
committed and decided. While a swap is running (`swapping`) nothing else may change the log's files.

Source: Kafka's `LogCleanerManager.cleanableOffsets` and `UnifiedLog.replaceSegments`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from penstock.base.settings import LONG_MAX
from penstock.storage.compaction.choosing import Cleanable, Closed, cleanable
from penstock.storage.compaction.values import Live
from penstock.storage.damage import Damage
from penstock.storage.formats.checkpoint import HAS_HOLES
from penstock.storage.gapped import GappedLog
from penstock.storage.names import LOG, SEGMENT_SUFFIXES, offset_name
from penstock.storage.segment import UNKNOWN, Segment
from penstock.storage.values import Buffer


class CompactedLog(GappedLog):
    """Log that can be compacted; a base of every log of a store."""

    __slots__ = ("swapping",)

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.swapping = False

    @property
    def is_compacted(self) -> bool:
        refused = self.closed or self.fence or self.damage
        return refused is None and "compact" in self.config.cleanup_policy

    def cleanable(self, clean_offset: int, now_ms: int) -> Cleanable:
        """Return the segments that a pass may take, for a log that is clean up to an offset."""
        self.load()
        config = self.config
        committed = min(self.durable_offset, self.committed_offset)
        transactions = self.producer_states.transactions
        transactions.committed_to(committed)
        undecided = transactions.first_unstable_offset
        bound = min(committed, undecided, self.recovery_point.segment_base)
        closed = [
            Closed(segment, after.base_offset, partial(self._newest, segment))
            for segment, after in pairwise(self.segments)
            if after.base_offset > self.log_start_offset
        ]
        files = self._parts.segment_files
        found = cleanable(
            closed,
            clean_offset=clean_offset,
            log_start_offset=self.log_start_offset,
            bound=bound,
            now_ms=now_ms,
            min_lag_ms=config.min_compaction_lag_ms,
            max_lag_ms=config.max_compaction_lag_ms,
            first_timestamp=files.first_timestamp,
        )
        if bound < self.segments[-1].base_offset:
            self._parts.changes.of(self)  # otherwise an idle log is not synced further
        return found

    def _newest(self, segment: Segment) -> int:
        """Return the highest timestamp of a closed segment; LONG_MAX until it is fully written."""
        if segment.end_position > segment.written_bytes:
            return LONG_MAX
        files, interval_bytes = self._parts.segment_files, self.config.index_interval_bytes
        return files.newest_timestamp(segment, interval_bytes)

    def roll_if_older(self, age_ms: int, now_ms: int) -> None:
        """Close the active segment if its first record is older than `age_ms`."""
        active = self.segments[-1]
        if active.end_position:
            first = active.first_timestamp
            if first == UNKNOWN:
                first = self._parts.segment_files.first_timestamp(active)
            if 0 <= first < now_ms - age_ms:
                self.roll()
                self._parts.changes.of(self)

    def place_of(self, segments: Sequence[Segment]) -> int:
        """Return the index of the first of adjacent closed segments; -1 if any is missing."""
        closed = self.segments[:-1]
        place = closed.index(segments[0]) if segments and segments[0] in closed else -1
        return place if place >= 0 and closed[place : place + len(segments)] == [*segments] else -1

    def path_of(self, base_offset: int) -> Path:
        return Path(self.directory, offset_name(base_offset, LOG))

    @property
    def may_swap(self) -> bool:
        """Whether no other operation is about to change the log's files."""
        return not self.swapping

    def live_producers(self) -> Live:
        """Return the producers that compaction must keep, by last offset or epoch."""
        last_offsets, epochs = list[int](), dict[int, int]()
        for producer_id, producer in self.producer_states.states().items():
            if producer.batches:
                last_offsets.append(producer.batches[-1].last_offset)
            else:
                epochs[producer_id] = producer.epoch
        return Live(last_offsets, epochs)

    def begin_swap(self, segments: Sequence[Segment]) -> bool:
        """Stop writes to these segments, with no checkpoint running; return False if they left."""
        if self.place_of(segments) < 0 or not self.is_compacted:
            return False
        self.swapping = True
        self._parts.changes.forget(self, segments)
        if self._growing in segments:
            self._growing = None
        return True

    def mend(self, damage: Damage, batches: Buffer) -> bool:
        """Repair as `RepairableLog.mend`, unless compaction has replaced the range."""
        if self.swapping:
            return False
        if self.has_holes and self.damage_in(damage.first_offset, damage.next_offset) != damage:
            return False
        return super().mend(damage, batches)

    def note_holes(self) -> None:
        """Record that offsets may lack a batch, in the next checkpoint."""
        self.has_holes = True
        point = self.recovery_point
        self.set_recovery_point(point._replace(flags=point.flags | HAS_HOLES))

    def replace_segments(self, gone: Sequence[Segment], size_bytes: int) -> None:
        parts, place = self._parts, self.place_of(gone)
        segment = Segment(self.directory, gone[0].base_offset, size_bytes)
        segment.transactions = None
        for old in gone:
            parts.segment_files.indexes.forget(old)
            for suffix in SEGMENT_SUFFIXES:
                parts.segment_files.descriptors.forget(old.sibling(suffix))
        parts.segment_files.transactions_of(segment)  # the checkpoint has its checksum
        parts.changes.of(self)
        self.segments[place : place + len(gone)] = [segment]
        self._drop_tail(self.segments[place + 1].base_offset)

    def _drop_tail(self, offset: int) -> None:
        """Evict appends below an offset from the tail, so that readers use the compacted files."""
        tail, tails = self.tail, self._parts.tails
        while len(tail) and tail.written and (first := tail.first_offset) is not None:
            if first >= offset:
                return
            tails.drop(tail.pop_oldest())
