"""Effects that shells perform for the cores, in order.

Writes of a replica (`PersistPromise`, `PersistLimbo`, `TruncateTo`, `StartAt`, `Write`) go into one
journal in this order; one sync covers a prefix of it.
"""

from __future__ import annotations

from typing import NamedTuple


class PersistPromise(NamedTuple):
    """Write: no authority below `promised` is listened to any more."""

    promised: int


class PersistLimbo(NamedTuple):
    """Write: of epochs up to `limbo`, what is missing here may have been lost; 0: nothing is."""

    limbo: int


class TruncateTo(NamedTuple):
    """Write: the log ends at `end`; what depended on more (producers, LSO) is rebuilt."""

    end: int


class StartAt(NamedTuple):
    """Write: nothing of the log is kept, and it begins at `base`, as its leader's does."""

    base: int


class MoveStart(NamedTuple):
    """Delete what is below `base`, when it pleases: a crash may bring it back."""

    base: int


class Write(NamedTuple):
    """Write the offsets [base, next) of what came with the message, bytes as they are."""

    base: int
    next: int


class Compare(NamedTuple):
    """The log holds [base, next) already: if batches differ from what came, call `differs`."""

    base: int
    next: int


class MarkMoved(NamedTuple):
    """Consumers may read up to here."""

    mark: int


class Halt(NamedTuple):
    """This copy contradicts its leader's and takes no further part: (epoch, offset) is not one."""

    offset: int


class EndFound(NamedTuple):
    """The epoch to be sealed ends at `end`; `holder` has all of it, if it has anything.

    The shell needs those batches before it can write them back.
    """

    end: int
    holder: int | None


class SealAndOpen(NamedTuple):
    """Compare-and-set that seals `target` at `end` and opens `epoch` there with the terms of the
    claim.

    It succeeds only if `epoch` is still the highest reserved epoch. The shell then calls `opened`
    or `lost`. `target` is 0 if there was no epoch before.
    """

    epoch: int
    target: int
    end: int


class Committed(NamedTuple):
    """Offsets below `mark` are committed: answer producers, wake consumers, notify replicas."""

    mark: int


class Stopped(NamedTuple):
    """The leadership is over; whether the offsets [mark, end) will be kept is unknown here."""

    mark: int
    end: int
