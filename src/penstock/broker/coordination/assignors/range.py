"""The range assignor: of each topic, every member gets one run of partitions.

Members stand in the order of their instance ids, then of their member ids; topics with the same
readers and as many partitions are cut at the same places, so that one member gets the partitions of
equal numbers of all of them.

Racks are not looked at: they would part the partitions of equal numbers.

Source: Kafka 4's `RangeAssignor`.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.broker.coordination.assignors.partitions import Partitions
from penstock.broker.coordination.assignors.spec import GroupSpec, MemberSpec


def assign_ranges(group: GroupSpec) -> Mapping[str, Partitions]:
    """Assign every partition to a reader of its topic."""
    assigned: dict[str, dict[bytes, frozenset[int]]] = {
        member.member_id: {} for member in group.members
    }
    readers: dict[bytes, list[str]] = {topic: [] for topic in group.partitions}
    for member in sorted(group.members, key=_place):
        for topic in member.topics & readers.keys():
            readers[topic].append(member.member_id)
    for topic, count in group.partitions.items():
        if not readers[topic]:
            continue
        share, longer = divmod(count, len(readers[topic]))
        start = 0
        for place, reader in enumerate(readers[topic]):
            end = start + share + (place < longer)
            if end == start:
                break
            assigned[reader][topic] = frozenset(range(start, end))
            start = end
    return assigned


def _place(member: MemberSpec) -> tuple[bool, str]:
    """Static members first, by their instance: their order outlives restarts."""
    if member.instance_id is None:
        return True, member.member_id
    return False, member.instance_id
