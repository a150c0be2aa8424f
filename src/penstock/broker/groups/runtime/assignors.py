"""Assignors: functions that assign partitions to the members of a group."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import Final

from msgspec import Struct, field

# Sets of partitions, as maps from topic id to partition numbers, and operations on them.
#
# Topics without partitions are omitted, so that equal sets compare equal.


Partitions = Mapping[bytes, frozenset[int]]

NOTHING: Final[Partitions] = {}


def both(one: Partitions, other: Partitions) -> Partitions:
    common = {topic: numbers & other[topic] for topic, numbers in one.items() if topic in other}
    return {topic: numbers for topic, numbers in common.items() if numbers}


def fewer(one: Partitions, other: Partitions) -> Partitions:
    left = {
        topic: numbers - other[topic] if topic in other else numbers
        for topic, numbers in one.items()
    }
    return {topic: numbers for topic, numbers in left.items() if numbers}


def merged(one: Partitions, other: Partitions) -> Partitions:
    result = dict(one)
    for topic, numbers in other.items():
        result[topic] = result[topic] | numbers if topic in result else numbers
    return result


def overlap(one: Partitions, other: Partitions) -> bool:
    return any(not numbers.isdisjoint(other.get(topic, ())) for topic, numbers in one.items())


def within(one: Partitions, other: Partitions) -> bool:
    return all(numbers <= other.get(topic, frozenset()) for topic, numbers in one.items())


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


# Range assignor: splits the partitions of each topic into ranges, one for each reader.
#
# Static members come first, ordered by instance id; dynamic members follow, ordered by member id.
# Topics with the same readers and the same number of partitions are split in the same way, so that
# a member gets the same partition numbers of each. Racks are ignored, because they could assign
# equal partition numbers of two topics to different members.
#
# Source: Kafka 4's `RangeAssignor`.


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


# Simple assignor of share groups: assigns each partition to as few members as possible.
#
# Members with the same subscribed topics are assigned together, by one of two rules:
#
#     partitions >= members   each partition has one member; the partition counts of two members
#                             differ by at most one
#     partitions < members    each member has one partition; the member counts of two partitions
#                             differ by at most one
#
# Members keep their last assigned partitions as far as the rule allows.
#
# Source: Kafka's `SimpleAssignor`; KIP-932.


Partition = tuple[bytes, int]


def assign_simply(group: GroupSpec) -> Mapping[str, Partitions]:
    """Assign the partitions of a share group; return the partitions of each member, by id."""
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


# Uniform assignor: gives members equally many partitions, and moves as few as possible.
#
#     all members read     each member keeps its partitions up to a fair share; the others are
#     the same topics      assigned to the members in turn
#     members read         each unassigned partition goes to the reader with the fewest partitions;
#     different topics     then, topic by topic, readers with more give partitions to readers with
#                          fewer
#
# Partitions are assigned in the order of their topics, so that different members get the partitions
# of one topic. A member that keeps only a part of its partitions keeps the lowest numbers.
#
# If all members read the same topics, an unassigned partition goes to a member in the rack of one
# of its replicas, if such a member has less than its share. The member can then fetch from that
# replica (KIP-392). Racks influence neither how many partitions a member gets nor which ones it
# keeps.
#
# Source: Kafka 4's `UniformAssignor`, which ignores racks; KIP-881 (racks).


BALANCING_PASSES_MAX: Final = 16
"""Maximum number of passes over all topics to move partitions between members."""

_Held = dict[bytes, set[int]]


def assign_uniformly(group: GroupSpec) -> Mapping[str, Partitions]:
    members = sorted(group.members, key=lambda member: member.member_id)
    if not members:
        return {}
    first = members[0].topics
    alike = all(member.topics == first for member in members)
    held = _alike(group, members) if alike else _different(group, members)
    return {
        member.member_id: {topic: frozenset(numbers) for topic, numbers in has.items() if numbers}
        for member, has in zip(members, held, strict=True)
    }


class _Free:
    def __init__(self, group: GroupSpec) -> None:
        self._taken = {topic: bytearray(count) for topic, count in group.partitions.items()}

    def take(self, topic: bytes, number: int) -> bool:
        taken = self._taken[topic]
        if number >= len(taken) or taken[number]:
            return False
        taken[number] = 1
        return True

    def left(self, topics: Sequence[bytes]) -> Iterator[tuple[bytes, int]]:
        for topic in topics:
            taken = self._taken[topic]
            number = taken.find(0)
            while number >= 0:
                yield topic, number
                number = taken.find(0, number + 1)


def _kept(member: MemberSpec, free: _Free, group: GroupSpec, most: int) -> _Held:
    """Return the partitions that a member keeps from its last assignment: at most `most`."""
    has: _Held = {}
    for topic in sorted(member.assigned.keys() & member.topics & group.partitions.keys()):
        numbers = has[topic] = set()
        for number in sorted(member.assigned[topic]):
            if not most:
                return has
            if free.take(topic, number):
                numbers.add(number)
                most -= 1
    return has


def _size(has: _Held) -> int:
    return sum(map(len, has.values()))


def _alike(group: GroupSpec, members: Sequence[MemberSpec]) -> list[_Held]:
    topics = sorted(members[0].topics & group.partitions.keys())
    share, longer = divmod(sum(group.partitions[topic] for topic in topics), len(members))
    free = _Free(group)
    held: list[_Held] = []
    wants: list[int] = []
    for member in members:
        has = _kept(member, free, group, share + (longer > 0))
        size = _size(has)
        longer -= size > share
        held.append(has)
        wants.append(share - size)
    for index, want in enumerate(wants):
        if longer and want >= 0:  # it keeps at most a share, so it may get one more
            wants[index] += 1
            longer -= 1
    left: Iterable[tuple[bytes, int]] = free.left(topics)
    if group.racks:
        left = _deal_near(group, members, left, held, wants)
    hungry = [index for index, want in enumerate(wants) if want > 0]
    turn = 0
    for topic, number in left:
        turn %= len(hungry)
        index = hungry[turn]
        held[index].setdefault(topic, set()).add(number)
        wants[index] -= 1
        if wants[index]:
            turn += 1
        else:
            hungry[turn] = hungry[-1]
            hungry.pop()
    return held


def _deal_near(
    group: GroupSpec,
    members: Sequence[MemberSpec],
    left: Iterable[tuple[bytes, int]],
    held: list[_Held],
    wants: list[int],
) -> list[tuple[bytes, int]]:
    """Assign partitions to members in the racks of their replicas; return the unassigned ones.

    Partitions with the fewest racks come first, because the fewest members can get them.
    """
    hungry: dict[str, deque[int]] = {}
    for index, member in enumerate(members):
        if wants[index] > 0 and member.rack_id is not None:
            hungry.setdefault(member.rack_id, deque()).append(index)
    racks = {(t, n): group.racks[t][n] if t in group.racks else () for t, n in left}
    far = []
    for topic, number in sorted(racks, key=lambda partition: len(racks[partition])):
        near = [rack for rack in racks[topic, number] if hungry.get(rack)]
        if not near:
            far.append((topic, number))
            continue
        indexes = hungry[max(near, key=lambda rack: (len(hungry[rack]), rack))]
        index = indexes.popleft()
        held[index].setdefault(topic, set()).add(number)
        wants[index] -= 1
        if wants[index]:
            indexes.append(index)
    return far


def _different(group: GroupSpec, members: Sequence[MemberSpec]) -> list[_Held]:
    total = sum(group.partitions.values())
    free = _Free(group)
    held = [_kept(member, free, group, total) for member in members]
    sizes = [_size(has) for has in held]
    readers: dict[bytes, list[int]] = {topic: [] for topic in group.partitions}
    for index, member in enumerate(members):
        for topic in member.topics & readers.keys():
            readers[topic].append(index)
    topics = sorted(filter(readers.get, readers), key=lambda topic: (len(readers[topic]), topic))
    for topic in topics:
        _deal(topic, [number for _, number in free.left([topic])], readers[topic], held, sizes)
    for _ in range(BALANCING_PASSES_MAX):
        if not sum([_level(topic, readers[topic], held, sizes) for topic in topics]):
            break
    return held


def _deal(
    topic: bytes,
    numbers: Sequence[int],
    readers: Sequence[int],
    held: list[_Held],
    sizes: list[int],
) -> None:
    if not numbers:
        return
    heap = [(sizes[index], index) for index in readers]
    heapify(heap)
    for number in numbers:
        size, index = heappop(heap)
        held[index].setdefault(topic, set()).add(number)
        sizes[index] = size + 1
        heappush(heap, (size + 1, index))


def _level(topic: bytes, readers: Sequence[int], held: list[_Held], sizes: list[int]) -> int:
    """Balance the numbers of partitions of the members that read a topic; return the moves.

    Partitions of the topic move from members with more partitions to members with fewer.
    """
    poor = [(sizes[index], index) for index in readers]
    rich = [(-sizes[index], index) for index in readers if held[index].get(topic)]
    heapify(poor)
    heapify(rich)
    moved = 0
    while rich:
        most, giver = rich[0]
        fewest, taker = poor[0]
        if sizes[taker] != fewest:  # an outdated entry
            heappop(poor)
            heappush(poor, (sizes[taker], taker))
        elif -most != sizes[giver] or not held[giver][topic]:
            heappop(rich)
            if held[giver][topic]:
                heappush(rich, (-sizes[giver], giver))
        elif sizes[giver] - fewest < 2:
            break
        else:
            number = max(held[giver][topic])
            held[giver][topic].discard(number)
            held[taker].setdefault(topic, set()).add(number)
            sizes[giver] -= 1
            sizes[taker] += 1
            moved += 1
    return moved


SIMPLE: Final = "simple"
"""Name of the assignor of share groups."""

ASSIGNORS: dict[str, Assignor] = {
    "uniform": assign_uniformly,
    "range": assign_ranges,
    SIMPLE: assign_simply,
}
"""Assignors by the names that clients and settings use."""
