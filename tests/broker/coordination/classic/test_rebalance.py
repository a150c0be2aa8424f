"""Dynamic members: joining, rebalancing, leaving, expiring."""

from __future__ import annotations

from msgspec.structs import replace

from penstock.broker.groups.classic import Protocol
from penstock.broker.groups.classic.group import GENERATIONS_PER_EPOCH
from penstock.broker.groups.classic.rebalance import ARRIVALS_PAUSE_MS, RESERVED_ID_DELAY_MS
from penstock.broker.groups.runtime.core import Refused, SaveFailed, Stored
from penstock.broker.groups.runtime.kinds import Accepted, CommitCheck
from tests.broker.coordination.classic.driver import LIMITS, RANGE, Driver, join_event


def test_a_member_id_is_handed_out_and_known() -> None:
    driver = Driver()
    answer = driver.ask(join_event())
    assert isinstance(answer, Refused)
    assert answer.error == "member_id_required"
    assert answer.member_id == "client-0"
    assert driver.state() == "Empty"
    joined = driver.joined(driver.send(join_event(answer.member_id)))
    assert joined.generation == 1
    assert joined.leader == joined.member_id == "client-0"
    assert [member.member_id for member in joined.members] == ["client-0"]


def test_a_pending_id_expires_and_leaves_no_group_behind() -> None:
    driver = Driver()
    driver.ask(join_event())
    driver.advance(10_000)
    assert driver.state() == "absent"
    assert driver.refusal(join_event("client-0")) == "unknown_member_id"


def test_old_versions_join_without_an_id() -> None:
    driver = Driver()
    joined = driver.joined(driver.send(join_event(member_id_required=False)))
    assert joined.generation == 1


def test_one_member_becomes_stable_and_gets_its_assignment() -> None:
    driver = Driver()
    joined = driver.joined(driver.join())
    assert driver.state() == "CompletingRebalance"
    synced = driver.synced(driver.sync(joined))
    assert synced.assignment == joined.member_id.encode()
    assert (synced.protocol_type, synced.protocol) == ("consumer", "range")
    assert driver.state() == "Stable"
    assert driver.heartbeat(joined) == Accepted()


def test_a_second_member_makes_the_first_rejoin() -> None:
    driver = Driver()
    (first,) = driver.stable()
    second = driver.join()
    assert driver.state() == "PreparingRebalance"
    answer = driver.heartbeat(first)
    assert isinstance(answer, Refused)
    assert answer.error == "rebalance_in_progress"
    again = driver.joined(driver.join(first.member_id))
    other = driver.joined(second)
    assert again.generation == other.generation == 2
    assert again.leader == first.member_id
    assert len(again.members) == 2
    assert other.members == ()
    follower = driver.sync(other)
    assert follower not in driver.answers
    driver.sync(again)
    assert driver.synced(follower).assignment == other.member_id.encode()


def test_followers_wait_for_the_save() -> None:
    driver = Driver(holding=True)
    first = driver.joined(driver.join())
    token = driver.sync(first)
    assert token not in driver.answers
    assert driver.state() == "CompletingRebalance"
    driver.store_one()
    assert driver.synced(token).assignment == first.member_id.encode()


def test_a_failed_save_makes_the_members_rejoin() -> None:
    driver = Driver(holding=True)
    first = driver.joined(driver.join())
    token = driver.sync(first)
    driver.held.clear()
    driver.tell(SaveFailed(key="g", reason="disk full"))
    answer = driver.answers[token]
    assert isinstance(answer, Refused)
    assert answer.error == "coordinator_not_available"
    assert driver.state() == "PreparingRebalance"
    again = driver.joined(driver.join(first.member_id))
    token = driver.sync(again)
    driver.store_one()
    assert driver.synced(token).assignment == first.member_id.encode()


