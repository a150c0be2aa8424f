"""Share groups by events: members join, heartbeat, leave and get assignments; saves come first."""

from __future__ import annotations

from collections import deque
from typing import Any
from uuid import UUID

import pytest
from msgspec.structs import replace

from penstock.broker.configuration.groups import GroupConfigs
from penstock.broker.groups.modern.core import HeartbeatResponse
from penstock.broker.groups.runtime.assignors import Partitions
from penstock.broker.groups.runtime.core import (
    Compute,
    Computed,
    Refused,
    Reply,
    Save,
    Saved,
    SaveFailed,
    Stored,
    Tick,
)
from penstock.broker.groups.runtime.kinds import (
    CommitCheck,
    DeleteGroup,
    DescribeGroup,
    Groups,
    ListGroups,
    NewTopics,
    Turn,
)
from penstock.broker.groups.share import (
    DescribedShareGroup,
    EnsureShareGroup,
    ShareGroupLimits,
    ShareGroups,
    ShareHeartbeat,
)
from penstock.control import Partition, Topic

SESSION_MS = 45_000


def topic(name: str, number: int, partitions: int) -> Topic:
    rows = tuple(
        Partition(index=index, leader=1, leader_epoch=0, replicas=(1,), isr=(1,))
        for index in range(partitions)
    )
    return Topic(topic_id=UUID(int=number), name=name, configs={}, partitions=rows)


ONE = UUID(int=1).bytes
TOPICS = {"t": topic("t", 1, 4), "u": topic("u", 2, 2)}


class House:
    """A core, a store of rows, and a clock."""

    def __init__(self, rows: dict[str, dict[str, bytes]] | None = None, max_size: int = 3) -> None:
        turn = Turn()
        limits = ShareGroupLimits(
            configs=lambda _: GroupConfigs(), max_size=max_size, assignment_interval=0
        )
        self.kind = ShareGroups(turn, limits)
        self.kind.topics = TOPICS
        self.core = Groups(turn, [self.kind])
        self.now_ms = 0
        self.token = 0
        self.rows = rows or {}
        self.answers: dict[int, Any] = {}
        self.held: deque[Save] = deque()
        self.holds = self.fails = False
        for group_id, stored in self.rows.items():
            self.perform(self.core.load(Stored(key=group_id, rows=stored), 0))

    def perform(self, effects: list[Any]) -> None:
        waiting = deque(effects)
        while waiting:
            effect = waiting.popleft()
            if isinstance(effect, Reply):
                self.answers[effect.token] = effect.response
            elif isinstance(effect, Compute):
                done = Computed(key=effect.key, ticket=effect.ticket, result=effect.work())
                waiting.extend(self.core.handle(done, self.now_ms))
            elif self.holds:
                self.held.append(effect)
            else:
                waiting.extend(self.core.handle(self.save(effect), self.now_ms))

    def save(self, save: Save) -> Saved | SaveFailed:
        if self.fails:
            return SaveFailed(key=save.key, reason="away")
        self.rows[save.key] = dict(save.rows)
        return Saved(key=save.key)

    def ask(self, event: Any) -> Any:
        """Return the response, or None while there is none."""
        self.token += 1
        self.perform(self.core.handle(event, self.now_ms, self.token))
        return self.answers.get(self.token)

    def beat(self, member: str, epoch: int, *topics: str, group: str = "g") -> Any:
        return self.ask(
            ShareHeartbeat(
                group_id=group,
                member_id=member,
                epoch=epoch,
                client_id="c",
                client_host="/h",
                topics=frozenset(topics) if topics else None,
            )
        )

    def passes(self, ms: int) -> None:
        self.now_ms += ms
        deadline = self.core.next_deadline_ms()
        while deadline is not None and deadline <= self.now_ms:
            self.perform(self.core.handle(Tick(), self.now_ms))
            deadline = self.core.next_deadline_ms()


@pytest.fixture
def house() -> House:
    return House()


def numbers(assigned: Partitions | None, topic_id: bytes = ONE) -> set[int]:
    assert assigned is not None
    return set(assigned.get(topic_id, ()))


def test_a_member_joins_and_has_all(house: House) -> None:
    answer = house.beat("a", 0, "t")
    assert isinstance(answer, HeartbeatResponse)
    assert (answer.epoch, answer.heartbeat_interval_ms) == (1, 5_000)
    assert numbers(answer.assigned) == {0, 1, 2, 3}
    assert house.beat("a", 1).assigned is None, "as it was told"
    assert numbers(house.beat("a", 1, "t").assigned) == {0, 1, 2, 3}, "who says all is told all"


def test_members_share_and_the_first_learns_of_it_with_its_next_heartbeat(house: House) -> None:
    first, second = house.beat("a", 0, "t"), house.beat("b", 0, "t")
    assert second.epoch == 2
    again = house.beat("a", first.epoch)
    assert again.epoch == 2
    assert numbers(again.assigned) | numbers(second.assigned) == {0, 1, 2, 3}
    assert len(numbers(again.assigned)) == len(numbers(second.assigned)) == 2


def test_more_members_than_partitions_have_some_together() -> None:
    house = House(max_size=10)
    for name in "abcde":
        house.beat(name, 0, "u")
    has = [house.beat(name, 0, "u").assigned for name in "abcde"]
    counts = [
        sum(number in numbers(assigned, UUID(int=2).bytes) for assigned in has) for number in (0, 1)
    ]
    assert sorted(counts) == [2, 3]


