"""Requests to groups of any kind, and their responses.

Requests are decoded and authorised. A `Reply` effect answers a request by the token given with it.
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
    """Check whether this member may commit offsets; generation -1 is a consumer without membership.

    `generation` is the member epoch in groups that have epochs; `knows_epochs` is true if the
    request's version supports them. `transactional` offsets belong to a transaction: a member is
    optional, and rebalances do not delay the commit.
    """

    group_id: str
    generation: int
    member_id: str
    group_instance_id: str | None = None
    knows_epochs: bool = True
    transactional: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchCheck:
    """Check whether this member may fetch offsets; None and -1 mean a client without membership."""

    group_id: str
    member_id: str | None
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeGroup:
    group_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ListGroups:
    """List groups; empty filters match all."""

    states: tuple[str, ...] = ()
    types: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGroup:
    group_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetDeleteCheck:
    group_id: str
    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prune:
    """Drop empty groups without offsets; `with_offsets` names the groups that have some."""

    with_offsets: Collection[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """Positive response to heartbeats, commit checks and deletions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedMember:
    """A member; its subscription and assignment are empty unless the group is stable."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes = b""
    assignment: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedGroup:
    """State of a group; `protocol` is empty unless the group is stable."""

    group_id: str
    state: str
    protocol_type: str = ""
    protocol: str = ""
    members: tuple[DescribedMember, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedGroup:
    group_id: str
    protocol_type: str
    state: str
    group_type: str = "classic"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedGroups:
    groups: tuple[ListedGroup, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetsDeletable:
    subscribed: frozenset[str]
