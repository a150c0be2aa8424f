"""Writers killed with SIGKILL at every file call, and in between: nothing accepted is lost."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
KILLS_MIN = 1200
KILLED_AT = {
    "open_root", "open_directory", "make_directory", "size_of", "open_file", "create", "write",
    "sync_file", "sync_directory", "rename", "link", "remove", "close", "publish", "acknowledge",
    "any time",
}  # fmt: skip


@pytest.mark.slow
def test_kills_at_every_call(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-W", "error", "-m", "tests.outbox.kill_target", str(tmp_path), "20261"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    result = json.loads(run.stdout)
    print(f"{result['total']} writers killed: {result['by_call']}")
    assert result["total"] >= KILLS_MIN
    assert set(result["by_call"]) == KILLED_AT
