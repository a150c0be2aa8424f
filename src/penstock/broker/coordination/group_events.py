"""What may be asked of a group of any kind, and what is answered.

Requests are already decoded and authorised; nothing here knows the wire. A request's answer is a
`Reply` effect that carries the token given with the event.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

COORDINATOR_NOT_AVAILABLE: Final = "coordinator_not_available"
GROUP_ID_NOT_FOUND: Final = "group_id_not_found"
NOT_COORDINATOR: Final = "not_coordinator"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitCheck:
    """May this member, or a consumer outside any generation (-1), commit offsets now?

    `generation` is the member's epoch, in groups that have such. `knows_epochs`: the version of the
    request is one that such a group's members use. `transactional`: the offsets are part of a
    transaction, for which no member need be named, and which no rebalance holds up.
    """

    group_id: str
    generation: int
    member_id: str
    group_instance_id: str | None = None
    knows_epochs: bool = True
    transactional: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchCheck:
    """May this member look up offsets now? None and -1: somebody who is no member asks."""

    group_id: str
    member_id: str | None
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeGroup:
    """What is this group's state, and who is in it?"""

    group_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ListGroups:
    """Which groups are there? Empty filters let everything through."""

    states: tuple[str, ...] = ()
    types: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGroup:
    """Delete a group that has no members, with its offsets."""

    group_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetDeleteCheck:
    """Of these topics, for which may the group's offsets be deleted?"""

    group_id: str
    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prune:
    """Forget groups that are empty and have no offsets; `with_offsets` names those that do."""

    with_offsets: Collection[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """Yes: for heartbeats, commit checks and deletions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedMember:
    """A member; subscription and assignment are empty unless the group is stable."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes = b""
    assignment: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedGroup:
    """A group's state; `protocol` is empty unless the group is stable."""

    group_id: str
    state: str
    protocol_type: str = ""
    protocol: str = ""
    members: tuple[DescribedMember, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedGroup:
    """A group in a list."""

    group_id: str
    protocol_type: str
    state: str
    group_type: str = "classic"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedGroups:
    """The groups that passed the filters, by id."""

    groups: tuple[ListedGroup, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetsDeletable:
    """Offsets may be deleted, except of the topics that members subscribe to."""

    subscribed: frozenset[str]
