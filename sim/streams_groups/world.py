"""World of one streams group: that of consumer groups, with tasks instead of partitions.

Besides the rules of `sim.consumer_groups.world`:

roles      no process has a task in two roles, and no active task has two members
topology   no member has a task that its topology does not have
balance    every task of the topology is active once; two members with the newest topology differ by
           at most one active task; each stateful task has its standby tasks on other processes
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final

from penstock.broker.groups.classic import ClassicGroups
from penstock.broker.groups.consumer import ConsumerHeartbeat
from penstock.broker.groups.runtime.assignors import Partitions
from penstock.broker.groups.runtime.core import Reply
from penstock.broker.groups.runtime.kinds import Groups, NewTopics, Turn
from penstock.broker.groups.streams import (
    InternalTopic,
    StreamsGroups,
    StreamsHeartbeat,
    StreamsLimits,
    StreamsResponse,
    Subtopology,
    Topology,
)
from penstock.broker.groups.streams.assignor import ACTIVE, STANDBY
from sim.consumer_groups.member import REBALANCE_TIMEOUT_MS, Process
from sim.consumer_groups.world import CLASSIC_LIMITS, SESSION_MS, Violation, World, topic

STANDBYS: Final = 1
LIMITS: Final = StreamsLimits(
    session_timeout=SESSION_MS,
    heartbeat_interval=500,
    assignment_interval=100,
    initial_delay=80,
    standbys=STANDBYS,
)
HOSTS: Final = ("h0", "h1", "h2")
STATEFUL: Final = ("1", "2")
INTERNAL: Final = ("r", "c1", "c2")
OLD: Final = Topology(
    epoch=0,
    subtopologies=(
        Subtopology(subtopology_id="0", source_topics=("a",), repartition_sinks=("r",)),
        Subtopology(
            subtopology_id="1",
            repartition_sources=(InternalTopic(name="r"),),
            changelogs=(InternalTopic(name="c1"),),
        ),
    ),
)
NEW: Final = Topology(
    epoch=1,
    subtopologies=(
        *OLD.subtopologies,
        Subtopology(
            subtopology_id="2",
            source_regexes=("[bd]",),
            changelogs=(InternalTopic(name="c2"),),
        ),
    ),
)

Plant = Callable[[Any], None]
TaskId = tuple[str, int]


def tasks_of(owned: Partitions, role: bytes) -> Iterator[TaskId]:
    for key, numbers in owned.items():
        if key[:1] == role:
            yield from [(key[1:].decode(), number) for number in numbers]


def all_tasks(owned: Partitions) -> list[TaskId]:
    return [(key[1:].decode(), number) for key, numbers in owned.items() for number in numbers]


class Thread(Process):
    """Stream thread, which is a member; threads on one host are one process."""

    def __init__(
        self, world: StreamsWorld, number: int, instance: str | None, host: str, topology: Topology
    ) -> None:
        super().__init__(world, number, instance, frozenset())
        self.host, self.topology = host, topology

    def heartbeat(self, owned: Partitions | None) -> ConsumerHeartbeat:
        joins = self.epoch == 0 and not self.leaving
        return StreamsHeartbeat(
            group_id="g",
            member_id=self.member_id,
            epoch=self.leaving or self.epoch,
            client_id=self.member_id,
            client_host="/sim",
            instance_id=self.instance,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS if self.full else -1,
            owned={} if joins else owned,
            topology=self.topology if joins else None,
            process_id=self.host if self.full else None,
        )


class StreamsWorld(World):
    def _start(self) -> None:
        turn = Turn()
        self.streams = StreamsGroups(turn, LIMITS)
        self.streams.topics = dict(self.topics)
        core: Any = self.streams  # of which the world of consumer groups uses the common parts
        self.consumer = core
        self.plant(core)
        self.classic = ClassicGroups(turn, CLASSIC_LIMITS, epoch=self._crashes)
        self.core = Groups(turn, [self.classic, self.streams])

    def _answer(self, reply: Reply) -> None:
        response = reply.response
        missing = response.configured.missing if isinstance(response, StreamsResponse) else ()
        if missing and not self.chance(0.3):
            self.after(self.delay_ms(), lambda: self._create(missing))
        super()._answer(reply)

    def counts(self) -> dict[str, int]:
        """Return the partition counts that the topics of the newest topology must have."""
        sizes = {name: len(found.partitions) for name, found in self.topics.items()}
        second = max(sizes.get("b", 0), sizes.get("d", 0))
        return {"r": sizes.get("a", 0), "c1": sizes.get("a", 0), "c2": second}

    def _create(self, missing: tuple[InternalTopic, ...]) -> None:
        """Create internal topics, unless their sources have changed since."""
        counts = self.counts()
        made = [t for t in missing if t.name not in self.topics and t.partitions == counts[t.name]]
        for item in made:
            self.topics[item.name] = self._topic(item.name, item.partitions)
        if made:
            changed = {item.name for item in made}
            self.happen(NewTopics(topics=dict(self.topics), changed=changed))

    # -- rules ------------------------------------------------------------------------------

    def takes(self, process: Process, partitions: Partitions) -> None:
        members, thread = self.members, self._thread(process)
        known = {sub.subtopology_id for sub in thread.topology.subtopologies}
        unknown = [task for task in all_tasks(partitions) if task[0] not in known]
        if unknown:
            self.violated(f"{process.member_id} has no subtopology of {unknown}")
        for other in map(self._thread, self.processes):
            if other is process or not other.alive or other.member_id not in members:
                continue
            active = {*tasks_of(partitions, ACTIVE)} & {*tasks_of(other.owned, ACTIVE)}
            roles = {*all_tasks(partitions)} & {*all_tasks(other.owned)}
            if active or (roles and other.host == thread.host):
                both = f"{process.member_id} and {other.member_id}"
                self.violated(f"{both} have active {active}, roles {roles}")
        doubled = [task for task, n in Counter(all_tasks(process.target or {})).items() if n > 1]
        if doubled:
            self.violated(f"{process.member_id} has two roles of {doubled}")

    @staticmethod
    def _thread(process: Process) -> Thread:
        if not isinstance(process, Thread):
            raise TypeError(process)
        return process

    def wanted(self, topology: Topology) -> set[TaskId]:
        """Return the tasks that the sources have; empty while a source is missing."""
        counts = self.counts()
        sizes = {"0": counts["r"], "1": counts["r"]}
        if topology is NEW:
            sizes["2"] = counts["c2"]
        if not all(sizes.values()):
            return set()
        return {(sub, number) for sub, count in sizes.items() for number in range(count)}

    def settled(self) -> bool:
        alive = [self._thread(process) for process in self.processes if process.alive]
        if not self.members:
            return not alive
        topology = self.streams.groups["g"].topology
        if topology is None or not self.stable or len(self.members) != len(alive):
            return False
        epoch = topology.epoch
        wanted = self.wanted((OLD, NEW)[epoch])
        current = [thread for thread in alive if thread.topology.epoch == epoch]
        active = [sorted(tasks_of(thread.owned, ACTIVE)) for thread in current]
        spread = max(map(len, active)) - min(map(len, active))
        hosts = {thread.host for thread in current}
        standbys = Counter([t for thread in current for t in tasks_of(thread.owned, STANDBY)])
        copies = min(STANDBYS, len(hosts) - 1)
        expected = {task: copies for task in wanted if task[0] in STATEFUL and copies}
        every = sorted(task for tasks in active for task in tasks)
        return every == sorted(wanted) and spread <= 1 and dict(standbys) == expected

    # -- the plot ---------------------------------------------------------------------------

    def join(self, instance: str | None = None, *, new: bool = False) -> Process:
        topology = NEW if new or self.random.random() < 0.3 else OLD
        host = self.random.choice(HOSTS)
        thread = Thread(self, len(self.processes), instance, host, topology)
        self.processes.append(thread)
        self.after(self.random.randint(0, 50), thread.beat)
        return thread

    def _change_topics(self) -> None:
        """Create, extend or delete a source topic; internal topics are deleted, as by a reset."""
        name = self.random.choice(["a", "b", "d"])
        known = self.topics.get(name)
        if known is None or self.random.random() < 0.3:
            self.topics[name] = self._topic(name, self.random.randint(1, 5))
        elif self.random.random() < 0.3:
            del self.topics[name]
        else:
            self.topics[name] = topic(name, len(known.partitions) + 1, known.topic_id.int)
        for internal in INTERNAL:
            self.topics.pop(internal, None)
        self.happen(NewTopics(topics=dict(self.topics), changed={name, *INTERNAL}))

    def _end_of_rivals(self) -> None:
        super()._end_of_rivals()
        alive = [self._thread(process) for process in self.processes if process.alive]
        if alive and not any(thread.topology is NEW and not thread.leaving for thread in alive):
            self.join(new=True)


def run(seed: int, plant: Plant = lambda groups: None) -> str:
    """Run one seed; a violation names it."""
    try:
        return StreamsWorld(seed, plant).run()
    except Violation as error:
        raise Violation(f"seed {seed}: {error}") from error
