"""Simple assignor: every member and every partition is used, and few assignments change."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.groups.runtime.assignors import (
    GroupSpec,
    MemberSpec,
    Partitions,
    assign_simply,
)

TOPICS = [b"t" * 16, b"u" * 16, b"v" * 16]
topics = st.sets(st.sampled_from(TOPICS), min_size=1)
counts = st.fixed_dictionaries({topic: st.integers(1, 5) for topic in TOPICS})


def spec(
    reads: dict[str, set[bytes]], partitions: dict[bytes, int], had: dict[str, Partitions]
) -> GroupSpec:
    members = [
        MemberSpec(
            member_id=name, instance_id=None, topics=frozenset(names), assigned=had.get(name, {})
        )
        for name, names in reads.items()
    ]
    known = {topic: partitions[topic] for names in reads.values() for topic in names}
    return GroupSpec(members=members, partitions=known)


def places(assigned: Partitions) -> set[tuple[bytes, int]]:
    return {(topic, number) for topic, numbers in assigned.items() for number in numbers}


@given(
    st.dictionaries(st.text("abcdefgh", min_size=1, max_size=2), topics, min_size=1, max_size=12),
    counts,
    st.data(),
)
def test_all_are_served(
    reads: dict[str, set[bytes]], partitions: dict[bytes, int], data: st.DataObject
) -> None:
    had: dict[str, Partitions] = {}
    for _ in range(3):
        group = spec(reads, partitions, had)
        assigned = assign_simply(group)
        assert set(assigned) == set(reads)
        for names in map(frozenset, reads.values()):
            together = [name for name, own in reads.items() if own == names]
            shares = Counter(place for name in together for place in places(assigned[name]))
            assert set(shares) == {
                (topic, number) for topic in names for number in range(partitions[topic])
            }
            sizes = [len(places(assigned[name])) for name in together]
            assert max(sizes) - min(sizes) <= 1
            assert max(shares.values()) - min(shares.values()) <= 1
            assert max(sizes) == 1 or max(shares.values()) == 1, "no more is shared than need be"
        assert assign_simply(spec(reads, partitions, dict(assigned))) == assigned
        had = dict(assigned)
        reads = dict(reads)
        if data.draw(st.booleans()) and len(reads) > 1:
            reads.pop(data.draw(st.sampled_from(sorted(reads))))
        else:
            reads[data.draw(st.text("abcdefgh", min_size=1, max_size=2))] = data.draw(topics)


def test_a_joining_member_moves_few_partitions() -> None:
    names = {TOPICS[0]}
    before = assign_simply(spec({"a": names, "b": names}, {TOPICS[0]: 6}, {}))
    after = assign_simply(spec({"a": names, "b": names, "c": names}, {TOPICS[0]: 6}, dict(before)))
    for name in "ab":
        assert places(after[name]) < places(before[name])
