"""Retention takes its time: a bounded part a turn, off the owner's thread, behind the points."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any
from uuid import UUID

import pytest

from penstock.base.files import MACHINE_FILES, MachineFiles, Name
from penstock.storage import LogConfig, LogDeleted, StorageError, maintenance
from penstock.storage.files.errors import HOUSEKEEPING_SEGMENTS_MAX
from penstock.storage.files.segment import UNKNOWN
from tests.storage.batches import WHERE, Harness, abandon, batch, offsets, read_all

SEGMENTS = 2 * HOUSEKEEPING_SEGMENTS_MAX + 100
CONFIG = LogConfig(segment_bytes=150, retention_ms=1_000, file_delete_delay_ms=500)
CHECK_MS = 10


def many_segments(directory: Path) -> Harness:
    harness = Harness(directory, config=CONFIG, log_retention_check_interval_ms=CHECK_MS)
    for _ in range(SEGMENTS):
        harness.append(batch(1, timestamp=harness.clock.ms))
    assert harness.commit() is None
    harness.store.checkpoint()
    assert len(harness.log().state.segments) == SEGMENTS
    harness.clock.ms += 10_000
    return harness


def test_a_turn_lets_a_bounded_number_go(tmp_path: Path) -> None:
    harness = many_segments(tmp_path)
    log = harness.log()
    before, turns = SEGMENTS, 0
    while len(log.state.segments) > 1:
        harness.clock.ms += CHECK_MS
        harness.store.housekeeping(harness.clock.ms)
        assert before - len(log.state.segments) <= HOUSEKEEPING_SEGMENTS_MAX
        before, turns = len(log.state.segments), turns + 1
        assert turns < 10
    assert log.log_start_offset == log.state.segments[0].base_offset
    directory = tmp_path / "orders-0"
    assert len(list(directory.glob("*.log.deleted"))) >= SEGMENTS - 2
    for _ in range(50):
        harness.clock.ms += CONFIG.file_delete_delay_ms
        harness.store.housekeeping(harness.clock.ms)
    assert list(directory.glob("*.deleted")) == []
    start = log.log_start_offset
    harness.crash()
    assert harness.log().log_start_offset == start
    harness.store.close()


class Watching(MachineFiles):
    """Notes what is renamed to what, and on which thread."""

    def __init__(self, seen: list[tuple[str, int]]) -> None:
        self._seen = seen

    def rename(self, name: Name, target: Name, /) -> None:  # type: ignore[override]
        path = str(target)
        names = ("partitions.checkpoint", "partitions.checkpoint.copy")
        kind = "points" if path.endswith(names) else path[-8:]
        self._seen.append((kind, threading.get_ident()))
        super().rename(name, target)


class Loop:
    """Calls from other threads, made when they are taken."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], object]] = SimpleQueue()

    def call_soon_threadsafe(self, callback: Callable[..., object], *arguments: Any) -> None:
        self._calls.put(lambda: callback(*arguments))

    def take(self) -> None:
        self._calls.get(timeout=20)()


def test_files_are_renamed_on_another_thread_behind_the_points(tmp_path: Path) -> None:
    harness = many_segments(tmp_path)
    harness.store.close()
    seen: list[tuple[str, int]] = []

    harness.files = Watching(seen)
    harness.store = harness._open()
    loop = Loop()
    harness.store.attach(loop.call_soon_threadsafe)
    log = harness.log()
    log.load()
    seen.clear()
    harness.clock.ms += CHECK_MS
    harness.store.housekeeping(harness.clock.ms)
    assert len(log.state.segments) == SEGMENTS - HOUSEKEEPING_SEGMENTS_MAX
    start = log.log_start_offset
    assert offsets(read_all(log))[0][0] == start
    while ".deleted" not in {kind for kind, _ in seen}:
        loop.take()
    kinds = [kind for kind, _ in seen]
    assert "points" in kinds[: kinds.index(".deleted")]
    owners = {thread for kind, thread in seen if kind == ".deleted"}
    assert threading.get_ident() not in owners
    harness.store.close()


