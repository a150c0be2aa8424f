"""Every state of a member with every kind of target and report."""

from __future__ import annotations

import itertools

import pytest

from penstock.broker.groups.consumer.group import Current, MemberState, reconcile
from penstock.broker.groups.runtime.assignors import Partitions, merged

STABLE = MemberState.STABLE
UNREVOKED = MemberState.UNREVOKED_PARTITIONS
UNRELEASED = MemberState.UNRELEASED_PARTITIONS
T = b"t" * 16


def of(*numbers: int) -> Partitions:
    return {T: frozenset(numbers)} if numbers else {}


def nobody(partitions: Partitions) -> Partitions:
    return {}


def step(
    current: Current, target: Partitions, owned: Partitions | None, *taken: int, epoch: int = 9
) -> Current:
    def found(partitions: Partitions) -> Partitions:
        numbers = partitions.get(T, frozenset()) & set(taken)
        return {T: numbers} if numbers else {}

    return reconcile(current, target_epoch=epoch, target=target, owned=owned, taken=found)


def test_a_member_at_its_target_stays() -> None:
    current = Current(state=STABLE, epoch=9, assigned=of(1))
    assert step(current, of(2), of(1)) is current


def test_new_partitions_come_at_once_where_they_are_free() -> None:
    current = Current(state=STABLE, epoch=5, assigned=of(1))
    assert step(current, of(1, 2), None) == Current(state=STABLE, epoch=9, assigned=of(1, 2))


def test_partitions_outside_the_target_are_revoked_first() -> None:
    current = Current(state=STABLE, epoch=5, assigned=of(1, 2))
    asked = step(current, of(1, 3), None)
    assert asked == Current(state=UNREVOKED, epoch=5, assigned=of(1), revoking=of(2))
    assert step(asked, of(1, 3), None) is asked, "it says nothing"
    assert step(asked, of(1, 3), of(1, 2)) is asked, "it still has it"
    assert step(asked, of(1, 3), of(1)) == Current(state=STABLE, epoch=9, assigned=of(1, 3))


def test_partitions_that_a_member_does_not_own_need_no_revocation() -> None:
    current = Current(state=STABLE, epoch=5, assigned=of(1, 2))
    assert step(current, of(1), of(1)) == Current(state=STABLE, epoch=9, assigned=of(1))


def test_others_are_waited_for_at_the_new_epoch() -> None:
    current = Current(state=STABLE, epoch=5, assigned=of(1))
    waits = step(current, of(1, 2, 3), None, 2)
    assert waits == Current(state=UNRELEASED, epoch=9, assigned=of(1, 3))
    assert step(waits, of(1, 2, 3), None, 2) == waits
    assert step(waits, of(1, 2, 3), None) == Current(state=STABLE, epoch=9, assigned=of(1, 2, 3))


def test_a_target_that_changes_during_a_revocation() -> None:
    asked = Current(state=UNREVOKED, epoch=5, assigned=of(1), revoking=of(2))
    more = step(asked, of(3), of(1))
    assert more == Current(state=UNREVOKED, epoch=6, assigned={}, revoking=of(1))
    capped = step(Current(state=UNREVOKED, epoch=9, assigned=of(1), revoking=of(2)), of(3), of(1))
    assert capped.epoch == 9


SETS = [of(), of(1), of(2), of(1, 2)]


@pytest.mark.parametrize("state", MemberState)
def test_nothing_is_had_twice_or_lost_on_the_way(state: MemberState) -> None:
    for assigned, revoking, target, owned, epoch in itertools.product(
        SETS, SETS, SETS, [None, *SETS], [3, 9]
    ):
        if T in assigned and assigned[T] & revoking.get(T, frozenset()):
            continue
        if bool(revoking) != (state is UNREVOKED):
            continue
        current = Current(state=state, epoch=epoch, assigned=assigned, revoking=revoking)
        after = step(current, target, owned)
        assert after.epoch >= current.epoch
        assert not (T in after.assigned and after.assigned[T] & after.revoking.get(T, frozenset()))
        kept = merged(after.assigned, after.revoking).get(T, frozenset())
        had = merged(assigned, revoking).get(T, frozenset())
        lost = had - kept
        if owned is None:
            assert not lost, "what it may still read stays its own"
        else:
            assert not lost & owned.get(T, frozenset())
        if after.state is STABLE and after.epoch == 9 and after is not current:
            assert after.assigned == target
