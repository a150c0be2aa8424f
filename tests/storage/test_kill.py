"""kill -9 at random times: everything acknowledged is there, in order, once; and a replica is what
the first so many of the things that were done to it have made, with all that were acknowledged. A
log with transactions knows what its batches say.
"""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest

from penstock.records import split_batches, verify_crc
from tests.sampling import sample
from tests.storage.batches import Harness, read_all
from tests.storage.kill_target import PARTITIONS, REPLICA, TRANSACTIONS
from tests.storage.transactions import check as check_transactions
from tests.storage.transactions import history_of

ROOT = Path(__file__).resolve().parents[2]


Batches = tuple[tuple[int, int, int], ...]
"""Base offset, next offset and fill of each batch."""


def left(batches: Batches, start: int) -> Batches:
    """Return the appends that retention has kept."""
    return tuple(batch for batch in batches if batch[1] > start)


class Replica:
    """Possible states of the replica: its batches and its promise after each step."""

    def __init__(self) -> None:
        self.batches: Batches = ()
        self.promised = -1
        self.forget()

    def forget(self) -> None:
        """Begin at what it is now."""
        self.states: list[set[tuple[Batches, int]]] = [{(self.batches, self.promised)}]
        self.seen = [(self.end, self.promised)]
        """Where the process saw it end, and what promised, after each thing."""
        self.acknowledged = 0

    @property
    def end(self) -> int:
        return self.batches[-1][1] if self.batches else 0

    def line(self, line: str) -> None:
        if line.startswith("="):
            self.acknowledged = int(line[1:])
            return
        _, _, kind, number, fill = line.split()
        value = int(number)
        if kind == "append":
            self.batches = (*self.batches, (self.end, self.end + value, int(fill)))
        elif kind == "cut":
            self.take_back(value)
            self.batches = tuple(batch for batch in self.batches if batch[1] <= value)
        else:
            self.promised = value
        self.states.append({(self.batches, self.promised)})
        self.seen.append((self.end, self.promised))

    def take_back(self, end: int) -> None:
        """Add the states in which later steps were taken back, except promises."""
        last = len(self.states)
        for done in range(last - 1, self.acknowledged - 1, -1):
            for later in range(done + 1, last):
                promised = self.seen[later][1]
                self.states[later] |= {(batches, promised) for batches, _ in self.states[done]}
            if self.seen[done][0] <= end:
                return

    def check(self, harness: Harness) -> None:
        """Check that the log is in one of the states, from which the next process continues."""
        log = harness.log(REPLICA)
        data = read_all(log, max_bytes=1 << 20)
        batches, position = list[tuple[int, int, int]](), 0
        for header in split_batches(data):
            verify_crc(data, header, position)
            batches.append(
                (header.base_offset, header.next_offset, data[position + header.size_bytes - 2])
            )
            position += header.size_bytes
        start = log.log_start_offset
        assert any(
            (left(held, start), promised) == (left(tuple(batches), start), log.replica.promised)
            for states in self.states[self.acknowledged :]
            for held, promised in states
        )
        self.batches, self.promised = tuple(batches), log.replica.promised
        self.forget()


def run_and_kill(
    directory: Path, seed: int, delay: float, replica: Replica, *, at_least: int
) -> list[tuple[int, int, int, int]]:
    """Returns what was acknowledged: (partition, first sequence, count, base offset).

    The time until the end begins when so many lines have been read.
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
    return parse(lines, replica)


def parse(lines: list[str], replica: Replica) -> list[tuple[int, int, int, int]]:
    """Parse a process's acknowledged appends; pass the replica's lines to `replica`."""
    acknowledged = []
    for line in lines:
        if not line.endswith("\n"):
            continue
        if line[0] in "+=":
            replica.line(line)
        else:
            for part in line.strip().split("|"):
                partition, first, count, base = map(int, part.split())
                acknowledged.append((partition, first, count, base))
    return acknowledged


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("rounds", sample([6, 24], 2))
def test_killed_over_and_over(tmp_path: Path, rounds: int) -> None:
    dice = random.Random(20)
    acknowledged: set[tuple[int, int, int, int]] = set()
    replica = Replica()
    for number in range(rounds):
        delay = dice.uniform(0.0, 0.6)
        at_least = 8 * (number % 2)
        acknowledged |= set(run_and_kill(tmp_path, number, delay, replica, at_least=at_least))
        check(tmp_path, acknowledged, replica)
    assert len(acknowledged) >= rounds - 1


def check(directory: Path, acknowledged: set[tuple[int, int, int, int]], replica: Replica) -> None:
    harness = Harness(directory)
    with closing(harness.store):
        replica.check(harness)
        log = harness.log(TRANSACTIONS)
        if log.log_start_offset == 0:
            check_transactions(log, history_of(log))
        stored: set[tuple[int, int, int, int]] = set()
        for partition in range(PARTITIONS):
            start = harness.log(partition).log_start_offset
            acknowledged = {
                append
                for append in acknowledged
                if append[0] != partition or append[3] + append[2] > start
            }
            data = read_all(harness.log(partition), max_bytes=1 << 20)
            expected, position = None, 0
            for header in split_batches(data):
                expected = header.base_offset if expected is None else expected
                verify_crc(data, header, position)
                position += header.size_bytes
                # Sequences equal offsets as long as nothing is lost, doubled or out of order.
                assert (header.base_offset, header.base_sequence) == (expected, expected)
                expected = header.next_offset
                stored.add(
                    (partition, header.base_sequence, header.record_count, header.base_offset)
                )
    assert acknowledged <= stored