def test_epochs_fence(house: House) -> None:
    house.beat("a", 0, "t")
    house.beat("b", 0, "t")
    assert house.beat("a", 1).epoch == 2
    assert house.beat("a", 1).epoch == 2, "its answer may have been lost"
    assert house.beat("a", 3).error == "fenced_member_epoch"
    assert house.beat("x", 1).error == "unknown_member_id"
    assert house.beat("x", 1, group="other").error == "group_id_not_found"
    assert house.beat("a", 0, "t").epoch == 2, "it joins again"


@pytest.mark.parametrize(
    ("member", "epoch", "topics"), [("", 0, ("t",)), ("a", 0, ()), ("a", -2, ("t",))]
)
def test_malformed_heartbeats(
    house: House, member: str, epoch: int, topics: tuple[str, ...]
) -> None:
    assert house.beat(member, epoch, *topics).error == "invalid_request"
    assert not house.kind.groups


def test_a_group_is_as_large_as_it_may_be(house: House) -> None:
    for name in "abc":
        assert isinstance(house.beat(name, 0, "t"), HeartbeatResponse)
    assert house.beat("d", 0, "t").error == "group_max_size_reached"
    assert isinstance(house.beat("a", 0, "t"), HeartbeatResponse)


@pytest.mark.parametrize("says", [True, False])
def test_a_member_leaves_or_expires(house: House, says: bool) -> None:
    house.beat("a", 0, "t")
    house.passes(SESSION_MS - 1)
    house.beat("b", 0, "t")
    if says:
        assert house.beat("a", -1) == HeartbeatResponse(member_id="a", epoch=-1)
    else:
        house.passes(1)
    assert set(house.kind.groups["g"].members) == {"b"}
    assert numbers(house.beat("b", 2).assigned) == {0, 1, 2, 3}
    assert house.beat("a", 1).error == "unknown_member_id"


def test_responses_wait_for_the_save(house: House) -> None:
    house.holds = True
    assert house.beat("a", 0, "t") is None
    token = house.token
    while house.held:
        house.perform(house.core.handle(house.save(house.held.popleft()), 0))
    assert house.answers[token].epoch == 1


def test_what_cannot_be_saved_is_refused_until_it_can(house: House) -> None:
    house.fails = True
    assert house.beat("a", 0, "t").error == "coordinator_not_available"
    assert house.beat("b", 0, "t").error == "coordinator_not_available"
    house.fails = False
    house.passes(1_000)
    assert house.beat("a", 0, "t").epoch == 1


def test_another_coordinator_continues(house: House) -> None:
    house.beat("a", 0, "t")
    house.beat("b", 0, "t", "u")
    house.beat("a", 1)
    other = House(house.rows)
    assert other.kind.encode(other.kind.groups["g"]) == house.rows["g"]
    answer = other.beat("a", 2)
    assert answer.epoch == 2
    assert numbers(answer.assigned) == numbers(house.beat("a", 2, "t").assigned)
    other.passes(SESSION_MS)
    assert not other.kind.groups["g"].members


def test_new_partitions_are_assigned(house: House) -> None:
    house.beat("a", 0, "t")
    topics = {**TOPICS, "t": topic("t", 1, 6)}
    house.kind.topics_changed(NewTopics(topics=topics, changed={"t"}))
    effects, house.kind.turn.effects = house.kind.turn.effects, []
    house.perform(effects)
    answer = house.beat("a", 1)
    assert (answer.epoch, numbers(answer.assigned)) == (2, set(range(6)))


def test_questions(house: House) -> None:
    house.beat("a", 0, "t")
    described = house.ask(DescribeGroup(group_id="g"))
    assert isinstance(described, DescribedShareGroup)
    assert (described.state, described.assignor, described.epoch) == ("Stable", "simple", 1)
    assert [member.topics for member in described.members] == [("t",)]
    (listed,) = house.ask(ListGroups()).groups
    assert (listed.group_type, listed.protocol_type, listed.state) == ("share", "share", "Stable")
    commit = CommitCheck(group_id="g", generation=1, member_id="a")
    assert isinstance(house.ask(commit), Refused), "share groups have no offsets"
    assert house.ask(DeleteGroup(group_id="g")).error == "non_empty_group"
    house.beat("a", -1)
    assert house.ask(DescribeGroup(group_id="g")).state == "Empty"
    house.ask(DeleteGroup(group_id="g"))
    assert not house.kind.groups
    assert not house.rows["g"]


def test_a_group_is_created_without_members(house: House) -> None:
    house.holds = True
    assert house.ask(EnsureShareGroup(group_id="g")) is None, "it is not saved yet"
    house.perform(house.core.handle(house.save(house.held.popleft()), 0))
    described = house.answers[house.token]
    assert isinstance(described, DescribedShareGroup)
    assert (described.state, described.members) == ("Empty", ())
    house.holds = False
    other = House(house.rows)
    assert other.ask(EnsureShareGroup(group_id="g")) == described, "it is loaded as it was saved"
    assert isinstance(other.beat("a", 0, "t"), HeartbeatResponse)
    assert isinstance(other.ask(DescribeGroup(group_id="g")), DescribedShareGroup)


def test_no_group_is_created_above_the_limit_or_while_saves_fail(house: House) -> None:
    house.fails = True
    refused = house.ask(EnsureShareGroup(group_id="g"))
    assert isinstance(refused, Refused)
    assert refused.error == "coordinator_not_available"
    house.kind.limits = replace(house.kind.limits, groups_max=1)
    refused = house.ask(EnsureShareGroup(group_id="h"))
    assert isinstance(refused, Refused)
    assert "groups.max" in refused.message
