"""Requests to groups of any kind, and their responses.

Requests are decoded and authorised. A `Reply` effect answers a request by the token given with it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from msgspec import Struct

COORDINATOR_NOT_AVAILABLE: Final = "coordinator_not_available"
GROUP_ID_NOT_FOUND: Final = "group_id_not_found"
NOT_COORDINATOR: Final = "not_coordinator"


class CommitCheck(Struct, frozen=True, kw_only=True):
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


class FetchCheck(Struct, frozen=True, kw_only=True):
    """Check whether this member may fetch offsets; None and -1 mean a client without membership."""

    group_id: str
    member_id: str | None
    epoch: int


class DescribeGroup(Struct, frozen=True, kw_only=True):
    group_id: str


class ListGroups(Struct, frozen=True, kw_only=True):
    """List groups; empty filters match all."""

    states: tuple[str, ...] = ()
    types: tuple[str, ...] = ()


class DeleteGroup(Struct, frozen=True, kw_only=True):
    group_id: str


class OffsetDeleteCheck(Struct, frozen=True, kw_only=True):
    group_id: str
    topics: tuple[str, ...]


class Prune(Struct, frozen=True, kw_only=True):
    """Drop empty groups without offsets; `with_offsets` names the groups that have some."""

    with_offsets: Collection[str]


class Accepted(Struct, frozen=True, kw_only=True):
    """Positive response to heartbeats, commit checks and deletions."""


class DescribedMember(Struct, frozen=True, kw_only=True):
    """A member; its subscription and assignment are empty unless the group is stable."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes = b""
    assignment: bytes = b""


class DescribedGroup(Struct, frozen=True, kw_only=True):
    """State of a group; `protocol` is empty unless the group is stable."""

    group_id: str
    state: str
    protocol_type: str = ""
    protocol: str = ""
    members: tuple[DescribedMember, ...] = ()


class ListedGroup(Struct, frozen=True, kw_only=True):
    group_id: str
    protocol_type: str
    state: str
    group_type: str = "classic"


class ListedGroups(Struct, frozen=True, kw_only=True):
    groups: tuple[ListedGroup, ...]


class OffsetsDeletable(Struct, frozen=True, kw_only=True):
    subscribed: frozenset[str]
