"""kill -9 of a consumer, over and over: every batch is handed out whole, at least once."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from penstock.testing import Broker
from tests.outbox.shelf import Shelf

ROOT = Path(__file__).resolve().parents[3]
KILLS = 4
BATCHES = 2_000
"""More than all that are killed can get rid of: each as many as it is read, and a full pipe."""


@pytest.mark.long
def test_killed_over_and_over(shelf: Shelf, outbox_broker: Broker) -> None:
    dice = random.Random(7)
    pointers = [shelf.file(b"%d" % number, batch_id=f"b{number}") for number in range(BATCHES)]
    shelf.publish(*pointers)
    command = [
        sys.executable, "-m", "penstock", "-b", outbox_broker.bootstrap, "--output", "json",
        "outbox", "read", "--root", str(shelf.root), "-t", shelf.topic, "--group", "g",
        "--dead-letter-topic", shelf.dead, "-e",
    ]  # fmt: skip
    runs: list[list[int]] = []
    for number in range(KILLS + 1):
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, text=True) as process:  # fmt: skip
            assert process.stdout is not None
            lines = []
            most = dice.randrange(1, 100) if number < KILLS else BATCHES
            for line in process.stdout:
                lines.append(line)
                if len(lines) == most and number < KILLS:
                    process.send_signal(signal.SIGKILL)
        assert process.returncode == (-signal.SIGKILL if number < KILLS else 0)
        runs.append([json.loads(line)["offset"] for line in lines if line.endswith("\n")])
    for run in runs:
        assert run == list(range(run[0], run[0] + len(run)))
    seen = {offset for run in runs for offset in run}
    assert seen == set(range(BATCHES))
    for before, after in pairwise(runs):
        assert after[0] <= before[-1] + 1
    assert any(after[0] <= before[-1] for before, after in pairwise(runs))
    assert shelf.dead_letters() == []
    assert shelf.client.committed("g", [(shelf.topic, 0)])[shelf.topic, 0].offset == BATCHES
