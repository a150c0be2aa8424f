"""Starts with a damaged journal or checkpoint: all intact records are kept, and the rest is
reported as damaged."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.records import split_batches
from penstock.storage import CorruptLog, LogConfig, PartitionLog
from penstock.storage.files.journal import ALIGNMENT_BYTES, MAGIC
from penstock.storage.inspection.directories import BatchVerifier
from penstock.storage.inspection.stores import verify_store
from tests.storage.batches import Harness, abandon, batch, offsets, read_all
from tests.storage.test_damage import BLOWS, SEEDS, Blow

CONFIG = LogConfig(retention_ms=-1, segment_bytes=1_500, index_interval_bytes=300)
ENTRIES = 12
CHECKPOINTED = 5
LOGS = 2
COPIES = "partitions.checkpoint", "partitions.checkpoint.copy"


class Written(NamedTuple):
    """A store's files and, of each log, its batches by base offset, and its end."""

    files: dict[str, bytes]
    batches: list[dict[int, bytes]]
    ends: list[int]

    def put(self, root: Path) -> None:
        shutil.rmtree(root, ignore_errors=True)
        for name, data in self.files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)


def batches_of(log: PartitionLog) -> dict[int, bytes]:
    data, at, found = read_all(log), 0, {}
    for header in split_batches(data):
        found[header.base_offset] = data[at : at + header.size_bytes]
        at += header.size_bytes
    return found


def write(root: Path, *, clean: bool) -> Written:
    harness = Harness(root, config=CONFIG)
    sequence = 0
    for number in range(ENTRIES):
        for partition in range(LOGS):
            sent = batch(1 + number % 3, size=150, fill=number, producer_id=partition, epoch=0,
                         sequence=sequence)  # fmt: skip
            harness.append(sent, partition)
        sequence += 1 + number % 3
        assert harness.commit() is None
        if number == 1:
            harness.log(1).delete_records(1)
        if number == CHECKPOINTED:
            harness.store.checkpoint()
    logs = [harness.log(partition) for partition in range(LOGS)]
    batches = [batches_of(log) for log in logs]
    ends = [log.durable_offset for log in logs]
    if clean:
        harness.store.close()
    else:
        for log in logs:
            log.state.write_segments()
        abandon(harness.store)
    paths = [path for path in sorted(root.rglob("*")) if path.is_file() and path.name != ".lock"]
    files = {str(path.relative_to(root)): path.read_bytes() for path in paths}
    return Written(files, batches, ends)


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Written:
    return write(tmp_path_factory.mktemp("crashed"), clean=False)


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Written:
    return write(tmp_path_factory.mktemp("closed"), clean=True)


def refused(log: PartitionLog, batches: dict[int, bytes], end: int, start: int) -> set[int]:
    """The base offsets of batches that cannot be read; what can be read is what was written."""
    missing: set[int] = set()
    for base, data in batches.items():
        if split_batches(data)[0].next_offset <= start:
            continue
        try:
            read = log.read(max(base, start), max_bytes=1, end_offset=end)
        except CorruptLog:
            missing.add(base)
            continue
        assert b"".join(bytes(buffer) for buffer in read.buffers) == data
    return missing


def check(
    harness: Harness, written: Written, *, starts: tuple[int, ...] = (0, 1)
) -> list[set[int]]:
    """Return the damaged offsets of each log; check that appends continue at its end, also after
    a restart."""
    found: list[set[int]] = []
    for turn in range(2):
        for partition in range(LOGS):
            log, end = harness.log(partition), written.ends[partition]
            assert log.log_start_offset == starts[partition]
            batches = written.batches[partition]
            missing = refused(log, batches, end, starts[partition])
            if turn:
                assert missing == found[partition]
            else:
                found.append(missing)
                assert harness.put(batch(2, fill=99), partition) == end
            assert log.read(end, max_bytes=1, end_offset=1 << 60).next_offset == end + 2
        harness.reopen()
    harness.store.close()
    return found


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def entry_places(journal: bytes) -> list[int]:
    steps = range(0, len(journal), ALIGNMENT_BYTES)
    return [at for at in steps if journal[at : at + 4] == MAGIC]