def test_deletions_of_a_turn_share_the_write_of_their_starts(tmp_path: Path) -> None:
    seen: list[tuple[str, int]] = []
    harness = Harness(tmp_path, files=Watching(seen))
    partitions = range(40)
    for partition in partitions:
        harness.append(batch(4), partition)
    assert harness.commit() is None
    loop = Loop()
    harness.store.attach(loop.call_soon_threadsafe)
    seen.clear()
    saved: list[StorageError | None] = []
    for partition in partitions:
        assert harness.log(partition).delete_records(3, saved.append) == 3
    assert saved == []
    while len(saved) < len(partitions):
        loop.take()
    assert saved == [None] * len(partitions)
    # Of the first, and of all behind it; each with its copy.
    assert [kind for kind, _ in seen] == ["points"] * 4
    assert threading.get_ident() not in {thread for _, thread in seen}
    abandon(harness.store)
    again = Harness(tmp_path)
    assert {again.log(partition).log_start_offset for partition in partitions} == {3}
    again.store.close()


# -- what the first look after a start reads


def closed_segments(directory: Path, batches: int = 400) -> Harness:
    """A log of three segments that was closed and opened again; the time of each is its number."""
    config = LogConfig(segment_bytes=1 << 30, retention_ms=5_000, index_interval_bytes=100)
    harness = Harness(directory, config=config, log_retention_check_interval_ms=CHECK_MS)
    for segment in range(3):
        for number in range(batches):
            harness.append(batch(1, timestamp=1_000 * segment + min(number, batches - 9)))
        harness.log().state.roll()
    harness.put(batch(1, timestamp=9_000))
    harness.reopen()
    harness.log().load()
    return harness


def test_a_log_is_queued_once_and_expires_segments_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "HOUSEKEEPING_SEGMENTS_MAX", 1)
    harness = closed_segments(tmp_path)
    log, upkeep = harness.log(), harness.store._maintenance
    log.state.set_recovery_point(log.state.recovery_point._replace(segment_base=0))
    upkeep._sweep[log.topic_partition] = None
    upkeep._sweep_some(5_500)
    assert list(upkeep._sweep) == [log.topic_partition]
    for _ in range(4):
        upkeep._sweep_some(5_500)
    assert log.log_start_offset == 400
    assert [segment.base_offset for segment in log.state.segments] == [400, 800, 1200]
    harness.store.close()


class Counting(MachineFiles):
    """Counts the bytes that are read."""

    def __init__(self) -> None:
        self.count = 0

    def read_at(self, file: int, size: int, position: int, /) -> bytes:
        data = super().read_at(file, size, position)
        self.count += len(data)
        return data


def test_the_highest_time_of_a_closed_segment_is_read_from_the_ends_of_its_indexes(
    tmp_path: Path,
) -> None:
    harness = closed_segments(tmp_path)
    log, files = harness.log(), harness.store._parts.segment_files
    counting = files.files = Counting()
    for place, segment in enumerate(log.state.segments[:3]):
        assert segment.max_timestamp == UNKNOWN
        assert files.newest_timestamp(segment, 100) == 1_000 * place + 391
        assert segment.index is None
    assert counting.count < 3 * 6_000
    files.files = MACHINE_FILES
    for segment in log.state.segments[:3]:
        found = segment.max_timestamp
        files.index_of(segment, 100)
        assert segment.max_timestamp == found
    harness.store.close()


@pytest.mark.parametrize("damage", ["gone", "empty", "torn", "too low", "too high", "of others"])
@pytest.mark.parametrize("suffix", ["index", "timeindex"])
def test_unverified_ends_of_indexes_are_not_used(tmp_path: Path, damage: str, suffix: str) -> None:
    harness = closed_segments(tmp_path)
    log, files = harness.log(), harness.store._parts.segment_files
    path = tmp_path / "orders-0" / f"{400:020}.{suffix}"
    data = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        entry = 12 if suffix == "timeindex" else 8
        path.write_bytes(
            {
                "empty": b"",
                "torn": data[:-3],
                "too low": data[: -5 * entry],
                "too high": data[:-entry] + bytes([0x7F]) * entry,
                "of others": data[:-entry] + data[-entry:-1] + bytes([data[-1] ^ 1]),
            }[damage]
        )
    assert files.newest_timestamp(log.state.segments[1], 100) == 1_391
    harness.store.close()


def test_the_first_sweep_looks_at_a_bounded_number_of_segments(tmp_path: Path) -> None:
    harness = many_segments(tmp_path)
    harness.append(batch(1, timestamp=harness.clock.ms), partition=1)
    assert harness.commit() is None
    harness.reopen()
    logs = [harness.log(0), harness.log(1)]
    assert not any(log.state.loaded for log in logs)
    counting = harness.store._parts.segment_files.files = Counting()
    turns = 0
    while len(logs[0].state.segments) != 1:
        counting.count = 0
        harness.clock.ms += CHECK_MS
        harness.store.housekeeping(harness.clock.ms)
        turns += 1
        assert counting.count <= HOUSEKEEPING_SEGMENTS_MAX * 400
        assert turns < 20
    assert turns >= SEGMENTS // HOUSEKEEPING_SEGMENTS_MAX
    assert logs[1].state.loaded
    harness.store.close()


