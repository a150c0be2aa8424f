"""A process that speaks the classic protocol: it gives up all that it reads before it joins again.

When it leads, it deals the partitions of each topic among those that read it, in turn.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from penstock.broker.groups.classic import (
    Assignment,
    Heartbeat,
    Joined,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    Protocol,
    Synced,
    SyncGroup,
)
from penstock.broker.groups.consumer.classic_requests import (
    by_id,
    decode_assignment,
    decode_subscription,
    encode_assignment,
)
from penstock.broker.groups.runtime.assignors import NOTHING, fewer
from penstock.broker.groups.runtime.core import Refused
from sim.consumer_groups.member import (
    HEARTBEAT_MS,
    REBALANCE_TIMEOUT_MS,
    REQUEST_TIMEOUT_MS,
    Process,
)

if TYPE_CHECKING:
    from penstock.control import Topic
    from sim.consumer_groups.world import World

SESSION_MS: Final = 6_000
RETRIED: Final = {
    "rebalance_in_progress",
    "illegal_generation",
    "coordinator_not_available",
    "not_coordinator",
}


class ClassicProcess(Process):
    """One process; its epoch is the generation."""

    def __init__(self, world: World, number: int, topics: frozenset[str]) -> None:
        super().__init__(world, number, None, topics)
        self.member_id = ""
        self.joining = True

    def beat(self) -> None:
        """Join, or heartbeat."""
        if not self.alive:
            return
        if self.leaving:
            leaving = LeavingMember(member_id=self.member_id)
            self._ask(LeaveGroup(group_id="g", members=(leaving,)), self._left)
        elif self.joining:
            self._join()
        else:
            event = Heartbeat(group_id="g", generation=self.epoch, member_id=self.member_id)
            self._ask(event, self._beaten)

    def _ask(self, event: Any, then: Any, timeout_ms: int = REQUEST_TIMEOUT_MS) -> None:
        self.request += 1
        request = self.request

        def answered(answer: Any) -> None:
            if self.request == request and self.alive:
                self.request += 1
                if isinstance(answer, Refused):
                    self._turned_down(answer)
                else:
                    then(answer)

        self.world.send(self, request, event, answered)
        self.world.after(timeout_ms, lambda: self._again(request))

    def _join(self) -> None:
        self.owned = NOTHING
        names = sorted(self.topics)
        metadata = struct.pack(">hi", 1, len(names))
        for name in names:
            metadata += struct.pack(">h", len(name)) + name.encode()
        metadata += struct.pack(">ii", -1, 0)
        event = JoinGroup(
            group_id="g",
            member_id=self.member_id,
            group_instance_id=None,
            client_id=self.name,
            client_host="/sim",
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
            protocol_type="consumer",
            protocols=(Protocol(name="range", metadata=metadata),),
            fresh_id=f"{self.world.now_ms}-{self.request}",
        )
        self._ask(event, self._joined, REBALANCE_TIMEOUT_MS + REQUEST_TIMEOUT_MS)

    def _joined(self, answer: Joined) -> None:
        self.member_id, self.epoch = answer.member_id, answer.generation
        given = self._deal(answer) if answer.leader == answer.member_id else ()
        event = SyncGroup(
            group_id="g",
            generation=answer.generation,
            member_id=answer.member_id,
            protocol_type="consumer",
            protocol="range",
            assignments=given,
        )
        topics = dict(self.world.topics)
        self._ask(event, lambda answer: self._synced(answer, topics))

    def _deal(self, answer: Joined) -> tuple[Assignment, ...]:
        found: dict[str, dict[str, set[int]]] = {member.member_id: {} for member in answer.members}
        turn = 0
        for name, topic in self.world.topics.items():
            readers = [
                member.member_id
                for member in answer.members
                if name in decode_subscription(member.metadata).topics
            ]
            for partition in topic.partitions if readers else ():
                reader = readers[turn % len(readers)]
                found[reader].setdefault(name, set()).add(partition.index)
                turn += 1
        return tuple(
            Assignment(
                member_id=member,
                assignment=encode_assignment(
                    {name: frozenset(numbers) for name, numbers in has.items()}, 1
                ),
            )
            for member, has in found.items()
        )

    def _synced(self, answer: Synced, topics: Mapping[str, Topic]) -> None:
        """Read what the coordinator names; of a topic that is made anew meanwhile, nothing.

        The protocol knows topics by their names alone: two members may read such a topic, with any
        coordinator.
        """
        self.joining = False
        same = {
            name: topic
            for name, topic in self.world.topics.items()
            if name in topics and topics[name].topic_id == topic.topic_id
        }
        told = by_id(decode_assignment(answer.assignment), same)
        self.world.takes(self, fewer(told, self.owned))
        self.owned = told
        self._later(HEARTBEAT_MS)

    def _beaten(self, answer: object) -> None:
        self._later(HEARTBEAT_MS)

    def _left(self, answer: object) -> None:
        self.alive = False

    def _turned_down(self, answer: Refused) -> None:
        if self.leaving:
            self.alive = False
            return
        self.joining = True
        if answer.error == "member_id_required":
            self.member_id = answer.member_id
        elif answer.error == "unknown_member_id":
            self.member_id, self.owned = "", NOTHING
        elif answer.error not in RETRIED:
            self.world.violated(f"{self.name} got {answer.error}: {answer.message}")
        self._later(self.world.random.randint(1, 200))

    def _later(self, delay_ms: int) -> None:
        number = self.request
        self.world.after(delay_ms, lambda: self._again(number))

    def leave(self, epoch: int) -> None:
        """Close: one that is in no group yet is just gone."""
        self.owned = NOTHING
        if not self.member_id:
            self.die()
            return
        self.leaving = epoch
        self.beat()
