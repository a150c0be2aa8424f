"""Retention takes its time: a bounded part a turn, off the owner's thread, behind the points."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from penstock.base.files import MachineFiles, Name
from penstock.storage import LogConfig, StorageError
from penstock.storage.limits import HOUSEKEEPING_SEGMENTS_MAX
from tests.storage.batches import Harness, abandon, batch, offsets, read_all

SEGMENTS = 2 * HOUSEKEEPING_SEGMENTS_MAX + 100
CONFIG = LogConfig(segment_bytes=150, retention_ms=1_000, file_delete_delay_ms=500)
CHECK_MS = 10


def many_segments(directory: Path) -> Harness:
    harness = Harness(directory, config=CONFIG, log_retention_check_interval_ms=CHECK_MS)
    for _ in range(SEGMENTS):
        harness.append(batch(1, timestamp=harness.clock.ms))
    assert harness.commit() is None
    harness.store.checkpoint()
    assert len(harness.log().segments) == SEGMENTS
    harness.clock.ms += 10_000
    return harness


def test_a_turn_lets_a_bounded_number_go(tmp_path: Path) -> None:
    harness = many_segments(tmp_path)
    log = harness.log()
    before, turns = SEGMENTS, 0
    while len(log.segments) > 1:
        harness.clock.ms += CHECK_MS
        harness.store.housekeeping(harness.clock.ms)
        assert before - len(log.segments) <= HOUSEKEEPING_SEGMENTS_MAX
        before, turns = len(log.segments), turns + 1
        assert turns < 10
    assert log.log_start_offset == log.segments[0].base_offset
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
        kind = "points" if path.endswith("partitions.checkpoint") else path[-8:]
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
    assert len(log.segments) == SEGMENTS + 1 - HOUSEKEEPING_SEGMENTS_MAX  # a new one was begun
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
    assert [kind for kind, _ in seen] == ["points", "points"]  # the first, and all behind it
    assert threading.get_ident() not in {thread for _, thread in seen}
    abandon(harness.store)
    again = Harness(tmp_path)
    assert {again.log(partition).log_start_offset for partition in partitions} == {3}
    again.store.close()
