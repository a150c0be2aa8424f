"""What share partitions are told and tell: runs of records, limits, acknowledgements.

Source: KIP-932 (states, acknowledgements), KIP-1191 (dead letters), KIP-1222 (renew).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar, NamedTuple

from penstock.base.errors import InvalidError


class RecordState(IntEnum):
    """What a record within the window is to its group.

    `SETTLED` is what KIP-932 calls Acknowledged or Archived: no one will get it any more, and
    nobody asks why. `ARCHIVING`, which KIP-1191 has added, is what was given up and is not yet
    known to be among the dead letters. Records that differ in nothing make one run.
    """

    AVAILABLE = 0
    ACQUIRED = 1
    SETTLED = 2
    ARCHIVING = 3


class Run(NamedTuple):
    """Records next to each other, `first` to `last`, that differ in nothing.

    `deliveries` says how often they were acquired; `member` and `deadline_ms`, by the wall clock,
    belong to acquired ones, `cause`, a `Cause`, to those that are being archived.
    """

    first: int
    last: int
    state: RecordState
    deliveries: int = 0
    member: str = ""
    deadline_ms: int = 0
    cause: int = 0

    @property
    def records(self) -> int:
        """How many records they are."""
        return self.last - self.first + 1


class Acknowledge(IntEnum):
    """What a member says of a record; a gap is an offset without one."""

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


class Acknowledged(NamedTuple):
    """The same said of all records from `first` to `last`."""

    first: int
    last: int
    kind: Acknowledge


class Batch(NamedTuple):
    """A batch of the log; without `records` for consumers if it is of control, or aborted."""

    first: int
    last: int
    records: bool = True


class Acquired(NamedTuple):
    """Records that a member has now, until it acknowledges them or its lock ends."""

    first: int
    last: int
    deliveries: int


class Cause(IntEnum):
    """Why records were given up: their member rejected them, or they were delivered too often."""

    REJECTED = 1
    DELIVERIES = 2


class GivenUp(NamedTuple):
    """Records that were given up."""

    first: int
    last: int
    deliveries: int
    cause: Cause

    @property
    def records(self) -> int:
        """How many records they are."""
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareLimits:
    """What a group's settings say of its share partitions.

    `dead_letters`: what is given up is copied before it is settled.
    """

    delivery_count_limit: int = 5
    lock_duration_ms: int = 30_000
    record_locks_max: int = 2_000
    dead_letters: bool = False


class InvalidRecordState(InvalidError):
    """An acknowledgement of records that the member does not have, or not any more."""

    code: ClassVar[str] = "invalid_record_state"


class InvalidAcknowledgement(InvalidError):
    """Acknowledgements that contradict themselves."""

    code: ClassVar[str] = "invalid_request"
