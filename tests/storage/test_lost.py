"""Losses of replicated logs: reported until the owner handles them."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from penstock.base.ids import TopicPartition
from penstock.storage import CorruptLog
from penstock.storage.files.journal import ALIGNMENT_BYTES
from tests.faulty_files import FaultyFiles
from tests.storage.batches import WHERE, FakeClock, Harness, abandon, offsets, read_all, stamped

OTHER = TopicPartition(WHERE.topic, 1)
ENTRIES = 6


def everything(where: TopicPartition) -> bool:
    return True


def write(directory: Path) -> list[int]:
    """Write one journal entry per commit: appends, a cut, more; return the log's ends without
    each entry."""
    harness = Harness(directory, replicated=everything)
    harness.log(0)
    harness.log(1).replica.promise(2)
    assert harness.commit() is None
    harness.store.checkpoint()
    for number in range(ENTRIES):
        log = harness.log(0)
        if number == 3:
            log.replica.truncate(2, floor=0)
        else:
            log.replica.append(stamped(2, log.log_end_offset, 1, fill=number), now_ms=1)
        assert harness.commit() is None
    abandon(harness.store)
    # The first batch is in the segment by now: a copy, whatever became of its entry.
    return [2, 2, 4, 6, 2]


def entry_offset(number: int) -> int:
    """Return the position of an entry of `write`; the promise comes first."""
    return (number + 1) * ALIGNMENT_BYTES


def damage(directory: Path, number: int, at: int = 100) -> None:
    path = directory / "journal" / "00000000.journal"
    data = bytearray(path.read_bytes())
    data[entry_offset(number) + at] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("number", range(ENTRIES - 1))
@pytest.mark.parametrize("at", [0, 20, 100])
def test_any_log_of_the_store_may_be_concerned(tmp_path: Path, number: int, at: int) -> None:
    end = write(tmp_path)[number]
    damage(tmp_path, number, at)
    harness = Harness(tmp_path, replicated=everything)
    for way in (harness.crash, harness.reopen, harness.crash):
        assert set(harness.store.lost) == {WHERE, OTHER}
        assert "may be lost" in harness.store.lost[WHERE]
        assert (harness.log(0).log_end_offset, harness.log(1).replica.promised) == (end, 2)
        way()
    harness.log(0).replica.set_limbo(4)
    harness.log(0).replica.append(stamped(2, end, 5), now_ms=1)
    assert harness.commit() is None
    for way in (harness.crash, harness.reopen, harness.crash):
        assert set(harness.store.lost) == {OTHER}
        assert (harness.log(0).replica.limbo, harness.log(1).replica.limbo) == (4, -1)
        assert offsets(read_all(harness.log(0)))[-1] == (end, end + 2)
        way()
    harness.log(1).replica.set_limbo(-1)
    assert harness.commit() is None
    harness.crash()
    assert not harness.store.lost
    harness.store.close()


def test_a_damaged_store_is_rejected_if_replication_is_unknown(tmp_path: Path) -> None:
    write(tmp_path)
    damage(tmp_path, 1)
    for _ in range(2):
        with pytest.raises(CorruptLog, match="is damaged or missing"):
            Harness(tmp_path, replicated=None)
    harness = Harness(tmp_path, replicated=lambda where: where == OTHER)
    assert (harness.log().log_end_offset, set(harness.store.lost)) == (6, {OTHER})
    harness.store.close()


def test_a_torn_end_is_no_loss(tmp_path: Path) -> None:
    write(tmp_path)
    damage(tmp_path, ENTRIES - 1)
    harness = Harness(tmp_path, replicated=everything)
    assert (harness.log().log_end_offset, dict(harness.store.lost)) == (4, {})
    harness.store.close()


def test_damage_in_a_log_is_reported_of_replicated_ones(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    for partition in range(2):
        harness.log(partition).replica.append(stamped(2, 0, 1), now_ms=1)
    assert harness.commit() is None
    harness.store.close()
    for partition in range(2):
        (tmp_path / f"orders-{partition}" / "00000000000000000000.log").write_bytes(b"")
    again = Harness(tmp_path, replicated=lambda where: where == WHERE)
    for log in again.store.partitions.values():
        log.load()
    assert list(again.store.lost) == [WHERE]
    assert "were synced" in again.store.lost[WHERE]
    again.store.close()


def test_power_lost_while_a_loss_is_dealt_with(tmp_path: Path) -> None:
    """At every call from the first look until the limbo is durable, one of both is known."""
    root = tmp_path / "root"
    write(root)
    damage(root, 1)
    files = FaultyFiles(root=root)
    harness = Harness(root, files=files, replicated=everything)
    assert set(harness.store.lost) == {WHERE, OTHER}
    for partition in range(2):
        harness.log(partition).replica.set_limbo(4)
    assert harness.commit() is None
    harness.store.checkpoint()
    abandon(harness.store)
    dice = random.Random(5)
    disk = files.disk_after(0)
    for count, operation in enumerate(files.operations, 1):
        disk.apply(operation)
        directory = tmp_path / f"after-{count}"
        disk.after_power_loss(dice if count % 3 else None).put(directory)
        again = Harness(directory, clock=FakeClock(), replicated=everything)
        for where in (WHERE, OTHER):
            known = where in again.store.lost or again.store.partitions[where].replica.limbo == 4
            assert known, f"{where}: power lost after call {count}"
        again.store.close()
        shutil.rmtree(directory)
