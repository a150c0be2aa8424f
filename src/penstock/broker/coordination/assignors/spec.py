"""What an assignor is told of a group: values that nobody changes, so that it may run anywhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from penstock.broker.coordination.assignors.partitions import Partitions


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSpec:
    """A member: the ids of the topics that it reads, and what it was assigned last.

    `rack_id` is where it stands, if it says so.
    """

    member_id: str
    instance_id: str | None
    topics: frozenset[bytes]
    assigned: Partitions
    rack_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSpec:
    """The members, and how many partitions each topic has that one of them reads.

    `racks` are those of the replicas of each partition, by topic, for topics that have any.
    """

    members: Sequence[MemberSpec]
    partitions: Mapping[bytes, int]
    racks: Mapping[bytes, Sequence[frozenset[str]]] = field(default_factory=dict)


Assignor = Callable[[GroupSpec], Mapping[str, Partitions]]
"""From a group to what each member, by its id, is to read; who gets nothing may be missing."""
