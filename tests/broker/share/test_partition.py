"""State machine of a share partition: by cases, and compared with one that keeps every record."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from msgspec.structs import replace

from penstock.broker.share.partition import SharePartition
from penstock.broker.share.values import (
    Acknowledge,
    Acknowledged,
    Acquired,
    Batch,
    Cause,
    InvalidAcknowledgement,
    InvalidRecordState,
    RecordState,
    Run,
    ShareLimits,
    Undeliverable,
)
from tests.broker.share.per_record import PerRecord

AVAILABLE, ACQUIRED, RESOLVED, ARCHIVING = RecordState
A, B = "member-a", "member-b"
LIMITS = ShareLimits(delivery_count_limit=5, lock_duration_ms=100, record_locks_max=20)
LOG = [Batch(0, 4), Batch(5, 9), Batch(10, 29)]


def partition(*runs: Run, start: int = 0, limits: ShareLimits = LIMITS) -> SharePartition:
    return SharePartition(limits=limits, start=start, runs=runs)


def acquire(
    share: SharePartition, member: str = A, *, most: int = 5, exact: bool = False, now_ms: int = 0,
    log: Sequence[Batch] = LOG,
) -> list[Acquired]:  # fmt: skip
    begin = share.next_offset()
    if begin is None:
        return []
    found = [batch for batch in log if batch.last >= begin]
    return share.acquire(member, found, begin=begin, records_max=most, exact=exact, now_ms=now_ms)


def say(
    share: SharePartition, kind: Acknowledge, first: int, last: int, *, member: str = A,
    now_ms: int = 1,
) -> list[Undeliverable]:  # fmt: skip
    return share.acknowledge(member, [Acknowledged(first, last, kind)], now_ms=now_ms)


def test_batches_are_given_whole_and_to_one_member() -> None:
    share = partition()
    assert acquire(share, A, most=3) == [Acquired(0, 4, 1)]
    assert acquire(share, B, most=3) == [Acquired(5, 9, 1)]
    assert share.runs == [Run(0, 4, ACQUIRED, 1, A, 100), Run(5, 9, ACQUIRED, 1, B, 100)]


def test_exact_acquisition_respects_the_record_limit() -> None:
    share = partition()
    assert acquire(share, A, most=3, exact=True) == [Acquired(0, 2, 1)]
    assert acquire(share, B, most=4, exact=True) == [Acquired(3, 6, 1)]


def test_locks_are_bounded_even_within_a_batch() -> None:
    share = partition()
    assert acquire(share, most=100) == [Acquired(0, 19, 1)]
    assert share.next_offset() is None
    assert acquire(share, B) == []
    say(share, Acknowledge.ACCEPT, 3, 5)
    assert share.start == 0
    assert acquire(share, B, most=100) == [Acquired(20, 22, 1)]


def test_offsets_without_records_are_resolved() -> None:
    share = partition()
    log = [Batch(0, 1), Batch(2, 2, records=False), Batch(6, 7)]
    assert acquire(share, log=log) == [Acquired(0, 1, 1), Acquired(6, 7, 1)]
    say(share, Acknowledge.ACCEPT, 0, 1)
    assert (share.start, share.end) == (6, 8)


def test_the_start_stays_at_the_first_unresolved_record() -> None:
    share = partition()
    acquire(share, most=10)
    say(share, Acknowledge.ACCEPT, 2, 9)
    assert share.start == 0
    say(share, Acknowledge.REJECT, 0, 0)
    assert share.start == 1
    say(share, Acknowledge.GAP, 1, 1)
    assert (share.start, share.runs) == (10, [])


def test_a_released_record_is_delivered_again_and_counted() -> None:
    share = partition()
    acquire(share)
    assert say(share, Acknowledge.RELEASE, 1, 2) == []
    assert acquire(share, B, most=1) == [Acquired(1, 2, 2)]


def test_rejected_records_and_those_at_the_delivery_limit_are_archived() -> None:
    share = partition(Run(0, 1, ACQUIRED, 5, A, 50), Run(2, 3, ACQUIRED, 4, A, 50))
    assert say(share, Acknowledge.REJECT, 3, 3) == [Undeliverable(3, 3, 4, Cause.REJECTED)]
    assert share.expire(49) == []
    assert share.expire(50) == [Undeliverable(0, 1, 5, Cause.DELIVERIES)]
    assert share.runs == [Run(2, 2, AVAILABLE, 4), Run(3, 3, RESOLVED)]


def test_an_expired_lock_cannot_be_acknowledged() -> None:
    share = partition()
    acquire(share)
    with pytest.raises(InvalidRecordState):
        say(share, Acknowledge.ACCEPT, 0, 4, now_ms=100)
    share.expire(100)
    assert acquire(share, B, now_ms=100) == [Acquired(0, 4, 2)]
    with pytest.raises(InvalidRecordState):
        say(share, Acknowledge.ACCEPT, 0, 4, now_ms=101)


def test_a_renewed_lock_restarts_its_duration() -> None:
    share = partition()
    acquire(share)
    say(share, Acknowledge.RENEW, 0, 1, now_ms=60)
    assert share.next_deadline_ms() == 100
    share.expire(159)
    assert [run.state for run in share.runs] == [ACQUIRED, AVAILABLE]
    assert share.next_deadline_ms() == 160


@pytest.mark.parametrize("delivered", [True, False])
def test_a_member_that_goes_has_nothing_any_more(delivered: bool) -> None:
    share = partition()
    acquire(share, A)
    acquire(share, B)
    share.release(A, delivered=delivered)
    assert share.runs[0] == Run(0, 4, AVAILABLE, int(delivered))
    assert share.runs[1].member == B


def test_acknowledgements_are_applied_all_or_none() -> None:
    share = partition()
    acquire(share)
    before = list(share.runs)
    acknowledgements = [
        Acknowledged(0, 1, Acknowledge.ACCEPT),
        Acknowledged(4, 5, Acknowledge.ACCEPT),
    ]
    with pytest.raises(InvalidRecordState):
        share.acknowledge(A, acknowledgements, now_ms=1)
    with pytest.raises(InvalidRecordState):
        say(share, Acknowledge.ACCEPT, 0, 1, member=B)
    with pytest.raises(InvalidAcknowledgement):
        share.acknowledge(A, [acknowledgements[1], acknowledgements[0]], now_ms=1)
    assert share.runs == before


def test_records_before_the_start_offset_are_ignored() -> None:
    share = partition()
    acquire(share, most=10)
    assert share.log_begins(7)
    say(share, Acknowledge.ACCEPT, 0, 6)
    say(share, Acknowledge.ACCEPT, 5, 9)
    assert (share.start, share.runs) == (10, [])
    assert share.log_begins(50)
    assert (share.start, share.end) == (50, 50)
    assert not share.log_begins(50)


LETTERS = replace(LIMITS, dead_letters=True)


def test_archived_records_wait_for_their_dead_letters() -> None:
    share = partition(Run(0, 3, AVAILABLE, 4), limits=LETTERS)
    assert acquire(share, most=1, exact=True) == [Acquired(0, 0, 5)]
    assert acquire(share, B, most=1) == [Acquired(1, 1, 5)]
    assert say(share, Acknowledge.RELEASE, 0, 0) == [Undeliverable(0, 0, 5, Cause.DELIVERIES)]
    assert say(share, Acknowledge.REJECT, 1, 1, member=B) == [
        Undeliverable(1, 1, 5, Cause.REJECTED)
    ]
    waiting = [Undeliverable(0, 0, 5, Cause.DELIVERIES), Undeliverable(1, 1, 5, Cause.REJECTED)]
    assert (share.awaiting_dead_letters(), share.start, share.locks) == (waiting, 0, 4)
    for kind in (Acknowledge.ACCEPT, Acknowledge.RELEASE, Acknowledge.RENEW):
        with pytest.raises(InvalidRecordState):
            say(share, kind, 0, 0)
    assert share.release(A, delivered=True) == share.expire(10**6) == []
    assert acquire(share, B, most=1) == [Acquired(2, 2, 5)], "no member holds them"
    assert share.archived(1, 3) == 1, "what another member has stays as it is"
    assert (share.awaiting_dead_letters(), share.start) == (waiting[:1], 0)
    assert share.archived(0, 0) == 1
    assert (share.awaiting_dead_letters(), share.start) == ([], 2)


def test_what_the_log_lost_is_forgotten() -> None:
    share = partition()
    acquire(share, most=10)
    assert share.log_ends(6)
    assert (share.start, share.end, share.runs[-1].last) == (0, 6, 5)
    assert share.log_ends(0)
    assert (share.start, share.end, share.runs) == (0, 0, [])


def test_a_last_delivery_is_alone_and_half_of_them_go_with_fewer() -> None:
    share = partition(Run(0, 3, AVAILABLE, 3), Run(4, 6, AVAILABLE, 4), Run(7, 7, AVAILABLE, 1))
    assert acquire(share, most=100) == [Acquired(0, 1, 4)]
    assert acquire(share, most=100) == [Acquired(2, 2, 4)]
    assert acquire(share, most=100) == [Acquired(3, 3, 4)]
    for offset in (4, 5, 6):
        assert acquire(share, most=100) == [Acquired(offset, offset, 5)]
    assert acquire(share, most=1) == [Acquired(7, 7, 2), Acquired(8, 9, 1)]
    share = partition(Run(0, 0, AVAILABLE, 1), Run(1, 1, AVAILABLE, 4))
    assert acquire(share, most=100) == [Acquired(0, 0, 2)]


def test_a_long_run_costs_what_a_short_one_does() -> None:
    share = partition(limits=ShareLimits(record_locks_max=10**12))
    log = [Batch(0, 10**11 - 1)]
    assert acquire(share, most=1, log=log) == [Acquired(0, 10**11 - 1, 1)]
    say(share, Acknowledge.ACCEPT, 10, 10**11 - 1)
    assert share.runs == [Run(0, 9, ACQUIRED, 1, A, 30_000), Run(10, 10**11 - 1, RESOLVED)]


class Agrees(RuleBasedStateMachine):
    """A share partition and its oracle, under the same events."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 0
        self.choose_limits(False)

    @initialize(dead_letters=st.booleans())
    def choose_limits(self, dead_letters: bool) -> None:
        limits = ShareLimits(
            delivery_count_limit=3,
            lock_duration_ms=10,
            record_locks_max=8,
            dead_letters=dead_letters,
        )
        self.share = partition(limits=limits)
        self.plain = PerRecord(limit=3, lock_ms=10, dead_letters=dead_letters)

    @rule(
        member=st.sampled_from([A, B]), most=st.integers(1, 6), exact=st.booleans(),
        sizes=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 1), st.booleans()), max_size=5),
    )  # fmt: skip
    def acquires(
        self, member: str, most: int, exact: bool, sizes: list[tuple[int, int, bool]]
    ) -> None:
        begin = self.share.next_offset()
        if begin is None or not sizes:
            return
        before = {run.first: run for run in self.plain.runs()}
        batches, at = [], begin
        for size, gap, records in sizes:
            batches.append(Batch(at + gap, at + gap + size - 1, records))
            at += gap + size
        end = self.share.end
        got = self.share.acquire(
            member, batches, begin=begin, records_max=most, exact=exact, now_ms=self.now_ms
        )
        given = {offset for acquired in got for offset in range(acquired.first, acquired.last + 1)}
        assert not exact or len(given) <= most
        allowed = {at for batch in batches if batch.records for at in range(*batch[:2])}
        allowed |= {batch.last for batch in batches if batch.records}
        assert given <= allowed
        for offset in given:
            self.plain.acquired(member, offset, self.now_ms)
        counts = {
            at: acquired.deliveries
            for acquired in got
            for at in range(acquired.first, acquired.last + 1)
        }
        assert all(self.plain.records[at].deliveries == count for at, count in counts.items())
        for run in self.share.runs:  # what is settled is none of the records
            for offset in range(max(run.first, begin), run.last + 1):
                known = self.plain.records.get(offset)
                if run.state == RESOLVED and (known is None or known.state == AVAILABLE):
                    assert offset not in allowed
                    self.plain.skipped(offset)
        for offset in range(begin, self.share.start):
            if offset not in self.plain.records or self.plain.records[offset].state == AVAILABLE:
                assert offset not in allowed
                self.plain.skipped(offset)
        self.plain.move()
        assert before or end == begin or got

    @rule(member=st.sampled_from([A, B]), data=st.data())
    def acknowledges(self, member: str, data: st.DataObject) -> None:
        bounds = st.integers(max(0, self.share.start - 2), self.share.end + 1)
        cuts = sorted(data.draw(st.lists(bounds, max_size=6, unique=True)))
        kinds = st.sampled_from(Acknowledge)
        acknowledgements = [
            Acknowledged(first, last, data.draw(kinds))
            for first, last in zip(cuts[::2], cuts[1::2], strict=False)
        ]
        fine = all(
            self.plain.may_acknowledge(member, acknowledged, self.now_ms)
            for acknowledged in acknowledgements
        )
        try:
            self.share.acknowledge(member, acknowledgements, now_ms=self.now_ms)
        except InvalidRecordState:
            assert not fine
        else:
            assert fine
            for acknowledged in acknowledgements:
                self.plain.acknowledge(acknowledged, self.now_ms)

    @rule(data=st.data())
    def tells_what_it_has(self, data: st.DataObject) -> None:
        held = [run for run in self.share.runs if run.state == ACQUIRED]
        if held and (run := data.draw(st.sampled_from(held))).deadline_ms > self.now_ms:
            first = data.draw(st.integers(run.first, run.last))
            last = data.draw(st.integers(first, run.last))
            acknowledgements = Acknowledged(first, last, data.draw(st.sampled_from(Acknowledge)))
            self.share.acknowledge(run.member, [acknowledgements], now_ms=self.now_ms)
            self.plain.acknowledge(acknowledgements, self.now_ms)

    @rule(later=st.integers(1, 11))
    def time_passes(self, later: int) -> None:
        self.now_ms += later
        self.share.expire(self.now_ms)
        self.plain.expire(self.now_ms)

    @rule(first=st.integers(0, 6), count=st.integers(1, 6))
    def has_dead_letters(self, first: int, count: int) -> None:
        begin = self.share.start + first
        last = begin + count - 1
        assert self.share.archived(begin, last) == self.plain.archived(begin, last)

    @rule(member=st.sampled_from([A, B]), delivered=st.booleans())
    def goes(self, member: str, delivered: bool) -> None:
        self.share.release(member, delivered=delivered)
        self.plain.release(member, delivered=delivered)

    @rule(more=st.integers(0, 5))
    def begins_later(self, more: int) -> None:
        offset = self.share.start + more
        self.share.log_begins(offset)
        self.plain.log_begins(offset)

    @invariant()
    def agrees(self) -> None:
        share = self.share
        assert share.runs == self.plain.runs()
        assert (share.start, share.end) == (self.plain.start, self.plain.end)
        assert share.locks <= 8
        waiting = [at for at, record in self.plain.records.items() if record.state == ARCHIVING]
        found = [
            at
            for letter in share.awaiting_dead_letters()
            for at in range(letter.first, letter.last + 1)
        ]
        assert found == sorted(waiting)
        deadlines = [run.deadline_ms for run in share.runs if run.state == ACQUIRED]
        assert share.next_deadline_ms() == min(deadlines, default=None)


TestAgrees = Agrees.TestCase
TestAgrees.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
