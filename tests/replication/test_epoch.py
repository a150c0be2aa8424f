"""The leader's side and its replicas together, in what the exhaustive check does not model.

Batches of several offsets, placements and quorums that change between epochs, copies that begin
within the log, streams over links that lose, and copies that contradict each other.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.base.errors import BugError
from penstock.replication.chain import Link
from penstock.replication.epoch import Claim, Epoch, InvalidQuorum, Phase, Terms
from penstock.replication.messages import (
    Ack,
    Append,
    EndFound,
    Fence,
    FenceAnswer,
    Fenced,
    Join,
    LogEnd,
    Position,
    SealAndOpen,
    Stopped,
)
from tests.replication.cluster import Batch, Leader, Node, first_leader, next_leader


def nodes(count: int) -> dict[int, Node]:
    return {name: Node() for name in range(1, count + 1)}


def test_batches_of_several_offsets_are_committed_and_survive_their_leader() -> None:
    leader = first_leader(nodes(3), acks=2)
    for offsets in (3, 1, 7):
        leader.append(offsets)
    leader.talk([1, 2])
    assert leader.committed == 11
    later = next_leader(leader, 2)
    later.talk([2, 3])
    assert later.core.phase is Phase.LEADING
    assert later.core.chain == (Link(1, 0), Link(2, 11))
    later.append(5)
    later.talk([1, 2, 3])
    assert later.committed == 16
    assert [node.durable.batches for node in later.nodes.values()] == [tuple(later.batches)] * 3
    assert {batch.epoch for batch in later.batches} == {1, 2}
    assert later.nodes[1].core.readable == 16


def test_the_epoch_with_which_a_topic_is_made_has_number_0_and_no_leader() -> None:
    terms = Terms((1, 2, 3), 2)
    leader = Leader(Claim(1, (Link(0, 0),), terms, terms), nodes(3))
    leader.talk([1, 3])
    assert leader.core.chain == (Link(0, 0), Link(1, 0))
    leader.append(4)
    leader.talk([1, 2, 3])
    assert leader.committed == 4
    assert [node.durable.end for node in leader.nodes.values()] == [4, 4, 4]


def test_what_a_quorum_never_had_is_cut_where_it_was_written() -> None:
    leader = first_leader(nodes(3), acks=2)
    leader.append(4)
    leader.talk([1, 2, 3])
    leader.append(6)
    leader.talk([1])
    assert leader.committed == 4
    later = next_leader(leader, 2)
    later.talk([2, 3])
    assert later.core.chain[-1] == Link(2, 4)
    later.append(2)
    later.talk([1, 2, 3])
    assert later.nodes[1].durable.batches == (Batch(1, 0, 4, 1), Batch(2, 4, 6, 5))
    assert later.committed == 6


def test_recovery_asks_the_old_placement_by_the_old_quorum() -> None:
    leader = first_leader(nodes(6), acks=3, placement=(1, 2, 3))
    leader.append(10)
    leader.talk([1, 2])
    assert leader.committed == 0
    # a = 3 of 3: one fenced replica knows what was committed, whatever the new terms are.
    moved = next_leader(leader, 2, Terms((3, 4, 5), 2))
    assert [moved.core.to_send(name) for name in (1, 2, 3)] == [Fence(2, 1)] * 3
    assert 4 not in moved.core.streams
    phases = []
    for heard in ([2], [1, 2, 4], [1, 2, 3]):
        moved.talk(heard)
        phases.append(moved.core.phase)
    assert phases == [Phase.FOUND, Phase.FOUND, Phase.LEADING], "write back to all three of it"
    assert sorted(moved.core.followers) == [3, 4, 5]
    assert (moved.core.quorum.acks, moved.core.quorum.fences) == (2, 2)


def test_a_copy_without_anything_gets_all_of_the_log() -> None:
    leader = first_leader(nodes(5), acks=2, placement=(1, 2, 3))
    leader.append(10)
    leader.talk([1, 2, 3])
    moved = next_leader(leader, 2, Terms((3, 4, 5), 2))
    moved.talk([1, 2])
    assert moved.core.phase is Phase.FOUND, "of the replicas to come, none holds it"
    moved.talk([4])
    assert moved.core.phase is Phase.FOUND, "one of three does"
    moved.talk([5])
    moved.append(5)
    moved.talk([4, 5])
    assert moved.committed == 15
    assert moved.nodes[4].durable.disk() == moved.nodes[5].durable.disk()
    disk = moved.nodes[4].durable.disk()
    assert (disk.base, disk.end, disk.history) == (0, 15, (Link(1, 0), Link(2, 10)))
    after = next_leader(moved, 3)
    after.talk([4, 5])
    assert after.core.chain[-1] == Link(3, 15)
    after.append(1)
    after.talk([3, 4])
    assert after.committed == 16
    assert after.nodes[3].durable.disk().end == 16


def test_learners_get_the_log_and_commit_nothing() -> None:
    leader = first_leader(nodes(5), acks=2, placement=(1, 2, 3))
    leader.append(10)
    leader.core.learn([4, 5])
    leader.talk([1, 4, 5])
    assert leader.committed == 0
    assert not leader.core.moves
    leader.talk([2])
    assert leader.committed == 10
    leader.append(2)
    leader.talk([4, 5])
    assert leader.core.has_learnt(), "all that is committed"
    leader.talk([1, 2])
    assert leader.committed == 12
    leader.append(3)
    leader.talk([1, 2, 4])
    assert leader.committed == 15
    assert not leader.core.has_learnt(), "5 lacks some"
    leader.core.learn([4])
    assert leader.core.has_learnt()
    assert sorted(leader.core.streams) == [1, 2, 3, 4]
    leader.core.learn([])
    assert leader.core.streams is leader.core.followers


def test_where_the_replicas_to_come_are_off_the_placement_stays() -> None:
    leader = first_leader(nodes(5), acks=2, placement=(1, 2, 3))
    leader.append(10)
    leader.talk([1, 2, 3])
    assert leader.core.keep_placement() == ()
    moved = next_leader(leader, 2, Terms((3, 4, 5), 2))
    moved.talk([1, 2, 3])
    phases = [moved.core.phase]
    moved.perform(moved.core.keep_placement())
    phases.append(moved.core.phase)
    assert phases == [Phase.FOUND, Phase.LEADING]
    assert moved.core.terms == leader.core.terms
    assert sorted(moved.core.streams) == [1, 2, 3]
    early = next_leader(moved, 3, Terms((3, 4, 5), 2))
    early.perform(early.core.keep_placement())
    early.talk([1, 2])
    assert early.core.phase is Phase.LEADING


def test_a_smaller_placement_opens_when_a_quorum_of_it_holds_all() -> None:
    leader = first_leader(nodes(3), acks=2)
    leader.append(10)
    leader.talk([1, 3])
    moved = next_leader(leader, 2, Terms((1, 2), 2))
    phases = []
    for heard in ([1, 3], [2]):
        moved.talk(heard)
        phases.append(moved.core.phase)
    assert phases == [Phase.FOUND, Phase.LEADING], "what 3 holds alone is to go"
    assert sorted(moved.core.streams) == [1, 2]


def test_what_is_left_leads_where_that_was_chosen() -> None:
    leader = first_leader(nodes(3), acks=2)
    assert leader.core.claim_uncleanly() == ()
    leader.append(4)
    leader.talk([1, 2, 3])
    leader.append(6)
    leader.talk([1, 2])
    assert leader.committed == 10
    alone = next_leader(leader, 2)
    alone.perform(alone.core.claim_uncleanly())
    alone.talk([3])
    phases = [alone.core.phase]
    alone.perform(alone.core.claim_uncleanly())
    assert alone.core.terms == Terms((3,), 1)
    assert alone.core.keep_placement() == (), "it has resigned already"
    alone.talk([3])
    phases.append(alone.core.phase)
    assert phases == [Phase.CLAIMED, Phase.LEADING]
    assert alone.core.chain == (Link(1, 0), Link(2, 4))
    alone.append(1)
    alone.talk([3])
    # Who comes back learns, and is cut where its log parts from the chain.
    alone.core.learn([1, 2])
    alone.talk([1, 2, 3])
    assert {node.durable.disk().end for node in alone.nodes.values()} == {5}


def test_epochs_are_shortened_where_what_is_left_does_not_reach_the_last() -> None:
    leader = first_leader(nodes(3), acks=2)
    leader.append(4)
    leader.talk([1, 2, 3])
    leader.append(6)
    leader.talk([1, 2])
    second = next_leader(leader, 2)
    second.talk([1, 2])
    second.append(1)
    second.talk([1, 2])
    assert second.core.chain == (Link(1, 0), Link(2, 10))
    alone = next_leader(second, 3)
    alone.talk([3])
    alone.perform(alone.core.claim_uncleanly())
    alone.talk([3])
    assert alone.core.chain == (Link(1, 0), Link(2, 4), Link(3, 4))
    alone.append(2)
    alone.core.learn([1, 2])
    alone.talk([1, 2, 3])
    assert {node.durable.disk().end for node in alone.nodes.values()} == {6}
    assert alone.nodes[1].durable.disk().history == (Link(1, 0), Link(3, 4))


def test_a_changed_quorum_counts_from_its_own_epoch_on() -> None:
    leader = first_leader(nodes(3), acks=2)
    stricter = next_leader(leader, 2, Terms((1, 2, 3), 3))
    stricter.talk([1, 2])
    stricter.append(1)
    stricter.talk([1, 2])
    assert stricter.committed == 0
    stricter.talk([3])
    assert stricter.committed == 1


def test_another_batch_at_the_same_offset_of_an_epoch_halts_the_copy() -> None:
    leader = first_leader(nodes(3), acks=2)
    leader.append(2, crc=77)
    leader.append(3, crc=78)
    leader.talk([1])
    node = leader.nodes[1]
    leader.batches[1] = leader.batches[1]._replace(crc=79)
    node.receive(Append(1, 1, 0, 2, 0), leader.batches)
    assert not node.halted, "the first batch is the same"
    node.receive(Append(1, 1, 0, 5, 0), leader.batches)
    assert node.halted
    node.take_outbox()
    for message in (Fence(9, 1), Join(9, (Link(1, 0),)), Append(1, 1, 5, 6, 6), LogEnd(1, 1, 1, 5)):
        node.receive(message, leader.batches)
    node.sync()
    assert node.take_outbox() == []
    assert node.core.readable == 0


def test_a_fenced_response_ends_a_leadership() -> None:
    leader = first_leader(nodes(3), acks=2)
    leader.append(4)
    leader.talk([1, 2, 3])
    leader.append(3)
    assert leader.core.fenced(2, Fenced(7, 9)) == (), "that was said to another claimant"
    assert leader.core.fenced(9, Fenced(1, 9)) == (), "that one is no replica of this epoch"
    assert leader.core.fenced(2, Fenced(1, 9)) == (Stopped(4, 7),)
    assert leader.core.fenced(3, Fenced(1, 9)) == ()
    assert leader.core.acknowledged(2, Ack(1, 1, 1, 7)) == ()
    assert leader.core.opened() == ()
    assert leader.core.to_send(1) is None
    with pytest.raises(BugError, match="epoch 1 cannot append: its phase is stopped"):
        leader.core.append(1)


def test_a_lost_compare_and_set_ends_a_claim() -> None:
    core = Epoch(Claim(5, (Link(1, 0),), Terms((1, 2, 3), 2), Terms((1, 2, 3), 2)))
    assert core.begin() == ()
    core.fence_answered(1, FenceAnswer(5, 1, 0, 0, 0))
    effects = core.fence_answered(2, FenceAnswer(5, 1, 0, 0, 0))
    assert effects == (EndFound(0, None), SealAndOpen(5, 1, 0))
    assert core.lost() == (Stopped(0, 0),)
    assert core.opened() == ()


def test_what_is_known_as_committed_is_waited_for() -> None:
    """A high watermark above all ends: the replica with those records has not answered yet."""
    core = Epoch(Claim(5, (Link(1, 0),), Terms((1, 2, 3), 2), Terms((1, 2, 3), 2)))
    core.fence_answered(1, FenceAnswer(5, 1, 2, 6, 0))
    assert core.fence_answered(2, FenceAnswer(5, 1, 4, 4, 0)) == ()
    assert core.fence_answered(3, FenceAnswer(5, 1, 6, 6, 0))[0] == EndFound(6, 3)


def test_replicas_in_limbo_count_for_what_they_hold_alone() -> None:
    core = Epoch(Claim(5, (Link(1, 0),), Terms((1, 2, 3), 2), Terms((1, 2, 3), 2)))
    core.fence_answered(1, FenceAnswer(5, 1, 9, 0, 1))
    assert core.fence_answered(2, FenceAnswer(5, 1, 4, 0, 0)) == ()
    assert core.fence_answered(3, FenceAnswer(5, 1, 3, 0, 0))[0] == EndFound(9, 1)


def test_a_copy_that_cannot_be_read_is_unknown() -> None:
    core = Epoch(Claim(5, (Link(1, 0),), Terms((1, 2, 3), 2), Terms((1, 2, 3), 2)))
    core.fence_answered(1, FenceAnswer(5, 1, 9, 0, 0))
    assert core.fence_answered(2, FenceAnswer(5, 1, 4, 0, 0)) == (EndFound(9, 1),)
    assert core.unreadable(1) == ()
    assert core.phase is Phase.CLAIMED
    assert core.to_send(1) == Fence(5, 1)
    assert core.fence_answered(3, FenceAnswer(5, 1, 4, 0, 0)) == (
        EndFound(4, 2),
        SealAndOpen(5, 1, 4),
    )
    assert core.unreadable(2) == ()


def test_acknowledgements_of_an_earlier_life_do_not_count() -> None:
    leader = first_leader(nodes(3), acks=2)
    leader.append(4)
    leader.talk([1], rounds=1)
    assert leader.core.acknowledged(2, Ack(1, 1, 2, 0)) == ()
    assert leader.core.acknowledged(2, Ack(1, 1, 1, 4)) == ()
    leader.talk([1])
    assert leader.committed == 0
    leader.core.positioned(2, Position(1, 1, 3, 0, asks_end=True))
    assert leader.core.to_send(2) == LogEnd(1, 1, 3, 4)
    leader.core.acknowledged(2, Ack(1, 1, 3, 4))
    assert leader.core.mark == 4


def test_a_replica_leaves_limbo_at_the_leaders_end_of_now() -> None:
    leader = first_leader(nodes(3), acks=2)
    leader.append(4)
    leader.talk([1, 2, 3])
    node = leader.nodes[3]
    node.wipe(reserved=1, opened=1)
    node.receive(Fence(2, 1))
    assert node.outbox == [], "no answer before promise and limbo are durable"
    node.sync()
    assert node.take_outbox() == [FenceAnswer(2, 2, 0, 0, 1)]
    node.wipe(reserved=1, opened=1)
    leader.append(2)
    leader.core.rewind(3)
    leader.send(3)
    node.sync()
    leader.hear(3)
    assert isinstance(leader.core.to_send(3), LogEnd)
    node.receive(LogEnd(1, 1, 2, 0))
    assert node.core.limbo == 1, "that was said to the life before"
    leader.talk([3], rounds=2)
    leader.talk([1, 2, 3])
    assert (node.core.limbo, node.durable.limbo, node.durable.end) == (0, 0, 6)


def test_a_stream_goes_back_once_for_one_gap() -> None:
    leader = first_leader(nodes(3), acks=2)
    leader.send(1)
    leader.hear(1)
    for number in range(4):
        leader.append(2)
        leader.send(1, lost=not number)
    assert leader.nodes[1].outbox == [Position(1, 1, 1, 0, False)] * 3
    gap, *late = leader.nodes[1].take_outbox()
    leader.core.positioned(1, gap)  # type: ignore[arg-type]
    assert leader.send(1)
    for position in late:
        leader.core.positioned(1, position)  # type: ignore[arg-type]
    assert leader.core.to_send(1) is None, "all was sent again already"
    assert leader.nodes[1].core.end == 8
    leader.core.rewind(1)
    leader.talk([1, 2])
    assert leader.committed == 8


def test_a_placement_without_a_quorum_is_refused() -> None:
    with pytest.raises(InvalidQuorum):
        Terms((1, 2, 2), 1)
    with pytest.raises(BugError, match="has only one of chain and terms"):
        Epoch(Claim(2, (Link(1, 0),), None, Terms((1,), 1)))


moves = st.lists(
    st.tuples(
        st.sampled_from(
            ["append", "send", "lose", "sync", "hear", "deaf", "rewind", "restart", "delete"]
        ),
        st.integers(1, 3),
        st.integers(1, 5),
    ),
    max_size=80,
)


@settings(max_examples=100, deadline=None)
@given(moves, st.sets(st.integers(1, 3), min_size=2, max_size=2), moves)
def test_whatever_is_lost_streams_end_alike(
    before: list[tuple[str, int, int]], quorum: set[int], after: list[tuple[str, int, int]]
) -> None:
    """Links lose, copies restart, a leader is replaced: then all copies are the last one's log."""
    leader = first_leader(nodes(3), acks=2)
    play(leader, before)
    kept = leader.batches[: sum(batch.next <= leader.committed for batch in leader.batches)]
    later = next_leader(leader, 2)
    later.talk(quorum)
    assert later.core.phase is Phase.LEADING
    later.fill()
    found = [batch for batch in later.batches if batch.base >= leader.core.base]
    assert found[: len(kept)] == kept, "what was committed is lost"
    play(later, after)
    for name in later.nodes:
        later.core.rewind(name)
    later.talk([1, 2, 3])
    assert later.committed == later.core.end
    for node in later.nodes.values():
        assert not node.halted
        start = node.durable.start
        assert start >= later.core.base
        assert list(node.durable.batches) == [
            batch for batch in later.batches if batch.base >= start
        ]


