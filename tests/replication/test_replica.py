"""Replica, event by event: when it answers, and what each sync covers."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.replication.chain import Link
from penstock.replication.messages import (
    Ack,
    Append,
    AskChain,
    Compare,
    Fence,
    FenceAnswer,
    Fenced,
    Halt,
    Join,
    JoinFirst,
    LogEnd,
    LogStart,
    MarkMoved,
    MoveStart,
    PersistLimbo,
    PersistPromise,
    Position,
    StartAt,
    TruncateTo,
    Write,
)
from penstock.replication.replica import Disk, Replica

ONE = (Link(1, 0),)
TWO = (Link(1, 0), Link(2, 4))


def synced(replica: Replica) -> tuple[Any, ...]:
    return replica.synced(replica.begin_sync())


def joined(end: int = 0, chain: tuple[Link, ...] = ONE) -> Replica:
    """A copy in the stream of the chain's last epoch, with everything synced."""
    history = tuple(link for link in chain if link.start < end)
    replica = Replica(1, Disk(promised=chain[-1].epoch, end=end, history=history))
    replica.join(Join(chain[-1].epoch, chain))
    return replica


def test_a_join_is_acknowledged_after_the_sync_of_its_promise() -> None:
    replica = Replica(1, Disk(promised=1, end=3, history=ONE))
    assert replica.join(Join(2, TWO)) == (PersistPromise(2), Position(2, 2, 1, 3, False))
    assert synced(replica) == (Ack(2, 2, 1, 3),)
    assert synced(replica) == ()
    assert replica.join(Join(2, TWO)) == (Position(2, 2, 1, 3, False), Ack(2, 2, 1, 3))


def test_an_append_is_acknowledged_after_its_own_sync() -> None:
    replica = joined()
    before = replica.begin_sync()
    assert replica.append(Append(1, 1, 0, 5, 0)) == (Write(0, 5),)
    assert replica.synced(before) == (), "that sync began before the write"
    first = replica.begin_sync()
    assert replica.append(Append(1, 1, 5, 9, 0)) == (Write(5, 9),)
    second = replica.begin_sync()
    assert replica.synced(first) == (Ack(1, 1, 1, 5),)
    assert replica.synced(second) == (Ack(1, 1, 1, 9),)
    assert replica.synced(first) == (), "a late word of a sync changes nothing"


def test_acknowledgements_are_repeated_for_what_is_sent_again() -> None:
    replica = joined(end=9)
    assert replica.append(Append(1, 1, 2, 7, 0)) == (Compare(2, 7), Ack(1, 1, 1, 9))
    replica.append(Append(1, 1, 9, 12, 0))
    assert replica.append(Append(1, 1, 7, 12, 0)) == (Compare(7, 12),), "its sync is to come"
    assert replica.append(Append(1, 1, 9, 15, 0)) == (Compare(9, 12), Write(12, 15))
    assert synced(replica) == (Ack(1, 1, 1, 15),)


def test_a_gap_before_an_append_is_reported() -> None:
    replica = joined(end=3)
    assert replica.append(Append(1, 1, 5, 9, 0)) == (Position(1, 1, 1, 3, False),)
    assert replica.end == 3


def test_a_mark_moves_what_may_be_read_up_to_the_end() -> None:
    replica = joined(end=3)
    assert replica.append(Append(1, 1, 3, 3, 2)) == (MarkMoved(2),)
    assert replica.append(Append(1, 1, 3, 3, 8)) == (MarkMoved(3),)
    assert replica.append(Append(1, 1, 3, 3, 5)) == ()
    assert replica.append(Append(1, 1, 3, 6, 5)) == (Write(3, 6), MarkMoved(6))
    assert replica.append(Append(1, 1, 6, 12, 8)) == (Write(6, 12), MarkMoved(8))
    assert (replica.mark, replica.kept_mark) == (8, 0)
    synced(replica)
    assert replica.kept_mark == 8


