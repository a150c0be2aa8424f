"""What consumers may read, by what is committed and which transactions are open."""

from __future__ import annotations

from penstock.partitions.replica_state import ReplicaState


def marks(state: ReplicaState) -> tuple[int, int]:
    return state.high_watermark, state.last_stable_offset


def test_what_is_committed_may_be_read() -> None:
    state = ReplicaState(5)
    assert marks(state) == (5, 5)
    assert state.committed_to(8)
    assert marks(state) == (8, 8)
    # A log that is found shorter than its checkpoint said has no more than it has.
    state.committed_to(7)
    assert marks(state) == (7, 7)


def test_open_transactions_hold_back_what_is_stable() -> None:
    state = ReplicaState(10)
    state.transaction_began(1, 10)
    state.transaction_began(2, 12)
    state.transaction_began(1, 14)
    assert state.committed_to(20)
    assert marks(state) == (20, 10)
    assert state.committed_to(21)
    assert marks(state) == (21, 10)
    assert state.transaction_ended(1)
    assert marks(state) == (21, 12)
    assert not state.transaction_ended(9)
    assert state.transaction_ended(2)
    assert marks(state) == (21, 21)
