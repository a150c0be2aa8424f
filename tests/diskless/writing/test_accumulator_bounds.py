"""The gathering core: its keys, what it takes in, how it stops, the table of one object."""

from __future__ import annotations

from itertools import product
from math import inf

import pytest

from penstock.base.errors import PenstockError
from penstock.control.values.errors import StaleBroker
from penstock.diskless.errors import (
    MixedBatches,
    SubmissionTooLarge,
    WriteBacklog,
    WriterStopped,
)
from penstock.diskless.writing import accumulator
from penstock.diskless.writing.accumulator import CommitObject, LeaseKeys, PutObject
from penstock.diskless.writing.objects import (
    TRANSITIONS,
    Happening,
    ObjectPhase,
    OpenObject,
    Submission,
    WalObject,
)
from penstock.records import OutOfOrderSequence
from tests.diskless.submissions import Sent
from tests.diskless.writing.driver import UNKNOWN, Driver

# Keys


def test_keys_are_reserved_while_the_first_object_gathers() -> None:
    driver = Driver(keys_granted=False, lease_block_objects=8)
    driver.submit()
    assert driver.expect(LeaseKeys).wanted == 8
    driver.grant(8)
    driver.pass_ms(10)
    assert driver.expect(PutObject).lease.object_id == 1


def test_a_block_is_followed_by_another_before_it_is_used_up() -> None:
    driver = Driver(keys_granted=False, lease_block_objects=4)
    driver.submit()
    driver.effects.clear()
    driver.grant(4)
    for _ in range(2):
        driver.pass_ms(10)
        driver.expect(PutObject)
        if driver.effects:
            break
        driver.submit()
    assert isinstance(driver.expect(LeaseKeys), LeaseKeys)
    assert driver.core.leases == 2
    driver.submit()
    assert not driver.effects  # one reservation at a time


def test_an_object_waits_for_its_key_and_reservations_are_repeated_after_a_pause() -> None:
    driver = Driver(keys_granted=False, retry_backoff_ms=100)
    sent = driver.submit()
    driver.expect(LeaseKeys)
    driver.pass_ms(10)
    assert not driver.effects
    driver.core.lease_failed(UNKNOWN, driver.now_ms, 0.5)
    driver.take()
    assert not driver.effects
    driver.pass_ms(50)
    driver.expect(LeaseKeys)
    driver.grant(64)
    driver.put_done(driver.expect(PutObject))
    driver.commit_done(driver.expect(CommitObject))
    assert sent.placed


def test_old_keys_are_not_used() -> None:
    driver = Driver(sweep_pending_grace_ms=200_000)
    first = driver.committing()
    driver.commit_done(first[2])
    driver.pass_ms(99_979)
    assert driver.write()[1].lease.object_id == 2
    assert driver.write()[1].lease.object_id == 65


def test_a_broker_that_was_replaced_takes_nothing_in_any_more() -> None:
    driver = Driver(keys_granted=False)
    sent = driver.submit()
    driver.core.lease_failed(StaleBroker(3), driver.now_ms, 0.5)
    driver.take()
    assert isinstance(sent.error, WriterStopped)
    with pytest.raises(WriterStopped, match="newer incarnation"):
        driver.submit()
    assert driver.core.idle


def test_a_broker_that_is_not_registered_yet_tries_again() -> None:
    driver = Driver(keys_granted=False)
    sent = driver.submit()
    driver.core.lease_failed(StaleBroker(3, registered=False), driver.now_ms, 0.5)
    driver.take()
    assert not sent.outcomes
    driver.submit()


# Bounds, and what is not taken in


def test_pending_bytes_are_bounded_and_come_free_with_the_objects() -> None:
    driver = Driver(pending_bytes_max=1 << 20, buffer_bytes_max=64 << 10, objects_in_flight_max=2)
    for _ in range((1 << 20) // 30_061):
        driver.submit(size=30_000)
    with pytest.raises(WriteBacklog, match="1048576"):
        driver.submit(size=30_000)
    driver.put_done(driver.expect(PutObject))
    commit = next(effect for effect in driver.effects if isinstance(effect, CommitObject))
    driver.effects.clear()
    driver.commit_done(commit)
    driver.submit(size=30_000)
    assert driver.core.counters.refused_backlog == 1


def test_submissions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accumulator, "PENDING_SUBMISSIONS_MAX", 7)
    driver = Driver()
    for _ in range(7):
        driver.submit()
    with pytest.raises(WriteBacklog, match="At most 7"):
        driver.submit()


