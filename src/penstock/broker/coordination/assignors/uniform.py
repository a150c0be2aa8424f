"""Uniform assignor: gives members equally many partitions, and moves as few as possible.

    all members read     each member keeps its partitions up to a fair share; the others are
    the same topics      assigned to the members in turn
    members read         each unassigned partition goes to the reader with the fewest partitions;
    different topics     then, topic by topic, readers with more give partitions to readers with
                         fewer

Partitions are assigned in the order of their topics, so that different members get the partitions
of one topic. A member that keeps only a part of its partitions keeps the lowest numbers.

If all members read the same topics, an unassigned partition goes to a member in the rack of one of
its replicas, if such a member has less than its share. The member can then fetch from that replica
(KIP-392). Racks influence neither how many partitions a member gets nor which ones it keeps.

Source: Kafka 4's `UniformAssignor`, which ignores racks; KIP-881 (racks).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import Final

from penstock.broker.coordination.assignors.partitions import Partitions
from penstock.broker.coordination.assignors.spec import GroupSpec, MemberSpec

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
    """Return the partitions of its last assignment that a member keeps: at most `most`."""
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
    """Move partitions of a topic from readers with more to readers with fewer; count the moves."""
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
