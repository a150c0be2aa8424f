"""What members of classic groups are answered."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.broker.coordination.core import Refused
from penstock.broker.coordination.group_events import Accepted


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


Response = Refused | Accepted | Joined | Synced | Left
