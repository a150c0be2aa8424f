"""Compaction of a log: the segments that a pass may take, and the swap of its result.

A pass reads only segments that cannot change: they are closed, synced by a checkpoint, not part of
a replay and committed, and their transactions are decided. While a swap is running
(`LogState.swapping`), nothing else may change the log's files.

Source: Kafka's `LogCleanerManager.cleanableOffsets` and `UnifiedLog.replaceSegments`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

from penstock.base.settings import LONG_MAX
from penstock.storage.compaction.choosing import Cleanable, Closed, Live, cleanable
from penstock.storage.formats.checkpoint import HAS_HOLES
from penstock.storage.log.state import LogState
from penstock.storage.names import LOG, offset_name
from penstock.storage.segment import UNKNOWN, Segment


class Compaction:
    """Operations of compaction that read or change the state of one log."""

    __slots__ = ("_state",)

    def __init__(self, state: LogState) -> None:
        self._state = state

    @property
    def is_compacted(self) -> bool:
        state = self._state
        refused = state.closed or state.fence or state.damage
        return refused is None and "compact" in state.config.cleanup_policy

    def cleanable(self, clean_offset: int, now_ms: int) -> Cleanable:
        """Return the segments that a pass may compact; the log is clean up to `clean_offset`."""
        state = self._state
        state.load()
        config = state.config
        committed = min(state.durable_offset, state.committed_offset)
        transactions = state.producer_states.transactions
        transactions.committed_to(committed)
        undecided = transactions.first_unstable_offset
        bound = min(committed, undecided, state.recovery_point.segment_base)
        closed = [
            Closed(segment, after.base_offset, partial(self._newest, segment))
            for segment, after in pairwise(state.segments)
            if after.base_offset > state.log_start_offset
        ]
        files = state.parts.segment_files
        found = cleanable(
            closed,
            clean_offset=clean_offset,
            log_start_offset=state.log_start_offset,
            bound=bound,
            now_ms=now_ms,
            min_lag_ms=config.min_compaction_lag_ms,
            max_lag_ms=config.max_compaction_lag_ms,
            first_timestamp=files.first_timestamp,
        )
        if bound < state.segments[-1].base_offset:
            state.parts.changes.of(state)  # otherwise an idle log is not synced further
        return found

    def _newest(self, segment: Segment) -> int:
        """Return the highest timestamp of a closed segment; LONG_MAX until it is fully written."""
        state = self._state
        if segment.end_position > segment.written_bytes:
            return LONG_MAX
        files, interval_bytes = state.parts.segment_files, state.config.index_interval_bytes
        return files.newest_timestamp(segment, interval_bytes)

    def roll_if_older(self, age_ms: int, now_ms: int) -> None:
        """Close the active segment if its first record is older than `age_ms`."""
        state = self._state
        active = state.segments[-1]
        if active.end_position:
            first = active.first_timestamp
            if first == UNKNOWN:
                first = state.parts.segment_files.first_timestamp(active)
            if 0 <= first < now_ms - age_ms:
                state.roll()
                state.parts.changes.of(state)

    def place_of(self, segments: Sequence[Segment]) -> int:
        """Return the index of the first of these adjacent closed segments in the log.

        Return -1 if the log no longer has one of them.
        """
        closed = self._state.segments[:-1]
        place = closed.index(segments[0]) if segments and segments[0] in closed else -1
        return place if place >= 0 and closed[place : place + len(segments)] == [*segments] else -1

    def path_of(self, base_offset: int) -> Path:
        return Path(self._state.directory, offset_name(base_offset, LOG))

    def live_producers(self) -> Live:
        """Return the producers that compaction must keep, by last offset or epoch."""
        last_offsets, epochs = list[int](), dict[int, int]()
        for producer_id, producer in self._state.producer_states.states().items():
            if producer.batches:
                last_offsets.append(producer.batches[-1].last_offset)
            else:
                epochs[producer_id] = producer.epoch
        return Live(last_offsets, epochs)

    def begin_swap(self, segments: Sequence[Segment]) -> bool:
        """Exclude these segments from checkpoints and other changes until they are replaced.

        Return False if the log no longer has them. No checkpoint may be running.
        """
        state = self._state
        if self.place_of(segments) < 0 or not self.is_compacted:
            return False
        state.swapping = True
        state.parts.changes.forget(state, segments)
        if state.growing in segments:
            state.growing = None
        return True

    def note_holes(self) -> None:
        """Record for the next checkpoint that offsets may lack a batch."""
        state = self._state
        state.has_holes = True
        point = state.recovery_point
        state.set_recovery_point(point._replace(flags=point.flags | HAS_HOLES))

    def replace_segments(self, gone: Sequence[Segment], size_bytes: int) -> None:
        state = self._state
        parts, place = state.parts, self.place_of(gone)
        segment = Segment(state.directory, gone[0].base_offset, size_bytes)
        segment.transactions = None
        for old in gone:
            parts.segment_files.forget(old)
        parts.segment_files.transactions_of(segment)  # the checkpoint has its checksum
        parts.changes.of(state)
        state.segments[place : place + len(gone)] = [segment]
        self._drop_tail(state.segments[place + 1].base_offset)

    def _drop_tail(self, offset: int) -> None:
        """Evict appends below an offset from the tail, so that readers use the compacted files."""
        tail, tails = self._state.tail, self._state.parts.tails
        while len(tail) and tail.written and (first := tail.first_offset) is not None:
            if first >= offset:
                return
            tails.drop(tail.pop_oldest())
