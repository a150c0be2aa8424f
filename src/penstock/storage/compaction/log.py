"""A log's side of compaction: what of it a pass may take, and how its result takes its place.

What a pass reads must not change under it: closed segments that a checkpoint has synced, and that
no replay touches, of what is committed and decided. While a swap is under way (`swapping`) nothing
else may change the log's files.

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
from penstock.storage.holes import HoledLog
from penstock.storage.names import LOG, SEGMENT_SUFFIXES, offset_name
from penstock.storage.segment import UNKNOWN, Segment
from penstock.storage.values import Buffer


class CompactedLog(HoledLog):
    """See the module's text. Every log of a store is one, compacted or not."""

    __slots__ = ("swapping",)

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.swapping = False

    @property
    def is_compacted(self) -> bool:
        """Whether it may be compacted now: its topic says so, and nothing forbids it."""
        refused = self.closed or self.fence or self.damage
        return refused is None and "compact" in self.config.cleanup_policy

    def cleanable(self, clean_offset: int, now_ms: int) -> Cleanable:
        """What a pass may take, for a log that is clean up to an offset."""
        self.load()
        config = self.config
        committed = min(self.durable_offset, self.committed_offset)
        transactions = self.producer_states.transactions
        transactions.committed_to(committed)
        undecided = transactions.first_unstable_offset
        bound = min(committed, undecided, self.recovery_point.segment_base)
        closed = [
            Closed(one, after.base_offset, partial(self._newest, one))
            for one, after in pairwise(self.segments)
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
            self._parts.changes.of(self)  # or a log that nobody writes to is not synced further
        return found

    def _newest(self, segment: Segment) -> int:
        """The highest timestamp of a closed segment; what is not written yet is newer than all."""
        if segment.end_position > segment.written_bytes:
            return LONG_MAX
        files, interval_bytes = self._parts.segment_files, self.config.index_interval_bytes
        return files.newest_timestamp(segment, interval_bytes)

    def roll_if_older(self, age_ms: int, now_ms: int) -> None:
        """Close the segment that is written to if its first record is older than that."""
        active = self.segments[-1]
        if active.end_position:
            first = active.first_timestamp
            if first == UNKNOWN:
                first = self._parts.segment_files.first_timestamp(active)
            if 0 <= first < now_ms - age_ms:
                self.roll()
                self._parts.changes.of(self)

    def place_of(self, segments: Sequence[Segment]) -> int:
        """The place of the first of some closed segments; -1 if they are not all there."""
        closed = self.segments[:-1]
        place = closed.index(segments[0]) if segments and segments[0] in closed else -1
        return place if place >= 0 and closed[place : place + len(segments)] == [*segments] else -1

    def path_of(self, base_offset: int) -> Path:
        """The file of the segment that begins there."""
        return Path(self.directory, offset_name(base_offset, LOG))

    @property
    def may_swap(self) -> bool:
        """Whether nothing else is about to change the log's files."""
        return not self.swapping

    def live_producers(self) -> Live:
        """Those that are remembered, by what compaction keeps of each."""
        last_offsets, epochs = list[int](), dict[int, int]()
        for producer_id, producer in self.producer_states.states().items():
            if producer.batches:
                last_offsets.append(producer.batches[-1].last_offset)
            else:
                epochs[producer_id] = producer.epoch
        return Live(last_offsets, epochs)

    def begin_swap(self, segments: Sequence[Segment]) -> bool:
        """Nothing is to write to the files of these segments any more; false if they are gone.

        No checkpoint may be under way, which has plans for them.
        """
        if self.place_of(segments) < 0 or not self.is_compacted:
            return False
        self.swapping = True
        self._parts.changes.forget(self, segments)
        if self._settling in segments:
            self._settling = None
        return True

    def mend(self, damage: Damage, batches: Buffer) -> bool:
        """As for any log; not where compaction has put something else since."""
        if self.swapping:
            return False
        if self.has_holes and self.damage_in(damage.first_offset, damage.next_offset) != damage:
            return False
        return super().mend(damage, batches)

    def note_holes(self) -> None:
        """Offsets may lack a batch from now on, as the checkpoint is to say."""
        self.has_holes = True
        point = self.recovery_point
        self.set_recovery_point(point._replace(flags=point.flags | HAS_HOLES))

    def replace_segments(self, gone: Sequence[Segment], size_bytes: int) -> None:
        """One segment, whose files are in place, is what these were."""
        parts, place = self._parts, self.place_of(gone)
        segment = Segment(self.directory, gone[0].base_offset, size_bytes)
        segment.transactions = None
        for one in gone:
            parts.segment_files.indexes.forget(one)
            for suffix in SEGMENT_SUFFIXES:
                parts.segment_files.descriptors.forget(one.sibling(suffix))
        parts.segment_files.transactions_of(segment)  # the checkpoint has its checksum
        parts.changes.of(self)
        self.segments[place : place + len(gone)] = [segment]
        self._drop_tail(self.segments[place + 1].base_offset)

    def _drop_tail(self, offset: int) -> None:
        """Forget what is in memory below an offset: readers are to see what the files have."""
        tail, tails = self.tail, self._parts.tails
        while len(tail) and tail.written and (first := tail.first_offset) is not None:
            if first >= offset:
                return
            tails.drop(tail.pop_oldest())