def play(leader: Leader, moves: list[tuple[str, int, int]]) -> None:
    for move, name, offsets in moves:
        node = leader.nodes[name]
        match move:
            case "append":
                leader.append(offsets)
            case "send" | "lose":
                leader.send(name, lost=move == "lose")
            case "sync":
                node.sync()
            case "hear":
                leader.hear(name)
            case "deaf":
                node.take_outbox()
            case "rewind":
                leader.core.rewind(name)
            case "restart":
                node.restart()
            case "delete":
                ends = [batch.next for batch in leader.batches if batch.next <= leader.committed]
                leader.delete(ends[min(offsets, len(ends)) - 1] if ends else leader.core.base)


def test_a_copy_begins_where_its_leaders_log_does_and_counts_for_what_it_has() -> None:
    leader = first_leader(nodes(3), acks=2)
    for _ in range(4):
        leader.append(2)
    leader.talk([1, 2])
    leader.delete(6)
    leader.talk([1, 2, 3])
    disks = [node.durable.disk(node.core.mark) for node in leader.nodes.values()]
    assert disks == [disks[0]] * 3
    assert (disks[2].base, disks[2].end, disks[2].history) == (6, 8, (Link(1, 6),))
    leader.append(1)
    leader.talk([1, 3])
    assert leader.committed == 9
    later = next_leader(leader, 2)
    later.talk([2, 3])
    assert later.core.chain[-1] == Link(2, 9)
    assert later.core.base == 6


