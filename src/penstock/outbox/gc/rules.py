"""Rules of the sweeper: from ages and positions to verdicts, by columns.

| entry                                   | removed when                                         |
|-----------------------------------------|------------------------------------------------------|
| payload with an unconsumed pointer      | never                                                |
| payload, all its pointers consumed      | `retention_ms` after it was written                  |
| payload without a pointer on the log    | `retention_ms + unreferenced_grace_ms` after it was  |
|                                         | written, and only with `remove_unreferenced`         |
| temporary file                          | `orphan_age_ms` after its last write                 |
| directory                               | empty, and `orphan_age_ms` after its last change     |

*Consumed* means below the committed offset of the slowest relevant group. Ages use the file's
modification time, not the hour in its path: producers may file a batch under the hour of its
events, which can be years ago. A file from the future is young.

The rule for directories protects a writer between creating its batch directory and opening its
file there. A writer slower than `orphan_age_ms` recreates its removed directory and continues.

It has no I/O and no clock. Source: `design/host-and-outbox.md`, Collect.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from penstock.outbox.gc.pointer_index import Looked
from penstock.outbox.settings import check_numbers


class Verdict(IntEnum):
    YOUNG = 0
    """Retention has not passed."""
    WAITING = 1
    """A group has not read it yet."""
    CONSUMED = 2
    """Every group has read it, and retention has passed: remove it."""
    UNREFERENCED = 3
    """It has no pointer and is past retention and grace: report it, remove it on request."""


class SweepRules(Struct, frozen=True, kw_only=True):
    """Ages of the sweeper, in milliseconds.

    Raises:
        InvalidSetting: an age below 0.
    """

    retention_ms: int
    orphan_age_ms: int
    unreferenced_grace_ms: int
    remove_unreferenced: bool = False

    def __post_init__(self) -> None:
        check_numbers(self, retention_ms=0, orphan_age_ms=0, unreferenced_grace_ms=0)

    def judge_payloads(
        self, modified_ms: NDArray[np.int64], known: Looked, *, now_ms: int
    ) -> NDArray[np.int8]:
        age_ms = now_ms - modified_ms
        verdicts = np.full(len(modified_ms), Verdict.YOUNG, np.int8)
        old = age_ms >= self.retention_ms
        verdicts[known.referenced & ~known.consumed] = Verdict.WAITING
        verdicts[old & known.consumed] = Verdict.CONSUMED
        forgotten = age_ms >= self.retention_ms + self.unreferenced_grace_ms
        verdicts[forgotten & ~known.referenced] = Verdict.UNREFERENCED
        return verdicts

    def removes(self, verdict: int) -> bool:
        return verdict == Verdict.CONSUMED or (
            verdict == Verdict.UNREFERENCED and self.remove_unreferenced
        )

    def removes_temporary(self, modified_ms: int, *, now_ms: int) -> bool:
        return now_ms - modified_ms >= self.orphan_age_ms

    def removes_directory(self, modified_ms: int, *, now_ms: int) -> bool:
        """Whether a directory may be removed if it is empty.

        `modified_ms` is from before the sweeper's own removals in it.
        """
        return now_ms - modified_ms >= self.orphan_age_ms


def nothing_known(count: int) -> Looked:
    none: NDArray[Any] = np.zeros(count, np.bool_)
    return Looked(referenced=none, consumed=none)
