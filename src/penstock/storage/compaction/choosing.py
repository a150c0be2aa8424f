"""Selection of the segments of a log to compact, and the input and result of a compaction pass.

A pure core that does not import NumPy, because the event loop's thread loads it.

Source: Kafka's `LogCleanerManager` (`cleanableOffsets`, `maxCompactionDelay`) and `LogToClean`;
KIP-58, KIP-354.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from penstock.base.settings import LONG_MAX
from penstock.records.transactions import AbortedTransaction
from penstock.storage.segment import Segment


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
    """Producers whose state a log keeps: last offsets of their batches, epochs of those without."""

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
    """Compacted segment that replaces the segments with these base offsets."""

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
