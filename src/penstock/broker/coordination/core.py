"""Port of a coordinator core: it decides about one kind of keys, without I/O, clock or randomness.

A core receives events and stored rows, and returns effects that the runtime performs in order:
responses to requests, and saves of a key's rows. The runtime reports the outcome of each save, and
the core sends the responses that depend on it only then. The same events at the same times give the
same effects. Row versions, key ownership and database transactions are the runtime's concern.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final, Protocol

from msgspec import Struct

from penstock.base.errors import BugError
from penstock.control import GROUP_MEMBER, OffsetsEnd

NO_TOKEN: Final = 0


class Reply(Struct, frozen=True):
    token: int
    response: Any


class Save(Struct, frozen=True, kw_only=True):
    """Replace all stored rows of a key by these, by member; then report `Saved` or `SaveFailed`.

    The row of the key itself is that of the empty member. Without rows the key is deleted.
    `deletes_offsets` deletes its group's committed offsets as well. `completes_offsets` commits or
    drops the offsets that groups staged in the transaction of the key; no row of a group may be
    left then.
    """

    key: str
    rows: Mapping[str, bytes]
    deletes_offsets: bool = False
    completes_offsets: OffsetsEnd | None = None

    def __post_init__(self) -> None:
        if self.completes_offsets and any(member.startswith(GROUP_MEMBER) for member in self.rows):
            raise BugError(f"transaction {self.key!r} is decided but still has rows of groups")


class Act(Struct, frozen=True, kw_only=True):
    """Perform an effect that only this kind of cores has; its shell reports the outcome by an
    event.
    """


class Work(Protocol):
    """Computation that shares no state with its core, so that any thread can run it."""

    @property
    def size(self) -> int:
        """Estimated cost, in units of about a microsecond."""
        ...

    def __call__(self) -> Any: ...


class Compute(Struct, frozen=True, kw_only=True):
    """Run this work apart from requests; then report `Computed` with its ticket."""

    key: str
    ticket: int
    work: Work


Effect = Reply | Save | Compute | Act


class Refused(Struct, frozen=True, kw_only=True):
    """An error, by Kafka's name in lower case; `member_id` is set for "member_id_required"."""

    error: str
    message: str = ""
    member_id: str = ""


class Saved(Struct, frozen=True, kw_only=True):
    """The newest `Save` of a key is durable."""

    key: str


class SaveFailed(Struct, frozen=True, kw_only=True):
    """The newest `Save` of a key failed; the rows stored before it remain."""

    key: str
    reason: str = ""


class Computed(Struct, frozen=True, kw_only=True):
    """Outcome of a `Compute`: a result, or the reason of its failure."""

    key: str
    ticket: int
    result: Any = None
    reason: str = ""


class Tick(Struct, frozen=True, kw_only=True):
    """A deadline has passed; sent at `next_deadline_ms()` or later."""


class Stored(Struct, frozen=True, kw_only=True):
    """Stored rows of a key by member, and whether its group has committed offsets.

    `rows` is None if they equal what the core has.
    """

    key: str
    rows: Mapping[str, bytes] | None
    has_offsets: bool = False


class Core(Protocol):
    def handle(self, event: Any, now_ms: int, token: int = NO_TOKEN) -> list[Effect]:
        """Return the effects of an event.

        `now_ms` comes from a clock that does not jump. `token` identifies the request in a later
        `Reply`; every request is answered exactly once.
        """
        ...

    def load(self, stored: Stored, now_ms: int) -> list[Effect]:
        """Take over the stored rows of a key.

        If the core knows the key and rows are given, another broker has coordinated it in between:
        waiting requests get NOT_COORDINATOR.

        Raises:
            CorruptError: the rows cannot be decoded; the core is unchanged.
        """
        ...

    def forget(self, key: str) -> list[Effect]:
        """Drop a key that another broker coordinates now, and refuse its waiting requests."""
        ...

    def keys(self) -> Collection[str]: ...

    def next_deadline_ms(self) -> int | None: ...
