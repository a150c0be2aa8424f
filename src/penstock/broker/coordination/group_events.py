"""Requests that are common to all kinds of groups, and their responses.

Requests are already decoded and authorised. A core answers a request with a `Reply` effect, which
contains the token that was passed with the request.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from msgspec import Struct

COORDINATOR_NOT_AVAILABLE: Final = "coordinator_not_available"
GROUP_ID_NOT_FOUND: Final = "group_id_not_found"
NOT_COORDINATOR: Final = "not_coordinator"


class CommitCheck(Struct, frozen=True, kw_only=True):
    """Request to check whether a client may commit offsets.

    `generation` is -1 for a client that is not a member; in consumer groups it is the member epoch.
    `knows_epochs` is true if the request's version supports member epochs. `transactional` offsets
    belong to a transaction: the client need not be a member, and rebalances do not delay it.
    """

    group_id: str
    generation: int
    member_id: str
    group_instance_id: str | None = None
    knows_epochs: bool = True
    transactional: bool = False


class FetchCheck(Struct, frozen=True, kw_only=True):
    """Request to check whether a client may fetch offsets.

    A client that is not a member has `member_id` None and `epoch` -1.
    """

    group_id: str
    member_id: str | None
    epoch: int


class DescribeGroup(Struct, frozen=True, kw_only=True):
    group_id: str


class ListGroups(Struct, frozen=True, kw_only=True):
    """Request to list groups; an empty filter matches all groups."""

    states: tuple[str, ...] = ()
    types: tuple[str, ...] = ()


class DeleteGroup(Struct, frozen=True, kw_only=True):
    group_id: str


class OffsetDeleteCheck(Struct, frozen=True, kw_only=True):
    group_id: str
    topics: tuple[str, ...]


class Prune(Struct, frozen=True, kw_only=True):
    """Event: delete empty groups without offsets. `with_offsets` are the groups with offsets."""

    with_offsets: Collection[str]


class Accepted(Struct, frozen=True, kw_only=True):
    """Positive response to heartbeats, commit checks and deletions."""


class DescribedMember(Struct, frozen=True, kw_only=True):
    """Member of a described group, with `metadata` and `assignment` only if the group is stable."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes = b""
    assignment: bytes = b""


class DescribedGroup(Struct, frozen=True, kw_only=True):
    """Description of a classic group; `protocol` is empty unless the group is stable."""

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
