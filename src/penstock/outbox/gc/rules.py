"""Rules of the sweeper: which files and directories it removes, by their ages and pointers.

| entry                                   | removed when                                         |
|-----------------------------------------|------------------------------------------------------|
| payload with an unconsumed pointer      | never                                                |
| payload, all its pointers consumed      | `retention_ms` after it was written                  |
| payload without a pointer on the topic  | `retention_ms + unreferenced_grace_ms` after it was  |
|                                         | written, and only with `remove_unreferenced`         |
| temporary file                          | `orphan_age_ms` after its last write                 |
| directory                               | empty, and `orphan_age_ms` after its last change     |

A pointer is *consumed* if it is below the committed offset of the slowest relevant group. The age
of a file is that of its modification time, not of the hour in its path: producers may file a batch
under the hour of its events, which can be years ago. A file with a time in the future counts as
young.

The rule for directories protects a writer between creating its batch directory and creating its
file there. If a writer is slower than `orphan_age_ms`, it recreates its removed directory and
continues.

The rules have no I/O and no clock. Source: `design/host-and-outbox.md`, Collect.
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
    """The payload's retention has not passed."""
    WAITING = 1
    """A group has not read the payload's pointer yet."""
    CONSUMED = 2
    """All groups have read the payload's pointer, and its retention has passed: remove it."""
    UNREFERENCED = 3
    """The payload has no pointer, and retention and grace have passed.

    It is reported, and removed on request.
    """


class SweepRules(Struct, frozen=True, kw_only=True):
    """Ages of the sweeper's rules, in milliseconds.

    Raises:
        InvalidSetting: an age is below 0.
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
        """Return whether a directory is old enough to be removed if it is empty.

        `modified_ms` is its time before the sweeper removed entries from it.
        """
        return now_ms - modified_ms >= self.orphan_age_ms


def nothing_known(count: int) -> Looked:
    none: NDArray[Any] = np.zeros(count, np.bool_)
    return Looked(referenced=none, consumed=none)
