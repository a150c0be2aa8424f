"""What consumers may read, by what is durable where and which transactions are open."""

from __future__ import annotations

import itertools

import pytest

from penstock.partitions.replica_state import ReplicaState


def marks(state: ReplicaState) -> tuple[int, int]:
    return state.high_watermark, state.last_stable_offset


def test_alone_what_is_durable_may_be_read() -> None:
    state = ReplicaState(5)
    assert marks(state) == (5, 5)
    assert state.became_durable(8)
    assert marks(state) == (8, 8)
    # A log that is found shorter than its checkpoint said has no more than it has.
    state.became_durable(7)
    assert marks(state) == (7, 7)


@pytest.mark.parametrize(("quorum", "expected"), [(1, 9), (2, 9), (3, 6), (4, 4)])
def test_a_quorum_decides_in_whatever_order_it_is_heard(quorum: int, expected: int) -> None:
    for order in itertools.permutations([(0, 9), (1, 9), (2, 6), (3, 4), (1, 5)]):
        state = ReplicaState(3, quorum=quorum)
        for replica, offset in order:
            before = marks(state)
            if replica == 0:
                risen = state.became_durable(offset)
            else:
                risen = state.replica_became_durable(replica, offset)
            assert marks(state) >= before
            assert risen == (marks(state) > before)
        assert marks(state) == (expected, expected)


def test_too_few_replicas_move_nothing() -> None:
    state = ReplicaState(3, quorum=2)
    assert not state.became_durable(9)
    assert marks(state) == (3, 3)
    assert state.replica_became_durable(2, 4)
    assert marks(state) == (4, 4)


def test_open_transactions_hold_back_what_is_stable() -> None:
    state = ReplicaState(10)
    state.transaction_began(1, 10)
    state.transaction_began(2, 12)
    state.transaction_began(1, 14)
    assert state.became_durable(20)
    assert marks(state) == (20, 10)
    assert state.became_durable(21)
    assert marks(state) == (21, 10)
    assert state.transaction_ended(1)
    assert marks(state) == (21, 12)
    assert not state.transaction_ended(9)
    assert state.transaction_ended(2)
    assert marks(state) == (21, 21)
