"""The gathering core: when objects close, in which order they commit, and what failures lead to."""

from __future__ import annotations

from math import inf

import pytest

from penstock.archive.wal import decode_footer, decode_header
from penstock.base.errors import PenstockError
from penstock.control.values.diskless import CommitAnswer
from penstock.control.values.errors import DatabaseStopped, ObjectLeaseLost, TooLarge
from penstock.diskless.errors import (
    EarlierWriteFailed,
    WriteFailed,
    WriteTimedOut,
)
from penstock.diskless.writing import accumulator
from penstock.diskless.writing.accumulator import (
    ATTEMPTS_AT_ONCE_MAX,
    CommitObject,
    Finished,
    PutObject,
)
from penstock.objects import ObjectExists, StoreRefused
from penstock.records.appends import AppendResult
from tests.diskless.writing.driver import LOST, Driver

# Closing


def test_an_object_gathers_for_the_interval_and_is_written_committed_and_answered() -> None:
    driver = Driver()
    first = driver.submit(partition=1, fill=1)
    driver.pass_ms(9)
    second = driver.submit(partition=0, fill=2, append_time=True)
    assert driver.effects == []
    driver.pass_ms(1)
    put = driver.expect(PutObject)
    assert not driver.effects
    driver.put_done(put)
    commit = driver.expect(CommitObject)
    assert commit.lease == put.lease
    assert commit.size_bytes == sum(map(len, put.pieces))
    assert [entry.partition for entry in commit.entries] == [1, 0]
    assert [entry.append_time for entry in commit.entries] == [False, True]
    finished = driver.commit_done(commit, 40)
    assert finished.lease == put.lease
    assert b"".join(finished.pieces) == b"".join(put.pieces)
    assert (first.placed.base_offset, second.placed.base_offset) == (40, 41)
    assert driver.core.idle
    assert driver.core.wake_ms == inf
    assert (driver.core.pending_bytes, driver.core.pending_submissions) == (0, 0)


def test_bytes_are_grouped_by_partition_in_the_order_of_submission() -> None:
    driver = Driver()
    sent = [
        driver.submit(partition=index % 3, fill=index, batches=1 + index % 2) for index in range(9)
    ]
    driver.pass_ms(10)
    put = driver.expect(PutObject)
    data = b"".join(put.pieces)
    footer = decode_footer(data)
    assert footer.size_bytes == len(data)
    assert decode_header(data).object_id == put.lease.object_id
    assert decode_header(data).broker_id == 3
    assert [item.partition for item in footer.ranges] == [0, 1, 2]
    driver.put_done(put)
    entries = driver.expect(CommitObject).entries
    for item in footer.ranges:
        mine = [
            submitted.data for index, submitted in enumerate(sent) if index % 3 == item.partition
        ]
        body = data[item.byte_offset : item.byte_offset + item.size_bytes]
        assert body == b"".join(mine)
        rows = [entry for entry in entries if entry.partition == item.partition]
        at = item.byte_offset
        for entry, content in zip(rows, mine, strict=True):
            assert (entry.byte_offset, entry.size_bytes) == (at, len(content))
            at += entry.size_bytes
        assert b"".join(entry.layout for entry in rows) == item.layout


def test_an_entry_says_all_of_its_batches() -> None:
    driver = Driver()
    sent, _, commit = driver.committing(
        batches=3, count=4, producer_id=9, sequence=2**31 - 6, epoch=2
    )
    (entry,) = commit.entries
    headers = sent.submission.headers
    assert entry.offset_count == 12
    assert entry.max_timestamp == max(header.max_timestamp for header in headers)
    assert (entry.producer_id, entry.producer_epoch) == (9, 2)
    assert (entry.base_sequence, entry.last_sequence) == (2**31 - 6, 5)


def test_a_full_object_closes_at_once() -> None:
    driver = Driver(buffer_bytes_max=64 << 10)
    for _ in range(3):
        driver.submit(size=20_000)
    assert not driver.effects
    driver.submit(size=20_000)  # does not fit any more: what was there closes
    put = driver.expect(PutObject)
    assert len(decode_footer(b"".join(put.pieces)).ranges[0].layout) == 3 * 8
    driver.submit(size=64 << 10)
    assert [type(effect) for effect in driver.effects] == [PutObject, PutObject]
    assert driver.core.counters.closed_full == 3
    assert driver.core.wake_ms > driver.now_ms + 10


def test_an_object_is_full_with_as_many_entries_as_a_commit_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(accumulator, "OBJECT_ENTRIES_MAX", 5)
    driver = Driver()
    for _ in range(11):
        driver.submit()
    assert len(driver.effects) == 2
    assert all(
        len(effect.pieces) == 7 for effect in driver.effects if isinstance(effect, PutObject)
    )


def test_an_object_is_full_with_as_many_batches_as_a_footer_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(accumulator, "OBJECT_BATCHES_MAX", 5)
    driver = Driver()
    for _ in range(3):
        driver.submit(batches=2)
    assert len(driver.effects) == 1


