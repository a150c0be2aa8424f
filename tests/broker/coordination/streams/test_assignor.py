"""Sticky task assignor: balance, stickiness and standby tasks for generated groups."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from sim.streams_groups.world import all_tasks, tasks_of

from penstock.broker.groups.runtime.assignors import Partitions
from penstock.broker.groups.streams.assignor import (
    ACTIVE,
    STANDBY,
    Task,
    TaskMember,
    TaskWork,
    assign_tasks,
)


def member(number: int, process: int, assigned: Partitions | None = None) -> TaskMember:
    return TaskMember(member_id=f"m{number}", process_id=f"p{process}", assigned=assigned or {})


def assigned(
    members: list[TaskMember], tasks: dict[str, int], *, standbys: int = 0
) -> dict[str, Partitions]:
    stateful = frozenset(["1", "3"])
    work = TaskWork(epoch=1, members=members, tasks=tasks, stateful=stateful, standbys=standbys)
    found = assign_tasks(work)
    return {item.member_id: found.get(item.member_id, {}) for item in members}


def spread(counts: list[int]) -> int:
    return max(counts) - min(counts)


TASKS = st.dictionaries(st.sampled_from("0123"), st.integers(1, 12), min_size=1)
PROCESSES = st.lists(st.integers(0, 4), min_size=1, max_size=8)


@given(TASKS, PROCESSES, PROCESSES, st.integers(0, 2))
def test_tasks_are_balanced_whatever_was_assigned_before(
    tasks: dict[str, int], before: list[int], after: list[int], standbys: int
) -> None:
    first = assigned([member(n, p) for n, p in enumerate(before)], tasks, standbys=standbys)
    members = [member(n, p, first.get(f"m{n}")) for n, p in enumerate(after)]
    found = assigned(members, tasks, standbys=standbys)
    active = [[*tasks_of(item, ACTIVE)] for item in found.values()]
    everything = [(sub, number) for sub, count in sorted(tasks.items()) for number in range(count)]
    assert sorted(task for item in active for task in item) == everything
    assert spread([len(item) for item in active]) <= 1
    stateful = [sum(sub in "13" for sub, _ in item) for item in active]
    assert spread(stateful) <= 1
    copies = Counter(task for item in found.values() for task in tasks_of(item, STANDBY))
    expected = min(standbys, len({item.process_id for item in members}) - 1)
    assert copies == {task: expected for task in everything if task[0] in "13" and expected}
    for process in {item.process_id for item in members}:
        roles = [
            task
            for item in members
            if item.process_id == process
            for task in all_tasks(found[item.member_id])
        ]
        assert len(set(roles)) == len(roles)


@given(TASKS, PROCESSES, st.integers(0, 2))
def test_an_assignment_is_kept_while_nothing_changes(
    tasks: dict[str, int], processes: list[int], standbys: int
) -> None:
    first = assigned([member(n, p) for n, p in enumerate(processes)], tasks, standbys=standbys)
    again = [member(n, p, first[f"m{n}"]) for n, p in enumerate(processes)]
    assert assigned(again, tasks, standbys=standbys) == first


def test_a_standby_or_state_on_disk_decides_who_gets_an_active_task() -> None:
    first = assigned([member(n, n) for n in range(3)], {"1": 3}, standbys=1)
    left = [member(n, n, first[f"m{n}"]) for n in range(2)]
    (lost,) = tasks_of(first["m2"], ACTIVE)
    (copy,) = [item.member_id for item in left if lost in tasks_of(item.assigned, STANDBY)]
    assert lost in tasks_of(assigned(left, {"1": 3}, standbys=1)[copy], ACTIVE)
    fresh = [
        TaskMember(
            member_id=f"n{number}",
            process_id=f"n{number}",
            assigned={},
            held=frozenset([Task(b"1", 1 - number)]),
        )
        for number in range(2)
    ]
    found = assigned(fresh, {"1": 2})
    assert found == {"n0": {b"a1": frozenset([1])}, "n1": {b"a1": frozenset([0])}}
