"""What requests to the core of classic groups are answered with."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.broker.coordination.core import Refused


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """Yes: for heartbeats, commit checks and deletions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedMember:
    """A member as the leader sees it: its subscription under the chosen protocol."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """A member is in this generation; only the leader gets the members."""

    generation: int
    protocol_type: str
    protocol: str
    leader: str
    member_id: str
    members: tuple[JoinedMember, ...] = ()
    skip_assignment: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Synced:
    """A member's assignment."""

    protocol_type: str
    protocol: str
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftMember:
    """How it went for one leaving member; `error` is empty when it has left."""

    member_id: str
    group_instance_id: str | None
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """One entry for each member of the request, in its order."""

    members: tuple[LeftMember, ...]


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


Response = (
    Refused | Accepted | Joined | Synced | Left | DescribedGroup | ListedGroups | OffsetsDeletable
)