# -- deletion of partitions


class Held(MachineFiles):
    """Syncs wait while they are held."""

    def __init__(self) -> None:
        self.free = threading.Event()
        self.free.set()
        self.waiting = threading.Event()

    def sync_file(self, file: int, /) -> None:  # type: ignore[override]
        self.waiting.set()
        assert self.free.wait(20)
        super().sync_file(file)

    def hold(self) -> None:
        self.waiting.clear()
        self.free.clear()


class Leased:
    """A lease that knows when it ended."""

    def __init__(self) -> None:
        self.count = 0

    def retain(self) -> None:
        self.count += 1

    def release(self) -> None:
        self.count -= 1


def attached(harness: Harness) -> Loop:
    loop = Loop()
    harness.store.attach(loop.call_soon_threadsafe)
    return loop


def test_deleting_a_partition_does_not_wait_for_a_checkpoint(tmp_path: Path) -> None:
    files = Held()
    harness = Harness(tmp_path, files=files)
    log = harness.log()
    for partition in range(3):
        harness.put(batch(4), partition)
    loop, done = attached(harness), list[StorageError | None]()
    files.hold()
    harness.store.checkpoint(done.append)
    loop.take()  # the segments are written
    assert files.waiting.wait(20)
    harness.store.delete(WHERE)
    assert done == []
    assert WHERE not in harness.store.partitions
    with pytest.raises(LogDeleted):
        log.read(0, max_bytes=1, end_offset=4)
    assert (tmp_path / "orders-0").exists(), "the checkpoint that runs knows no other name"
    files.free.set()
    while not done or not list(tmp_path.glob("orders-0*-delete")):
        loop.take()
    assert done == [None]
    again = harness.store.create(WHERE, topic_id=UUID(int=8), leader_epoch=0)
    assert again.log_end_offset == 0
    harness.store.close()
    harness.reopen()
    assert harness.store.partitions[WHERE].topic_id == UUID(int=8)
    assert harness.log(1).durable_offset == 4
    harness.store.close()


def test_bytes_of_a_deleted_partition_stay_until_the_group_is_written(tmp_path: Path) -> None:
    files = Held()
    harness = Harness(tmp_path, files=files)
    harness.put(batch(1), 1)
    loop, answers, lease = attached(harness), list[StorageError | None](), Leased()
    data = batch(1, size=200_000)
    harness.log().append(memoryview(bytearray(data)), now_ms=harness.clock.ms, lease=lease)
    harness.append(batch(1), 1)
    for _ in range(2):
        harness.store.flush(answers.append)
    files.hold()
    harness.store.commit_pending()
    assert files.waiting.wait(20)
    held = lease.count
    harness.store.delete(WHERE)
    assert (answers, lease.count) == ([], held)
    files.free.set()
    while not list(tmp_path.glob("orders-0*-delete")):
        loop.take()
    assert answers == [None, None]
    assert lease.count < held
    assert harness.store._parts.queue.unwritten_bytes == harness.log(1).state.unwritten_bytes
    assert read_all(harness.log(1)) != b""
    harness.store.close()
    harness.reopen()
    assert harness.log(1).durable_offset == 2
    assert WHERE not in harness.store.partitions
    harness.store.close()


def test_a_partition_is_made_again_while_its_deletion_is_under_way(tmp_path: Path) -> None:
    files = Held()
    harness = Harness(tmp_path, files=files)
    harness.put(batch(5))
    loop = attached(harness)
    files.hold()
    harness.store.checkpoint()
    loop.take()  # the segments are written
    assert files.waiting.wait(20)
    harness.store.delete(WHERE)
    threading.Timer(0.1, files.free.set).start()
    again = harness.store.create(WHERE, topic_id=UUID(int=8), leader_epoch=0)
    assert again.log_end_offset == 0
    assert (tmp_path / "orders-0").exists()
    assert list(tmp_path.glob("orders-0*-delete"))
    abandon(harness.store)
    again_store = Harness(tmp_path)
    assert again_store.store.partitions[WHERE].topic_id == UUID(int=8)
    assert again_store.store.partitions[WHERE].durable_offset == 0
    again_store.store.close()
