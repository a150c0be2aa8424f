"""A log as a replica: batches as the leader stamped them, and cutting its end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from penstock.base.errors import BugError
from penstock.records import CorruptBatch, InvalidRecord, split_batches
from penstock.storage import (
    AppendBacklog,
    LogConfig,
    ReplicaEpochFell,
    ReplicaOverlap,
    StorageError,
)
from tests.faulty_files import SYNCS, FaultyFiles
from tests.storage.batches import Harness, abandon, batch, offsets, read_all, stamped

ROLLING = LogConfig(segment_bytes=400, index_interval_bytes=100, retention_ms=-1)


def joined(*batches: memoryview) -> memoryview:
    return memoryview(b"".join(batches))


def replicate(harness: Harness, data: memoryview, partition: int = 0) -> int:
    """Append as a replica and commit; returns the new end."""
    end = harness.log(partition).replica.append(data, now_ms=harness.clock.ms)
    assert harness.commit() is None
    return end


def test_a_leaders_batches_are_stored_byte_for_byte(tmp_path: Path) -> None:
    config = LogConfig(message_timestamp_type="LogAppendTime", max_message_bytes=1)
    harness = Harness(tmp_path, config=config)
    first = joined(stamped(2, 0, 3, timestamp=5), stamped(1, 2, 3, timestamp=9))
    second = stamped(4, 3, 3, size=20_000)
    assert replicate(harness, first) == 3
    assert replicate(harness, second) == 7
    for way in (harness.crash, harness.reopen):
        assert read_all(harness.log(), max_bytes=50_000) == bytes(first) + bytes(second)
        assert harness.log().end_offset_for_epoch(3) == (3, 7)
        way()
    assert harness.log().leader_epoch == 3
    harness.store.close()


def test_a_run_is_one_item_of_the_journal_and_one_sync(tmp_path: Path) -> None:
    files = FaultyFiles()
    harness = Harness(tmp_path, files=files)
    for partition in range(20):
        harness.log(partition)
    assert harness.commit() is None
    run = joined(*[stamped(2, 2 * n, 1, fill=n) for n in range(50)])
    before = files.syncs
    for partition in range(20):
        assert harness.log(partition).replica.append(run, now_ms=1) == 100
    assert len(harness.store._parts.queue.pending) == 20
    assert harness.commit() is None
    assert files.syncs == before + 1
    assert all(read_all(harness.log(n), max_bytes=9999) == bytes(run) for n in range(20))
    harness.store.close()


def test_each_epoch_begins_a_segment(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    run = joined(stamped(2, 0, 1), stamped(1, 2, 1), stamped(3, 3, 4), stamped(1, 6, 6))
    assert replicate(harness, run) == 7
    assert replicate(harness, stamped(1, 7, 6)) == 8
    for _ in range(2):
        log = harness.log()
        log.load()
        assert [segment.base_offset for segment in log.state.segments] == [0, 3, 6]
        assert log.state.epochs.entries[-3:] == [(1, 0), (4, 3), (6, 6)]
        assert log.end_offset_for_epoch(5) == (4, 6)
        harness.crash()
    harness.store.close()


def test_appends_that_do_not_follow_are_rejected_whole(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    replicate(harness, joined(stamped(2, 0, 3), stamped(2, 2, 5)))
    log = harness.log()
    rotten = stamped(1, 4, 5)
    rotten[70] ^= 1
    cases: list[tuple[memoryview, type[Exception]]] = [
        (stamped(1, 3, 5), ReplicaOverlap),
        (stamped(2, 2, 5), ReplicaOverlap),
        (joined(stamped(1, 6, 5), stamped(1, 4, 5)), ReplicaOverlap),
        (joined(stamped(2, 4, 5), stamped(1, 5, 5)), ReplicaOverlap),
        (stamped(1, 4, 4), ReplicaEpochFell),
        (joined(stamped(1, 4, 6), stamped(1, 5, 5)), ReplicaEpochFell),
        (joined(stamped(1, 4, 5), rotten), ReplicaOverlap),
        (rotten, CorruptBatch),
        (stamped(1, 4, 5)[:-1], CorruptBatch),
        (joined(stamped(1, 4, 5), stamped(1, 5, 5)[:40]), CorruptBatch),
        (memoryview(b""), InvalidRecord),
    ]
    before = log.state.epochs.entries, log.leader_epoch
    for data, error in cases:
        with pytest.raises(error):
            log.replica.append(data, now_ms=1)
        assert (log.log_end_offset, log.state.epochs.entries, log.leader_epoch) == (4, *before)
    with pytest.raises(ReplicaOverlap) as caught:
        log.replica.append(stamped(1, 3, 5), now_ms=1)
    assert (caught.value.expected, caught.value.found) == (4, 3)
    assert replicate(harness, stamped(1, 4, 5)) == 5
    harness.store.close()


def test_an_epoch_without_a_record_does_not_refuse_older_ones(tmp_path: Path) -> None:
    """A partition is opened with the newest epoch there is; backfill begins at the oldest."""
    harness = Harness(tmp_path)
    log = harness.log()
    log.set_leader_epoch(7)
    assert replicate(harness, stamped(2, 0, 2)) == 2
    assert log.state.epochs.entries == [(2, 0)]
    harness.crash()
    assert harness.log().end_offset_for_epoch(2) == (2, 2)
    harness.store.close()


def test_a_replica_remembers_producers_and_may_lead(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    replicate(harness, stamped(3, 0, 1, producer_id=5, epoch=0, sequence=0))
    for way in (harness.crash, harness.reopen):
        log = harness.log()
        log.set_leader_epoch(2)
        again = log.append(batch(3, producer_id=5, epoch=0, sequence=0), now_ms=1)
        assert (again.base_offset, again.duplicate) == (0, True)
        way()
    assert harness.put(batch(1, producer_id=5, epoch=0, sequence=3)) == 3
    harness.store.close()


def test_a_replica_needs_a_store_that_syncs_and_room(tmp_path: Path) -> None:
    for policy in ("interval", "os"):
        harness = Harness(tmp_path / policy, log_flush_policy=policy)
        with pytest.raises(BugError, match=r"log\.flush\.policy"):
            harness.log().replica.append(stamped(1, 0, 0), now_ms=1)
        harness.store.close()
    harness = Harness(tmp_path / "group", pending_bytes_max=1 << 20)
    with pytest.raises(AppendBacklog):
        harness.log().replica.append(stamped(1, 0, 0, size=2 << 20), now_ms=1)
    harness.store.close()


# -- truncation ------------------------------------------------------------------------------------


def content(harness: Harness) -> list[tuple[int, int]]:
    return offsets(read_all(harness.log()))


def filled(directory: Path, count: int = 9, **options: object) -> Harness:
    """Batches of two records of epochs 1, 2 and 3, three of each, by a producer."""
    harness = Harness(directory, config=ROLLING, **options)  # type: ignore[arg-type]
    for number in range(count):
        data = stamped(
            2, 2 * number, 1 + number // 3, fill=number,
            producer_id=7, epoch=0, sequence=2 * number,
        )  # fmt: skip
        replicate(harness, data)
    return harness


def nothing(harness: Harness) -> None:
    return


BEFORE: list[Callable[[Harness], object]] = [
    nothing,
    lambda harness: harness.log().state.write_segments(),
    lambda harness: harness.store.checkpoint(),
    Harness.reopen,
    Harness.crash,
]


def checkpoint_and_crash(harness: Harness) -> None:
    harness.store.checkpoint()
    harness.crash()


AFTER = [nothing, Harness.crash, Harness.reopen, checkpoint_and_crash]


class Unsynced(FaultyFiles):
    """Syncs take no time; for tests that lose no power."""

    def around(self, name: str, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        return None if name in SYNCS else super().around(name, call, *arguments, **options)


@pytest.mark.parametrize("before", range(len(BEFORE)))
@pytest.mark.parametrize("after", range(len(AFTER)))
def test_a_cut_at_any_offset(tmp_path: Path, before: int, after: int) -> None:
    for offset in range((before + after) % 4, 19, 4):
        harness = filled(tmp_path / str(offset), files=Unsynced())
        BEFORE[before](harness)
        end = min(offset - offset % 2, 18)
        log = harness.log()
        assert log.replica.truncate(offset, floor=end) == end
        assert (log.log_end_offset, log.durable_offset) == (end, end)
        assert harness.commit() is None
        AFTER[after](harness)
        log = harness.log()
        whole = [(n, n + 2) for n in range(0, end, 2)]
        assert content(harness) == whole
        assert log.latest_epoch_at(17) == (1 + (end - 2) // 6 if end else -1)
        sequences = [producer.last_sequence for producer in log.producers()]
        assert sequences == ([end - 1] if end else [])
        assert replicate(harness, stamped(3, end, 9, fill=77)) == end + 3
        for _ in range(2):
            assert content(harness) == [*whole, (end, end + 3)]
            assert harness.log().log_end_offset == end + 3
            for at in range(end + 3):
                read = harness.log().read(at, max_bytes=1, end_offset=99)
                first = end if at >= end else at - at % 2
                assert offsets(bytes(read.buffers[0]))[0][0] == first
            harness.crash()
        harness.store.close()


def test_a_cut_never_goes_below_the_floor_or_the_start(tmp_path: Path) -> None:
    harness = filled(tmp_path)
    log = harness.log()
    for offset, floor in ((5, 6), (6, 8), (7, 7), (17, 17)):
        with pytest.raises(BugError, match="below its committed offset"):
            log.replica.truncate(offset, floor=floor)
    assert log.replica.truncate(99, floor=18) == 18
    log.delete_records(9)
    with pytest.raises(BugError, match="start 9"):
        log.replica.truncate(8, floor=0)
    assert content(harness)[-1] == (16, 18)
    assert log.replica.truncate(10, floor=9) == 10
    assert harness.commit() is None
    harness.crash()
    assert (harness.log().log_start_offset, harness.log().log_end_offset) == (9, 10)
    harness.store.close()


def test_queued_appends_are_taken_back_without_a_row(tmp_path: Path) -> None:
    harness = filled(tmp_path, 3)
    log = harness.log()
    run = joined(stamped(2, 6, 1), stamped(2, 8, 1), stamped(2, 10, 1, producer_id=8, epoch=0,
                 sequence=0))  # fmt: skip
    log.replica.append(run, now_ms=1)
    log.replica.append(stamped(1, 12, 4), now_ms=1)
    assert log.replica.truncate(9, floor=6) == 8
    assert log.log_end_offset == 8
    assert [item.size_bytes for item in harness.store._parts.queue.pending] == [len(run) // 3]
    assert [producer.producer_id for producer in log.producers()] == [7]
    log.replica.append(stamped(5, 8, 5), now_ms=1)
    assert harness.commit() is None
    expected = [(0, 2), (2, 4), (4, 6), (6, 8), (8, 13)]
    assert content(harness) == expected
    harness.crash()
    assert content(harness) == expected
    assert harness.log().state.epochs.entries[-2:] == [(1, 0), (5, 8)]
    harness.store.close()


def test_cuts_and_appends_of_one_turn_share_a_sync(tmp_path: Path) -> None:
    files = FaultyFiles()
    harness = filled(tmp_path, files=files)
    for partition in range(1, 5):
        replicate(harness, stamped(8, 0, 1), partition)
    before = files.syncs
    assert harness.log().replica.truncate(7, floor=0) == 6
    harness.log().replica.append(stamped(2, 6, 8), now_ms=1)
    for partition in range(1, 5):
        assert harness.log(partition).replica.truncate(3, floor=0) == 0
        harness.log(partition).replica.append(stamped(1, 0, 2), now_ms=1)
    # Cut again while the first cut waits: only the second is in the journal.
    assert harness.log().replica.truncate(4, floor=0) == 4
    harness.log().replica.append(stamped(1, 4, 8), now_ms=1)
    assert harness.commit() is None
    assert files.syncs == before + 1
    for _ in range(2):
        assert content(harness) == [(0, 2), (2, 4), (4, 5)]
        assert [harness.log(n).log_end_offset for n in range(1, 5)] == [1] * 4
        harness.crash()
    harness.store.close()


def test_a_cut_that_the_disk_has_no_room_for_is_taken_back(tmp_path: Path) -> None:
    files = FaultyFiles()
    harness = filled(tmp_path, files=files)
    log = harness.log()
    whole, epochs = content(harness), log.state.epochs.entries
    assert log.replica.truncate(5, floor=0) == 4
    log.replica.append(stamped(1, 4, 9, size=300_000), now_ms=1)
    harness.store.checkpoint()
    files.room = 100
    assert isinstance(harness.commit(), StorageError)
    files.room = None
    assert harness.store.failed is None
    assert (log.log_end_offset, log.durable_offset) == (18, 18)
    # The epoch that was begun stays, without a record, as it would without a cut.
    assert (content(harness), log.state.epochs.entries) == (whole, [*epochs, (9, 18)])
    assert [producer.last_sequence for producer in log.producers()] == [17]
    assert replicate(harness, stamped(1, 18, 3)) == 19
    harness.crash()
    assert content(harness) == [*whole, (18, 19)]
    assert harness.log().replica.truncate(5, floor=0) == 4
    assert harness.commit() is None
    harness.crash()
    assert content(harness) == whole[:2]
    harness.store.close()


def test_a_checkpoint_during_a_cut_keeps_durable_bytes(tmp_path: Path) -> None:
    for end in (0, 4, 10):
        harness = filled(tmp_path / str(end))
        whole = content(harness)
        harness.log().replica.truncate(end, floor=0)
        harness.log().replica.append(stamped(1, end, 9), now_ms=1)
        harness.store.checkpoint()
        harness.crash()
        assert content(harness) == whole
        assert harness.log().latest_epoch_at(17) == 3
        assert [producer.last_sequence for producer in harness.log().producers()] == [17]
        harness.store.close()


def test_files_that_cannot_be_cut_stop_the_store_until_it_is_opened_again(tmp_path: Path) -> None:
    files = FaultyFiles()
    harness = filled(tmp_path, files=files)
    harness.log().replica.truncate(4, floor=0)
    files.fail = lambda name, path: 5 if name == "remove" else None
    error = harness.commit()
    assert error is not None
    assert harness.store.failed is error
    files.fail = lambda name, path: None
    harness.store.close()
    harness = Harness(tmp_path, config=ROLLING)
    assert content(harness) == [(0, 2), (2, 4)]
    harness.store.close()


def test_a_deleted_log_forgets_its_cut(tmp_path: Path) -> None:
    harness = filled(tmp_path)
    harness.log().replica.truncate(4, floor=0)
    harness.store.delete(harness.log().topic_partition)
    assert harness.commit() is None
    assert harness.log().replica.append(stamped(2, 0, 1), now_ms=1) == 2
    assert harness.commit() is None
    assert content(harness) == [(0, 2)]
    harness.store.close()


def test_replay_of_a_cut_is_idempotent_over_later_appends(tmp_path: Path) -> None:
    harness = filled(tmp_path)
    harness.log().replica.truncate(6, floor=0)
    replicate(harness, stamped(2, 6, 5))
    harness.log().state.write_segments()
    expected = read_all(harness.log())
    abandon(harness.store)
    checkpoint = (tmp_path / "partitions.checkpoint").read_bytes()
    for _ in range(3):
        again = Harness(tmp_path, config=ROLLING)
        assert read_all(again.log()) == expected
        assert [header.partition_leader_epoch for header in split_batches(expected)] == [1, 1, 1, 5]
        abandon(again.store)
        (tmp_path / "partitions.checkpoint").write_bytes(checkpoint)


# -- promise and limbo -----------------------------------------------------------------------------


def standing(harness: Harness, partition: int = 0) -> tuple[int, int]:
    log = harness.log(partition)
    return log.replica.promised, log.replica.limbo


def test_promise_and_limbo_are_kept_without_any_record(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    assert standing(harness) == (-1, -1)
    harness.log().replica.promise(4)
    harness.log().replica.set_limbo(3)
    assert standing(harness) == (4, 3)
    assert harness.commit() is None
    harness.log().replica.promise(9)
    harness.log().replica.set_limbo(-1)
    for way in (harness.crash, harness.reopen, harness.crash):
        way()
        assert standing(harness) == (4, 3)
        assert not harness.log().state.loaded or harness.log().log_end_offset == 0
    with pytest.raises(BugError, match="cannot promise epoch 3"):
        harness.log().replica.promise(3)
    harness.log().replica.set_limbo(-1)
    assert harness.commit() is None
    harness.reopen()
    harness.reopen()
    assert standing(harness) == (4, -1)
    harness.store.close()


def test_only_a_new_promise_costs_a_sync(tmp_path: Path) -> None:
    files = FaultyFiles()
    harness = Harness(tmp_path, files=files)
    logs = [harness.log(partition) for partition in range(10)]
    assert harness.commit() is None
    for expected in (1, 0):
        before = files.syncs
        for log in logs:
            log.replica.promise(5)
            log.replica.promise(5)
        if expected:
            logs[0].replica.append(stamped(1, 0, 5), now_ms=1)
        assert harness.commit() is None
        assert files.syncs == before + expected
    harness.crash()
    assert [standing(harness, n) for n in range(10)] == [(5, -1)] * 10
    harness.store.close()


def test_the_journal_is_recycled_and_promises_stay(tmp_path: Path) -> None:
    harness = Harness(tmp_path, files=Unsynced(), journal_file_bytes=1 << 16, journal_files_max=2)
    harness.log(1).replica.promise(3)
    harness.log(1).replica.set_limbo(2)
    for number in range(60):
        replicate(harness, stamped(1, number, 1, size=5000))
    assert harness.store._journal.file_count <= 3
    for _ in range(2):
        harness.crash()
        assert standing(harness, 1) == (3, 2)
    harness.store.close()


def test_a_promise_that_the_disk_has_no_room_for_was_not_given(tmp_path: Path) -> None:
    files = FaultyFiles()
    harness = Harness(tmp_path, files=files)
    harness.log().replica.promise(1)
    harness.log().replica.set_limbo(1)
    harness.log(1)
    assert harness.commit() is None
    files.room = 10
    harness.log().replica.promise(2)
    harness.log().replica.set_limbo(-1)
    harness.log().replica.promise(5)
    harness.append(batch(size=300_000), 1)
    assert standing(harness) == (5, -1)
    assert isinstance(harness.commit(), StorageError)
    assert standing(harness) == (1, 1)
    files.room = None
    harness.store.checkpoint()
    harness.crash()
    assert standing(harness) == (1, 1)
    harness.store.close()


def test_a_checkpoint_has_nothing_of_a_promise_that_waits(tmp_path: Path) -> None:
    """Above all no limbo that ends before what ended it is durable."""
    harness = Harness(tmp_path)
    harness.log().replica.set_limbo(4)
    assert harness.commit() is None
    harness.log().replica.append(stamped(1, 0, 1), now_ms=1)
    harness.log().replica.set_limbo(-1)
    harness.store.checkpoint()
    harness.crash()
    assert (standing(harness), harness.log().log_end_offset) == ((-1, 4), 0)
    harness.store.close()


def test_promises_are_kept_by_a_damaged_log_and_a_cut_one(tmp_path: Path) -> None:
    harness = filled(tmp_path)
    harness.log().replica.promise(3)
    harness.log().replica.truncate(5, floor=0)
    harness.log().replica.promise(4)
    assert harness.log().replica.truncate(3, floor=0) == 2
    assert harness.commit() is None
    harness.reopen()
    assert (standing(harness), content(harness)) == ((4, -1), [(0, 2)])
    harness.store.close()
    (tmp_path / "orders-0" / "00000000000000000000.log").write_bytes(b"")
    harness = Harness(tmp_path, config=ROLLING)
    harness.log().load()
    assert harness.log().state.damage is not None
    harness.log().replica.promise(6)
    harness.log().replica.set_limbo(5)
    assert harness.commit() is None
    for way in (harness.crash, harness.reopen):
        way()
        assert standing(harness) == (6, 5)
    harness.store.close()


def test_an_index_has_no_entries_of_cut_batches(tmp_path: Path) -> None:
    config = LogConfig(index_interval_bytes=100, retention_ms=-1)
    for way in (Harness.reopen, Harness.crash, checkpoint_and_crash):
        harness = Harness(tmp_path / way.__name__, config=config)
        for number in range(20):
            harness.log().replica.append(stamped(1, number, 1, size=90), now_ms=1)
        assert harness.commit() is None
        harness.store.checkpoint()
        harness.log().replica.truncate(5, floor=0)
        harness.log().replica.append(stamped(1, 5, 1, size=5000), now_ms=1)
        assert harness.commit() is None
        for _ in range(2):
            whole = read_all(harness.log(), max_bytes=9000)
            for size in range(100, len(whole), 150):
                read = harness.log().read(0, max_bytes=size, end_offset=99)
                ends = list(accumulate(header.size_bytes for header in split_batches(whole)))
                fits = max(end for end in ends if end <= max(size, ends[0]))
                assert b"".join(map(bytes, read.buffers)) == whole[:fits]
            way(harness)
        harness.store.close()


def test_snapshots_of_cut_offsets_are_removed(tmp_path: Path) -> None:
    """A second cut must not load a snapshot of producers from before the first one."""
    for way in (nothing, Harness.crash, Harness.reopen):
        harness = Harness(tmp_path / way.__name__, files=Unsynced())
        for number in range(5):
            known = {"producer_id": 7, "epoch": 0, "sequence": 2 * number}
            replicate(harness, stamped(2, 2 * number, 1, **known))
        harness.store.checkpoint()
        for step in (4, 12):
            assert harness.log().replica.truncate(step, floor=0) == step
            assert harness.commit() is None
            way(harness)
            assert [producer.last_sequence for producer in harness.log().producers()] == [3]
            while harness.log().log_end_offset < 20:
                replicate(harness, stamped(2, harness.log().log_end_offset, 2))
        harness.store.close()


@pytest.mark.parametrize("expires", [(0, -1), (-1, 0)])
def test_retention_keeps_uncommitted_records(tmp_path: Path, expires: tuple[int, int]) -> None:
    harness = filled(tmp_path, log_retention_check_interval_ms=1)
    log = harness.log()
    log.replica.promise(3)
    assert harness.commit() is None
    harness.config = replace(ROLLING, retention_ms=expires[0], retention_bytes=expires[1])

    def start_after_upkeep() -> int:
        for _ in range(8):
            harness.clock.ms += 10
            harness.store.housekeeping(harness.clock.ms)
            harness.store.checkpoint()
        return harness.log().log_start_offset

    bases = [segment.base_offset for segment in log.state.segments]
    for committed in (0, 5, 13, 17, 7):
        log.state.committed_offset = committed
        whole = max(base for base in bases if base <= max(committed, log.log_start_offset))
        assert start_after_upkeep() == whole
    harness.crash()
    assert start_after_upkeep() == 12, "the committed offset is unknown"
    harness.log().state.committed_offset = 18
    assert start_after_upkeep() == 18
    harness.store.close()


@pytest.mark.parametrize("checkpointed", [False, True])
def test_a_recreated_log_has_nothing_of_the_deleted_one(tmp_path: Path, checkpointed: bool) -> None:
    """The journal has entries and standing of the first log; the second one is killed."""
    harness = Harness(tmp_path)
    log = harness.log()
    log.replica.promise(7)
    log.replica.append(stamped(5, 0, 7, fill=1), now_ms=1)
    assert harness.commit() is None
    if checkpointed:
        harness.store.checkpoint()
    log.replica.append(stamped(5, 5, 7, fill=2), now_ms=1)
    assert harness.commit() is None
    log.replica.truncate(5, floor=0)
    assert harness.commit() is None
    harness.store.delete(log.topic_partition)
    log = harness.log()
    assert (log.log_end_offset, log.replica.promised) == (0, -1)
    log.replica.append(stamped(2, 0, 1, fill=9), now_ms=1)
    assert harness.commit() is None
    before = read_all(log)
    abandon(harness.store)
    log = Harness(tmp_path).log()
    assert (log.log_end_offset, log.replica.promised, log.replica.lost) == (2, -1, None)
    assert read_all(log) == before