def test_a_fenced_save_gives_the_group_up() -> None:
    driver = Driver(holding=True)
    first = driver.joined(driver.join())
    token = driver.sync(first)
    driver.held.clear()
    driver.perform(driver.core.forget("g"))
    answer = driver.answers[token]
    assert isinstance(answer, Refused)
    assert answer.error == "not_coordinator"
    assert driver.state() == "absent"
    assert driver.core.next_deadline_ms() is None


def test_a_group_that_was_fenced_can_be_taken_over_again() -> None:
    driver = Driver(holding=True)
    first = driver.joined(driver.join())
    token = driver.sync(first)
    driver.held.clear()
    other = Driver()
    other.stable(2)
    driver.perform(driver.core.load(Stored(key="g", rows=other.records["g"]), driver.now_ms))
    answer = driver.answers[token]
    assert isinstance(answer, Refused)
    assert answer.error == "not_coordinator"
    assert driver.state() == "Stable"
    driver.holding = False
    driver.advance(10_000)
    again = driver.joined(driver.join())
    assert (
        again.generation >= max(first.generation, other.stored_generation()) + GENERATIONS_PER_EPOCH
    )
    assert driver.synced(driver.sync(again))
    assert driver.stored_generation() == again.generation


def test_the_initial_delay_gathers_members() -> None:
    driver = Driver(replace(LIMITS, group_initial_rebalance_delay_ms=3_000))
    first = driver.join()
    driver.advance(2_000)
    second = driver.join()
    driver.advance(1_500)
    assert first not in driver.answers, "a new member extends the delay"
    driver.advance(2_500)
    assert driver.joined(first).generation == driver.joined(second).generation == 1
    assert len(driver.joined(first).members) == 2


def test_the_initial_delay_begins_anew_with_each_member() -> None:
    driver = Driver(replace(LIMITS, group_initial_rebalance_delay_ms=3_000))
    first = driver.join()
    driver.advance(1_000)
    second = driver.join()
    driver.advance(2_999)
    assert first not in driver.answers
    driver.advance(1)
    assert driver.joined(first).generation == driver.joined(second).generation == 1


def test_without_an_initial_delay_a_burst_of_members_is_one_rebalance() -> None:
    driver = Driver()
    ids = [driver.ask(join_event(fresh_id=str(number))).member_id for number in range(3)]
    tokens = [driver.send(join_event(ids[0]))]
    driver.advance(ARRIVALS_PAUSE_MS - 1)
    tokens += [driver.send(join_event(member_id)) for member_id in ids[1:]]
    driver.advance(ARRIVALS_PAUSE_MS - 1)
    tokens.append(driver.join())
    driver.advance(ARRIVALS_PAUSE_MS - 1)
    assert not driver.answers.keys() & set(tokens)
    driver.advance(1)
    assert [driver.joined(token).generation for token in tokens] == [1] * 4
    assert len(driver.joined(tokens[0]).members) == 4


def test_a_reserved_id_that_never_joins_holds_a_new_group_up_for_a_moment_only() -> None:
    driver = Driver()
    driver.ask(join_event(fresh_id="gone"))
    token = driver.join()
    assert token not in driver.answers
    driver.advance(ARRIVALS_PAUSE_MS)
    assert driver.joined(token).generation == 1


def test_only_a_new_group_without_a_delay_delays_reserved_ids() -> None:
    def delay_ms(driver: Driver, fresh_id: str) -> int:
        refused: Refused = driver.ask(join_event(fresh_id=fresh_id))
        return refused.delay_ms

    driver = Driver()
    assert delay_ms(driver, "a") == RESERVED_ID_DELAY_MS
    driver.join()
    assert delay_ms(driver, "b") == RESERVED_ID_DELAY_MS
    driver.advance(ARRIVALS_PAUSE_MS)
    assert delay_ms(driver, "c") == 0
    assert delay_ms(Driver(replace(LIMITS, group_initial_rebalance_delay_ms=3_000)), "1") == 0


