"""A sink's batch between its two phases: ready, and seen by nobody before it is committed.

A pass over a batch may tell only at its end that the batch is to be refused. So sinks first make
everything that takes long (files, blobs, sorted rows), and then commit in one short step. What is
staged and never committed does no harm: it is deleted by `discard`, or by age after a crash.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


def _nothing() -> None:
    """Do nothing: there is nothing to discard, or to check."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged(Generic[T]):
    """What was made of a batch. `rows` is 0 for one that was committed before (`replayed`).

    `check` raises what `commit` would be refused with now; several sinks are checked before the
    first of them is committed.

    `once` says that each row was read once: what was observed meanwhile is exact.
    """

    rows: int
    commit: Callable[[], T]
    discard: Callable[[], None] = _nothing
    check: Callable[[], None] = _nothing
    replayed: bool = False
    once: bool = True
