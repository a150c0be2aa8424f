"""Writers killed with SIGKILL at every file call, and in between: nothing accepted is lost.

A kill takes nothing from the page cache, so that a file system in memory shows as much as a disk,
and most kills are made there: a disk that others keep busy takes minutes for the syncs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
MEMORY = Path("/dev/shm")
KILLS_MIN = 1200
KILLED_AT = {
    "open_directory", "make_directory", "size_of", "open_file", "attribute",
    "create", "set_attribute", "sync_file",
    "sync_directory", "rename_new", "link", "remove", "close", "publish", "acknowledge", "any time",
}  # fmt: skip


@pytest.fixture
def fast_folder(tmp_path: Path) -> Iterator[Path]:
    if not os.access(MEMORY, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="penstock-kill-", dir=MEMORY) as folder:
        yield Path(folder)


def kill(root: Path, seed: int, *options: str) -> dict[str, int]:
    command = [sys.executable, "-W", "error", "-m", "tests.scenarios.outbox.kill_target"]
    run = subprocess.run(
        [*command, str(root), str(seed), *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    result = json.loads(run.stdout)
    print(f"{result['total']} writers killed on {root}: {result['by_call']}")
    kills: dict[str, int] = result["by_call"]
    return kills


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("shape", "also"),
    [("empty", set()), ("one", {"write"}), ("many", {"write"}), ("slices", {"start_write_back"})],
)
def test_kills_at_every_call(fast_folder: Path, shape: str, also: set[str]) -> None:
    kills = kill(fast_folder, 20261, shape)
    assert sum(kills.values()) >= KILLS_MIN // 4
    assert kills.keys() >= KILLED_AT | also


@pytest.mark.timeout(300)
def test_kills_on_the_disk(tmp_path: Path) -> None:
    kills = kill(tmp_path, 20262, "one", "few")
    assert sum(kills.values()) >= 100
    assert {"sync_file", "sync_directory", "rename_new", "publish"} <= set(kills)
