"""Requests of members of share groups, and descriptions of the groups."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.broker.coordination.assignors import Partitions


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareHeartbeat:
    """Heartbeat by which a member joins, stays or leaves; None means unchanged."""

    group_id: str
    member_id: str
    epoch: int
    client_id: str
    client_host: str
    rack_id: str | None = None
    topics: frozenset[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EnsureShareGroup:
    """Describe a share group, and create it without members if no group has this id."""

    group_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedShareMember:
    """A member of a share group; members are never static."""

    member_id: str
    rack_id: str | None
    epoch: int
    client_id: str
    client_host: str
    topics: tuple[str, ...]
    assigned: Partitions
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedShareGroup:
    group_id: str
    state: str
    epoch: int
    assignment_epoch: int
    assignor: str
    members: tuple[DescribedShareMember, ...]
    protocol_type: str = "share"

    @property
    def protocol(self) -> str:
        """Assignor, in place of a classic group's protocol."""
        return self.assignor
