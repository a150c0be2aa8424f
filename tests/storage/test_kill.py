"""kill -9 at random times: everything acknowledged is there, in order, once."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from penstock.records import split_batches, verify_crc
from tests.storage.batches import Harness, read_all
from tests.storage.kill_target import PARTITIONS

ROUNDS = 25
ROOT = Path(__file__).resolve().parents[2]


def run_and_kill(
    directory: Path, seed: int, delay: float, *, at_least: int
) -> list[tuple[int, int, int, int]]:
    """Returns what was acknowledged: (partition, first sequence, count, base offset).

    The time until the end begins when so many groups have been acknowledged.
    """
    command = [sys.executable, "-m", "tests.storage.kill_target", str(directory), str(seed)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        lines = [process.stdout.readline() for _ in range(at_least)]
        timer = threading.Timer(delay, process.kill)
        timer.start()
        lines += process.stdout.readlines()
        timer.join()
    acknowledged = []
    for line in lines:
        if line.endswith("\n"):
            for part in line.strip().split("|"):
                partition, first, count, base = map(int, part.split())
                acknowledged.append((partition, first, count, base))
    return acknowledged


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_over_and_over(tmp_path: Path) -> None:
    dice = random.Random(20)
    acknowledged: set[tuple[int, int, int, int]] = set()
    for number in range(ROUNDS):
        delay = dice.uniform(0.0, 0.6)
        acknowledged |= set(run_and_kill(tmp_path, number, delay, at_least=2 * (number % 2)))
        if number % 5 == 4:
            check(tmp_path, acknowledged)
    assert len(acknowledged) >= ROUNDS - 1


def check(directory: Path, acknowledged: set[tuple[int, int, int, int]]) -> None:
    harness = Harness(directory)
    stored: set[tuple[int, int, int, int]] = set()
    for partition in range(PARTITIONS):
        data = read_all(harness.log(partition), max_bytes=1 << 20)
        expected = position = 0
        for header in split_batches(data):
            verify_crc(data, header, position)
            position += header.size_bytes
            # Sequences equal offsets as long as nothing is lost, doubled or out of order.
            assert (header.base_offset, header.base_sequence) == (expected, expected)
            expected = header.next_offset
            stored.add((partition, header.base_sequence, header.record_count, header.base_offset))
    assert acknowledged <= stored
    harness.store.close()
