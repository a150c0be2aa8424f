"""Shell of the coordinator for tests: assigns tokens, keeps responses, saves into a dict."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.broker.groups.classic import (
    Assignment,
    ClassicGroups,
    GroupLimits,
    Heartbeat,
    Joined,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    Protocol,
    Synced,
    SyncGroup,
)
from penstock.broker.groups.classic.rebalance import Rebalancer
from penstock.broker.groups.runtime.core import Effect, Refused, Reply, Save, Saved, Stored, Tick
from penstock.broker.groups.runtime.kinds import (
    GROUP_ROW,
    DescribedGroup,
    DescribeGroup,
    Groups,
    Turn,
)

RANGE = (Protocol(name="range", metadata=b"range-subscription"),)
LIMITS = GroupLimits(group_initial_rebalance_delay_ms=0)


class Core(Groups):
    """Core of classic groups only."""

    def __init__(self, limits: GroupLimits | None = None, *, epoch: int = 0) -> None:
        turn = Turn()
        self.timers = turn.timers
        self.classic = ClassicGroups(turn, limits, epoch=epoch)
        super().__init__(turn, [self.classic])

    @property
    def rebalancer(self) -> Rebalancer:
        return self.classic._rebalancer


class Driver:
    """Calls the coordinator; `holding` delays saves until `store_one`."""

    def __init__(self, limits: GroupLimits = LIMITS, *, holding: bool = False) -> None:
        self.limits = limits
        self.core = Core(limits)
        self.epoch = 0
        self.now_ms = 1_000
        self.holding = holding
        self.records: dict[str, Mapping[str, bytes]] = {}
        self.held: list[Save] = []
        self.answers: dict[int, Any] = {}
        self.open: set[int] = set()
        self._token = 0

    def send(self, event: Any) -> int:
        """Handle an event; return its token, whose response may come later."""
        self._token += 1
        token = self._token
        self.open.add(token)
        self.perform(self.core.handle(event, self.now_ms, token))
        return token

    def ask(self, event: Any) -> Any:
        """Return the response to an event that is answered at once."""
        return self.answers[self.send(event)]

    def refusal(self, event: Any) -> str:
        """Return the error of an event that is refused at once."""
        answer = self.ask(event)
        assert isinstance(answer, Refused), answer
        return answer.error

    def tell(self, event: Any) -> None:
        """Handle an event without a response."""
        self.perform(self.core.handle(event, self.now_ms))

    def perform(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Reply):
                assert effect.token in self.open, "answered twice, or never asked"
                self.open.remove(effect.token)
                self.answers[effect.token] = effect.response
            else:
                assert isinstance(effect, Save)
                self.held.append(effect)
        while self.held and not self.holding:
            self.store_one()

    def store_one(self) -> None:
        """Perform the oldest held save or removal."""
        save = self.held.pop(0)
        if save.rows:
            self.records[save.key] = save.rows
        else:
            self.records.pop(save.key, None)
        self.tell(Saved(key=save.key))

    def stored_generation(self, group_id: str = "g") -> int:
        generation: int = json.loads(self.records[group_id][GROUP_ROW])["generation"]
        return generation

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
        """Lose everything that is not saved."""
        self.epoch += 1
        self.core = Core(self.limits, epoch=self.epoch)
        self.open.clear()
        self.held.clear()
        for key, rows in self.records.items():
            self.perform(self.core.load(Stored(key=key, rows=rows), self.now_ms))

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
        """Make a stable group of `count` dynamic members; the first one leads."""
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

    def heartbeat(self, joined: Joined, **fields: Any) -> Any:
        arguments: dict[str, Any] = {
            "group_id": "g",
            "generation": joined.generation,
            "member_id": joined.member_id,
            **fields,
        }
        return self.ask(Heartbeat(**arguments))

    def leave(self, member_id: str, group_instance_id: str | None = None) -> Any:
        leaving = LeavingMember(member_id=member_id, group_instance_id=group_instance_id)
        return self.ask(LeaveGroup(group_id="g", members=(leaving,)))

    def state(self, group_id: str = "g") -> str:
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