@pytest.mark.parametrize("at", [0, 10, 20, 30, 45, 60, 120, 300, 500])
@pytest.mark.parametrize("number", [CHECKPOINTED + 1, CHECKPOINTED + 3, ENTRIES - 2])
def test_a_killed_process_leaves_it_all_in_segments(
    tmp_path: Path, crashed: Written, number: int, at: int
) -> None:
    crashed.put(tmp_path)
    journal = tmp_path / "journal" / "00000000.journal"
    flip(journal, entry_places(journal.read_bytes())[number] + at)
    assert check(Harness(tmp_path, config=CONFIG), crashed) == [set(), set()]
    verifier = BatchVerifier(deep=False)
    verify_store(str(tmp_path), lambda where: True, verifier)
    assert not verifier.findings


def without_unsynced(written: Written, root: Path) -> None:
    """Put what the machine has left that lost its power: of segments, what was checkpointed."""
    written.put(root)
    for partition in range(LOGS):
        base, *_ = [one for place, one in enumerate(sorted(written.batches[partition]))
                    if place > CHECKPOINTED - partition]  # fmt: skip
        for path in sorted((root / f"orders-{partition}").glob("*.log")):
            data, at = path.read_bytes(), 0
            for header in split_batches(data):
                if header.base_offset >= base:
                    break
                at += header.size_bytes
            path.write_bytes(data[:at])


def test_power_is_lost_and_the_journal_is_whole(tmp_path: Path, crashed: Written) -> None:
    without_unsynced(crashed, tmp_path)
    assert check(Harness(tmp_path, config=CONFIG), crashed) == [set(), set()]


@pytest.mark.parametrize("number", [CHECKPOINTED + 1, CHECKPOINTED + 3, ENTRIES - 2])
@pytest.mark.parametrize("partition", range(LOGS))
def test_power_is_lost_and_a_batch_of_the_journal_is_damaged(
    tmp_path: Path, crashed: Written, number: int, partition: int
) -> None:
    without_unsynced(crashed, tmp_path)
    journal = tmp_path / "journal" / "00000000.journal"
    data = journal.read_bytes()
    bases = sorted(crashed.batches[partition])
    base = bases[number - partition]
    at = data.index(crashed.batches[partition][base])
    flip(journal, at + 100)
    found = check(Harness(tmp_path, config=CONFIG), crashed)
    assert found[partition] == {base}
    assert found[1 - partition] == set()
    (kept,) = tmp_path.glob("journal/*.quarantined")
    assert kept.read_bytes()[:4] == MAGIC
    verifier = BatchVerifier(deep=False)
    verify_store(str(tmp_path), lambda where: True, verifier)
    assert str(kept) in [note.place for note in verifier.notes]
    assert verifier.findings


def without_copies(root: Path) -> None:
    for name in COPIES:
        flip(root / name, 30)


def one_flipped(root: Path) -> None:
    flip(root / COPIES[0], 30)


def one_cut(root: Path) -> None:
    path = root / COPIES[0]
    path.write_bytes(path.read_bytes()[:40])


def one_empty(root: Path) -> None:
    (root / COPIES[0]).write_bytes(b"")


def one_gone(root: Path) -> None:
    (root / COPIES[0]).unlink()


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("hurt", [one_flipped, one_cut, one_empty, one_gone])
def test_a_damaged_checkpoint_has_a_copy(
    tmp_path: Path, crashed: Written, closed: Written, hurt: Callable[[Path], None], clean: bool
) -> None:
    written = closed if clean else crashed
    written.put(tmp_path)
    hurt(tmp_path)
    damaged = (tmp_path / COPIES[0]).exists()
    harness = Harness(tmp_path, config=CONFIG, replicated=None)
    assert (tmp_path / f"{COPIES[0]}.quarantined").exists() == damaged
    assert check(harness, written) == [set(), set()]


@pytest.mark.parametrize("clean", [True, False])
def test_without_any_checkpoint_segments_and_journal_say_it_all(
    tmp_path: Path, crashed: Written, closed: Written, clean: bool
) -> None:
    written = closed if clean else crashed
    written.put(tmp_path)
    without_copies(tmp_path)
    with pytest.raises(CorruptLog, match="checkpoint"):
        Harness(tmp_path, config=CONFIG, replicated=None)
    harness = Harness(tmp_path, config=CONFIG)
    assert check(harness, written, starts=(0, 0)) == [set(), set()]


