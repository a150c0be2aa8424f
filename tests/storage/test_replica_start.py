"""Restart of a log at an offset: only the earlier state of producers is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.base.errors import BugError
from penstock.records import OffsetOutOfRange, split_batches
from penstock.records.errors import OutOfOrderSequence
from penstock.storage import ReplicaOverlap, StorageError
from penstock.storage.files.errors import CorruptFile
from tests.faulty_files import FaultyFiles
from tests.storage.batches import Harness, abandon, stamped
from tests.storage.test_replica import AFTER, BEFORE, Unsynced, content, filled, replicate


def begin(harness: Harness, offset: int, producers: bytes = b"") -> None:
    harness.log().replica.start_at(offset, producers=producers, floor=0)


@pytest.mark.parametrize("before", range(len(BEFORE)))
@pytest.mark.parametrize("after", range(len(AFTER)))
@pytest.mark.parametrize("offset", [13, 18, 30])
def test_a_restart_leaves_nothing_of_the_old_log(
    tmp_path: Path, before: int, after: int, offset: int
) -> None:
    harness = filled(tmp_path, files=Unsynced())
    log = harness.log()
    log.replica.promise(3)
    producers = log.replica.producers_below(offset)
    BEFORE[before](harness)
    log = harness.log()
    begin(harness, offset, producers)
    assert (log.log_start_offset, log.log_end_offset, log.durable_offset) == (offset,) * 3
    with pytest.raises(OffsetOutOfRange):
        log.read(offset - 1, max_bytes=1, end_offset=99)
    assert harness.commit() is None
    AFTER[after](harness)
    assert content(harness) == []
    log = harness.log()
    assert log.latest_epoch_at(offset) == -1
    last = min(offset, 18) - 1
    assert [producer.last_sequence for producer in log.producers()] == [last - (last + 1) % 2]
    with pytest.raises(ReplicaOverlap):
        log.replica.append(stamped(1, offset - 1, 9), now_ms=1)
    assert replicate(harness, stamped(3, offset, 2, fill=77)) == offset + 3
    for _ in range(2):
        assert content(harness) == [(offset, offset + 3)]
        assert harness.log().state.epochs.entries == [(2, offset)]
        assert harness.log().replica.promised == max(harness.log().replica.promised, -1)
        harness.crash()
    assert harness.log().log_start_offset == offset
    names = sorted(path.name for path in Path(harness.log().state.directory).glob("*.log"))
    assert names == [f"{offset:020d}.log"]
    harness.store.close()


def test_carried_producers_survive_cuts_and_checkpoints(tmp_path: Path) -> None:
    leader = filled(tmp_path / "leader")
    harness = filled(tmp_path / "copy", count=2)
    begin(harness, 12, leader.log().replica.producers_below(12))
    assert harness.commit() is None
    for number in (6, 7, 8):
        data = stamped(2, 2 * number, 3, producer_id=7, epoch=0, sequence=2 * number)
        replicate(harness, data)
    for cut in (16, 12):
        harness.store.checkpoint()
        harness.crash()
        assert harness.log().replica.truncate(cut, floor=0) == cut
        assert harness.commit() is None
        for number in range(4, cut // 2):
            sent = stamped(2, 0, 0, producer_id=7, epoch=0, sequence=2 * number)
            original = harness.log().producer_states.check(split_batches(sent)[0])
            assert original is not None
            assert original.last_offset == 2 * number + 1
        header = split_batches(stamped(2, 0, 0, producer_id=7, epoch=0, sequence=6))[0]
        with pytest.raises(OutOfOrderSequence):
            harness.log().producer_states.check(header)
    assert harness.log().log_end_offset == 12
    for owner in (leader, harness):
        owner.store.close()


def test_it_never_begins_below_the_floor_or_the_start_nor_with_nonsense(tmp_path: Path) -> None:
    harness = filled(tmp_path)
    log = harness.log()
    assert log.delete_records(5) == 5
    for offset, floor in ((4, 0), (7, 8)):
        with pytest.raises(BugError, match=f"restart at offset {offset}"):
            log.replica.start_at(offset, producers=b"", floor=floor)
    with pytest.raises(CorruptFile):
        log.replica.start_at(13, producers=log.replica.producers_below(13)[:-1], floor=0)
    assert len(content(harness)) == 7
    harness.store.close()


def test_a_start_that_the_disk_has_no_room_for_is_taken_back(tmp_path: Path) -> None:
    files = FaultyFiles()
    harness = filled(tmp_path, files=files)
    log = harness.log()
    whole, epochs = content(harness), log.state.epochs.entries
    assert log.replica.truncate(14, floor=0) == 14
    begin(harness, 16)
    begin(harness, 17)
    log.replica.append(stamped(1, 17, 9, size=300_000), now_ms=1)
    harness.store.checkpoint()
    files.room = 100
    assert isinstance(harness.commit(), StorageError)
    files.room = None
    assert (log.log_start_offset, log.log_end_offset, log.durable_offset) == (0, 18, 18)
    assert (content(harness), log.state.epochs.entries) == (whole, [*epochs, (9, 18)])
    assert [producer.last_sequence for producer in log.producers()] == [17]
    assert replicate(harness, stamped(1, 18, 9)) == 19
    harness.crash()
    assert content(harness) == [*whole, (18, 19)]
    begin(harness, 40)
    assert harness.commit() is None
    harness.crash()
    assert (content(harness), harness.log().log_start_offset) == ([], 40)
    harness.store.close()


def test_a_checkpoint_during_a_restart_keeps_durable_bytes(tmp_path: Path) -> None:
    harness = filled(tmp_path)
    whole = content(harness)
    begin(harness, 10)
    harness.log().replica.append(stamped(1, 10, 9), now_ms=1)
    harness.store.checkpoint()
    harness.crash()
    assert content(harness) == whole
    assert harness.log().log_start_offset == 0
    assert harness.log().latest_epoch_at(17) == 3
    harness.store.close()


def test_a_start_is_moved_on_and_replayed_as_it_was_moved(tmp_path: Path) -> None:
    harness = filled(tmp_path)
    begin(harness, 20)
    replicate(harness, stamped(4, 20, 4))
    replicate(harness, stamped(4, 24, 4))
    assert harness.log().delete_records(25) == 25
    for _ in range(2):
        harness.crash()
        assert harness.log().log_start_offset == 25
        assert content(harness)[-1] == (24, 28)
        assert harness.log().replica.boundary(25) == 24
    harness.store.close()


@pytest.mark.parametrize("appended", [False, True])
def test_a_log_that_was_deleted_does_not_come_back(tmp_path: Path, appended: bool) -> None:
    """The journal has its newest batches, or its promise alone, and the checkpoint the others."""
    harness = Harness(tmp_path)
    log = harness.log()
    log.replica.append(stamped(5, 0, 7, fill=1), now_ms=1)
    assert harness.commit() is None
    harness.store.checkpoint()
    log.replica.promise(8)
    if appended:
        log.replica.append(stamped(5, 5, 7, fill=2), now_ms=1)
    assert harness.commit() is None
    harness.store.delete(log.topic_partition)
    abandon(harness.store)
    log = Harness(tmp_path).log()
    assert (log.log_end_offset, log.replica.promised, log.replica.lost) == (0, -1, None)
    log.load()
    assert log.state.damage is None
