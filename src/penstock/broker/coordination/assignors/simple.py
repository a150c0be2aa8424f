"""Simple assignor of share groups: assigns each partition to as few members as possible.

Members with the same subscribed topics are assigned together, by one of two rules:

    partitions >= members   each partition has one member; the partition counts of two members
                            differ by at most one
    partitions < members    each member has one partition; the member counts of two partitions
                            differ by at most one

Members keep their last assigned partitions as far as the rule allows.

Source: Kafka's `SimpleAssignor`; KIP-932.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.broker.coordination.assignors.partitions import Partitions
from penstock.broker.coordination.assignors.spec import GroupSpec, MemberSpec

Partition = tuple[bytes, int]


def assign_simply(group: GroupSpec) -> Mapping[str, Partitions]:
    """Return the partitions of each member, by member id."""
    together: dict[frozenset[bytes], list[MemberSpec]] = {}
    for member in sorted(group.members, key=lambda member: member.member_id):
        together.setdefault(member.topics.intersection(group.partitions), []).append(member)
    assigned: dict[str, Partitions] = {}
    for topics, members in together.items():
        partitions = [
            (topic, number) for topic in sorted(topics) for number in range(group.partitions[topic])
        ]
        if len(members) <= len(partitions):
            assigned.update(_spread(members, partitions))
        elif partitions:
            assigned.update(_shared(members, partitions))
    return assigned


def _spread(members: list[MemberSpec], partitions: list[Partition]) -> Mapping[str, Partitions]:
    least, longer = divmod(len(partitions), len(members))
    free = dict.fromkeys(partitions)
    kept: list[list[Partition]] = []
    for member in members:
        had = [partition for partition in _listed(member.assigned) if partition in free]
        most = least + (longer > 0)
        if len(had) >= most and most > least:
            longer -= 1
        kept.append(had[:most])
        for partition in kept[-1]:
            del free[partition]
    left = iter(free)
    assigned: dict[str, Partitions] = {}
    for member, has in zip(members, kept, strict=True):
        while len(has) < least or (longer > 0 and len(has) == least):
            longer -= len(has) == least
            has.append(next(left))
        assigned[member.member_id] = _partitions(has)
    return assigned


def _shared(members: list[MemberSpec], partitions: list[Partition]) -> Mapping[str, Partitions]:
    least, longer = divmod(len(members), len(partitions))
    counts = dict.fromkeys(partitions, 0)
    kept: dict[str, Partition] = {}
    for member in members:
        for partition in _listed(member.assigned):
            count = counts.get(partition)
            if count is None or count > least or (count == least and not longer):
                continue
            longer -= count == least
            counts[partition] = count + 1
            kept[member.member_id] = partition
            break
    room = iter([partition for partition in partitions for _ in range(least - counts[partition])])
    more = iter([partition for partition in partitions if counts[partition] <= least])
    assigned: dict[str, Partitions] = {}
    for member in members:
        partition = kept.get(member.member_id) or next(room, None) or next(more)
        assigned[member.member_id] = _partitions([partition])
    return assigned


def _listed(partitions: Partitions) -> list[Partition]:
    return [(topic, number) for topic in sorted(partitions) for number in sorted(partitions[topic])]


def _partitions(partitions: Iterable[Partition]) -> Partitions:
    found: dict[bytes, set[int]] = {}
    for topic, number in partitions:
        found.setdefault(topic, set()).add(number)
    return {topic: frozenset(numbers) for topic, numbers in found.items()}
