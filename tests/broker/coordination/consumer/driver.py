"""Shell of the core of groups for tests: performs effects at once, or holds them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from penstock.broker.groups.classic import ClassicGroups, GroupLimits
from penstock.broker.groups.consumer import ConsumerGroups, ConsumerHeartbeat, ConsumerLimits
from penstock.broker.groups.consumer.group import ConsumerGroup
from penstock.broker.groups.coordinator import Conversion
from penstock.broker.groups.modern.core import HeartbeatResponse
from penstock.broker.groups.runtime.assignors import NOTHING, Partitions
from penstock.broker.groups.runtime.core import (
    Compute,
    Computed,
    Effect,
    Refused,
    Reply,
    Save,
    Saved,
    SaveFailed,
    Stored,
    Tick,
)
from penstock.broker.groups.runtime.kinds import Groups, NewTopics, Turn
from penstock.control import Partition, Topic

LIMITS = ConsumerLimits(assignment_interval=0)
CLASSIC_LIMITS = GroupLimits(group_initial_rebalance_delay_ms=0)
ORDERS, CLICKS = UUID(int=1), UUID(int=2)


def topic(name: str, topic_id: UUID, count: int) -> Topic:
    partitions = tuple(
        Partition(index=index, leader=1, leader_epoch=0, replicas=(1,), isr=(1,))
        for index in range(count)
    )
    return Topic(topic_id=topic_id, name=name, configs={}, partitions=partitions)


def numbers(partitions: Partitions | None, topic_id: UUID = ORDERS) -> list[int] | None:
    return None if partitions is None else sorted(partitions.get(topic_id.bytes, ()))


def owned(*found: int, topic_id: UUID = ORDERS) -> Partitions:
    return {topic_id.bytes: frozenset(found)} if found else NOTHING


class Driver:
    """`holding` delays saves, `pondering` computations."""

    def __init__(self, limits: ConsumerLimits = LIMITS) -> None:
        self.limits = limits
        self.now_ms = 1_000
        self.holding = self.pondering = False
        self.rows: dict[str, Mapping[str, bytes]] = {}
        self.held: list[Save] = []
        self.wanted: list[Compute] = []
        self.answers: dict[int, Any] = {}
        self._token = 0
        self.topics = {"orders": topic("orders", ORDERS, 6), "clicks": topic("clicks", CLICKS, 2)}
        self._start()

    def _start(self) -> None:
        turn = Turn()
        self.consumer = ConsumerGroups(turn, self.limits)
        self.consumer.topics = dict(self.topics)
        self.classic = ClassicGroups(turn, CLASSIC_LIMITS)
        Conversion(turn, self.classic, self.consumer)
        self.core = Groups(turn, [self.classic, self.consumer])

    def send(self, event: Any) -> int:
        self._token += 1
        self.perform(self.core.handle(event, self.now_ms, self._token))
        return self._token

    def ask(self, event: Any) -> Any:
        return self.answers[self.send(event)]

    def tell(self, event: Any) -> None:
        self.perform(self.core.handle(event, self.now_ms))

    def perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Reply):
                assert effect.token not in self.answers, "answered twice"
                self.answers[effect.token] = effect.response
            elif isinstance(effect, Save):
                self.held.append(effect)
            else:
                assert isinstance(effect, Compute)
                self.wanted.append(effect)
        while self.held and not self.holding:
            self.store()
        while self.wanted and not self.pondering:
            self.compute()

    def store(self, failure: str = "") -> None:
        """Complete the oldest save."""
        save = self.held.pop(0)
        if failure:
            self.tell(SaveFailed(key=save.key, reason=failure))
            return
        if save.rows:
            self.rows[save.key] = save.rows
        else:
            self.rows.pop(save.key, None)
        self.tell(Saved(key=save.key))

    def compute(self, failure: str = "") -> None:
        """Complete the oldest computation."""
        one = self.wanted.pop(0)
        result = None if failure else one.work()
        self.tell(Computed(key=one.key, ticket=one.ticket, result=result, reason=failure))

    def advance(self, milliseconds: int) -> None:
        """Let time pass, ticking at every deadline on the way."""
        end_ms = self.now_ms + milliseconds
        while (deadline := self.core.next_deadline_ms()) is not None and deadline <= end_ms:
            self.now_ms = max(self.now_ms, deadline)
            self.tell(Tick())
        self.now_ms = end_ms

    def restart(self) -> None:
        """Lose everything that is not saved."""
        self.held.clear()
        self.wanted.clear()
        self._start()
        for key, rows in self.rows.items():
            self.perform(self.core.load(Stored(key=key, rows=rows), self.now_ms))

    def change(self, name: str, found: Topic | None) -> None:
        """Create, change or delete a topic."""
        if found is None:
            del self.topics[name]
        else:
            self.topics[name] = found
        self.tell(NewTopics(topics=dict(self.topics), changed={name}))

    # -- members ----------------------------------------------------------------------------

    def beat(self, member_id: str, epoch: int, **fields: Any) -> Any:
        return self.ask(heartbeat(member_id, epoch, **fields))

    def join(self, member_id: str, *topics: str, **fields: Any) -> HeartbeatResponse:
        answer = self.ask(joining(member_id, *topics, **fields))
        assert isinstance(answer, HeartbeatResponse), answer
        return answer

    def refusal(self, event: Any) -> str:
        answer = self.ask(event)
        assert isinstance(answer, Refused), answer
        return answer.error

    @property
    def group(self) -> ConsumerGroup:
        return self.consumer.groups["g"]


def heartbeat(member_id: str, epoch: int, **fields: Any) -> ConsumerHeartbeat:
    return ConsumerHeartbeat(
        **{
            "group_id": "g",
            "member_id": member_id,
            "epoch": epoch,
            "client_id": "client",
            "client_host": "/host",
            **fields,
        }
    )


def joining(member_id: str, *topics: str, **fields: Any) -> ConsumerHeartbeat:
    return heartbeat(
        member_id,
        0,
        **{
            "topics": frozenset(topics or ("orders",)),
            "owned": NOTHING,
            "rebalance_timeout_ms": 10_000,
            **fields,
        },
    )