def test_a_fence_is_answered_with_its_own_sync() -> None:
    replica = joined()
    replica.append(Append(1, 1, 0, 5, 0))
    under_way = replica.begin_sync()
    replica.append(Append(1, 1, 5, 7, 0))
    assert replica.fence(Fence(3, 1)) == (PersistPromise(3),)
    assert replica.synced(under_way) == (), "this sync did not cover the promise"
    assert replica.append(Append(1, 1, 7, 8, 0)) == (Fenced(1, 3),)
    # What was taken before the promise is acknowledged, and in the answer.
    assert synced(replica) == (Ack(1, 1, 1, 7), FenceAnswer(3, 1, 7, 0, 0))
    assert replica.fence(Fence(3, 1)) == (FenceAnswer(3, 1, 7, 0, 0),)


def test_a_fence_that_was_overtaken_is_refused() -> None:
    replica = joined()
    replica.fence(Fence(3, 1))
    replica.join(Join(4, ONE))
    assert synced(replica) == (Fenced(3, 4), Ack(4, 1, 1, 0))
    assert replica.fence(Fence(3, 1)) == (Fenced(3, 4),)
    assert replica.join(Join(3, ONE)) == (Fenced(3, 4),)


def test_a_fence_response_is_for_the_requested_epoch() -> None:
    replica = Replica(1, Disk(promised=2, end=9, history=TWO))
    assert replica.fence(Fence(2, 2)) == (FenceAnswer(2, 1, 9, 0, 0),)
    assert replica.fence(Fence(2, 1)) == (FenceAnswer(2, 1, 4, 0, 0),)
    assert replica.fence(Fence(2, 3)) == (FenceAnswer(2, 1, 0, 0, 0),)


def test_a_log_is_cut_before_anything_of_a_later_epoch_is_taken() -> None:
    replica = joined(end=7)
    assert replica.append(Append(2, 2, 4, 6, 6)) == (JoinFirst(2, 2, 1),)
    assert (replica.end, replica.mark) == (7, 0)
    assert replica.join(Join(2, TWO)) == (
        PersistPromise(2),
        TruncateTo(4),
        Position(2, 2, 1, 4, False),
    )
    assert replica.append(Append(2, 2, 4, 6, 6)) == (Write(4, 6), MarkMoved(6))
    assert replica.history == TWO
    assert synced(replica) == (Ack(2, 2, 1, 6),)


def test_what_was_cut_is_not_acknowledged() -> None:
    replica = joined(end=4)
    replica.append(Append(1, 1, 4, 7, 0))
    under_way = replica.begin_sync()
    replica.join(Join(2, TWO))
    after_cut = replica.begin_sync()
    replica.append(Append(2, 2, 4, 7, 0))
    assert replica.synced(under_way) == ()
    assert replica.durable == 4, "these were other batches"
    assert replica.synced(after_cut) == (Ack(2, 2, 1, 4),)
    assert synced(replica) == (Ack(2, 2, 1, 7),)


def test_a_leaders_chain_grows_when_it_opens_its_epoch() -> None:
    """Written back under epoch 1, beyond what was found; the stream of epoch 2 cuts that."""
    replica = joined(end=7)
    assert replica.join(Join(2, ONE)) == (PersistPromise(2), Position(2, 1, 1, 7, False))
    assert synced(replica) == (Ack(2, 1, 1, 7),)
    assert replica.append(Append(2, 2, 4, 6, 0)) == (JoinFirst(2, 2, 1),)
    assert replica.join(Join(2, TWO)) == (TruncateTo(4), Position(2, 2, 1, 4, False))
    replica.append(Append(2, 2, 4, 6, 0))
    assert replica.join(Join(2, ONE)) == (), "that is older: it would cut epoch 2 again"
    assert synced(replica) == (Ack(2, 2, 1, 6),)


def test_a_stream_of_before_an_epoch_was_opened_is_refused_after_a_restart() -> None:
    replica = Replica(2, Disk(promised=2, end=6, history=TWO))
    assert replica.join(Join(2, ONE)) == ()
    assert replica.end == 6
    assert replica.append(Append(2, 1, 0, 4, 0)) == (JoinFirst(2, 1, 2),)


