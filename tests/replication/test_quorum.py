"""Quorums overlap, and those that would not are refused."""

from __future__ import annotations

from itertools import combinations

import pytest

from penstock.replication.epoch import InvalidQuorum, Quorum, quorum_of


@pytest.mark.parametrize("replicas", range(1, 8))
def test_any_acks_and_any_fences_share_a_replica(replicas: int) -> None:
    for acks in range(replicas // 2 + 1, replicas + 1):
        quorum = Quorum(replicas, acks)
        for some in combinations(range(replicas), acks):
            for others in combinations(range(replicas), quorum.fences):
                assert set(some) & set(others)
            for others in combinations(range(replicas), acks):
                assert set(some) & set(others)


@pytest.mark.parametrize(("replicas", "acks"), [(3, 1), (4, 2), (3, 4), (0, 0), (2, 1)])
def test_what_does_not_overlap_is_refused(replicas: int, acks: int) -> None:
    with pytest.raises(InvalidQuorum, match=f"{acks} .* not a valid quorum of {replicas} replicas"):
        Quorum(replicas, acks)


@pytest.mark.parametrize(
    ("replicas", "min_insync", "acks", "fences"),
    [(1, 1, 1, 1), (3, 1, 2, 2), (3, 2, 2, 2), (3, 3, 3, 1), (5, 2, 3, 3), (5, 4, 4, 2)],
)
def test_settings_make_quorums(replicas: int, min_insync: int, acks: int, fences: int) -> None:
    quorum = quorum_of(replicas, min_insync)
    assert (quorum.acks, quorum.fences) == (acks, fences)


def test_more_in_sync_than_there_are_is_refused() -> None:
    with pytest.raises(InvalidQuorum):
        quorum_of(3, 4)


def test_what_a_replicas_hold() -> None:
    assert Quorum(3, 2).reached([7, 0, 5]) == 5
    assert Quorum(5, 4).reached([9, 8, 7, 6, 5]) == 6
