"""What a pass over a log takes and gives; no NumPy, which the owner's thread does without."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from penstock.records.transactions import AbortedTransaction


class Source(NamedTuple):
    """A closed segment: what a pass reads of it. `epoch` is -1 where it is not known, or none."""

    path: str
    base_offset: int
    next_offset: int
    size_bytes: int
    epoch: int = -1


class Live(NamedTuple):
    """Producers that a log remembers: last offsets of their data, or epochs where there is none."""

    last_offsets: Sequence[int]
    epochs: Mapping[int, int]


class PassPlan(NamedTuple):
    """What a pass is over, decided on the owner's thread: closed segments, oldest first."""

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
    """A segment that is written, to take the place of those with these bases."""

    bases: list[int]
    size_bytes: int


@dataclass(slots=True)
class Figures:
    """What passes read and wrote."""

    read_bytes: int = 0
    written_bytes: int = 0
    read_records: int = 0
    kept_records: int = 0
