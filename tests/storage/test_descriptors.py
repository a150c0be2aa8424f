"""The cache of open segment files: files that other threads create, files in use, the limit."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.files import MachineFiles, Name
from penstock.storage.files.segment_files import Descriptors, Handle
from tests.storage.batches import Harness, batch, offsets, read_all

LIMIT, PATHS = 3, ("a", "b", "c", "d", "e")


class Opened(MachineFiles):
    """Descriptors without files: which are open, and for which path."""

    def __init__(self) -> None:
        self.paths: dict[int, str] = {}
        self._next = 0

    def open(self, name: Name, /, **_: Any) -> int:
        self._next += 1
        self.paths[self._next] = str(name)
        return self._next

    def close(self, file: int, /) -> None:
        del self.paths[file]  # a second time is an error


STEPS = st.lists(
    st.tuples(st.sampled_from(["get", "reserve", "create", "unpin", "forget"]), st.integers(0, 4)),
    max_size=60,
)


@given(STEPS)
def test_files_are_open_while_they_are_used_and_closed_once(steps: list[tuple[str, int]]) -> None:
    files = Opened()
    descriptors = Descriptors(files, LIMIT)
    pinned: list[Handle] = []
    for step, number in steps:
        path = PATHS[number]
        if step == "get":
            handle = descriptors.get(path, create=True)
            assert files.paths[handle.descriptor] == path
        elif step == "reserve":
            pinned.append(descriptors.pin(descriptors.reserve(path)))
        elif step == "forget":
            descriptors.forget(path)
        elif pinned:
            handle = pinned[number % len(pinned)]
            if step == "create":
                handle.create(files)
                assert files.paths[handle.descriptor] == handle.path
            else:
                pinned.remove(handle)
                descriptors.unpin(handle)
        assert all(
            files.paths[handle.descriptor] == handle.path for handle in pinned if handle.is_open
        )
    for handle in pinned:
        descriptors.unpin(handle)
    assert len(files.paths) <= len(descriptors) <= LIMIT
    descriptors.close()
    assert files.paths == {}


class Creations(MachineFiles):
    """Notes the threads that create segment files."""

    def __init__(self) -> None:
        self.threads: list[int] = []

    def open(self, name: Name, /, **options: Any) -> int:
        if options.get("create") and str(name).endswith(".log"):
            self.threads.append(threading.get_ident())
        return super().open(name, **options)


def test_the_event_loops_thread_creates_no_segments(tmp_path: Path) -> None:
    files, partitions = Creations(), range(5)
    harness = Harness(tmp_path, files=files)
    for partition in partitions:
        harness.put(batch(3), partition)
    calls: SimpleQueue[Callable[[], object]] = SimpleQueue()
    harness.store.attach(lambda callback, *arguments: calls.put(lambda: callback(*arguments)))
    ended: list[object] = []
    harness.store.checkpoint(ended.append)
    while not ended:
        calls.get(timeout=20)()
    assert ended == [None]
    assert len(files.threads) == len(partitions)
    assert threading.get_ident() not in files.threads
    for partition in partitions:
        log = harness.log(partition)
        assert log.state.unwritten_bytes == 0
        assert offsets(read_all(log)) == [(0, 3)]
    harness.store.close()


def open_segments(directory: Path) -> int:
    """Files of segments below a directory that this process has open."""
    count = 0
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # closed since, by another thread
            count += os.readlink(f"/proc/self/fd/{number}").startswith(f"{directory}/orders-")
    return count


@pytest.mark.parametrize("policy", ["group", "interval", "os"])
def test_a_group_may_have_more_partitions_than_files_may_be_open(
    tmp_path: Path, policy: str
) -> None:
    harness = Harness(tmp_path, open_files_max=16, log_flush_policy=policy)
    partitions, appended = range(200), 3
    for number in range(appended):
        for partition in partitions:
            harness.append(batch(1, size=8 + partition, fill=number), partition)
        assert harness.commit() is None
        harness.store.checkpoint()
        assert 0 < open_segments(tmp_path) <= 16
    expected = {partition: read_all(harness.log(partition)) for partition in partitions}
    harness.store.close()
    harness.reopen()
    for partition in partitions:
        data = read_all(harness.log(partition))
        assert data == expected[partition]
        assert offsets(data) == [(number, number + 1) for number in range(appended)]
        size = Path(tmp_path / f"orders-{partition}" / f"{0:020d}.log").stat().st_size
        assert size == len(data)
    harness.store.close()


def test_a_segment_whose_file_is_gone_takes_further_appends(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    harness.put(batch(3))
    harness.store.checkpoint()
    log = harness.log()
    log.state.parts.segment_files.descriptors.close()
    Path(log.state.segments[0].path).unlink()
    harness.put(batch(2))
    ended: list[object] = []
    harness.store.checkpoint(ended.append)
    assert ended == [None]
    assert log.state.unwritten_bytes == 0
    assert offsets(read_all(log, start=3)) == [(3, 5)]
    harness.store.close()
