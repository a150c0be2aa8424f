"""Responses to members of classic groups."""

from __future__ import annotations

from msgspec import Struct

from penstock.broker.coordination.core import Refused
from penstock.broker.coordination.group_events import Accepted


class JoinedMember(Struct, frozen=True, kw_only=True):
    """Member in the leader's JoinGroup response. `metadata` is its subscription."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


class Joined(Struct, frozen=True, kw_only=True):
    """JoinGroup response to a member of a generation; only the leader receives `members`."""

    generation: int
    protocol_type: str
    protocol: str
    leader: str
    member_id: str
    members: tuple[JoinedMember, ...] = ()
    skip_assignment: bool = False


class Synced(Struct, frozen=True, kw_only=True):
    protocol_type: str
    protocol: str
    assignment: bytes


class LeftMember(Struct, frozen=True, kw_only=True):
    """Outcome for one leaving member; `error` is empty on success."""

    member_id: str
    group_instance_id: str | None
    error: str = ""


class Left(Struct, frozen=True, kw_only=True):
    members: tuple[LeftMember, ...]


Response = Refused | Accepted | Joined | Synced | Left
