"""High watermark and last stable offset, by commits and open transactions."""

from __future__ import annotations

from penstock.partitions.local import ReplicaState
from penstock.storage.files.producers import OpenTransactions


def marks(state: ReplicaState) -> tuple[int, int]:
    return state.high_watermark, state.last_stable_offset


def test_committed_records_are_readable() -> None:
    state = ReplicaState(5, OpenTransactions())
    assert marks(state) == (5, 5)
    assert state.committed_to(8)
    assert marks(state) == (8, 8)
    # A log that is found shorter than its checkpoint said has no more than it has.
    state.committed_to(7)
    assert marks(state) == (7, 7)


def test_open_transactions_bound_the_last_stable_offset() -> None:
    transactions = OpenTransactions()
    state = ReplicaState(10, transactions)
    transactions.began(10)
    transactions.began(12)
    assert state.committed_to(20)
    assert marks(state) == (20, 10)
    assert state.committed_to(21)
    assert marks(state) == (21, 10)
    assert transactions.decided(10, 21) == 12
    assert transactions.decided(12, 22) == 23
    state.committed_to(21)
    assert marks(state) == (21, 10), "no marker is committed yet"
    state.committed_to(22)
    assert marks(state) == (22, 12)
    state.committed_to(23)
    assert marks(state) == (23, 23)


def test_an_undone_marker_bounds_the_last_stable_offset_again() -> None:
    transactions = OpenTransactions([4, 9])
    state = ReplicaState(20, transactions)
    state.committed_to(20)
    assert marks(state) == (20, 4)
    assert transactions.decided(4, 20) == 9
    transactions.began(21)
    transactions.began_not(21)
    transactions.decided_not(4)
    state.committed_to(40)
    assert marks(state) == (40, 4)
    transactions.decided(9, 40)
    transactions.decided(4, 41)
    state.committed_to(41)
    assert marks(state) == (41, 4)
    state.committed_to(42)
    assert marks(state) == (42, 42)


def test_nothing_below_the_logs_start_is_waited_for() -> None:
    transactions = OpenTransactions([4])
    state = ReplicaState(20, transactions)
    state.holds(transactions, 9)
    assert marks(state) == (20, 9)
    state.holds(OpenTransactions(), 9)
    assert marks(state) == (20, 20)
