"""Power lost between any two file calls: what was acknowledged is there afterwards."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from penstock.storage import LogConfig
from tests.faulty_files import CALLS, FaultyFiles
from tests.storage.batches import Harness, abandon, batch, read_all

POINTS_MAX = 120
"""Crash points that are tried of all there are, evenly spread."""


def work(directory: Path, files: FaultyFiles) -> list[tuple[int, bytes]]:
    """Appends, rolls, checkpoints, retention, a clean restart; what was acknowledged, and after
    how many operations."""
    acknowledged = []
    harness = Harness(
        directory,
        files=files,
        config=LogConfig(segment_bytes=400, retention_ms=-1, file_delete_delay_ms=0),
        journal_file_bytes=1 << 14,
        journal_files_max=2,
    )
    content = b""
    for number in range(24):
        content += bytes(batch(2, fill=number, producer_id=7, epoch=0, sequence=2 * number))
        harness.put(batch(2, fill=number, producer_id=7, epoch=0, sequence=2 * number))
        acknowledged.append((len(files.operations), read_all(harness.log())))
        if number % 7 == 3:
            harness.store.checkpoint()
        if number == 15:
            harness.reopen()
    abandon(harness.store)
    assert len(acknowledged[-1][1]) == len(content)
    return acknowledged


def test_the_recording_sees_every_kind_of_call(tmp_path: Path) -> None:
    """The replay of all calls is what is there."""
    files = FaultyFiles(root=tmp_path)
    work(tmp_path, files)
    disk = files.disk_after()
    real = {
        str(path.relative_to(tmp_path)): path.read_bytes()
        for path in tmp_path.rglob("*")
        if path.is_file()
    }
    assert disk.contents() == real
    assert set(files.calls) <= set(CALLS)


@pytest.mark.parametrize("seed", range(2))
def test_what_was_acknowledged_outlives_the_power(tmp_path: Path, seed: int) -> None:
    root = tmp_path / "root"
    root.mkdir()
    files = FaultyFiles(root=root)
    acknowledged = work(root, files)
    total = len(files.operations)
    step = max(1, total // POINTS_MAX)
    for count in range(seed, total + 1, step):
        before = [content for at, content in acknowledged if at <= count]
        expected = before[-1] if before else b""
        image = files.disk_after(count).after_power_loss(
            random.Random(f"{seed}-{count}") if seed else None
        )
        directory = tmp_path / f"after-{count}"
        image.put(directory)
        again = Harness(directory, files=FaultyFiles(root=directory))
        found = read_all(again.log())
        assert found[: len(expected)] == expected, f"power lost after call {count}"
        again.put(batch())
        again.store.close()
