"""Advice on moves: its goals hold where they can, and it asks for no more than it says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from penstock.replication.advice import TOLERANCE, Advice, Held, advise
from tests.replication.test_placement import broker, brokers

GB = 10**9


def held(index: int, *replicas: int, size_bytes: int = GB) -> Held:
    return Held(place=("t", index), replicas=replicas, size_bytes=size_bytes)


def even(advice: Advice, slack: float = 0.0) -> bool:
    sizes = [load.size_bytes for load in advice.after]
    mean = sum(sizes) / len(sizes)
    return max(sizes) - min(sizes) <= 2 * TOLERANCE * mean + slack


def test_what_is_even_stays() -> None:
    partitions = [held(0, 1, 2), held(1, 2, 3), held(2, 3, 1)]
    advice = advise(brokers(3), partitions)
    assert (advice.moves, advice.busiest_bytes, advice.unfinished) == ((), 0, False)
    assert advice.before == advice.after


def test_a_new_broker_gets_its_part() -> None:
    dice = Random(3)
    partitions = [held(index, *dice.sample((1, 2, 3), 2)) for index in range(60)]
    advice = advise(brokers(4), partitions)
    assert even(advice)
    assert {move.why for move in advice.moves} <= {("bytes",), ("leaders",), ("bytes", "leaders")}
    copied = sum(move.copied_bytes for move in advice.moves)
    came = next(load for load in advice.after if load.broker_id == 4)
    assert copied == sum(len({*move.after} - {*move.before}) for move in advice.moves) * GB
    assert copied <= came.size_bytes + 3 * GB, "little moves but to the new one"
    assert advice.busiest_bytes >= came.size_bytes
    leads = [load.leads for load in advice.after]
    assert max(leads) - min(leads) <= 1


def test_leaders_are_evened_out_without_a_copy() -> None:
    advice = advise(brokers(3), [held(index, 1, 2, 3) for index in range(9)])
    assert [load.leads for load in advice.before] == [9, 0, 0]
    assert [load.leads for load in advice.after] == [3, 3, 3]
    assert {move.why for move in advice.moves} == {("leaders",)}
    assert advice.busiest_bytes == sum(move.copied_bytes for move in advice.moves) == 0


def test_a_broker_that_is_to_go_holds_nothing_afterwards() -> None:
    racks = [broker(1, "a"), broker(2, "b"), broker(3, "c"), broker(4, "c")]
    partitions = [held(index, 3, 1, 2) for index in range(4)]
    advice = advise(racks, partitions, excluded={3})
    assert all(sorted(move.after) == [1, 2, 4] for move in advice.moves)
    assert len(advice.moves) == 4
    off = advise(racks[:2], partitions, excluded={3})
    assert off.moves == (), "nowhere to go"
    third = [*racks[:2], broker(4), broker(5)]
    gone = advise(third, partitions, excluded={3})
    assert all({*move.after} & {4, 5} and 3 not in move.after for move in gone.moves)
    assert len(gone.moves) == 4


def test_replicas_go_to_racks_that_have_none() -> None:
    racks = [broker(1, "a"), broker(2, "a"), broker(3, "b"), broker(4, "b")]
    advice = advise(racks, [held(0, 1, 2), held(1, 3, 4), held(2, 1, 3), held(3, 2, 4)])
    rack_of = {node.broker_id: node.rack for node in racks}
    after = {move.place: move.after for move in advice.moves}
    for index in (0, 1):
        assert len({rack_of[replica] for replica in after["t", index]}) == 2
    assert all("racks" in move.why for move in advice.moves if move.place[1] < 2)


def test_no_more_moves_than_asked_for() -> None:
    partitions = [held(index, 1, 2) for index in range(40)]
    advice = advise(brokers(4), partitions, moves_max=5)
    assert len(advice.moves) == 5
    assert advice.unfinished
    rest = advise(brokers(4), [_moved(partition, advice) for partition in partitions])
    assert even(rest)
    assert not rest.unfinished


def _moved(one: Held, advice: Advice) -> Held:
    after = {move.place: move.after for move in advice.moves}.get(one.place, one.replicas)
    return held(one.place[1], *after, size_bytes=one.size_bytes)


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[str], Sequence[Held], set[int]]:
    count = draw(st.integers(1, 6))
    racks = draw(st.lists(st.sampled_from("abc"), min_size=count, max_size=count))
    some = st.lists(st.integers(1, count + 1), min_size=1, max_size=3, unique=True)
    sizes = st.integers(0, 50)
    rows = draw(st.lists(st.tuples(some, sizes), max_size=30))
    excluded = draw(st.sets(st.integers(1, count + 1), max_size=2))
    partitions = [held(at, *row, size_bytes=size) for at, (row, size) in enumerate(rows)]
    return racks, partitions, excluded


@given(clusters())
def test_nothing_gets_worse(case: tuple[list[str], Sequence[Held], set[int]]) -> None:
    racks, partitions, excluded = case
    known = [broker(at, rack) for at, rack in enumerate(racks, 1)]
    rack_of = {node.broker_id: node.rack for node in known}
    advice = advise(known, partitions, excluded=excluded)
    assert advice == advise(known[::-1], partitions, excluded=excluded), "computed alike"
    for move in advice.moves:
        came = {*move.after} - {*move.before}
        assert len({*move.after}) == len(move.after) == len(move.before)
        assert came <= rack_of.keys() - excluded
        if not {*move.before} & excluded:
            before = Counter(rack_of.get(replica) for replica in move.before)
            assert len({rack_of.get(replica) for replica in move.after}) >= len(before)
    sums = [sum(load.size_bytes for load in loads) for loads in (advice.before, advice.after)]
    assert sums[0] == sums[1]
    if not any({*partition.replicas} & excluded for partition in partitions) and not any(
        "racks" in move.why for move in advice.moves
    ):
        worst = [max(it.size_bytes for it in loads) for loads in (advice.before, advice.after)]
        assert worst[1] <= worst[0]
