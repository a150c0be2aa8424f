"""Input of an assignor. The values are immutable, so that an assignor can run on any thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct, field

from penstock.broker.coordination.assignors.partitions import Partitions


class MemberSpec(Struct, frozen=True, kw_only=True):
    """Member of a group: ids of its subscribed topics, its last assignment, and its rack."""

    member_id: str
    instance_id: str | None
    topics: frozenset[bytes]
    assigned: Partitions
    rack_id: str | None = None


class GroupSpec(Struct, frozen=True, kw_only=True):
    """Members of a group, and the partition counts of their subscribed topics, by topic id.

    `racks` maps a topic id to the racks of each partition's replicas. Topics without known racks
    are omitted.
    """

    members: Sequence[MemberSpec]
    partitions: Mapping[bytes, int]
    racks: Mapping[bytes, Sequence[frozenset[str]]] = field(default_factory=dict)


Assignor = Callable[[GroupSpec], Mapping[str, Partitions]]
"""Function that returns the partitions of each member, by member id. Members without partitions may
be absent."""
