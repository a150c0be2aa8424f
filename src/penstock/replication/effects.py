"""Effects that shells perform for the cores, in order.

Writes of a replica (`PersistPromise`, `PersistLimbo`, `TruncateTo`, `StartAt`, `Write`) go into the
journal in the order in which the core returns them. A sync covers all writes before it.
"""

from __future__ import annotations

from typing import NamedTuple


class PersistPromise(NamedTuple):
    """Write of the promise: the replica rejects all epochs below `promised`."""

    promised: int


class PersistLimbo(NamedTuple):
    """Write of the limbo: acknowledged records of epochs up to `limbo` may be lost; 0 for none."""

    limbo: int


class TruncateTo(NamedTuple):
    """Write of a truncation to `end`; producer state and last stable offset are rebuilt."""

    end: int


class StartAt(NamedTuple):
    """Write of a restart: the log is discarded, and begins at `base`, as its leader's log does."""

    base: int


class MoveStart(NamedTuple):
    """Deletion of records below `base`. It needs no sync, so a crash may restore the records."""

    base: int


class Write(NamedTuple):
    """Write of the batches [base, next) that came with the message, without changing them."""

    base: int
    next: int


class Compare(NamedTuple):
    """Comparison of received batches with those of [base, next), which the log already has.

    If they differ, the shell calls `Replica.differs`.
    """

    base: int
    next: int


class MarkMoved(NamedTuple):
    """New end, `mark`, of the offsets that consumers may read."""

    mark: int


class Halt(NamedTuple):
    """End of this replica's participation: below `offset`, it has another batch than its leader for
    the same epoch and offset."""

    offset: int


class EndFound(NamedTuple):
    """End offset of the epoch to be sealed; `holder` has all of its records, None without any.

    The shell needs these records before it can write them back to other replicas.
    """

    end: int
    holder: int | None


class SealAndOpen(NamedTuple):
    """Compare-and-set that seals epoch `target` at `end`, and opens `epoch` there with the terms of
    the claim.

    It succeeds only if `epoch` is still the highest reserved epoch. The shell then calls `opened`
    or `lost`. `target` is 0 if there was no epoch before.
    """

    epoch: int
    target: int
    end: int


class Committed(NamedTuple):
    """New high watermark `mark`: the shell answers producers, and notifies all others."""

    mark: int


class Stopped(NamedTuple):
    """End of the leadership; it is unknown whether the offsets [mark, end) will be kept."""

    mark: int
    end: int
