"""`subscribe` on a cluster of three processes whose leader is killed again and again."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.client import Client, ReadPosition
from tests.apps.processes.test_serve import children, until
from tests.apps.test_serve import LOCAL, serving

IDLE_MS = 90_000
RECORDS_PER_WRITE = 5


class Writing:
    """Writer of numbers to partition 0, a few at a time, until it is stopped."""

    def __init__(self, bootstrap: str) -> None:
        self.stop = threading.Event()
        self.written = 0
        self._bootstrap = bootstrap
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Writing:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self._thread.join(IDLE_MS / 1000)

    def _run(self) -> None:
        with Client(self._bootstrap) as client:
            while not self.stop.is_set():
                numbers = range(self.written, self.written + RECORDS_PER_WRITE)
                values = pa.table({"value": [b"%d" % number for number in numbers]})
                client.write_arrow("t", values, partition=0)
                self.written += RECORDS_PER_WRITE


class Brokers:
    """Processes of three brokers, which are restarted when they die."""

    def __init__(self, parent: subprocess.Popen[str]) -> None:
        self._parent = parent
        _, *brokers = children(parent)
        self._processes = dict(enumerate(brokers, 1))

    def kill(self, broker_id: int) -> None:
        before = children(self._parent)
        os.kill(self._processes[broker_id], signal.SIGKILL)
        until(lambda: {*children(self._parent)} - {*before}, "another one runs for it")
        (self._processes[broker_id],) = {*children(self._parent)} - {*before}


def follow(client: Client, brokers: Brokers, start: Mapping[int, ReadPosition]) -> Iterator[Any]:
    """Return batches until the partition is led in another epoch; kill its leader meanwhile."""
    with client.subscribe("t", start=start, idle_timeout_ms=IDLE_MS) as stream:
        first = next(stream)
        yield first, stream.positions
        epoch = stream.positions[0].epoch
        brokers.kill(client.describe_topic("t").partitions[0].leader)
        for batch in stream:
            yield batch, stream.positions
            if stream.positions[0].epoch > epoch:
                return


@pytest.mark.timeout(400)
def test_every_record_comes_once_and_in_order_over_deaths_of_the_leader(tmp_path: Path) -> None:
    with serving(tmp_path, *LOCAL, "--processes", "3") as (process, line):
        found = re.search(r"kafka=(\S+)", line)
        assert found is not None, line
        brokers = Brokers(process)
        with Client(found[1]) as client:
            client.create_topic("t", 1, replication_factor=3)
            values: list[bytes] = []
            offsets: list[int] = []
            positions = {0: ReadPosition(-1, 0)}
            epochs = []
            with Writing(found[1]) as writing:
                for _ in range(2):  # the second one goes on where the first one stood
                    for batch, at in follow(client, brokers, positions):
                        values += batch.column("value").to_pylist()
                        offsets += batch.column("offset").to_pylist()
                        positions = dict(at)
                    epochs.append(positions[0].epoch)
            left = client.read_arrow("t", start={0: positions[0].offset})
    assert 0 < epochs[0] < epochs[1], "led by others twice"
    assert offsets == list(range(positions[0].offset))
    written = writing.written
    assert values + left.column("value").to_pylist() == [
        b"%d" % number for number in range(written)
    ]