@pytest.mark.parametrize("disk", [Disk(), Disk(promised=1, end=3, history=ONE)])
def test_a_copy_that_ends_below_its_leaders_log_begins_where_that_does(disk: Disk) -> None:
    replica = Replica(1, disk)
    assert replica.log_start(LogStart(2, 2, 4)) == (JoinFirst(2, 2, 1),)
    replica.join(Join(2, TWO))
    before = replica.begin_sync()
    assert replica.log_start(LogStart(2, 2, 4)) == (StartAt(4), MarkMoved(4))
    assert replica.append(Append(2, 2, 5, 6, 0)) == (Position(2, 2, 1, 4, False),)
    assert replica.append(Append(2, 2, 4, 6, 0)) == (Write(4, 6),)
    assert (replica.base, replica.end, replica.history) == (4, 6, (Link(2, 4),))
    assert replica.synced(before) == (), "that was of the previous log"
    assert synced(replica) == (Ack(2, 2, 1, 6),)
    assert replica.log_start(LogStart(2, 2, 4)) == ()
    assert replica.log_start(LogStart(2, 2, 5)) == (MoveStart(5), MarkMoved(5))
    assert replica.history == (Link(2, 5),)
    assert replica.join(Join(3, (*TWO, Link(3, 5))))[1] == TruncateTo(5)
    assert replica.append(Append(3, 3, 5, 6, 0)) == (Write(5, 6),)


def test_a_log_start_is_acknowledged_as_end_once_durable() -> None:
    """Else the epoch could be sealed below, when all of it is deleted."""
    replica = Replica(1, Disk(promised=2, end=3, history=ONE))
    replica.join(Join(2, TWO))
    replica.log_start(LogStart(2, 2, 9))
    assert replica.fence(Fence(3, 2)) == (PersistPromise(3),)
    assert synced(replica) == (Ack(2, 2, 1, 9), FenceAnswer(3, 1, 9, 9, 0))
    whole = Replica(1, Disk(promised=2, end=6, history=TWO))
    whole.join(Join(2, TWO))
    whole.append(Append(2, 2, 6, 9, 0))
    assert whole.log_start(LogStart(2, 2, 9)) == (MoveStart(6), MarkMoved(9)), "6 is durable"
    synced(whole)
    assert whole.log_start(LogStart(2, 2, 9)) == (MoveStart(9),)
    assert (whole.base, whole.end, whole.history) == (9, 9, ())
    whole.fence(Fence(3, 2))
    assert synced(whole) == (FenceAnswer(3, 1, 9, 9, 0),)


def test_a_copy_of_which_nothing_is_in_the_chain_takes_no_part() -> None:
    """After an unclean election; it would count for offsets that it does not have."""
    replica = Replica(1, Disk(promised=2, base=8, end=12, history=(Link(2, 8),)))
    assert replica.join(Join(3, (*TWO, Link(3, 6)))) == (Halt(12),)
    assert replica.fence(Fence(4, 2)) == ()


def test_a_mark_goes_down_with_what_an_unclean_election_gave_up() -> None:
    """Else it would speak of other records that have these offsets by then."""
    replica = joined(6)
    replica.append(Append(1, 1, 6, 9, 9))
    synced(replica)
    assert (replica.mark, replica.kept_mark, replica.readable) == (9, 9, 9)
    assert TruncateTo(4) in replica.join(Join(2, TWO))
    assert (replica.mark, replica.kept_mark) == (4, 4)
    assert replica.append(Append(2, 2, 4, 8, 4)) == (Write(4, 8),)
    assert replica.readable == 4
    replica.fence(Fence(3, 2))
    assert synced(replica)[-1] == FenceAnswer(3, 1, 8, 4, 0)


def test_a_range_over_several_epochs_has_their_history() -> None:
    replica = Replica(1, Disk())
    replica.join(Join(5, (*TWO, Link(3, 4), Link(5, 9))))
    assert replica.append(Append(5, 5, 0, 12, 0)) == (Write(0, 12),)
    assert replica.history == (Link(1, 0), Link(3, 4), Link(5, 9))


