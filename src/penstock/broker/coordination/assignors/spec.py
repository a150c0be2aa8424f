"""Input of an assignor: immutable values, so that any thread can run it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct, field

from penstock.broker.coordination.assignors.partitions import Partitions


class MemberSpec(Struct, frozen=True, kw_only=True):
    """A member: ids of its topics, its last assignment, and its rack if it has one."""

    member_id: str
    instance_id: str | None
    topics: frozenset[bytes]
    assigned: Partitions
    rack_id: str | None = None


class GroupSpec(Struct, frozen=True, kw_only=True):
    """Members of a group, and the partition counts of the topics that they read.

    `racks` has the racks of each partition's replicas by topic, where they are known.
    """

    members: Sequence[MemberSpec]
    partitions: Mapping[bytes, int]
    racks: Mapping[bytes, Sequence[frozenset[str]]] = field(default_factory=dict)


Assignor = Callable[[GroupSpec], Mapping[str, Partitions]]
"""Function from a group to each member's partitions, by id; members without any may be absent."""