def test_while_all_slots_are_taken_the_open_object_gathers_on() -> None:
    driver = Driver(objects_in_flight_max=2)
    first, second = driver.write(), driver.write()
    third = [driver.submit() for _ in range(3)]
    driver.pass_ms(500)
    assert not driver.effects
    driver.put_done(second[1])
    assert not driver.effects  # it waits for the first one's commit
    driver.put_done(first[1])
    commit = driver.expect(CommitObject)
    driver.commit_done(commit)
    puts = [effect for effect in driver.effects if isinstance(effect, PutObject)]
    assert [len(put.pieces) for put in puts] == [5]
    assert not third[0].outcomes


def test_full_objects_wait_for_a_slot_and_for_no_timer() -> None:
    driver = Driver(objects_in_flight_max=1, buffer_bytes_max=64 << 10)
    for _ in range(3):
        driver.submit(size=64 << 10)
    put = driver.expect(PutObject)
    assert not driver.effects
    driver.put_done(put)
    driver.commit_done(driver.expect(CommitObject))
    driver.expect(PutObject)
    assert not driver.effects


# Order


def test_objects_commit_in_the_order_in_which_they_closed() -> None:
    driver = Driver()
    written = [driver.write() for _ in range(4)]
    for _, put in reversed(written[1:]):
        driver.put_done(put)
    assert not driver.effects
    driver.put_done(written[0][1])
    for sent, put in written:
        commit = driver.expect(CommitObject)
        assert commit.number == put.number
        assert not driver.effects  # one at a time
        driver.commit_done(commit)
        assert sent.placed
    assert driver.core.idle


# PUTs that fail


@pytest.mark.parametrize("error", [LOST, ObjectExists("wal/1")])
def test_a_failed_put_is_made_again_under_another_key_after_a_pause(error: PenstockError) -> None:
    driver = Driver(retry_backoff_ms=100)
    sent, put = driver.write()
    driver.put_failed(put, error)
    assert not driver.effects
    driver.pass_ms(49)
    assert not driver.effects
    driver.pass_ms(1)
    again = driver.expect(PutObject)
    assert again.lease.key != put.lease.key
    assert again.pieces[1:] == put.pieces[1:]
    assert decode_header(b"".join(again.pieces)).object_id == again.lease.object_id
    driver.put_done(again)
    commit = driver.expect(CommitObject)
    assert commit.lease == again.lease
    driver.commit_done(commit)
    assert sent.placed
    assert driver.core.counters.put_retries == 1


def test_pauses_double_up_to_their_ceiling() -> None:
    driver = Driver(retry_backoff_ms=50, retry_backoff_max_ms=400)
    _, put = driver.write()
    pauses = []
    for _ in range(6):
        before = driver.now_ms
        driver.put_failed(put)
        pauses.append(driver.core.wake_ms - before)
        driver.pass_ms(pauses[-1])
        put = driver.expect(PutObject)
    assert pauses == [25, 50, 100, 200, 200, 200]


def test_an_overdue_put_gets_another_beside_it_and_the_first_to_succeed_counts() -> None:
    driver = Driver(put_timeout_ms=1000, retry_backoff_ms=10)
    sent, put = driver.write()
    driver.pass_ms(1010)
    again = driver.expect(PutObject)
    driver.put_done(put)
    commit = driver.expect(CommitObject)
    assert commit.lease == put.lease
    driver.put_done(again)
    driver.put_failed(again)
    assert not driver.effects
    driver.commit_done(commit)
    assert sent.placed


def test_only_so_many_puts_of_one_object_are_under_way() -> None:
    driver = Driver(put_timeout_ms=100, retry_backoff_ms=1)
    _, first = driver.write()
    driver.pass_ms(20_000)
    assert len(driver.effects) == ATTEMPTS_AT_ONCE_MAX - 1
    driver.put_failed(first)  # not the newest, but now there is room for another
    driver.pass_ms(2)
    assert len(driver.effects) == ATTEMPTS_AT_ONCE_MAX


def test_a_failure_of_an_overdue_put_changes_nothing_for_the_one_beside_it() -> None:
    driver = Driver(put_timeout_ms=1000, retry_backoff_ms=10)
    _, put = driver.write()
    driver.pass_ms(1010)
    again = driver.expect(PutObject)
    driver.put_failed(put)
    driver.pass_ms(900)
    assert not driver.effects
    driver.put_done(again)
    driver.put_failed(put, StoreRefused("no such bucket"))
    assert driver.expect(CommitObject).lease == again.lease


def test_what_the_store_refuses_is_answered_at_once() -> None:
    driver = Driver()
    sent, put = driver.write()
    driver.put_failed(put, StoreRefused("no such bucket"))
    assert driver.expect(Finished).answer is None
    assert isinstance(sent.error, WriteFailed)
    assert "no such bucket" in str(sent.error)
    assert driver.core.idle
    assert driver.core.counters.objects_failed == 1