def test_the_initial_delay_ends_with_the_rebalance_timeout() -> None:
    driver = Driver(replace(LIMITS, group_initial_rebalance_delay_ms=3_000))
    first = driver.join(rebalance_timeout_ms=5_000)
    for _ in range(6):
        driver.advance(1_000)
        driver.join(rebalance_timeout_ms=5_000)
    assert driver.joined(first).generation == 1


def test_a_silent_member_expires_and_the_others_rebalance() -> None:
    driver = Driver()
    first, second = driver.stable(2)
    for _ in range(4):
        driver.advance(3_000)
        driver.heartbeat(first)
    assert driver.state() == "PreparingRebalance"
    again = driver.joined(driver.join(first.member_id))
    assert [member.member_id for member in again.members] == [first.member_id]
    answer = driver.heartbeat(second)
    assert isinstance(answer, Refused)
    assert answer.error == "unknown_member_id"


def test_members_that_do_not_rejoin_are_left_behind() -> None:
    driver = Driver()
    first, second = driver.stable(2)
    driver.join(second.member_id, protocols=(Protocol(name="range", metadata=b"other"),))
    for _ in range(20):
        driver.advance(3_000)
        driver.heartbeat(first)
    assert driver.state() == "CompletingRebalance"
    assert driver.heartbeat(first) == Refused(error="unknown_member_id")


def test_a_leader_that_does_not_sync_is_dropped() -> None:
    driver = Driver()
    first, second = driver.stable(2)
    tokens = [driver.join(first.member_id), driver.join(second.member_id)]
    leader, follower = (driver.joined(token) for token in tokens)
    waiting = driver.sync(follower)
    for _ in range(20):
        driver.advance(3_000)
        driver.heartbeat(leader)
    answer = driver.answers[waiting]
    assert isinstance(answer, Refused)
    assert answer.error == "rebalance_in_progress"
    again = driver.joined(driver.join(second.member_id))
    assert again.leader == second.member_id
    assert len(again.members) == 1


def test_the_last_member_leaves_an_empty_group_of_the_next_generation() -> None:
    driver = Driver()
    (only,) = driver.stable()
    driver.leave(only.member_id)
    assert driver.state() == "Empty"
    assert driver.stored_generation() == 2
    assert driver.joined(driver.join()).generation == 3


def test_protocols_are_chosen_by_vote() -> None:
    driver = Driver(replace(LIMITS, group_initial_rebalance_delay_ms=100))
    a, b, c = (Protocol(name=name, metadata=name.encode()) for name in "abc")
    tokens = [
        driver.join(protocols=(a, b)),
        driver.join(protocols=(c, b, a)),
        driver.join(protocols=(b, a)),
    ]
    driver.advance(300)
    answers = [driver.joined(token) for token in tokens]
    assert {answer.protocol for answer in answers} == {"b"}
    assert [member.metadata for member in answers[0].members] == [b"b"] * 3


def test_a_member_without_a_common_protocol_is_refused() -> None:
    driver = Driver()
    driver.stable()
    other = (Protocol(name="sticky", metadata=b""),)
    assert driver.refusal(join_event(protocols=other)) == "inconsistent_group_protocol"
    assert driver.refusal(join_event(protocol_type="connect")) == "inconsistent_group_protocol"


def test_a_lost_answer_is_repeated_without_a_rebalance() -> None:
    driver = Driver()
    first, second = driver.stable(2)
    again = driver.joined(driver.join(second.member_id))
    assert again.generation == second.generation
    assert driver.state() == "Stable"
    assert driver.synced(driver.sync(again)).assignment == second.member_id.encode()
    driver.join(first.member_id)
    assert driver.state() == "PreparingRebalance", "a leader that joins asks for a rebalance"


