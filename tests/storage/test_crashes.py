"""Recovery after crashes at every point: torn entries, torn segments, rot, old journals."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from penstock.records import OffsetOutOfRange
from penstock.storage import CorruptLog, LogConfig
from penstock.storage.files.journal import ALIGNMENT_BYTES, decode_head
from penstock.storage.files.walk import DamagedRecords
from tests.storage.batches import Harness, abandon, batch, offsets, read_all


def journal_of(directory: Path) -> Path:
    (path,) = sorted((directory / "journal").glob("*.journal"))
    return path


def test_a_crash_loses_nothing_that_was_committed(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    for number in range(20):
        harness.put(batch(2, fill=number), number % 3)
    before = [read_all(harness.log(partition)) for partition in range(3)]
    harness.append(batch())
    for _ in range(3):
        harness.crash()
        assert [read_all(harness.log(partition)) for partition in range(3)] == before
    assert harness.put(batch(5)) == 14
    harness.crash()
    assert read_all(harness.log())[: len(before[0])] == before[0]
    assert harness.log().durable_offset == 19
    harness.store.close()


def test_checkpoint_then_crash_then_replay_twice(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    harness.put(batch(2))
    harness.store.checkpoint()
    harness.put(batch(3))
    abandon(harness.store)
    copy = tmp_path.parent / (tmp_path.name + "-copy")
    shutil.copytree(tmp_path, copy)
    results = []
    for directory in (tmp_path, copy):
        again = Harness(directory)
        results.append(read_all(again.log()))
        assert again.store._recovered_entries == 1
        again.crash()
        assert again.store._recovered_entries == 1
        results.append(read_all(again.log()))
        again.store.checkpoint()
        again.crash()
        assert again.store._recovered_entries == 0
        assert again.put(batch()) == 5
        again.store.close()
    assert len(set(results)) == 1
    assert offsets(results[0]) == [(0, 2), (2, 5)]


def test_replaying_over_existing_bytes_changes_nothing(tmp_path: Path) -> None:
    """The crash comes after the segments were written, and again in mid-recovery."""
    harness = Harness(tmp_path)
    for number in range(5):
        harness.put(batch(2, fill=number))
    harness.log().state.write_segments()
    expected = read_all(harness.log())
    abandon(harness.store)
    checkpoint = (tmp_path / "partitions.checkpoint").read_bytes()
    for _ in range(3):
        again = Harness(tmp_path)
        assert read_all(again.log()) == expected
        abandon(again.store)
        (tmp_path / "partitions.checkpoint").write_bytes(checkpoint)


def test_an_entry_torn_at_every_byte_is_as_if_it_had_not_been(tmp_path: Path) -> None:
    source = tmp_path / "source"
    harness = Harness(source, journal_file_bytes=1 << 20)
    harness.put(batch(2, fill=1))
    harness.put(batch(3, fill=2, size=60))
    abandon(harness.store)
    journal = journal_of(source).read_bytes()
    head = decode_head(journal, ALIGNMENT_BYTES)
    assert head is not None
    for size in range(head.size_bytes):
        torn = bytearray(journal)
        torn[ALIGNMENT_BYTES + size : ALIGNMENT_BYTES + head.size_bytes] = bytes(
            head.size_bytes - size
        )
        if bytes(torn) == journal:
            continue
        directory = tmp_path / "torn"
        shutil.copytree(source, directory)
        journal_of(directory).write_bytes(torn)
        again = Harness(directory, journal_file_bytes=1 << 20)
        assert offsets(read_all(again.log())) == [(0, 2)], size
        assert again.put(batch()) == 2
        again.store.close()
        shutil.rmtree(directory)


def test_a_segment_torn_at_every_byte_is_restored_from_the_journal(tmp_path: Path) -> None:
    source = tmp_path / "source"
    harness = Harness(source)
    harness.put(batch(2, fill=1))
    harness.store.checkpoint()
    harness.put(batch(3, fill=2))
    expected = read_all(harness.log())
    harness.log().state.write_segments()
    abandon(harness.store)
    name = "orders-0/00000000000000000000.log"
    whole = (source / name).read_bytes()
    for size in range(len(batch(2)), len(whole), 7):
        directory = tmp_path / "torn"
        shutil.copytree(source, directory)
        (directory / name).write_bytes(whole[:size] + b"\xff" * 90)
        again = Harness(directory)
        assert read_all(again.log()) == expected
        assert (directory / name).read_bytes() == whole
        again.store.close()
        shutil.rmtree(directory)


def test_without_a_journal_the_torn_end_is_cut_and_the_rest_kept(tmp_path: Path) -> None:
    source = tmp_path / "source"
    harness = Harness(source, log_flush_policy="os")
    for number in range(3):
        harness.put(batch(2, fill=number))
    abandon(harness.store)
    name = "orders-0/00000000000000000000.log"
    whole = (source / name).read_bytes()
    size = len(batch(2))
    assert len(whole) == 3 * size
    for cut in sorted({*range(0, len(whole) + 1, 7), *range(2 * size, 2 * size + 70)}):
        directory = tmp_path / "torn"
        shutil.copytree(source, directory)
        (directory / name).write_bytes(whole[:cut])
        again = Harness(directory, log_flush_policy="os")
        count = cut // size
        assert read_all(again.log()) == whole[: count * size]
        assert again.put(batch()) == 2 * count
        again.store.close()
        shutil.rmtree(directory)


@pytest.mark.parametrize("policy", ["group", "interval", "os"])
def test_every_policy_survives_kill(tmp_path: Path, policy: str) -> None:
    harness = Harness(tmp_path, log_flush_policy=policy)
    for number in range(10):
        harness.put(batch(2, fill=number), number % 2)
    before = [read_all(harness.log(partition)) for partition in range(2)]
    harness.crash()
    assert [read_all(harness.log(partition)) for partition in range(2)] == before
    harness.put(batch())
    harness.reopen()
    assert harness.log().durable_offset == 11
    harness.store.close()


def test_stale_entries_of_a_recycled_file_are_never_taken(tmp_path: Path) -> None:
    harness = Harness(tmp_path, journal_file_bytes=1 << 16, journal_files_max=2)
    for number in range(100):
        harness.put(batch(fill=number))
    assert harness.store._journal.file_count <= 3
    expected = read_all(harness.log())
    for _ in range(2):
        harness.crash()
        assert read_all(harness.log()) == expected
        assert harness.store._recovered_entries <= 2 * 16
    for number in range(40):
        harness.put(batch(fill=number))
        if number % 7 == 0:
            expected = read_all(harness.log())
            harness.crash()
            assert read_all(harness.log()) == expected
    assert harness.log().durable_offset == 140
    harness.store.close()


def test_rot_below_the_mark_is_reported_and_nothing_is_cut(tmp_path: Path) -> None:
    harness = Harness(tmp_path, log_flush_policy="os")
    for number in range(3):
        harness.put(batch(2, fill=number))
    harness.store.checkpoint()
    harness.store.close()
    path = tmp_path / "orders-0" / "00000000000000000000.log"
    whole = path.read_bytes()
    path.write_bytes(whole[:250])
    again = Harness(tmp_path)
    log = again.log()
    whole_ones = log.read(0, max_bytes=9999, end_offset=99)
    assert offsets(bytes(whole_ones.buffers[0])) == [(0, 2), (2, 4)]
    with pytest.raises(CorruptLog, match="synced"):
        log.read(4, max_bytes=10, end_offset=99)
    assert log.state.damage is not None
    assert (log.state.damage.path, log.state.damage.position) == (path, 250)
    # It goes on behind what is lost, and gives no offset twice.
    for base_offset in (6, 8):
        assert again.put(batch(2)) == base_offset
        with pytest.raises(DamagedRecords, match="offsets 4 to 5 cannot be read"):
            again.log().read(4, max_bytes=10, end_offset=99)
        assert path.read_bytes() == whole[:250]
        again.reopen()
    assert offsets(read_all(again.log(), start=6)) == [(6, 8), (8, 10)]
    again.store.close()


def test_garbage_in_a_segment_is_named_when_it_is_read(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    for number in range(3):
        harness.put(batch(2, fill=number))
    harness.store.close()
    path = tmp_path / "orders-0" / "00000000000000000000.log"
    whole = bytearray(path.read_bytes())
    size = len(batch(2))
    whole[size + 16] = 77
    path.write_bytes(whole)
    again = Harness(tmp_path)
    with pytest.raises(CorruptLog, match="magic 77") as caught:
        again.log().read(2, max_bytes=10, end_offset=99)
    assert (caught.value.path, caught.value.position) == (path, size)
    again.store.close()


@pytest.mark.parametrize("damage", ["missing", "cut", "garbage", "ahead", "older"])
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_doubtful_indexes_are_rebuilt(tmp_path: Path, damage: str, suffix: str) -> None:
    harness = Harness(tmp_path, config=LogConfig(index_interval_bytes=150))
    for number in range(30):
        harness.put(batch(2, fill=number, timestamp=1000 + number))
    harness.store.checkpoint()
    expected = read_all(harness.log())
    path = tmp_path / "orders-0" / f"00000000000000000000{suffix}"
    entry = 8 if suffix == ".index" else 12
    older = path.read_bytes()
    assert len(older) > 3 * entry
    harness.store.close()
    if damage == "missing":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(older[:-3])
    elif damage == "garbage":
        path.write_bytes(older[:entry] + b"\xff" * entry + older[2 * entry :])
    elif damage == "ahead":
        path.write_bytes(older + b"\x7f" * entry)
    else:
        path.write_bytes(older[: 2 * entry])
    again = Harness(tmp_path, config=LogConfig(index_interval_bytes=150))
    assert read_all(again.log(), max_bytes=500) == expected
    for offset in range(60):
        read = again.log().read(offset, max_bytes=1, end_offset=99)
        assert offsets(bytes(read.buffers[0])) == [(offset - offset % 2, offset - offset % 2 + 2)]
    again.store.close()


def test_lost_small_files_are_rebuilt(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    log = harness.log()
    harness.put(batch(producer_id=5, epoch=0, sequence=0))
    log.set_leader_epoch(3)
    harness.put(batch(producer_id=5, epoch=0, sequence=1))
    harness.store.close()
    directory = tmp_path / "orders-0"
    for path in directory.iterdir():
        if not path.name.endswith(".log") and path.name != "partition.metadata":
            path.unlink()
    (directory / "leader-epoch-checkpoint").write_text("nonsense")
    again = Harness(tmp_path)
    log = again.log()
    assert log.append(batch(producer_id=5, epoch=0, sequence=1), now_ms=1).duplicate
    assert log.append(batch(producer_id=5, epoch=0, sequence=0), now_ms=1).duplicate
    again.store.close()


def test_a_directory_that_the_disk_forgot_comes_back(tmp_path: Path) -> None:
    """The journal was synced; the directory entry of a new partition was not."""
    harness = Harness(tmp_path)
    harness.put(batch(3))
    abandon(harness.store)
    shutil.rmtree(tmp_path / "orders-0")
    again = Harness(tmp_path)
    assert offsets(read_all(again.log())) == [(0, 3)]
    again.store.close()


@pytest.mark.parametrize("content", [None, b"", b"version: 0"])
def test_a_lost_topic_id_is_known_to_the_checkpoint(tmp_path: Path, content: bytes | None) -> None:
    harness = Harness(tmp_path)
    harness.put(batch(3))
    harness.store.checkpoint()
    abandon(harness.store)
    path = tmp_path / "orders-0" / "partition.metadata"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    again = Harness(tmp_path)
    assert offsets(read_all(again.log())) == [(0, 3)]
    assert path.read_bytes().startswith(b"version: 0\ntopic_id: ")
    again.store.close()


def test_a_directory_of_an_unknown_topic_is_set_aside(tmp_path: Path) -> None:
    harness = Harness(tmp_path, log_flush_policy="os")
    harness.put(batch(3))
    abandon(harness.store)
    (tmp_path / "orders-0" / "partition.metadata").unlink()
    again = Harness(tmp_path)
    assert not again.store.partitions
    (stray,) = tmp_path.glob("orders-0.*-stray")
    assert (stray / "00000000000000000000.log").exists()
    again.store.close()


def test_rolled_segments_survive_a_crash_at_any_time(tmp_path: Path) -> None:
    config = LogConfig(segment_bytes=300, retention_ms=-1)
    harness = Harness(tmp_path, config=config)
    for number in range(12):
        harness.put(batch(2, fill=number))
        if number in (3, 4, 8):
            harness.store.checkpoint()
        if number in (2, 6):
            harness.log().state.write_segments()
        harness.crash()
        assert offsets(read_all(harness.log())) == [(2 * n, 2 * n + 2) for n in range(number + 1)]
    with pytest.raises(OffsetOutOfRange):
        harness.log().read(25, max_bytes=1, end_offset=99)
    harness.store.close()
