"""What a core is: the decisions about one kind of keys, without I/O, clock or dice.

A core is given events and what is stored of keys, and answers with effects, which the runtime
performs in order: answers to requests, and the rows of a key that are to be stored. It is told of
every save how it ended, and answers what rests on it only then. The same events at the same times
give the same effects.

Cores know nothing of versions, owners or transactions: what is stored of a key, and whether it is
this broker's, is the runtime's business.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from penstock.base.errors import BugError
from penstock.control import GROUP_MEMBER, OffsetsEnd

NO_TOKEN: Final = 0


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer the request that came with this token."""

    token: int
    response: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Save:
    """Make these rows, by member, all that is stored of a key; then report `Saved` or `SaveFailed`.

    The row of the key itself is that of the empty member. No rows: nothing is left of the key.
    `deletes_offsets`: nor of what its group has committed.
    `settles_offsets`: what groups have staged in the transaction of the key is committed, or
    dropped; no row of a group is left then.
    """

    key: str
    rows: Mapping[str, bytes]
    deletes_offsets: bool = False
    settles_offsets: OffsetsEnd | None = None

    def __post_init__(self) -> None:
        if self.settles_offsets and any(member.startswith(GROUP_MEMBER) for member in self.rows):
            raise BugError(f"transaction {self.key!r} is decided, and groups are left in it")


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """Something else that the shell of one kind of cores does, and reports by an event."""


class Work(Protocol):
    """A computation that shares nothing with the core that wants it: it may run anywhere."""

    @property
    def size(self) -> int:
        """How much it is: in a microsecond or so."""
        ...

    def __call__(self) -> Any: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute:
    """Do this work, apart from what requests wait for; then report `Computed` with its ticket."""

    key: str
    ticket: int
    work: Work


Effect = Reply | Save | Compute | Act


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """An error, by Kafka's name in lower case; `member_id` goes with "member_id_required"."""

    error: str
    message: str = ""
    member_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """The newest `Save` of a key is durable."""

    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveFailed:
    """The newest `Save` of a key is not durable; what was stored before still is."""

    key: str
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Computed:
    """What came of a `Compute`: a result, or a reason why there is none."""

    key: str
    ticket: int
    result: Any = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time has passed; sent at `next_deadline_ms()` or later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """What is stored of a key: rows by member, and whether its group has committed offsets.

    `rows` is None where they are as this core has them.
    """

    key: str
    rows: Mapping[str, bytes] | None
    has_offsets: bool = False


class Core(Protocol):
    """One kind of keys; see the module's text."""

    def handle(self, event: Any, now_ms: int, token: int = NO_TOKEN) -> list[Effect]:
        """Decide what an event leads to.

        `now_ms` comes from a clock that does not jump. `token` tells which answer a later `Reply`
        belongs to; every request is answered exactly once.
        """
        ...

    def load(self, stored: Stored, now_ms: int) -> list[Effect]:
        """Take over what is stored of a key.

        Where rows are given and this core knows the key, another broker has coordinated it
        meanwhile: who waits in it is told to look for the coordinator.

        Raises:
            CorruptError: the rows cannot be read; nothing has changed.
        """
        ...

    def forget(self, key: str) -> list[Effect]:
        """Drop a key that another broker coordinates from now on; refuses who waits in it."""
        ...

    def keys(self) -> Collection[str]:
        """The keys that this core knows."""
        ...

    def next_deadline_ms(self) -> int | None:
        """When the next `Tick` is due; None while nothing waits."""
        ...