def test_a_member_that_joins_twice_has_its_first_request_answered() -> None:
    driver = Driver()
    first, second = driver.stable(2)
    early = driver.join(first.member_id)
    late = driver.join(first.member_id)
    answer = driver.answers[early]
    assert isinstance(answer, Refused)
    assert answer.error == "rebalance_in_progress"
    driver.join(second.member_id)
    assert driver.joined(late).generation == first.generation + 1


def test_commits_are_allowed_while_members_rejoin_but_not_before_they_sync() -> None:
    driver = Driver()
    (first,) = driver.stable()
    check = CommitCheck(group_id="g", generation=1, member_id=first.member_id)
    assert driver.ask(check) == Accepted()
    second = driver.join()
    assert driver.ask(check) == Accepted()
    again = driver.joined(driver.join(first.member_id))
    assert driver.refusal(check) == "illegal_generation"
    assert driver.refusal(replace(check, generation=2)) == "rebalance_in_progress"
    driver.sync(again)
    driver.sync(driver.joined(second))
    assert driver.ask(replace(check, generation=2)) == Accepted()


def test_transactions_commit_for_members_and_without_them() -> None:
    """A transaction names its member from KIP-447 on; no rebalance delays it."""
    driver = Driver()
    unnamed = CommitCheck(group_id="g", generation=-1, member_id="", transactional=True)
    assert driver.ask(unnamed) == Accepted(), "the group is not there yet"
    assert driver.refusal(replace(unnamed, group_id="h", generation=1)) == "illegal_generation"
    (first,) = driver.stable()
    named = replace(unnamed, generation=first.generation, member_id=first.member_id)
    assert driver.ask(named) == driver.ask(unnamed) == Accepted()
    assert driver.refusal(replace(unnamed, transactional=False)) == "unknown_member_id"
    assert driver.refusal(replace(named, member_id="stranger")) == "unknown_member_id"
    assert driver.refusal(replace(named, generation=9)) == "illegal_generation"
    assert driver.refusal(replace(unnamed, generation=first.generation)) == "unknown_member_id"
    driver.join()
    again = driver.joined(driver.join(first.member_id))
    assert driver.state() == "CompletingRebalance"
    assert driver.refusal(named) == "illegal_generation"
    renewed = replace(named, generation=again.generation)
    assert driver.ask(renewed) == driver.ask(unnamed) == Accepted()
    assert driver.refusal(replace(renewed, transactional=False)) == "rebalance_in_progress"


def test_the_same_subscription_is_kept_when_members_are_many() -> None:
    driver = Driver()
    members = driver.stable(30)
    assert driver.state() == "Stable"
    assert {joined.generation for joined in members} == {2}
    assert all(driver.heartbeat(joined) == Accepted() for joined in members)
    assert members[0].members[29].metadata == RANGE[0].metadata


def test_cooperative_members_keep_what_they_own_while_they_rejoin() -> None:
    """Commits for kept partitions continue through two rebalances (KIP-429)."""

    def owning(partitions: bytes) -> tuple[Protocol, ...]:
        return (Protocol(name="cooperative-sticky", metadata=partitions),)

    driver = Driver()
    (first,) = driver.stable(protocols=owning(b""))
    second = driver.join(protocols=owning(b""))
    check = CommitCheck(group_id="g", generation=1, member_id=first.member_id)
    assert driver.ask(check) == Accepted(), "not revoked, so still its own"
    again = driver.joined(driver.join(first.member_id, protocols=owning(b"0,1")))
    assert [member.metadata for member in again.members] == [b"0,1", b""]
    driver.sync(again)
    driver.sync(driver.joined(second))
    revoked = driver.join(first.member_id, protocols=owning(b"0"))
    assert driver.state() == "PreparingRebalance", "what was given up is to be handed out"
    assert driver.ask(replace(check, generation=2)) == Accepted()
    late = driver.join(driver.joined(second).member_id, protocols=owning(b""))
    assert driver.joined(revoked).generation == driver.joined(late).generation == 3
    assert [member.metadata for member in driver.joined(revoked).members] == [b"0", b""]
