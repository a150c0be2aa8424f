"""The coordinator of one group with its store, network and clock, and what must hold.

two owners   a process takes a partition that another one reads, which the group still knows
forgotten    an epoch that somebody was told comes again after a crash, or was never stored
answered     a request is answered twice, or never
settled      once nothing goes wrong any more, every partition is read by one process, each by as
             many as by the others, and no member is left of a process that is gone
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable, Collection, Mapping
from random import Random
from typing import Any, Final
from uuid import UUID

from msgspec import Struct

from penstock.broker.groups.classic import ClassicGroups, GroupLimits
from penstock.broker.groups.classic import GroupState as ClassicState
from penstock.broker.groups.consumer import ConsumerGroups, ConsumerLimits
from penstock.broker.groups.consumer.group import ConsumerGroup, GroupState
from penstock.broker.groups.coordinator import Conversion
from penstock.broker.groups.modern.core import HeartbeatResponse
from penstock.broker.groups.runtime.assignors import Partitions, both
from penstock.broker.groups.runtime.core import (
    Compute,
    Computed,
    Effect,
    Reply,
    Save,
    Saved,
    SaveFailed,
    Stored,
    Tick,
)
from penstock.broker.groups.runtime.kinds import Groups, NewTopics, Turn
from penstock.control import Partition, Topic
from sim.consumer_groups.classic import ClassicProcess
from sim.consumer_groups.member import Process

SESSION_MS: Final = 3_000
FAULTS_MS: Final = 20_000
SETTLE_MS: Final = 60_000
LIMITS: Final = ConsumerLimits(
    session_timeout=SESSION_MS, heartbeat_interval=500, assignment_interval=100
)
CLASSIC_LIMITS: Final = GroupLimits(group_initial_rebalance_delay_ms=50)


class Violation(Exception):
    """Something that must hold does not."""


def ordered(value: Any) -> Any:
    """A value whose text does not depend on the order of sets."""
    if isinstance(value, Struct):
        return ordered({name: getattr(value, name) for name in value.__struct_fields__})
    if isinstance(value, Mapping):
        return sorted((key, ordered(item)) for key, item in value.items())
    if isinstance(value, frozenset):
        return sorted(value)
    return [ordered(item) for item in value] if isinstance(value, list | tuple) else value


def topic(name: str, count: int, number: int) -> Topic:
    partitions = [
        Partition(index=index, leader=1, leader_epoch=0, replicas=(1,), isr=(1,))
        for index in range(count)
    ]
    return Topic(topic_id=UUID(int=number), name=name, configs={}, partitions=tuple(partitions))


class World:
    """All of it; see the module's text. `plant` changes the group core before anything happens;
    `rolling`: half of the processes speak the classic protocol."""

    def __init__(
        self,
        seed: int,
        plant: Callable[[ConsumerGroups], None] = lambda groups: None,
        *,
        rolling: bool = False,
    ) -> None:
        self.random = Random(seed)
        self.plant = plant
        self.rolling = rolling
        self.now_ms = 0
        self.faults = True
        self.trace = hashlib.sha256()
        self.processes: list[Process] = []
        self.arriving: dict[str, int] = {}
        self.waiting: dict[int, Callable[[Any], None]] = {}
        self.rows: Mapping[str, bytes] = {}
        self.saving: list[Save] = []
        self.told_epoch = 0
        self._topic_number = 0
        self._token = 0
        self._agenda: list[tuple[int, int, Callable[[], None]]] = []
        self._sequence = 0
        self._crashes = 0
        self.topics = {name: self._topic(name, count) for name, count in (("a", 3), ("b", 4))}
        self._start()

    def _topic(self, name: str, count: int) -> Topic:
        self._topic_number += 1
        return topic(name, count, self._topic_number)

    def _start(self) -> None:
        turn = Turn()
        self.consumer = ConsumerGroups(turn, LIMITS)
        self.consumer.topics = dict(self.topics)
        self.plant(self.consumer)
        self.classic = ClassicGroups(turn, CLASSIC_LIMITS, epoch=self._crashes)
        Conversion(turn, self.classic, self.consumer)
        self.core = Groups(turn, [self.classic, self.consumer])

    @property
    def group(self) -> ConsumerGroup | None:
        return self.consumer.groups.get("g")

    @property
    def members(self) -> Collection[str]:
        """Who is in the group, whatever its kind."""
        if "g" in self.classic.ids:
            return self.classic.group("g").members
        return () if self.group is None else self.group.members

    @property
    def stable(self) -> bool:
        if "g" in self.classic.ids:
            return self.classic.group("g").state is ClassicState.STABLE
        return self.group is not None and self.group.state is GroupState.STABLE

    def violated(self, what: str) -> None:
        raise Violation(f"at {self.now_ms} ms: {what}")

    # -- time and chance --------------------------------------------------------------------

    def after(self, delay_ms: int, action: Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._agenda, (self.now_ms + delay_ms, self._sequence, action))

    def chance(self, probability: float) -> bool:
        return self.faults and self.random.random() < probability

    def delay_ms(self) -> int:
        return self.random.randint(1, 500 if self.chance(0.1) else 20)

    def run_until(self, end_ms: int, done: Callable[[], bool] = lambda: False) -> bool:
        while not done():
            when = self._agenda[0][0] if self._agenda else end_ms
            deadline = self.core.next_deadline_ms()
            if deadline is not None and deadline <= min(when, end_ms):
                self.now_ms = max(self.now_ms, deadline)
                self.happen(Tick())
            elif self._agenda and when <= end_ms:
                self.now_ms, _, action = heapq.heappop(self._agenda)
                action()
            else:
                self.now_ms = max(self.now_ms, end_ms)
                return done()
        return True

    # -- the network ------------------------------------------------------------------------

    def send(
        self,
        process: Process,
        request: int,
        event: Any,
        on_answer: Callable[[Any], None],
    ) -> None:
        """A request may be lost, and is if a newer one of its process overtakes it."""
        self.arriving[process.name] = request
        if not self.chance(0.04):
            self.after(self.delay_ms(), lambda: self._arrive(process, request, event, on_answer))

    def _arrive(
        self,
        process: Process,
        request: int,
        event: Any,
        on_answer: Callable[[Any], None],
    ) -> None:
        if self.arriving[process.name] != request:
            return
        self._token += 1
        self.waiting[self._token] = on_answer
        self.happen(event, self._token)

    def happen(self, event: Any, token: int = 0) -> None:
        effects = self.core.handle(event, self.now_ms, token)
        replies = [effect.response for effect in effects if isinstance(effect, Reply)]
        told = type(event).__name__, getattr(event, "member_id", ""), replies
        self.trace.update(f"{self.now_ms} {ordered(told)}\n".encode())
        self.perform(effects)

    def perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Reply):
                self._answer(effect)
            elif isinstance(effect, Save):
                self._store(effect)
            elif isinstance(effect, Compute):
                self._compute(effect)

    def _answer(self, reply: Reply) -> None:
        on_answer = self.waiting.pop(reply.token, None)
        if on_answer is None:
            self.violated(f"token {reply.token} is answered twice")
        elif not self.chance(0.04):
            self.after(self.delay_ms(), lambda: on_answer(reply.response))

    def _compute(self, wanted: Compute) -> None:
        core, result = self.core, wanted.work()
        done = Computed(key=wanted.key, ticket=wanted.ticket, result=result)
        if self.chance(0.05):
            done = Computed(key=wanted.key, ticket=wanted.ticket, reason="out of luck")
        self.after(self.delay_ms(), lambda: self.happen(done) if self.core is core else None)

    # -- the store --------------------------------------------------------------------------

    def _store(self, save: Save) -> None:
        if self.saving:
            self.violated("two saves of a group are under way")
        self.saving.append(save)
        self.after(self.delay_ms(), lambda: self._stored(save))

    def _stored(self, save: Save) -> None:
        if save not in self.saving:
            return  # the coordinator that wanted it is gone
        self.saving.remove(save)
        fails = self.chance(0.08)
        if not fails or self.random.random() < 0.5:
            self.rows = save.rows
        self.happen(SaveFailed(key="g", reason="unknown") if fails else Saved(key="g"))

    def crash(self) -> None:
        """Another coordinator takes over what is stored; who waits here times out."""
        if self.saving and self.random.random() < 0.5:
            self.rows = self.saving[0].rows
        self.saving.clear()
        self.waiting.clear()
        self._crashes += 1
        self._start()
        if self.rows:
            self.perform(self.core.load(Stored(key="g", rows=self.rows), self.now_ms))
        self.trace.update(b"crash\n")

    # -- what must hold ---------------------------------------------------------------------

    def takes(self, process: Process, partitions: Partitions) -> None:
        """A process begins to read."""
        members = self.members
        for other in self.processes:
            if other is process or not other.alive or other.member_id not in members:
                continue
            shared = both(partitions, other.owned)
            if shared:
                self.violated(f"{process.member_id} and {other.member_id} both read {shared}")

    def revealed(self, process: Process, answer: HeartbeatResponse) -> None:
        """A process has been told its epoch: it is stored, and stays."""
        self.told_epoch = max(self.told_epoch, answer.epoch)
        if "g" in self.classic.ids:  # and the process will soon be told so
            return
        epoch = 0 if self.group is None else self.group.epoch
        if epoch < self.told_epoch:
            self.violated(f"{self.told_epoch} was told, and the group is at epoch {epoch}")

    def settled(self) -> bool:
        alive = [process for process in self.processes if process.alive]
        if not self.members:
            return not alive
        if not self.stable or len(self.members) != len(alive):
            return False
        wanted = {
            (found.topic_id.bytes, index)
            for name, found in self.topics.items()
            if any(name in process.topics or process.regex for process in alive)
            for index in range(len(found.partitions))
        }
        owned = [
            [(key, number) for key, numbers in process.owned.items() for number in numbers]
            for process in alive
        ]
        everything = sorted(entry for entries in owned for entry in entries)
        alike = (
            len({(process.topics, process.regex) for process in alive}) == 1 and not self.rolling
        )
        spread = max(map(len, owned)) - min(map(len, owned))
        return everything == sorted(wanted) and (not alike or spread <= 1)

    # -- the plot ---------------------------------------------------------------------------

    def join(self, instance: str | None = None) -> Process:
        topics = self.random.choice([{"a", "b"}, {"a", "b"}, {"a"}, {"b", "c"}])
        process = Process(self, len(self.processes), instance, frozenset(topics))
        if self.rolling and instance is None and self.random.random() < 0.5:
            process = ClassicProcess(self, len(self.processes), frozenset(topics))
        elif self.random.random() < 0.15:
            process.regex, process.topics = "[a-c]", frozenset()
        self.processes.append(process)
        self.after(self.random.randint(0, 50), process.beat)
        return process

    def disturb(self) -> None:
        """One thing goes wrong, or somebody comes or goes, or topics change."""
        if not self.faults:
            return
        draw = self.random.random()
        alive = [process for process in self.processes if process.alive and not process.leaving]
        if draw < 0.3 and len(alive) < 6:
            self.join()
        elif draw < 0.4 and alive:
            self.random.choice(alive).die()
        elif draw < 0.55 and alive:
            self.random.choice(alive).leave(-1)
        elif draw < 0.75:
            self._static(alive)
        elif draw < 0.85:
            self._change_topics()
        elif draw < 0.95:
            self.crash()
        self.after(self.random.randint(20, 1_200), self.disturb)

    def _static(self, alive: list[Process]) -> None:
        """A static member comes, or restarts: its old process leaves, dies or lingers."""
        instance = self.random.choice(["i1", "i2"])
        for old in alive:
            if old.instance == instance:
                way = self.random.choice(["leaves", "dies", "lingers"])
                if way == "leaves":
                    old.leave(-2)
                elif way == "dies":
                    old.die()
        if len(alive) < 6:
            self.join(instance)

    def _change_topics(self) -> None:
        name = self.random.choice(["a", "b", "c"])
        known = self.topics.get(name)
        if known is None or self.random.random() < 0.3:
            self.topics[name] = self._topic(name, self.random.randint(1, 5))
        elif self.random.random() < 0.3:
            del self.topics[name]
        else:
            more = topic(name, len(known.partitions) + 1, known.topic_id.int)
            self.topics[name] = more
        self.happen(NewTopics(topics=dict(self.topics), changed={name}))

    def run(self) -> str:
        """The whole story; returns the digest of all that happened."""
        for _ in range(self.random.randint(1, 3)):
            self.join()
        self.after(200, self.disturb)
        self.run_until(FAULTS_MS)
        self.faults = False
        self._end_of_rivals()
        if not self.run_until(self.now_ms + SETTLE_MS, self.settled):
            states = [(p.member_id, p.alive, p.epoch, p.owned) for p in self.processes if p.alive]
            self.violated(f"not settled: {self.stable} {sorted(self.members)}, {states}")
        self.run_until(self.now_ms + SESSION_MS)
        asked = set(self.waiting)  # the last ones may still wait for a save
        if not self.run_until(self.now_ms + SESSION_MS, lambda: asked.isdisjoint(self.waiting)):
            self.violated(f"{len(asked & self.waiting.keys())} requests were never answered")
        return self.trace.hexdigest()

    def _end_of_rivals(self) -> None:
        """Of processes that run as the same instance, one remains."""
        last = {process.instance: process for process in self.processes if process.alive}
        for process in self.processes:
            if (
                process.instance is not None
                and process.alive
                and last[process.instance] is not process
            ):
                process.die()


def run(
    seed: int,
    plant: Callable[[ConsumerGroups], None] = lambda groups: None,
    *,
    rolling: bool = False,
) -> str:
    """Run one seed; a violation names it."""
    try:
        return World(seed, plant, rolling=rolling).run()
    except Violation as error:
        raise Violation(f"seed {seed}: {error}") from error
