"""Batches of another replica in the place of damaged ones: what fits, and power lost meanwhile."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from penstock.base.files import MACHINE_FILES, Files
from penstock.storage import LogConfig, PartitionLog
from penstock.storage.files.values import QUARANTINED
from penstock.storage.files.walk import Damage, DamagedRecords
from tests.faulty_files import FaultyFiles
from tests.storage.batches import Harness, abandon, read_all, stamped

CONFIG = LogConfig(retention_ms=-1, segment_bytes=1_000, index_interval_bytes=200)
BATCHES = 18


def written(root: Path) -> dict[int, bytes]:
    """Batches of two epochs over several segments, by base offset; nothing is in memory alone."""
    harness = Harness(root, config=CONFIG)
    for number in range(BATCHES):
        epoch = 1 + number // 11
        one = stamped(2, harness.log().log_end_offset, epoch, fill=number, size=100)
        harness.log().replica.append(one, now_ms=1)
        assert harness.commit() is None
    data = read_all(harness.log())
    harness.store.close()
    size = len(data) // BATCHES
    return {number * 2: data[number * size : (number + 1) * size] for number in range(BATCHES)}


def opened(root: Path, files: Files = MACHINE_FILES) -> Harness:
    return Harness(root, config=CONFIG, files=files)


def found(log: PartitionLog) -> Damage:
    """Return the first damage."""
    damage = log.damage_in(0, log.durable_offset)
    assert damage is not None
    return damage


def mend_all(log: PartitionLog, batches: dict[int, bytes]) -> None:
    """Repair until nothing is damaged, with a few batches at a time."""
    for _ in range(BATCHES):
        damage = log.damage_in(0, log.durable_offset)
        if damage is None:
            return
        first = damage.first_offset - damage.first_offset % 2
        several = [batches[base] for base in (first, first + 2, first + 4) if base in batches]
        assert log.mend(damage, b"".join(several)), damage
    raise AssertionError("it is damaged still")


def flip(root: Path, base: int, at: int) -> Path:
    path = root / "orders-0" / f"{base:020d}.log"
    data = bytearray(path.read_bytes())
    data[at % len(data)] ^= 1
    path.write_bytes(data)
    return path


def bases(root: Path) -> list[int]:
    return sorted(int(path.stem) for path in (root / "orders-0").glob("*.log"))


@pytest.mark.parametrize("place", [0, 1, -1])
def test_the_same_bytes_come_back(tmp_path: Path, place: int) -> None:
    batches = written(tmp_path)
    path = tmp_path / "orders-0" / f"{bases(tmp_path)[place]:020d}.log"
    whole = path.read_bytes()
    damaged = flip(tmp_path, bases(tmp_path)[place], 200).read_bytes()
    harness = opened(tmp_path)
    mend_all(harness.log(), batches)
    assert path.read_bytes() == whole
    (set_aside,) = [file for file in path.parent.iterdir() if file.name.endswith(QUARANTINED)]
    assert set_aside.read_bytes() in damaged
    for _ in range(2):
        assert read_all(harness.log()) == b"".join(batches.values())
        harness.reopen()
    harness.store.close()


@pytest.mark.parametrize("how", ["cut", "torn", "gone", "two gone"])
def test_a_closed_segment_that_is_cut_or_gone_is_filled(tmp_path: Path, how: str) -> None:
    batches = written(tmp_path)
    names = [f"{base:020d}.log" for base in bases(tmp_path)]
    path = tmp_path / "orders-0" / names[1]
    if how in ("gone", "two gone"):
        for name in names[1 : 2 + (how == "two gone")]:
            (path.parent / name).unlink()
    else:
        with path.open("r+b") as file:
            file.truncate(len(batches[0]) * 2 + (10 if how == "torn" else 0))
    harness = opened(tmp_path)
    mend_all(harness.log(), batches)
    for way in (harness.reopen, harness.crash):
        assert read_all(harness.log()) == b"".join(batches.values())
        way()
    harness.store.close()


def test_nothing_else_is_put_there(tmp_path: Path) -> None:
    batches = written(tmp_path)
    path = flip(tmp_path, bases(tmp_path)[1], 200)
    before = path.read_bytes()
    harness = opened(tmp_path)
    log = harness.log()
    damage = found(log)
    base = damage.first_offset
    other = stamped(2, base, 1, fill=99, size=90)  # as compaction might leave it
    wrong = bytearray(batches[base])
    wrong[-1] ^= 1
    of_another_epoch = bytearray(batches[base])
    of_another_epoch[15] ^= 7
    for data in (b"", other, wrong, of_another_epoch, batches[base + 2], batches[base][:-1]):
        assert not log.mend(damage, bytes(data))
        with pytest.raises(DamagedRecords):
            log.read(base, max_bytes=1, end_offset=99)
    assert path.read_bytes() == before
    assert harness.store._parts.counters.damaged_ranges == 1
    harness.store.close()


@pytest.mark.parametrize("how", ["flip", "gone"])
def test_power_lost_during_a_repair(tmp_path: Path, how: str) -> None:
    root = tmp_path / "root"
    batches = written(root)
    base = bases(root)[1]
    if how == "flip":
        flip(root, base, 200)
    else:
        (root / "orders-0" / f"{base:020d}.log").unlink()
    files = FaultyFiles(root=root)
    harness = opened(root, files)
    begun = len(files.operations)
    mend_all(harness.log(), batches)
    abandon(harness.store)
    dice = random.Random(9)
    disk = files.disk_after(begun)
    for count, operation in enumerate(files.operations[begun:]):
        disk.apply(operation)
        directory = tmp_path / f"after-{count}"
        disk.after_power_loss(dice if count % 3 else None).put(directory)
        again = opened(directory)
        log = again.log()
        mend_all(log, batches)
        assert read_all(log) == b"".join(batches.values())
        again.store.close()
