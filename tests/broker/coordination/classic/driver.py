"""A small shell around the coordinator: hands out tokens, keeps answers, saves into a dict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.broker.coordination.classic import (
    Assignment,
    Event,
    GroupCoordinator,
    GroupLimits,
    GroupRemoved,
    GroupSaved,
    Heartbeat,
    Joined,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    Protocol,
    Refused,
    RemoveGroup,
    Reply,
    Response,
    SaveGroup,
    Synced,
    SyncGroup,
    Tick,
)
from penstock.broker.coordination.classic.effects import Effect
from penstock.control import GroupRecord

RANGE = (Protocol(name="range", metadata=b"range-subscription"),)
LIMITS = GroupLimits(group_initial_rebalance_delay_ms=0)


class Driver:
    """Calls the coordinator; `holding` keeps saves back until `store_one`."""

    def __init__(self, limits: GroupLimits = LIMITS, *, holding: bool = False) -> None:
        self.limits = limits
        self.core = GroupCoordinator(limits)
        self.epoch = 0
        self.now_ms = 1_000
        self.holding = holding
        self.records: dict[str, GroupRecord] = {}
        self.held: list[SaveGroup | RemoveGroup] = []
        self.answers: dict[int, Response] = {}
        self.open: set[int] = set()
        self.version = 0
        self._token = 0

    def send(self, event: Event) -> int:
        """Handle an event; returns its token, whose answer may be there or come later."""
        self._token += 1
        token = self._token
        self.open.add(token)
        self.perform(self.core.handle(event, self.now_ms, token))
        return token

    def ask(self, event: Event) -> Response:
        """Handle an event that is answered at once."""
        return self.answers[self.send(event)]

    def refusal(self, event: Event) -> str:
        """The error of an event that is refused at once."""
        answer = self.ask(event)
        assert isinstance(answer, Refused), answer
        return answer.error

    def tell(self, event: Event) -> None:
        """Handle an event that has no answer."""
        self.perform(self.core.handle(event, self.now_ms))

    def perform(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Reply):
                assert effect.token in self.open, "answered twice, or never asked"
                self.open.remove(effect.token)
                self.answers[effect.token] = effect.response
            else:
                self.held.append(effect)
        while self.held and not self.holding:
            self.store_one()

    def store_one(self) -> None:
        """Perform the oldest save or removal that is held."""
        effect = self.held.pop(0)
        if isinstance(effect, RemoveGroup):
            self.records.pop(effect.group_id, None)
            self.tell(GroupRemoved(group_id=effect.group_id))
            return
        group_id = effect.record.group_id
        known = self.records.get(group_id)
        assert effect.expected_version == (0 if known is None else known.version)
        self.version += 1
        self.records[group_id] = GroupRecord(
            group_id=group_id,
            version=self.version,
            generation=effect.record.generation,
            protocol_type=effect.record.protocol_type,
            protocol=effect.record.protocol,
            state=effect.record.state,
        )
        self.tell(GroupSaved(group_id=group_id, version=self.version))

    def advance(self, milliseconds: int) -> None:
        """Let time pass, ticking at every deadline on the way."""
        end_ms = self.now_ms + milliseconds
        while True:
            deadline = self.core.next_deadline_ms()
            if deadline is None or deadline > end_ms:
                break
            self.now_ms = max(self.now_ms, deadline)
            self.tell(Tick())
        self.now_ms = end_ms

    def restart(self) -> None:
        """Lose everything that was not saved."""
        self.epoch += 1
        self.core = GroupCoordinator(self.limits, epoch=self.epoch)
        self.open.clear()
        self.held.clear()
        for record in self.records.values():
            self.perform(self.core.restore(record, self.now_ms))

    # -- whole conversations ----------------------------------------------------------------

    def join(self, member_id: str = "", **fields: Any) -> int:
        """Send a JoinGroup; a dynamic member first fetches its id."""
        event = join_event(member_id, fresh_id=str(self._token), **fields)
        if not member_id and event.group_instance_id is None and event.member_id_required:
            answer = self.ask(event)
            assert isinstance(answer, Refused), answer
            assert answer.error == "member_id_required", answer
            event = join_event(answer.member_id, **fields)
        return self.send(event)

    def joined(self, token: int) -> Joined:
        answer = self.answers[token]
        assert isinstance(answer, Joined), answer
        return answer

    def sync(self, joined: Joined, **fields: Any) -> int:
        """Send a SyncGroup; the leader gives each member its own id as assignment."""
        assignments = tuple(
            Assignment(member_id=member.member_id, assignment=member.member_id.encode())
            for member in joined.members
        )
        arguments: dict[str, Any] = {
            "group_id": "g",
            "generation": joined.generation,
            "member_id": joined.member_id,
            "assignments": assignments,
            **fields,
        }
        return self.send(SyncGroup(**arguments))

    def synced(self, token: int) -> Synced:
        answer = self.answers[token]
        assert isinstance(answer, Synced), answer
        return answer

    def stable(self, count: int = 1, **fields: Any) -> list[Joined]:
        """A stable group of `count` dynamic members; the first of the result leads."""
        tokens = [self.join(**fields)]
        if count > 1:
            first = self.joined(tokens[0])
            self.sync(first)
            tokens = [self.join(**fields) for _ in range(count - 1)]
            tokens.insert(0, self.join(first.member_id, **fields))
        members = [self.joined(token) for token in tokens]
        for joined in members:
            self.sync(joined)
        return members

    def heartbeat(self, joined: Joined, **fields: Any) -> Response:
        arguments: dict[str, Any] = {
            "group_id": "g",
            "generation": joined.generation,
            "member_id": joined.member_id,
            **fields,
        }
        return self.ask(Heartbeat(**arguments))

    def leave(self, member_id: str, group_instance_id: str | None = None) -> Response:
        leaving = LeavingMember(member_id=member_id, group_instance_id=group_instance_id)
        return self.ask(LeaveGroup(group_id="g", members=(leaving,)))

    def state(self, group_id: str = "g") -> str:
        from penstock.broker.coordination.classic import DescribedGroup, DescribeGroup

        answer = self.ask(DescribeGroup(group_id=group_id))
        return answer.state if isinstance(answer, DescribedGroup) else "absent"


def join_event(member_id: str = "", **fields: Any) -> JoinGroup:
    arguments: dict[str, Any] = {
        "group_id": "g",
        "member_id": member_id,
        "group_instance_id": None,
        "client_id": "client",
        "client_host": "/127.0.0.1",
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 60_000,
        "protocol_type": "consumer",
        "protocols": RANGE,
        "fresh_id": "0",
        **fields,
    }
    return JoinGroup(**arguments)
