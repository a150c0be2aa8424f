"""Members of consumer groups join, read, revoke, leave, are fenced and expire."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from penstock.broker.groups.consumer.group import GroupState
from penstock.broker.groups.runtime.assignors import NOTHING
from penstock.broker.groups.runtime.core import Refused
from penstock.broker.groups.runtime.kinds import (
    Accepted,
    CommitCheck,
    DeleteGroup,
    FetchCheck,
    ListGroups,
    NewTopics,
    OffsetDeleteCheck,
    OffsetsDeletable,
    Prune,
)
from tests.broker.coordination.consumer.driver import (
    CLICKS,
    LIMITS,
    ORDERS,
    Driver,
    heartbeat,
    joining,
    numbers,
    owned,
    topic,
)

ALL = [0, 1, 2, 3, 4, 5]


def test_the_first_member_gets_everything_at_once() -> None:
    driver = Driver()
    joined = driver.join("a", "orders", "clicks")
    assert (joined.epoch, numbers(joined.assigned)) == (1, ALL)
    assert numbers(joined.assigned, CLICKS) == [0, 1]
    assert driver.group.state.value == GroupState.STABLE.value
    assert driver.beat("a", 1).assigned is None


def test_a_second_member_waits_for_the_first_ones_revocation() -> None:
    driver = Driver()
    driver.join("a")
    second = driver.join("b")
    assert (second.epoch, numbers(second.assigned)) == (2, [])
    asked = driver.beat("a", 1)
    assert (asked.epoch, numbers(asked.assigned)) == (1, [0, 1, 2])
    assert driver.beat("b", 2).assigned is None
    assert driver.group.state.value == GroupState.RECONCILING.value
    assert driver.beat("a", 1, owned=owned(0, 1, 2)).epoch == 2
    assert numbers(driver.beat("b", 2).assigned) == [3, 4, 5]
    assert driver.group.state.value == GroupState.STABLE.value


def test_a_leaving_member_frees_its_partitions() -> None:
    driver = Driver()
    driver.join("a")
    driver.join("b")
    left = driver.beat("a", -1)
    assert left.epoch == -1
    assert numbers(driver.beat("b", 2).assigned) == ALL
    assert driver.refusal(heartbeat("a", 1)) == "unknown_member_id"


@pytest.mark.parametrize(
    ("event", "error"),
    [
        (joining("a", group_id=""), "invalid_request"),
        (joining(""), "invalid_request"),
        (joining("a", instance_id=" "), "invalid_request"),
        (joining("a", rack_id=""), "invalid_request"),
        (joining("a", rebalance_timeout_ms=-1), "invalid_request"),
        (joining("a", owned=None), "invalid_request"),
        (joining("a", owned=owned(1)), "invalid_request"),
        (joining("a", topics=None), "invalid_request"),
        (joining("a", assignor="sticky"), "unsupported_assignor"),
        (joining("a", regex="("), "invalid_regular_expression"),
        (joining("a", topics=frozenset(["x" * (1 << 20) + "x"])), "invalid_request"),
        (joining("a", topics=frozenset(["語" * (1 << 19)])), "invalid_request"),  # 1.5 MiB
        (heartbeat("a", -2), "invalid_request"),
        (heartbeat("a", -3), "invalid_request"),
        (heartbeat("a", 1), "group_id_not_found"),
        (heartbeat("a", -1), "group_id_not_found"),
    ],
)
def test_what_is_refused_before_there_is_a_group(event: Any, error: str) -> None:
    driver = Driver()
    assert driver.refusal(event) == error
    assert "g" not in driver.consumer.groups


def test_epochs_are_fenced_but_for_an_answer_that_was_lost() -> None:
    driver = Driver()
    driver.join("a")
    driver.change("orders", topic("orders", ORDERS, 7))
    assert driver.beat("a", 1).epoch == 2
    assert driver.refusal(heartbeat("a", 3)) == "fenced_member_epoch"
    assert driver.refusal(heartbeat("a", 1)) == "fenced_member_epoch"
    assert driver.refusal(heartbeat("a", 1, owned=owned(0, 9))) == "fenced_member_epoch"
    assert driver.beat("a", 1, owned=owned(0, 1)).epoch == 2
    again = driver.join("a")
    assert (again.epoch, numbers(again.assigned)) == (2, [*ALL, 6])


def test_a_full_group_accepts_only_its_members() -> None:
    driver = Driver(replace(LIMITS, max_size=1))
    driver.join("a", instance_id="one")
    assert driver.refusal(joining("b")) == "group_max_size_reached"
    driver.beat("a", -2, instance_id="one")
    assert numbers(driver.join("c", instance_id="one").assigned) == ALL


def test_a_returning_static_member_keeps_its_partitions_without_a_rebalance() -> None:
    driver = Driver()
    driver.join("a", instance_id="one")
    driver.join("b")
    driver.beat("a", 1)
    driver.beat("a", 1, owned=owned(0, 1, 2))
    assert driver.refusal(joining("c", instance_id="one")) == "unreleased_instance_id"
    assert driver.beat("a", -2, instance_id="one").epoch == -2
    back = driver.join("c", instance_id="one")
    assert (back.epoch, numbers(back.assigned)) == (2, [0, 1, 2])
    assert driver.group.epoch == 2
    assert driver.refusal(heartbeat("a", 2, instance_id="one")) == "fenced_instance_id"
    assert driver.refusal(heartbeat("a", -1, instance_id="one")) == "fenced_instance_id"
    assert driver.refusal(heartbeat("c", 2, instance_id="two")) == "unknown_member_id"
    driver.beat("c", -2, instance_id="one")
    driver.advance(45_000)
    assert "c" not in driver.group.members


def test_members_expire() -> None:
    driver = Driver()
    driver.join("a")
    driver.advance(44_999)
    assert driver.beat("a", 1).epoch == 1
    driver.advance(44_999)
    assert driver.group.members
    driver.advance(1)
    assert driver.group.state.value == GroupState.EMPTY.value


def test_a_member_that_does_not_revoke_in_time_is_expelled() -> None:
    driver = Driver()
    driver.join("a")
    driver.join("b")
    driver.beat("a", 1)
    driver.advance(9_999)
    driver.beat("a", 1, owned=owned(*ALL))
    driver.beat("b", 2)
    driver.advance(1)
    assert list(driver.group.members) == ["b"]
    assert numbers(driver.beat("b", 2).assigned) == ALL


def test_answers_wait_for_what_they_rest_on() -> None:
    driver = Driver()
    driver.holding = True
    token = driver.send(joining("a"))
    assert token not in driver.answers
    driver.store()
    driver.store()
    assert driver.answers[token].epoch == 1
    driver.send(joining("b"))
    behind = driver.send(heartbeat("a", 1))
    assert behind not in driver.answers
    while driver.held:
        driver.store()
    assert behind in driver.answers


def test_while_saves_fail_sessions_are_kept_and_nothing_changes() -> None:
    driver = Driver()
    driver.join("a")
    driver.holding = True
    token = driver.send(joining("b"))
    driver.store("the disk is full")
    assert driver.answers[token] == Refused(
        error="coordinator_not_available", message="the disk is full"
    )
    assert driver.refusal(heartbeat("a", 1)) == "coordinator_not_available"
    assert driver.refusal(joining("c")) == "coordinator_not_available"
    driver.holding = False
    driver.advance(1_000)
    assert driver.beat("a", 1).epoch == 1
    assert numbers(driver.join("b").assigned) == []


def test_targets_are_shared_by_all_that_come_within_the_interval() -> None:
    driver = Driver(replace(LIMITS, assignment_interval=1_000))
    first = driver.send(joining("a"))
    driver.advance(100)
    assert numbers(driver.answers[first].assigned) == ALL
    tokens = [driver.send(joining(name)) for name in "bcdef"]
    assert not driver.answers.keys() & set(tokens)
    driver.advance(1_000)
    assert {driver.answers[token].epoch for token in tokens} == {6}
    assert driver.group.assignment_epoch == 6


def test_members_that_start_together_share_the_first_target() -> None:
    driver = Driver(replace(LIMITS, assignment_interval=1_000))
    for _ in range(2):
        tokens = []
        for name in "abc":
            tokens.append(driver.send(joining(name)))
            driver.advance(99)
        assert not driver.answers.keys() & set(tokens)
        driver.advance(1)
        shares = [driver.answers[token].assigned for token in tokens]
        assert sorted(number for share in shares for number in numbers(share) or ()) == ALL
        assert {len(numbers(share) or ()) for share in shares} == {2}
        for name in "abc":
            driver.beat(name, -1)
        driver.advance(1_000)
    assert driver.group.epoch == 12


def test_a_first_target_waits_for_more_members_an_interval_at_most() -> None:
    driver = Driver(replace(LIMITS, assignment_interval=1_000))
    tokens = []
    for number in range(10):
        tokens.append(driver.send(joining(f"member-{number}")))
        driver.advance(99)
    assert not driver.answers.keys() & set(tokens)
    driver.advance(10)
    assert driver.answers.keys() >= set(tokens)


def test_a_member_that_waits_for_partitions_gets_a_short_interval() -> None:
    driver = Driver()
    assert driver.join("a").heartbeat_interval_ms == 5_000
    waiting = driver.join("b")
    assert (numbers(waiting.assigned), waiting.heartbeat_interval_ms) == ([], 500)
    driver.beat("a", 1)
    driver.beat("a", 1, owned=owned(0, 1, 2))
    found = driver.beat("b", 2)
    assert (numbers(found.assigned), found.heartbeat_interval_ms) == ([3, 4, 5], 5_000)
    driver.change("orders", topic("orders", ORDERS, 300))
    for number in range(198):
        driver.join(f"more-{number}")
    assert driver.join("last").heartbeat_interval_ms == 5 * 201


def test_others_are_answered_while_a_target_is_computed() -> None:
    driver = Driver()
    driver.join("a")
    driver.pondering = True
    waits = driver.send(joining("b"))
    assert driver.beat("a", 1).epoch == 1
    replaced = driver.send(joining("b"))
    assert driver.answers[waits].error == "coordinator_not_available"
    driver.compute("no luck")
    assert driver.answers[replaced].error == "coordinator_not_available"
    driver.advance(1_000)
    driver.compute()
    assert driver.join("b").epoch == 2


def test_changed_topics_are_reassigned() -> None:
    driver = Driver()
    driver.join("a")
    driver.change("clicks", topic("clicks", CLICKS, 9))
    assert driver.group.epoch == 1
    driver.change("orders", topic("orders", ORDERS, 8))
    assert numbers(driver.beat("a", 1).assigned) == list(range(8))
    driver.change("orders", None)
    assert numbers(driver.beat("a", 2).assigned) == []


def test_what_is_dealt_out_has_a_replica_in_its_readers_rack() -> None:
    driver = Driver(replace(LIMITS, assignment_interval=1_000))
    rows = topic("orders", ORDERS, 6).partitions
    rows = tuple([replace(row, replicas=(3, 2) if row.index % 2 else (1, 2)) for row in rows])
    orders = replace(topic("orders", ORDERS, 6), partitions=rows)
    driver.tell(NewTopics(topics={"orders": orders}, racks={1: "one", 3: "three"}))
    tokens = [
        driver.send(joining(name, rack_id=rack)) for name, rack in (("a", "three"), ("b", "one"))
    ]
    driver.advance(1_000)
    assert [driver.answers[token].assigned for token in tokens] == [owned(1, 3, 5), owned(0, 2, 4)]


def test_regular_expressions_follow_the_topics() -> None:
    driver = Driver()
    joined = driver.join("a", topics=None, regex="(orders|more)-?.*")
    assert joined.assigned == owned(*ALL)
    more = topic("more-1", CLICKS, 2)
    driver.change("more-1", more)
    assert driver.beat("a", 1).assigned is None, "it was resolved just now"
    driver.advance(10_000)
    assert driver.beat("a", 1).assigned == {**owned(*ALL), **owned(0, 1, topic_id=CLICKS)}
    driver.restart()
    assert driver.beat("a", 2).epoch == 2
    driver.advance(10_000)
    driver.beat("a", 2, regex="", topics=frozenset(["more-1"]))
    assert not driver.group.resolved


def test_everything_saved_is_restored() -> None:
    driver = Driver()
    driver.join("a", "orders", rack_id="r", instance_id="one", assignor="range")
    driver.join("b")
    driver.beat("a", 1, instance_id="one")
    before = {key: dict(rows) for key, rows in driver.rows.items()}
    driver.restart()
    assert driver.rows == before
    assert driver.consumer.encode(driver.group) == before["g"]
    assert driver.beat("a", 1, owned=owned(0, 1, 2)).epoch == 2
    assert numbers(driver.beat("b", 2).assigned) == [3, 4, 5]


def test_a_topic_that_changed_meanwhile_is_seen_when_the_group_is_loaded() -> None:
    driver = Driver()
    driver.join("a")
    driver.topics["orders"] = topic("orders", ORDERS, 7)
    driver.restart()
    assert numbers(driver.beat("a", 1).assigned) == [*ALL, 6]


@pytest.mark.parametrize(
    "damage", [b"{", b'{"kind":"consumer"}', b'{"kind":"none"}', b'{"kind":"consumer","format":9}']
)
def test_a_corrupt_record_is_refused(damage: bytes) -> None:
    driver = Driver()
    driver.join("a")
    driver.rows["g"] = {**driver.rows["g"], "": damage}
    with pytest.raises(Exception, match="cannot be read"):
        driver.restart()


def test_commits_and_look_ups_are_fenced_by_the_epoch() -> None:
    driver = Driver()
    driver.join("a")

    def commit(member_id: str, epoch: int, **fields: Any) -> Any:
        check = CommitCheck(group_id="g", member_id=member_id, generation=epoch, **fields)
        answer = driver.ask(check)
        return answer.error if isinstance(answer, Refused) else answer

    assert commit("a", 1) == Accepted()
    assert commit("a", 2) == "stale_member_epoch"
    assert commit("b", 1) == "unknown_member_id"
    assert commit("", -1) == "unknown_member_id"
    assert commit("", -1, transactional=True) == Accepted()
    assert commit("a", 1, knows_epochs=False) == "unsupported_version"
    for member_id, epoch, error in (("a", 0, "stale_member_epoch"), ("b", 1, "unknown_member_id")):
        check = FetchCheck(group_id="g", member_id=member_id, epoch=epoch)
        assert driver.refusal(check) == error
    assert driver.ask(FetchCheck(group_id="g", member_id="a", epoch=1)) == Accepted()
    assert driver.ask(FetchCheck(group_id="g", member_id=None, epoch=-1)) == Accepted()
    driver.beat("a", -1)
    assert commit("", -1) == Accepted()


def test_empty_groups_are_listed_deleted_and_forgotten() -> None:
    driver = Driver()
    driver.join("a")
    (listed,) = driver.ask(ListGroups(types=("Consumer",), states=("stable",))).groups
    assert (listed.group_id, listed.group_type, listed.state) == ("g", "consumer", "Stable")
    assert driver.refusal(DeleteGroup(group_id="g")) == "non_empty_group"
    deletable = driver.ask(OffsetDeleteCheck(group_id="g", topics=("orders", "clicks")))
    assert deletable == OffsetsDeletable(subscribed=frozenset(["orders"]))
    driver.beat("a", -1)
    driver.tell(Prune(with_offsets=()))
    assert "g" in driver.rows
    assert driver.ask(DeleteGroup(group_id="g")) == Accepted()
    assert not driver.rows
    driver.join("a")
    driver.beat("a", -1)
    driver.advance(60_000)
    driver.tell(Prune(with_offsets={"g"}))
    assert "g" in driver.rows
    driver.tell(Prune(with_offsets=()))
    assert not driver.rows
    assert driver.core.next_deadline_ms() is None


def test_waiting_members_get_not_coordinator_when_the_owner_changes() -> None:
    driver = Driver()
    driver.join("a")
    driver.pondering = driver.holding = True
    parked, behind = driver.send(joining("b")), driver.send(heartbeat("a", 1))
    driver.perform(driver.core.forget("g"))
    assert {driver.answers[token].error for token in (parked, behind)} == {"not_coordinator"}
    assert driver.core.next_deadline_ms() is None
    assert not driver.core.keys()


def test_a_member_that_subscribes_to_something_else() -> None:
    driver = Driver()
    driver.join("a")
    changed = driver.beat("a", 1, topics=frozenset(["clicks"]))
    assert changed.assigned == NOTHING
    changed = driver.beat("a", 1, owned=NOTHING)
    assert changed.assigned == owned(0, 1, topic_id=CLICKS)
