"""Properties of all assignments, and those of each assignor."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from penstock.broker.groups.runtime.assignors import (
    ASSIGNORS,
    NOTHING,
    GroupSpec,
    MemberSpec,
    Partitions,
    assign_ranges,
    assign_uniformly,
)

TOPICS = [bytes([number]) * 16 for number in range(4)]


def group_of(
    topics: list[frozenset[bytes]],
    counts: dict[bytes, int],
    assigned: dict[str, Partitions] | None = None,
) -> GroupSpec:
    members = [
        MemberSpec(
            member_id=f"m{number}",
            instance_id=None,
            topics=read,
            assigned=(assigned or {}).get(f"m{number}", NOTHING),
        )
        for number, read in enumerate(topics)
    ]
    return GroupSpec(members=members, partitions=counts)


def sizes(group: GroupSpec, assigned: dict[str, Partitions]) -> list[int]:
    return [
        sum(map(len, assigned.get(member.member_id, NOTHING).values())) for member in group.members
    ]


READ = st.lists(st.frozensets(st.sampled_from(TOPICS)), min_size=1, max_size=7)
COUNTS = st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 12))
HELD = st.dictionaries(
    st.sampled_from(["m0", "m1", "m2", "m9"]),
    st.dictionaries(
        st.sampled_from(TOPICS), st.frozensets(st.integers(0, 15), min_size=1), max_size=3
    ),
)


@settings(deadline=None)
@pytest.mark.parametrize("name", ["uniform", "range"])
@given(READ, COUNTS, HELD)
def test_each_partition_goes_to_one_reader_of_its_topic(
    name: str, read: list[frozenset[bytes]], counts: dict[bytes, int], held: dict[str, Partitions]
) -> None:
    group = group_of(read, counts, held)
    assigned = dict(ASSIGNORS[name](group))
    topics = {member.member_id: member.topics for member in group.members}
    given_out = []
    for member_id, partitions in assigned.items():
        assert partitions.keys() <= topics[member_id]
        assert all(partitions.values()), "no empty sets"
        given_out += [(topic, number) for topic, found in partitions.items() for number in found]
    expected = [
        (topic, number)
        for topic, count in counts.items()
        if any(topic in subscription for subscription in read)
        for number in range(count)
    ]
    assert sorted(given_out) == sorted(expected)


@settings(deadline=None)
@given(st.integers(1, 7), COUNTS, HELD)
def test_members_alike_get_as_many_and_keep_what_they_may(
    count: int, counts: dict[bytes, int], held: dict[str, Partitions]
) -> None:
    group = group_of([frozenset(TOPICS)] * count, counts, held)
    assigned = dict(assign_uniformly(group))
    found = sizes(group, assigned)
    assert max(found) - min(found) <= 1
    again = group_of([frozenset(TOPICS)] * count, counts, assigned)
    assert assign_uniformly(again) == assigned


@settings(deadline=None)
@given(READ, COUNTS)
def test_readers_of_a_topic_differ_by_at_most_one_partition(
    read: list[frozenset[bytes]], counts: dict[bytes, int]
) -> None:
    group = group_of(read, counts)
    assigned = dict(assign_uniformly(group))
    has = dict(zip([m.member_id for m in group.members], sizes(group, assigned), strict=True))
    for member in group.members:
        for topic in assigned.get(member.member_id, NOTHING):
            for other in group.members:
                if topic in other.topics:
                    assert has[member.member_id] - has[other.member_id] <= 1


def test_a_joining_member_takes_its_share_and_nothing_else_moves() -> None:
    topics = frozenset(TOPICS[:1])
    before = dict(assign_uniformly(group_of([topics] * 3, {TOPICS[0]: 12})))
    after = assign_uniformly(group_of([topics] * 4, {TOPICS[0]: 12}, before))
    for member_id, partitions in before.items():
        assert after[member_id][TOPICS[0]] < partitions[TOPICS[0]]
    assert len(after["m3"][TOPICS[0]]) == 3


RACKS = st.lists(st.sampled_from([None, "a", "b", "c"]), min_size=1, max_size=7)


@settings(deadline=None)
@given(RACKS, COUNTS, HELD, st.data())
def test_racks_do_not_change_partition_counts(
    racks: list[str | None],
    counts: dict[bytes, int],
    held: dict[str, Partitions],
    data: st.DataObject,
) -> None:
    plain = group_of([frozenset(TOPICS)] * len(racks), counts, held)
    members = [
        replace(member, rack_id=rack) for member, rack in zip(plain.members, racks, strict=True)
    ]
    places = st.frozensets(st.sampled_from(["a", "b", "c", "d"]))
    known = {
        topic: data.draw(st.lists(places, min_size=count, max_size=count))
        for topic, count in counts.items()
        if topic != TOPICS[0]
    }
    group = replace(plain, members=members, racks=known)
    near, far = dict(assign_uniformly(group)), dict(assign_uniformly(plain))
    given_out = [
        (topic, number)
        for partitions in near.values()
        for topic, numbers in partitions.items()
        for number in numbers
    ]
    assert sorted(given_out) == sorted((t, n) for t, count in counts.items() for n in range(count))
    assert sizes(group, near) == sizes(plain, far)
    assert assign_uniformly(replace(group, members=with_targets(members, near))) == near


def with_targets(members: list[MemberSpec], targets: dict[str, Partitions]) -> list[MemberSpec]:
    return [replace(member, assigned=targets.get(member.member_id, NOTHING)) for member in members]


def test_members_get_partitions_with_replicas_in_their_rack() -> None:
    topic = TOPICS[0]
    members = [
        MemberSpec(
            member_id=f"m{number}",
            instance_id=None,
            topics=frozenset([topic]),
            assigned=NOTHING,
            rack_id=rack,
        )
        for number, rack in enumerate(["a", "b", "a", "b", "elsewhere", None])
    ]
    racks = [
        frozenset(rack) for rack in ["ab", "b", "b", "ab", "a", "a", "a", "b", "b", "a", "", "a"]
    ]
    assigned = assign_uniformly(
        GroupSpec(members=members, partitions={topic: 12}, racks={topic: racks})
    )
    assert all(len(assigned[member.member_id][topic]) == 2 for member in members)
    for member in members[:4]:
        assert all(member.rack_id in racks[number] for number in assigned[member.member_id][topic])


def test_ranges_are_cut_alike_and_in_the_order_of_instances() -> None:
    topics = frozenset(TOPICS[:2])
    members = [
        MemberSpec(member_id=member, instance_id=instance, topics=topics, assigned=NOTHING)
        for member, instance in (("z", "b"), ("y", "a"), ("x", None))
    ]
    group = GroupSpec(members=members, partitions={TOPICS[0]: 7, TOPICS[1]: 7})
    assigned = assign_ranges(group)
    assert {member: sorted(found[TOPICS[0]]) for member, found in assigned.items()} == {
        "y": [0, 1, 2],
        "z": [3, 4],
        "x": [5, 6],
    }
    assert all(found[TOPICS[0]] == found[TOPICS[1]] for found in assigned.values())
