"""What a shell does for the cores, in the order in which they say it.

What a replica writes (`PersistPromise`, `PersistLimbo`, `TruncateTo`, `StartAt`, `Write`) goes
into one journal in this order, and one sync covers a beginning of it.
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
    """One compare-and-set: `target` ends at `end`, `epoch` starts there, with the claim's terms.

    Only if `epoch` is still the highest that was reserved. Then call `opened` or `lost`.
    `target` is 0 where there was no epoch before.
    """

    epoch: int
    target: int
    end: int


class Committed(NamedTuple):
    """All below `mark` is committed: answer producers, wake consumers, tell replicas."""

    mark: int


class Stopped(NamedTuple):
    """Leadership is over for good; what became of the offsets [mark, end) is unknown here."""

    mark: int
    end: int
