"""A start after a crash reads the journal and nothing else; logs get what it has when needed."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

from penstock.base.settings import LONG_MAX
from penstock.records.header import TRANSACTIONAL_FLAG
from penstock.records.transactions import UNGUARDED
from penstock.storage.files.errors import REPLAYED_LOGS_MAX, DiskFull
from tests.faulty_files import FaultyFiles, PowerLoss
from tests.storage.batches import TOPIC_ID, WHERE, Harness, abandon, batch, offsets, read_all

LOGS = REPLAYED_LOGS_MAX * 2 + 5


def crashed(directory: Path, logs: int = LOGS) -> list[bytes]:
    """Kill a process whose logs have records from before and after a checkpoint; return all
    records."""
    harness = Harness(directory)
    for after in range(2):
        for partition in range(logs):
            harness.append(batch(2, fill=partition), partition)
            if partition % 2:
                harness.append(batch(1, fill=after), partition)
        assert harness.commit() is None
        if not after:
            harness.store.checkpoint()
    held = [read_all(harness.log(partition)) for partition in range(logs)]
    abandon(harness.store)
    return held


def test_no_segment_is_touched_until_its_log_is_needed(tmp_path: Path) -> None:
    held = crashed(tmp_path)
    seen: list[str] = []
    for _ in range(2):
        files = FaultyFiles(lambda number, name, arguments: seen.append(str(arguments[0])))
        seen.clear()
        harness = Harness(tmp_path, files=files)
        assert {Path(path).name for path in seen if "/orders-" in path} == {"partition.metadata"}
        assert files.calls.count("sync_file") < 5
        for partition, data in enumerate(held):
            log = harness.log(partition)
            end = offsets(data)[-1][1]
            assert (log.state.loaded, log.log_end_offset, log.durable_offset) == (False, end, end)
            assert (log.leader_epoch, log.size_bytes) == (0, len(data))
        assert read_all(harness.log(3)) == held[3]
        harness.put(batch(1), 4)
        held[4] = read_all(harness.log(4))
        assert sum(log.state.loaded for log in harness.store.partitions.values()) == 2
        harness.crash()
        assert [read_all(harness.log(partition)) for partition in range(LOGS)] == held
        abandon(harness.store)


def test_a_checkpoint_waits_for_all_logs_and_frees_the_journal(tmp_path: Path) -> None:
    held = crashed(tmp_path)
    harness = Harness(tmp_path)
    store = harness.store
    assert store._journal.files_in_use == 2
    before = store._parts.counters.checkpoints
    harness.clock.ms += 100_000
    for calls in range(3):
        assert (
            sum(log.state.loaded for log in store.partitions.values()) == calls * REPLAYED_LOGS_MAX
        )
        assert store._parts.counters.checkpoints == before
        store.housekeeping(harness.clock.ms)
    assert store._parts.counters.checkpoints == before + 1
    assert store._journal.files_in_use == 1
    harness.crash()
    assert harness.store._recovered_entries == 0
    assert [read_all(harness.log(partition)) for partition in range(LOGS)] == held
    harness.store.close()


def test_a_full_journal_waits_for_none(tmp_path: Path) -> None:
    held = crashed(tmp_path)
    harness = Harness(tmp_path, journal_file_bytes=1 << 20, journal_files_max=2)
    for number in range(6):
        harness.put(batch(1, size=900_000, fill=number), number % 2)
    assert harness.store._journal.file_count <= 4
    assert all(log.state.loaded for log in harness.store.partitions.values())
    harness.crash()
    assert [read_all(harness.log(partition)) for partition in range(2, LOGS)] == held[2:]
    assert read_all(harness.log(1), max_bytes=1 << 20).startswith(held[1])
    harness.store.close()


def test_a_close_leaves_a_log_that_was_never_loaded_complete(tmp_path: Path) -> None:
    held = crashed(tmp_path, logs=3)
    harness = Harness(tmp_path)
    harness.reopen()
    assert harness.store._recovered_entries == 0
    shutil.rmtree(tmp_path / "journal")
    harness.reopen()
    assert [read_all(harness.log(partition)) for partition in range(3)] == held
    harness.store.close()


def test_a_log_for_whose_bytes_there_is_no_room_is_tried_again(tmp_path: Path) -> None:
    held = crashed(tmp_path, logs=2)
    files = FaultyFiles()
    harness = Harness(tmp_path, files=files)
    files.fail = lambda name, path: (
        errno.ENOSPC if name == "write_at" and "/orders-0/" in path else None
    )
    with pytest.raises(DiskFull, match="no space"):
        harness.log(0).append(batch(), now_ms=1)
    assert read_all(harness.log(1)) == held[1]
    failures: list[object] = []
    harness.store.checkpoint(failures.append)
    assert isinstance(failures[0], DiskFull)
    files.fail = lambda name, path: None
    assert read_all(harness.log(0)) == held[0]
    harness.store.checkpoint(failures.append)
    assert failures[1:] == [None]
    harness.store.close()


def test_unsynced_bytes_of_a_killed_process_are_synced_first(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    files = FaultyFiles(root=root)
    harness = Harness(root, files=files)
    harness.put(batch(2, fill=1))
    harness.append(batch(3, fill=2))

    def kill(name: str, path: str) -> None:
        if name == "sync_file":
            raise PowerLoss

    files.fail = kill
    with pytest.raises(PowerLoss):
        harness.commit()
    abandon(harness.store)
    files.fail = lambda name, path: None
    lost = files.disk_after().after_power_loss()
    lost.put(tmp_path / "lost")
    assert Harness(tmp_path / "lost").log().durable_offset == 2
    again = Harness(root, files=files)
    assert again.log().durable_offset == 5
    abandon(again.store)
    files.disk_after().after_power_loss().put(tmp_path / "kept")
    kept = Harness(tmp_path / "kept")
    assert offsets(read_all(kept.log())) == [(0, 2), (2, 5)]
    kept.store.close()


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("checkpoint", [True, False])
def test_open_transactions_are_known_at_once(tmp_path: Path, clean: bool, checkpoint: bool) -> None:
    harness = Harness(tmp_path)
    harness.put(batch(2))
    sent = batch(producer_id=3, epoch=0, sequence=0, attributes=TRANSACTIONAL_FLAG)
    harness.log().append(sent, now_ms=1, guard=UNGUARDED)
    assert harness.commit() is None
    if checkpoint:
        harness.store.checkpoint()
    harness.put(batch(1), 1)
    for _ in range(2):
        (harness.reopen if clean else harness.crash)()
        log = harness.store.partitions[WHERE]
        assert log.producer_states.transactions.first_unstable_offset == 2
        other = harness.log(1)
        assert not other.state.loaded
        assert other.producer_states.transactions.first_unstable_offset == LONG_MAX
    harness.store.close()


def test_a_log_that_was_deleted_leaves_nothing_to_the_next_of_its_name(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    harness.put(batch(2), 1)
    harness.put(batch(2, fill=1))
    harness.store.checkpoint()
    harness.put(batch(3, fill=2))
    harness.store.delete(WHERE)
    harness.crash()
    assert WHERE not in harness.store.partitions
    log = harness.store.create(WHERE, topic_id=TOPIC_ID, leader_epoch=0)
    assert log.log_end_offset == 0
    harness.put(batch(1, fill=3))
    for _ in range(2):
        harness.crash()
        assert offsets(read_all(harness.log())) == [(0, 1)]
    harness.store.close()
