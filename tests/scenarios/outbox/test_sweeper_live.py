"""Sweepers beside live writers and a live consumer: nothing acknowledged is lost before it is read.

All ages are zero, which no deployment would set: what every group has read goes at once, and so do
temporary files and empty directories. So sweepers and writers meet all the time: temporary
files vanish under writes, directories between `mkdir` and `open`. What must hold all the same: a
batch that was acknowledged is read, whole.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from penstock.outbox.gc.pointer_index import TopicPointers
from penstock.outbox.gc.sweeper import Sweeper, SweepRules
from penstock.outbox.reader.consumer import OutboxConsumer
from penstock.outbox.reader.reader import OutboxReader
from penstock.testing import Broker
from tests.outbox.shelf import Shelf

ROOT = Path(__file__).resolve().parents[3]
WRITERS = 2
SECONDS = 4.0
READ_MIN = 200
REMOVED_MIN = 100
NO_AGE = SweepRules(retention_ms=0, orphan_age_ms=0, unreferenced_grace_ms=10**9)


class Sweeping:
    """Threads that sweep again and again: one all of it, and two, faster, without the topic."""

    def __init__(self, shelf: Shelf, bootstrap: str) -> None:
        self._shelf = shelf
        self._bootstrap = bootstrap
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(whole,)) for whole in (True, False, False)
        ]
        self.sweeps = self.payloads = self.temporaries = self.directories = 0
        self.failed: list[str] = []
        self.error: BaseException | None = None

    def __enter__(self) -> Sweeping:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)

    def _run(self, whole: bool) -> None:
        from penstock.client import Client

        try:
            with Client(self._bootstrap) as client:
                pointers = TopicPointers(client, self._shelf.topic, ["g"]) if whole else None
                sweeper = Sweeper(self._shelf.root, pointers=pointers, rules=NO_AGE, execute=True)
                while not self._stop.is_set():
                    report = sweeper.sweep()
                    self.sweeps += 1
                    self.payloads += report.removed_payloads
                    self.temporaries += report.removed_temporaries
                    self.directories += report.removed_directories
                    self.failed += report.walked.failed
        except BaseException as error:
            self.error = error


def _writer(shelf: Shelf, bootstrap: str, partition: str, stop: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.scenarios.outbox.live_writer", str(shelf.root), bootstrap,
         shelf.topic, partition, str(stop)],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.mark.long
def test_sweepers_beside_writers_and_a_consumer(
    shelf: Shelf, outbox_broker: Broker, tmp_path: Path
) -> None:
    stop = tmp_path / "stop"
    bootstrap = outbox_broker.bootstrap
    writers = [_writer(shelf, bootstrap, f"w{number}", stop) for number in range(WRITERS)]
    ends = time.monotonic() + SECONDS
    read: dict[tuple[str, str], bytes] = {}
    outputs: list[str] = []

    def collect(writer: subprocess.Popen[str]) -> None:
        out, said = writer.communicate(timeout=100)
        outputs.append(out + (said if writer.returncode else ""))

    try:
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "ready\n"
        with Sweeping(shelf, bootstrap) as sweeping:
            collecting = [threading.Thread(target=collect, args=(writer,)) for writer in writers]
            for thread in collecting:
                thread.start()
            while True:
                over = not any(thread.is_alive() for thread in collecting)
                consume(shelf, read)
                if over:
                    break
                if sweeping.error is not None or (
                    time.monotonic() > ends
                    and len(read) > 2 * READ_MIN  # some were read, but never acknowledged
                    and min(sweeping.payloads, sweeping.directories) > REMOVED_MIN
                ):
                    stop.touch()
    finally:
        for writer in writers:
            writer.kill()
            writer.wait()
    assert [writer.returncode for writer in writers] == [0] * WRITERS, outputs
    assert sweeping.error is None
    assert sweeping.failed == []
    acknowledged = {
        (partition, batch)
        for out in outputs
        for partition, batch in map(str.split, out.splitlines())
    }
    print(f"{len(acknowledged)} acknowledged, {sweeping.payloads} payloads,"
          f" {sweeping.directories} directories and {sweeping.temporaries} temporary files removed"
          f" in {sweeping.sweeps} sweeps")  # fmt: skip
    assert len(acknowledged) > READ_MIN
    assert acknowledged <= set(read)
    assert shelf.dead_letters() == []
    for (partition, batch), payload in read.items():
        word = f"{partition}/{batch}".encode()
        assert payload in (word, word * 1_000)
    assert min(sweeping.payloads, sweeping.directories) > REMOVED_MIN


def consume(shelf: Shelf, read: dict[tuple[str, str], bytes]) -> None:
    with (
        OutboxReader(shelf.root) as reader,
        OutboxConsumer(shelf.client, shelf.topic, reader, group="g", until_end=True,
                       dead_letter_topic=shelf.dead) as consumer,
    ):  # fmt: skip
        for message in consumer:
            read[message.key] = message.payload
