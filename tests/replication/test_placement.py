"""Placement by weights: over racks, even, the same everywhere, and moving no more than it must."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from random import Random
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.errors import BugError
from penstock.control import Broker
from penstock.replication.placement import place, placed_again, succession

TOPIC = UUID(int=0x5EED)
PARTITIONS = 10_000


def broker(broker_id: int, rack: str | None = None) -> Broker:
    return Broker(
        broker_id=broker_id, host="h", port=1, rack=rack, incarnation=UUID(int=broker_id), epoch=1
    )


def brokers(count: int, racks: int = 0) -> list[Broker]:
    return [
        broker(broker_id, f"rack-{broker_id % racks}" if racks else None)
        for broker_id in range(1, count + 1)
    ]


def chi_square(counts: Counter[int], among: int) -> float:
    mean = counts.total() / among
    return sum((counts[broker_id] - mean) ** 2 / mean for broker_id in range(1, among + 1))


SOME = st.lists(
    st.tuples(st.integers(0, 2**31 - 1), st.sampled_from([None, "a", "b", "c", "d"])),
    min_size=1,
    max_size=12,
    unique_by=lambda one: one[0],
)
PLACES = (st.uuids(), st.integers(0, 2**31 - 1))


@given(SOME, *PLACES)
def test_replicas_are_spread_over_all_racks(
    some: list[tuple[int, str | None]], topic_id: UUID, partition: int
) -> None:
    known = [broker(*row) for row in some]
    order = succession(known, topic_id, partition)
    assert sorted(order) == sorted(candidate.broker_id for candidate in known)
    rack_of = {candidate.broker_id: candidate.rack for candidate in known}
    sizes = Counter(rack_of.values())
    for count in range(1, len(order) + 1):
        held = Counter(rack_of[broker_id] for broker_id in order[:count])
        assert len(held) == min(count, len(sizes))
        most = max(held.values())  # no rack has two more than one that has room
        assert all(held[rack] >= min(most - 1, size) for rack, size in sizes.items())


@given(SOME, *PLACES, st.randoms(use_true_random=False))
def test_the_order_of_the_list_does_not_matter(
    some: list[tuple[int, str | None]], topic_id: UUID, partition: int, random: Random
) -> None:
    known = [broker(*row) for row in some]
    order = succession(known, topic_id, partition)
    random.shuffle(known)
    assert succession(known, topic_id, partition) == order


@given(SOME.filter(lambda some: len(some) > 1), *PLACES)
def test_a_broker_that_comes_or_goes_changes_one_replica_at_most(
    some: list[tuple[int, str | None]], topic_id: UUID, partition: int
) -> None:
    known = [broker(*row) for row in some]
    new = known.pop()
    before = succession(known, topic_id, partition)
    after = succession([*known, new], topic_id, partition)
    for count in range(1, len(before) + 1):
        came = set(after[:count]) - set(before[:count])
        assert came <= {new.broker_id}
        assert len(set(before[:count]) - set(after[:count])) == len(came)


def moved(before: list[Broker], after: list[Broker], factor: int) -> float:
    """The share of replicas that are new."""
    new = 0
    for partition in range(PARTITIONS):
        old = set(succession(before, TOPIC, partition)[:factor])
        new += len(set(succession(after, TOPIC, partition)[:factor]) - old)
    return new / (PARTITIONS * factor)


@pytest.mark.parametrize("racks", [0, 5])
def test_a_broker_more_takes_its_share_and_nothing_else_moves(racks: int) -> None:
    share = moved(brokers(9, racks), brokers(10, racks), 3)
    assert 0.095 < share < 0.105  # a tenth of all replicas is what the tenth broker must hold
    share = moved(brokers(10, racks), brokers(9, racks), 3)
    assert 0.095 < share < 0.105


@pytest.mark.parametrize(
    ("count", "racks", "factor"), [(3, 3, 2), (10, 0, 3), (12, 3, 3), (50, 5, 3)]
)
def test_replicas_are_even(count: int, racks: int, factor: int) -> None:
    known = brokers(count, racks)
    orders = [succession(known, TOPIC, partition) for partition in range(PARTITIONS)]
    held = Counter(number for order in orders for number in order[:factor])
    assert max(held.values()) < 1.12 * PARTITIONS * factor / count
    first = Counter(order[0] for order in orders)
    # 99.9 % of samples that are even lie below: mean + 3.3 deviations, and a little.
    assert chi_square(first, count) < (count - 1) + 3.3 * (2 * (count - 1)) ** 0.5 + 5


def test_topics_are_placed_independently() -> None:
    known = brokers(5)
    firsts = Counter(succession(known, UUID(int=number), 0)[0] for number in range(PARTITIONS))
    assert chi_square(firsts, 5) < 18.5  # 99.9 % at four degrees of freedom
    pairs = Counter(pairwise(succession(known, TOPIC, number)[0] for number in range(PARTITIONS)))
    assert len(pairs) == 25
    assert max(pairs.values()) < 1.25 * PARTITIONS / 25


@pytest.mark.parametrize("factor", [1, 2, 3])
@pytest.mark.parametrize("count", [3, 4, 10])
def test_leaders_of_a_topic_are_even(count: int, factor: int) -> None:
    for number in range(100):
        placed = place(
            brokers(count), UUID(int=number), partitions=range(3 * count), replication_factor=factor
        )
        led = Counter(replicas[0] for replicas in placed)
        assert max(led.values()) <= (3 if factor in (1, count) else 5)


@given(SOME, st.uuids(), st.integers(0, 40), st.integers(1, 40), st.data())
def test_partitions_of_one_replica_are_spread_exactly_also_those_that_come_later(
    some: list[tuple[int, str | None]], topic_id: UUID, there: int, more: int, data: st.DataObject
) -> None:
    known = [broker(*row) for row in some]
    first = place(known, topic_id, partitions=range(there), replication_factor=1)
    leaders = [replicas[0] for replicas in first]
    later = place(
        known,
        topic_id,
        partitions=range(there, there + more),
        replication_factor=1,
        leaders=leaders,
    )
    assert all(len(replicas) == 1 for replicas in later)
    led = Counter([*leaders, *[replicas[0] for replicas in later]])
    assert max(led.values()) - min(led[candidate.broker_id] for candidate in known) <= 1


@given(SOME, st.uuids(), st.data())
def test_the_leader_is_one_of_the_replicas(
    some: list[tuple[int, str | None]], topic_id: UUID, data: st.DataObject
) -> None:
    known = [broker(*row) for row in some]
    factor = data.draw(st.integers(1, len(known)))
    placed = place(known, topic_id, partitions=range(5, 15), replication_factor=factor)
    for partition, replicas in zip(range(5, 15), placed, strict=True):
        assert len(replicas) == factor
        order = succession(known, topic_id, partition)
        if factor > 1:
            assert set(replicas) == set(order[:factor])
            assert list(replicas[1:]) == [
                broker_id for broker_id in order if broker_id in replicas[1:]
            ]


@pytest.mark.parametrize("factor", [0, 3])
def test_an_unchecked_replication_factor_raises_bug_error(factor: int) -> None:
    with pytest.raises(BugError, match=f"{factor} replicas"):
        place(brokers(2), TOPIC, partitions=[0], replication_factor=factor)


def test_weights_do_not_change() -> None:
    """Brokers of different releases compute the same."""
    known = brokers(7, 3)
    assert succession(known, TOPIC, 0) == (6, 1, 5, 7, 3, 2, 4)
    assert succession(known, UUID(int=7 << 90), 2**31 - 1) == (3, 7, 2, 1, 5, 6, 4)


def test_staying_replicas_keep_their_position_and_others_are_replaced_in_another_rack() -> None:
    four = [broker(1, "a"), broker(2, "b"), broker(3, "a"), broker(4, "c")]

    def again(replicas: tuple[int, ...], factor: int, *, but: int = 0) -> tuple[int, ...]:
        left = [candidate for candidate in four if candidate.broker_id != but]
        return placed_again(left, TOPIC, 0, replicas=replicas, replication_factor=factor)

    assert again((1, 2), 2) == (1, 2)
    assert again((1, 2), 2, but=2) == (1, 4), "3 is in the rack of 1"
    assert again((2, 1), 2, but=2) == (4, 1)
    assert again((1, 2, 4), 3, but=4) == (1, 2, 3), "no other rack is left"
    assert again((1, 2, 4), 2) == (1, 2)
    assert sorted(again((3,), 3)) == [2, 3, 4]
    assert again((3,), 3)[0] == 3
    for factor in (0, 5):
        with pytest.raises(BugError):
            again((1,), factor)