def test_one_submission_is_taken_in_whatever_its_size() -> None:
    driver = Driver(pending_bytes_max=1 << 20, buffer_bytes_max=64 << 10)
    driver.submit(size=2 << 20)
    driver.expect(PutObject)
    with pytest.raises(WriteBacklog):
        driver.submit()


@pytest.mark.parametrize(
    ("parts", "error"),
    [
        ([(5, 0, 0), (6, 0, 1)], MixedBatches),
        ([(5, 0, 0), (5, 1, 1)], MixedBatches),
        ([(5, 0, 0), (-1, -1, -1)], MixedBatches),
        ([(-1, -1, -1), (5, 0, 0)], MixedBatches),
        ([(5, 0, 0), (5, 0, 2)], OutOfOrderSequence),
        ([(5, 0, 0), (5, 0, 0)], OutOfOrderSequence),
    ],
)
def test_batches_that_cannot_be_one_entry_are_refused(
    parts: list[tuple[int, int, int]], error: type[PenstockError]
) -> None:
    driver = Driver()
    pieces = [Sent(producer_id=p, epoch=e, sequence=s).submission for p, e, s in parts]
    headers = [header for piece in pieces for header in piece.headers]
    data = memoryview(b"".join(piece.batches for piece in pieces))
    mixed = pieces[0]._replace(batches=data, headers=headers)
    with pytest.raises(error):
        driver.core.submit(mixed, driver.now_ms)
    assert driver.core.idle
    assert driver.core.pending_bytes == 0


def test_more_batches_than_an_object_has_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.diskless.writing.objects.OBJECT_BATCHES_MAX", 2)
    driver = Driver()
    with pytest.raises(SubmissionTooLarge, match="3 batches"):
        driver.submit(batches=3)


# Stopping


def test_stopping_writes_what_is_here_and_takes_nothing_in() -> None:
    driver = Driver(interval_ms=1000)
    sent = driver.submit()
    driver.core.stop(driver.now_ms)
    driver.take()
    with pytest.raises(WriterStopped):
        driver.submit()
    driver.put_done(driver.expect(PutObject))
    driver.commit_done(driver.expect(CommitObject))
    assert sent.placed
    assert driver.core.idle


def test_abandoning_answers_everything() -> None:
    driver = Driver(objects_in_flight_max=2, keys_granted=False)
    sent = []
    for _ in range(3):
        sent.append(driver.submit())
        driver.pass_ms(10)
    driver.core.abandon(WriterStopped("over"))
    driver.take()
    assert all(isinstance(submitted.error, WriterStopped) for submitted in sent)
    assert driver.core.idle
    assert driver.core.wake_ms == inf
    driver.pass_ms(100_000)


# The table


@pytest.mark.parametrize(("phase", "happening"), list(product(ObjectPhase, Happening)))
def test_what_is_not_in_the_table_changes_nothing(phase: ObjectPhase, happening: Happening) -> None:
    gathered = OpenObject(0)
    gathered.add(Sent().submission)
    item = WalObject(1, gathered, inf)
    item.phase = phase
    expected = TRANSITIONS.get((phase, happening))
    assert item.happens(happening) is (expected is not None)
    assert item.phase is (expected or phase)


def test_every_phase_but_the_last_can_be_left_and_every_phase_be_reached() -> None:
    assert {phase for phase, _ in TRANSITIONS} == set(ObjectPhase) - {ObjectPhase.ENDED}
    assert set(TRANSITIONS.values()) == set(ObjectPhase)
    reached = {ObjectPhase.WAITING}
    for _ in ObjectPhase:
        reached |= {after for (before, _), after in TRANSITIONS.items() if before in reached}
    assert reached == set(ObjectPhase)


def test_submissions_are_compared_by_identity_when_some_are_dropped() -> None:
    """Two that are equal in everything but who waits for them are two."""
    one = Sent(producer_id=5, sequence=0).submission
    gathered = OpenObject(0)
    gathered.add(one)
    gathered.add(Submission(*one))
    item = WalObject(1, gathered, inf)
    item.dropped.add(id(one))
    assert len(item.kept()) == len(item.entries()) == 1
