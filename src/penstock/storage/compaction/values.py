"""Inputs and results of a compaction pass, without NumPy, which the owner's thread does not
import."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from penstock.records.transactions import AbortedTransaction


class Source(NamedTuple):
    """Closed segment that a pass reads. `epoch` is -1 if unknown, or without batches."""

    path: str
    base_offset: int
    next_offset: int
    size_bytes: int
    epoch: int = -1


class Live(NamedTuple):
    """Producers that a log remembers: last offsets of their data, or epochs without data."""

    last_offsets: Sequence[int]
    epochs: Mapping[int, int]


class PassPlan(NamedTuple):
    """Input of a pass, decided on the owner's thread: closed segments, oldest first."""

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
    """Written segment that replaces those with these base offsets."""

    bases: list[int]
    size_bytes: int


@dataclass(slots=True)
class Figures:
    """Counters of what passes read and wrote."""

    read_bytes: int = 0
    written_bytes: int = 0
    read_records: int = 0
    kept_records: int = 0