def test_a_claimant_goes_by_a_log_that_begins_above_the_others() -> None:
    leader = first_leader(nodes(3), acks=2)
    leader.append(3)
    leader.talk([1, 2, 3])
    leader.append(3)
    leader.append(4)
    leader.talk([1, 2])
    leader.delete(6)
    leader.talk([1, 2])
    later = next_leader(leader, 2)
    later.talk([2, 3])
    assert later.nodes[3].durable.disk() == later.nodes[2].durable.disk()
    assert (later.core.base, later.core.start) == (6, 10)


def test_no_epoch_ends_below_a_log_of_which_all_is_deleted() -> None:
    leader = first_leader(nodes(3), acks=2)
    leader.append(7)
    leader.talk([1, 2, 3])
    leader.delete(7)
    leader.talk([1, 2, 3])
    assert {node.durable.disk().base for node in leader.nodes.values()} == {7}
    leader.nodes[2].restart()
    leader.nodes[3].restart()
    later = next_leader(leader, 2)
    later.talk([2, 3])
    assert later.core.chain[-1] == Link(2, 7)
    later.append(1)
    later.talk([1, 2, 3])
    assert later.committed == 8


def test_a_chain_is_extended_by_what_is_older_once() -> None:
    newest = (Link(3, 7), Link(5, 9))
    terms = Terms((1, 2, 3), 2)
    core = Epoch(Claim(6, newest, terms, terms))
    older = (Link(0, 0), Link(1, 0), Link(2, 4))
    for _ in range(2):
        core.extend(older)
        assert core.chain == (*older, *newest)