def test_power_is_lost_and_no_checkpoint_is_whole(tmp_path: Path, crashed: Written) -> None:
    without_unsynced(crashed, tmp_path)
    without_copies(tmp_path)
    harness = Harness(tmp_path, config=CONFIG)
    assert check(harness, crashed, starts=(0, 0)) == [set(), set()]


def test_a_compacted_segment_is_not_written_over_by_an_old_journal(
    tmp_path: Path, closed: Written
) -> None:
    """The journal still has what was there, at positions that are others' now."""
    closed.put(tmp_path)
    without_copies(tmp_path)
    segments = sorted((tmp_path / "orders-0").glob("*.log"))
    first = segments[0].read_bytes()
    kept = first[split_batches(first)[0].size_bytes :]
    segments[0].write_bytes(kept)
    harness = Harness(tmp_path, config=CONFIG)
    assert read_all(harness.log(), start=0)[: len(kept)] == kept
    assert segments[0].read_bytes() == kept
    harness.store.close()


@pytest.mark.parametrize("clean", [True, False])
def test_rot_within_a_log_without_a_checkpoint_is_not_cut_off(
    tmp_path: Path, crashed: Written, closed: Written, clean: bool
) -> None:
    written = closed if clean else crashed
    written.put(tmp_path)
    without_copies(tmp_path)
    second = sorted((tmp_path / "orders-0").glob("*.log"))[1]
    flip(second, 100)
    base = int(second.stem)
    found = check(Harness(tmp_path, config=CONFIG), written, starts=(0, 0))
    assert found == [{base}, set()]


def test_a_deleted_log_does_not_come_back(tmp_path: Path) -> None:
    """Without a checkpoint the journal may be about what was deleted long ago."""
    harness = Harness(tmp_path)
    harness.put(batch(2))
    harness.put(batch(2), 1)
    harness.store.delete(harness.log(1).topic_partition)
    harness.store.close()
    for name in COPIES:
        (tmp_path / name).write_bytes(b"")
    again = Harness(tmp_path)
    assert [tp.partition for tp in again.store.partitions] == [0]
    assert offsets(read_all(again.log())) == [(0, 2)]
    again.store.close()


def struck(root: Path, written: Written, blow: Blow, seed: int) -> None:
    """Damage one file of any kind."""
    written.put(root)
    path = random.Random(seed).choice([root / name for name in written.files])
    blow.strike(path)
    harness = Harness(root, config=CONFIG)
    found = check(harness, written)
    if path.suffix != ".log":
        assert found == [set(), set()], path


@pytest.mark.parametrize("clean", [True, False])
@given(blow=BLOWS, seed=SEEDS)
@settings(max_examples=25)
def test_one_file_is_damaged(
    tmp_path_factory: pytest.TempPathFactory, crashed: Written, closed: Written, clean: bool,
    blow: Blow, seed: int,
) -> None:  # fmt: skip
    root = tmp_path_factory.getbasetemp() / "struck"
    struck(root, closed if clean else crashed, blow, seed)


@pytest.mark.long
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("clean", [True, False])
@given(blow=BLOWS, seed=SEEDS)
@settings(max_examples=1_500)
def test_many_times_one_file_is_damaged(
    tmp_path_factory: pytest.TempPathFactory, crashed: Written, closed: Written, clean: bool,
    blow: Blow, seed: int,
) -> None:  # fmt: skip
    root = tmp_path_factory.getbasetemp() / "often-struck"
    struck(root, closed if clean else crashed, blow, seed)


@given(blows=st.lists(st.tuples(BLOWS, SEEDS), min_size=2, max_size=4))
@settings(max_examples=20)
def test_several_files_are_damaged(
    tmp_path_factory: pytest.TempPathFactory, crashed: Written, blows: list[tuple[Blow, int]]
) -> None:
    """Check that all readable records are as written."""
    root = tmp_path_factory.getbasetemp() / "several"
    crashed.put(root)
    for blow, seed in blows:
        path = random.Random(seed).choice([root / name for name in crashed.files])
        if path.exists():
            blow.strike(path)
    harness = Harness(root, config=CONFIG)
    for partition, batches in enumerate(crashed.batches):
        log = harness.log(partition)
        for base, data in batches.items():
            if not log.log_start_offset <= base < log.durable_offset:
                continue
            try:
                read = log.read(base, max_bytes=1, end_offset=1 << 60)
            except CorruptLog:
                continue
            assert b"".join(bytes(buffer) for buffer in read.buffers) == data
    harness.store.close()
