"""Compaction of a log: the segments that a pass may take, and the swap of its result.

A pass reads only segments that cannot change: they are closed, synced by a checkpoint, not part of
a replay and committed, and their transactions are decided. While a swap is running
(`LogState.swapping`), nothing else may change the log's files.

Source: Kafka's `LogCleanerManager.cleanableOffsets` and `UnifiedLog.replaceSegments`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from penstock.base.settings import LONG_MAX
from penstock.records.transactions import AbortedTransaction
from penstock.storage.files.checkpoint import HAS_HOLES
from penstock.storage.files.segment import UNKNOWN, Segment
from penstock.storage.files.values import LOG, offset_name
from penstock.storage.log.state import LogState

# Selection of the segments of a log to compact, and the input and result of a compaction pass.
#
# A pure core that does not import NumPy, because the event loop's thread loads it.
#
# Source: Kafka's `LogCleanerManager` (`cleanableOffsets`, `maxCompactionDelay`) and `LogToClean`;
# KIP-58, KIP-354.


class Closed(NamedTuple):
    """Closed segment; `newest` returns its highest timestamp, in milliseconds."""

    segment: Segment
    next_offset: int
    newest: Callable[[], int]


class Cleanable(NamedTuple):
    """Segments that a pass may compact, oldest first, including clean ones."""

    segments: list[Closed]
    first_dirty: int
    clean_bytes: int
    dirty_bytes: int
    overdue: bool
    """Whether an uncompacted record is older than `max.compaction.lag.ms`."""

    @property
    def dirty_ratio(self) -> float:
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0


class Source(NamedTuple):
    """Closed segment that a pass reads. `epoch` is -1 if unknown, or if there is no batch."""

    path: str
    base_offset: int
    next_offset: int
    size_bytes: int
    epoch: int = -1


class Live(NamedTuple):
    """Producers whose state must survive compaction, so that their next batches can be checked.

    `last_offsets` are those of each producer's last batch. `epochs` has the epochs of producers
    without batches, by producer id; only a marker in the log has such an epoch.
    """

    last_offsets: Sequence[int]
    epochs: Mapping[int, int]


class PassPlan(NamedTuple):
    """Input of a pass, determined on the event loop's thread; `sources` are oldest first."""

    directory: str
    sources: Sequence[Source]
    first_dirty: int
    aborted: Sequence[AbortedTransaction]
    live: Live
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    index_bytes: int
    interval_bytes: int


class Cleaned(NamedTuple):
    """Size of a compacted segment, and base offsets `bases` of the segments that it replaces."""

    bases: list[int]
    size_bytes: int


class Figures(Struct):
    """Numbers of bytes and records that a pass has read and kept."""

    read_bytes: int = 0
    written_bytes: int = 0
    read_records: int = 0
    kept_records: int = 0


def cleanable(
    closed: Sequence[Closed],
    *,
    clean_offset: int,
    log_start_offset: int,
    bound: int,
    now_ms: int,
    min_lag_ms: int,
    max_lag_ms: int,
    first_timestamp: Callable[[Segment], int],
) -> Cleanable:
    """Return the closed segments that a pass may compact, all completely below offset `bound`."""
    first_dirty = max(clean_offset, log_start_offset)
    taken: list[Closed] = []
    clean_bytes = dirty_bytes = 0
    overdue = False
    for item in closed:
        dirty = item.next_offset > first_dirty
        if item.next_offset > bound:
            break
        if dirty and min_lag_ms > 0 and item.newest() > now_ms - min_lag_ms:
            break
        taken.append(item)
        if not dirty:
            clean_bytes += item.segment.end_position
            continue
        if dirty_bytes == 0 and item.segment.end_position and max_lag_ms < LONG_MAX:
            overdue = 0 <= first_timestamp(item.segment) < now_ms - max_lag_ms
        dirty_bytes += item.segment.end_position
    return Cleanable(taken, first_dirty, clean_bytes, dirty_bytes, overdue)


class Compaction:
    """Operations of compaction that read or change the state of one log."""

    __slots__ = ("_state",)

    def __init__(self, state: LogState) -> None:
        self._state = state

    @property
    def is_compacted(self) -> bool:
        state = self._state
        refused = state.closed or state.fence or state.damage
        config = state.config
        linked = bool(config.link_source)  # the source compacts, and its gaps are copied
        return refused is None and "compact" in config.cleanup_policy and not linked

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
        """Return the producers whose last batches or epochs compaction must keep in the log."""
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
        """Record that compaction may leave offset gaps in the log, also for the next checkpoint.

        A gap then does not count as damage.
        """
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
        """Evict written appends that begin below an offset from memory, so that reads return the
        compacted batches in the files."""
        tail, tails = self._state.tail, self._state.parts.tails
        while tail.written and (first := tail.first_offset) is not None:
            if first >= offset:
                return
            tails.drop(tail.pop_oldest())