def test_an_object_that_cannot_be_written_in_time_fails() -> None:
    driver = Driver(write_timeout_ms=5000, put_timeout_ms=600_000)
    sent, put = driver.write()
    driver.pass_ms(4989)
    assert not sent.outcomes
    driver.pass_ms(1)
    assert isinstance(sent.error, WriteTimedOut)
    assert driver.core.idle
    driver.expect(Finished)
    driver.put_done(put)
    assert not driver.effects
    assert driver.core.wake_ms == inf


# Commits that fail


def test_an_unknown_commit_is_repeated_with_the_same_object_and_those_behind_it_wait() -> None:
    driver = Driver(retry_backoff_ms=100)
    first, _, commit = driver.committing()
    second, put = driver.write()
    driver.put_done(put)
    driver.commit_failed(commit)
    assert not driver.effects
    driver.pass_ms(50)
    again = driver.expect(CommitObject)
    assert again == commit
    driver.commit_done(again)
    driver.commit_done(driver.expect(CommitObject), 1)
    assert (first.placed.base_offset, second.placed.base_offset) == (0, 1)
    assert driver.core.counters.commit_retries == 1


def test_a_swept_object_is_written_again_before_later_ones_commit() -> None:
    driver = Driver()
    first, put, commit = driver.committing()
    second, other = driver.write()
    driver.put_done(other)
    driver.commit_failed(commit, ObjectLeaseLost(put.lease.object_id))
    again = driver.expect(PutObject)
    assert again.number == put.number
    assert again.lease.object_id > 64  # the keys of the same block will have been swept, too
    assert not driver.effects
    driver.put_done(again)
    recommit = driver.expect(CommitObject)
    assert recommit.lease == again.lease
    driver.commit_done(recommit)
    driver.commit_done(driver.expect(CommitObject), 1)
    assert (first.placed.base_offset, second.placed.base_offset) == (0, 1)
    assert driver.core.counters.leases_lost == 1


@pytest.mark.parametrize("error", [TooLarge("too many entries"), DatabaseStopped("EIO")])
def test_a_permanent_rejection_by_the_plane_is_answered_at_once(error: PenstockError) -> None:
    driver = Driver()
    sent, _, commit = driver.committing()
    driver.commit_failed(commit, error)
    assert isinstance(sent.error, WriteFailed)
    assert driver.core.idle


def test_a_commit_without_an_outcome_fails_and_its_late_response_is_ignored() -> None:
    driver = Driver(write_timeout_ms=5000)
    sent, _, commit = driver.committing()
    driver.pass_ms(5000)
    assert isinstance(sent.error, WriteTimedOut)
    driver.expect(Finished)
    driver.core.committed(
        commit.number, CommitAnswer(placed=(AppendResult(0, -1, 0),)), driver.now_ms
    )
    driver.commit_failed(commit)
    assert driver.core.take() == ()
    assert len(sent.outcomes) == 1


def test_a_refused_entry_is_answered_as_the_plane_says() -> None:
    driver = Driver()
    sent, _, commit = driver.committing()
    placed = AppendResult(-1, -1, -1, error="unknown_topic_id", message="gone")
    driver.core.committed(commit.number, CommitAnswer(placed=(placed,)), driver.now_ms)
    driver.take()
    assert sent.placed is placed


# What follows a failure


def test_later_submissions_of_the_same_producer_fail_with_an_earlier_one() -> None:
    driver = Driver()
    doomed, put = driver.write(producer_id=5, sequence=0)
    mixed = [
        driver.submit(producer_id=5, sequence=1),
        driver.submit(producer_id=6, sequence=0),
        driver.submit(producer_id=5, sequence=0, partition=1),
        driver.submit(),
    ]
    driver.pass_ms(10)
    later = driver.expect(PutObject)
    alone, last = driver.write(producer_id=5, sequence=2)
    gathering_now = driver.submit(producer_id=5, sequence=3)
    driver.put_done(later)
    driver.put_failed(put, StoreRefused("no"))
    assert isinstance(doomed.error, WriteFailed)
    for sent in (mixed[0], alone, gathering_now):
        assert isinstance(sent.error, EarlierWriteFailed)
    ended = [effect.number for effect in driver.effects if isinstance(effect, Finished)]
    assert ended == [put.number, last.number]
    commit = driver.effects[-1]
    assert isinstance(commit, CommitObject)
    assert [(entry.producer_id, entry.partition) for entry in commit.entries] == [
        (6, 0), (-1, 0), (5, 1),
    ]  # fmt: skip
    driver.effects.clear()
    driver.commit_done(commit)
    assert all(sent.placed for sent in mixed[1:])
    driver.pass_ms(10)
    assert driver.core.idle  # what was gathering has nothing that could be committed
    again = driver.submit(producer_id=5, sequence=0)
    driver.effects.clear()
    driver.pass_ms(10)
    driver.put_done(driver.expect(PutObject))
    driver.commit_done(driver.expect(CommitObject))
    assert again.placed


def test_producers_without_sequences_are_not_held_to_an_order() -> None:
    driver = Driver()
    _, put = driver.write()
    later, other = driver.write()
    driver.put_failed(put, StoreRefused("no"))
    driver.expect(Finished)
    driver.put_done(other)
    driver.commit_done(driver.expect(CommitObject))
    assert later.placed
