"""Range assignor: each member gets one range of partitions of each topic.

Members are ordered by instance id, then by member id. Topics with the same readers and partition
count are split alike, so that a member gets partitions of equal numbers. Racks are ignored, because
they would separate partitions of equal numbers.

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
    """Sort key: static members first, because their order survives restarts."""
    if member.instance_id is None:
        return True, member.member_id
    return False, member.instance_id
