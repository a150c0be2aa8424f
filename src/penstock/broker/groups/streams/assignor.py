"""Sticky task assignor: balances the tasks of a streams group and keeps them where their state is.

    active tasks    stateful ones first, then the others; two members differ by at most one task of
                    each kind of total. A task stays with its member, else it goes to a member that
                    has its state (standby or reported offset), else to the least loaded one.
    standby tasks   copies of stateful tasks on other processes; they stay where they are, else they
                    go to the least loaded members

Tasks are sets of partitions (`runtime/assignors.py`) under the key of role and subtopology.

Source: KIP-1071; Kafka's `StickyTaskAssignor`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import Final

from msgspec import Struct

from penstock.broker.groups.modern.group import Target, encode_partitions
from penstock.broker.groups.runtime.assignors import Partitions

ACTIVE: Final = b"a"
STANDBY: Final = b"s"
WARMUP: Final = b"w"
STICKY: Final = "sticky"


class Task(Struct, frozen=True, order=True):
    subtopology: bytes
    partition: int


class TaskMember(Struct, frozen=True, kw_only=True):
    """Member with its last target; `held` are other tasks whose state it has on disk."""

    member_id: str
    process_id: str
    assigned: Partitions
    held: frozenset[Task] = frozenset()
    takes_tasks: bool = True


class TaskWork(Struct, frozen=True, kw_only=True):
    """Computation of a target. `tasks` are the numbers of tasks by subtopology id."""

    epoch: int
    members: Sequence[TaskMember]
    tasks: Mapping[str, int]
    stateful: frozenset[str]
    standbys: int

    @property
    def size(self) -> int:
        return 10 * (len(self.members) + sum(self.tasks.values()) * (1 + self.standbys))

    def __call__(self) -> Target:
        assigned = assign_tasks(self)
        members: dict[str, tuple[Partitions, bytes | None]] = {}
        for member in self.members:
            target = assigned.get(member.member_id, {})
            same = target == member.assigned
            row = None if same else encode_partitions(target)
            members[member.member_id] = (member.assigned if same else target, row)
        return Target(epoch=self.epoch, assignor=STICKY, members=members)


def assign_tasks(work: TaskWork) -> Mapping[str, Partitions]:
    """Return the tasks of each member, by member id. Members without tasks may be absent."""
    members = [member for member in work.members if member.takes_tasks]
    if not members:
        return {}
    assignment = _Assignment(members)
    tasks = {
        kind: [
            Task(subtopology.encode(), number)
            for subtopology, count in sorted(work.tasks.items())
            if (subtopology in work.stateful) is kind
            for number in range(count)
        ]
        for kind in (True, False)
    }
    assignment.place(tasks[True])
    assignment.place(tasks[False])
    assignment.copy(tasks[True], work.standbys)
    return assignment.result()


class _Assignment:
    def __init__(self, members: Sequence[TaskMember]) -> None:
        self._processes = {member.member_id: member.process_id for member in members}
        self._counts = {member.member_id: 0 for member in members}
        self._loads = dict.fromkeys(self._processes.values(), 0)
        self._assigned: dict[str, list[tuple[bytes, Task]]] = {}
        self._holders: dict[Task, set[str]] = {}
        """Processes that have a role of each task."""
        self._active: dict[Task, str] = {}
        """Members of the last active tasks."""
        self._copies: dict[Task, list[str]] = {}
        """Members with the state of each task."""
        for member in members:
            for role, task in _tasks(member.assigned):
                if role == ACTIVE:
                    self._active[task] = member.member_id
                else:
                    self._copies.setdefault(task, []).append(member.member_id)
            for task in sorted(member.held):
                self._copies.setdefault(task, []).append(member.member_id)

    def place(self, tasks: Sequence[Task]) -> None:
        """Assign active tasks; the totals of two members then differ by at most one."""
        room = _Room(self._counts, len(tasks))
        left = [task for task in tasks if not self._keep(task, self._active.get(task), room)]
        left = [task for task in left if not self._keep(task, self._holder(task), room)]
        heap = [self._rank(member_id) for member_id in self._counts]
        heapify(heap)
        for task in left:
            self._give(ACTIVE, task, self._lightest(heap))

    def _holder(self, task: Task) -> str | None:
        """Return the least loaded member that has a copy of a task's state."""
        return min(self._copies.get(task, ()), key=self._rank, default=None)

    def _keep(self, task: Task, member_id: str | None, room: _Room) -> bool:
        if member_id is None or not room.take(member_id):
            return False
        self._give(ACTIVE, task, member_id)
        return True

    def _rank(self, member_id: str) -> tuple[int, int, str]:
        return self._counts[member_id], self._loads[self._processes[member_id]], member_id

    def _lightest(self, heap: list[tuple[int, int, str]]) -> str:
        """Return the least loaded member; entries with outdated loads are replaced first."""
        while True:
            entry = heappop(heap)
            now = self._rank(entry[2])
            if now <= entry:
                heappush(heap, (now[0] + 1, now[1] + 1, now[2]))
                return entry[2]
            heappush(heap, now)

    def _give(self, role: bytes, task: Task, member_id: str) -> None:
        process = self._processes[member_id]
        self._assigned.setdefault(member_id, []).append((role, task))
        self._holders.setdefault(task, set()).add(process)
        self._counts[member_id] += 1
        self._loads[process] += 1

    def copy(self, tasks: Sequence[Task], count: int) -> None:
        """Assign standby tasks, each to a process that has no other role of the task."""
        count = min(count, len(self._loads) - 1)
        if count <= 0:
            return
        room = _Room(self._counts, len(tasks) * count)
        left = {task: count for task in tasks}
        for task in tasks:
            before = [self._active.get(task), *self._copies.get(task, ())]
            for member_id in before:
                if member_id is None or not left[task]:
                    continue
                free = self._processes[member_id] not in self._holders[task]
                if free and room.take(member_id):
                    self._give(STANDBY, task, member_id)
                    left[task] -= 1
        heap = [self._rank(member_id) for member_id in self._counts]
        heapify(heap)
        for task in tasks:
            for _ in range(left[task]):
                self._copy(heap, task)

    def _copy(self, heap: list[tuple[int, int, str]], task: Task) -> None:
        passed = []
        while heap:
            entry = heappop(heap)
            now = self._rank(entry[2])
            if now > entry:
                heappush(heap, now)
            elif self._processes[entry[2]] in self._holders[task]:
                passed.append(entry)
            else:
                self._give(STANDBY, task, entry[2])
                heappush(heap, self._rank(entry[2]))
                break
        for entry in passed:
            heappush(heap, entry)

    def result(self) -> Mapping[str, Partitions]:
        found: dict[str, Partitions] = {}
        for member_id, tasks in self._assigned.items():
            numbers: dict[bytes, set[int]] = {}
            for role, task in tasks:
                numbers.setdefault(role + task.subtopology, set()).add(task.partition)
            found[member_id] = {key: frozenset(values) for key, values in numbers.items()}
        return found


class _Room:
    """Capacity of members that get `added` tasks, so that their totals differ by at most one."""

    def __init__(self, counts: Mapping[str, int], added: int) -> None:
        self._counts = counts
        self._least, more = divmod(sum(counts.values()) + added, len(counts))
        self._more = more - sum([count > self._least for count in counts.values()])
        """Number of further members that may get one task above `_least`."""

    def take(self, member_id: str) -> bool:
        """Whether a member may get one more task, which the caller then assigns."""
        count = self._counts[member_id]
        if count == self._least and self._more > 0:
            self._more -= 1
            return True
        return count < self._least


def _tasks(partitions: Partitions) -> Iterator[tuple[bytes, Task]]:
    for key, numbers in partitions.items():
        for number in sorted(numbers):
            yield key[:1], Task(key[1:], number)
