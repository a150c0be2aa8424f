"""Responses to members of classic groups."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.broker.coordination.core import Refused
from penstock.broker.coordination.group_events import Accepted


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedMember:
    """A member as its leader receives it, with the subscription under the selected protocol."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """Membership in a generation; only the leader gets the members."""

    generation: int
    protocol_type: str
    protocol: str
    leader: str
    member_id: str
    members: tuple[JoinedMember, ...] = ()
    skip_assignment: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Synced:
    protocol_type: str
    protocol: str
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftMember:
    """Outcome for one leaving member; `error` is empty on success."""

    member_id: str
    group_instance_id: str | None
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    members: tuple[LeftMember, ...]


Response = Refused | Accepted | Joined | Synced | Left
