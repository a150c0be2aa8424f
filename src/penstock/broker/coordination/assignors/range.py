"""Range assignor: splits the partitions of each topic into ranges, one for each reader.

Static members come first, ordered by instance id; dynamic members follow, ordered by member id.
Topics with the same readers and the same number of partitions are split in the same way, so that a
member gets the same partition numbers of each. Racks are ignored, because they could assign equal
partition numbers of two topics to different members.

Source: Kafka 4's `RangeAssignor`.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.broker.coordination.assignors.partitions import Partitions
from penstock.broker.coordination.assignors.spec import GroupSpec, MemberSpec


def assign_ranges(group: GroupSpec) -> Mapping[str, Partitions]:
    assigned: dict[str, dict[bytes, frozenset[int]]] = {
        member.member_id: {} for member in group.members
    }
    readers: dict[bytes, list[str]] = {topic: [] for topic in group.partitions}
    for member in sorted(group.members, key=_order):
        for topic in member.topics & readers.keys():
            readers[topic].append(member.member_id)
    for topic, count in group.partitions.items():
        if not readers[topic]:
            continue
        share, longer = divmod(count, len(readers[topic]))
        start = 0
        for index, reader in enumerate(readers[topic]):
            end = start + share + (index < longer)
            if end == start:
                break
            assigned[reader][topic] = frozenset(range(start, end))
            start = end
    return assigned


def _order(member: MemberSpec) -> tuple[bool, str]:
    """Return the sort key: static members come first, because their order survives restarts."""
    if member.instance_id is None:
        return True, member.member_id
    return False, member.instance_id