def test_a_chain_without_its_oldest_epochs() -> None:
    """The control plane and the link between brokers have the newest ones."""
    newest = (Link(3, 7), Link(5, 9))
    replica = Replica(1, Disk(promised=3, end=9, history=(*TWO, Link(3, 7))))
    assert replica.join(Join(5, newest)) == (PersistPromise(5), Position(5, 5, 1, 9, False))
    assert replica.append(Append(5, 5, 9, 12, 0)) == (Write(9, 12),)
    assert replica.history == (*TWO, *newest)
    behind = Replica(1, Disk(promised=2, end=8, history=TWO))
    asked = AskChain(5, 5, 1, 2)
    assert behind.join(Join(5, newest)) == (asked,), "whether [4, 8) was cut by then is not said"
    assert (behind.end, behind.promised) == (8, 2)
    assert behind.join(Join(5, (*TWO, *newest)))[1] == TruncateTo(7)


def test_a_replica_that_lost_records_persists_its_promise_before_it_responds() -> None:
    replica = Replica(7, Disk())
    assert replica.lose(reserved=5, opened=4) == (PersistPromise(5), PersistLimbo(4))
    assert replica.join(Join(4, TWO)) == (Fenced(4, 5),)
    assert replica.fence(Fence(5, 4)) == ()
    assert synced(replica) == (FenceAnswer(5, 7, 0, 0, 4),)


def test_limbo_ends_where_the_leaders_log_ended_at_its_hello() -> None:
    replica = Replica(7, Disk())
    replica.lose(reserved=1, opened=1)
    assert replica.join(Join(1, ONE)) == (Position(1, 1, 7, 0, True),)
    assert replica.log_end(LogEnd(1, 1, 6, 0)) == (), "said to the life before"
    assert replica.log_end(LogEnd(1, 1, 7, 5)) == ()
    replica.append(Append(1, 1, 0, 4, 9))
    assert synced(replica) == (Ack(1, 1, 7, 4),)
    assert replica.limbo == 1
    replica.append(Append(1, 1, 4, 8, 9))
    assert synced(replica) == (PersistLimbo(0), Ack(1, 1, 7, 8))
    assert replica.limbo == 0


def test_limbo_is_no_matter_for_later_epochs() -> None:
    replica = Replica(7, Disk(promised=1, limbo=1))
    replica.join(Join(2, TWO))
    synced(replica)
    assert not replica.join(Join(2, TWO))[0].asks_end  # type: ignore[union-attr]
    assert replica.log_end(LogEnd(2, 2, 7, 0)) == ()
    assert replica.fence(Fence(3, 2))[0] == PersistPromise(3)
    assert synced(replica) == (FenceAnswer(3, 7, 0, 0, 1),), "limbo 1 says nothing of epoch 2"


def test_a_copy_that_differs_takes_no_further_part() -> None:
    replica = joined(end=5)
    sync = replica.begin_sync()
    assert replica.append(Append(1, 1, 0, 7, 0))[0] == Compare(0, 5)
    assert replica.differs() == (Halt(7),)
    answers = (
        replica.append(Append(1, 1, 7, 8, 3)),
        replica.join(Join(2, TWO)),
        replica.fence(Fence(2, 1)),
        replica.log_end(LogEnd(1, 1, 1, 5)),
        replica.synced(sync),
    )
    assert set(answers) == {()}


@pytest.mark.parametrize("mark", [0, 3])
def test_a_restart_goes_by_what_is_on_disk(mark: int) -> None:
    replica = Replica(
        3, Disk(promised=2, base=2, end=6, history=(Link(1, 2), Link(2, 4)), mark=mark)
    )
    assert (replica.readable, replica.durable, replica.base) == (mark, 6, 2)
    assert replica.append(Append(2, 2, 6, 8, 0)) == (JoinFirst(2, 2, 3),)
    assert replica.join(Join(2, TWO)) == (Position(2, 2, 3, 6, False), Ack(2, 2, 3, 6))
