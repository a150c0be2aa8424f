"""Two clusters that are mirrored both ways, while mirrors and brokers are killed.

Both clusters get records of their own. At the end, both have each record once, and the records that
were written to one cluster have the same order in both. A group on one cluster is never ahead on
the other once both mirrors have started: it has read the records before its offset there.

`PENSTOCK_MIRROR_MINUTES` is the duration of the long test; its default is 20.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import defaultdict
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.base.errors import PenstockError
from penstock.client import Client
from penstock.connect import positions
from penstock.mirror.topics import DIRECTION
from penstock.testing import Broker
from tests.mirror.bed import Mirroring, mirror_file, rows, wait_for

PARTITIONS = 2
BATCH = 50
MINUTES = float(os.environ.get("PENSTOCK_MIRROR_MINUTES", "20"))


class Writer(threading.Thread):
    """Writer of numbered records to one cluster until `enough` is set."""

    def __init__(self, broker: Broker, name: str) -> None:
        super().__init__(name=f"writer {name}", daemon=True)
        self._broker = broker
        self._name = name
        self.enough = threading.Event()
        self.written: dict[int, list[bytes]] = {partition: [] for partition in range(PARTITIONS)}

    def run(self) -> None:
        number = 0
        with self._broker.client() as client:
            while not self.enough.is_set():
                partition = number % PARTITIONS
                values = [b"%s-%d-%d" % (self._name.encode(), number, i) for i in range(BATCH)]
                client.write_arrow("orders", pa.table({"value": values}), partition=partition)
                self.written[partition] += values
                number += 1
                self.enough.wait(0.02)


class Reader(threading.Thread):
    """Member-less reader of group `g` on one cluster, which checks the group on the other one."""

    def __init__(self, here: Broker, there: Broker) -> None:
        super().__init__(name="reader", daemon=True)
        self._here = here
        self._there = there
        self._read: set[bytes] = set()
        self._offsets: dict[tuple[str, int], int] = {}
        self._checked: dict[int, int] = {}
        self.enough = threading.Event()
        self.ahead: list[bytes] = []
        self.checks = 0

    def run(self) -> None:
        options = {"api_timeout_ms": 3_000, "request_timeout_ms": 3_000}
        with self._here.client(**options) as here, self._there.client(**options) as there:
            while not self.enough.wait(0.2):
                try:
                    if DIRECTION not in positions.existing(here, "mirror.back"):
                        continue  # the other mirror has not started yet
                    self.step(here)
                    self.check(there)
                except PenstockError:
                    continue  # a broker was killed

    def step(self, client: Client) -> None:
        """Read all records, and commit the offsets after them."""
        start = {p: self._offsets.get(("orders", p), 0) for p in range(PARTITIONS)}
        ends = client.list_offsets("orders", isolation=1)
        self._read.update(values(client, start, ends))
        self._offsets |= {("orders", partition): end for partition, end in ends.items()}
        client.commit_offsets("g", self._offsets)

    def resumed(self, here: Client, there: Client) -> bool:
        """Return whether the group has no records to read on the other cluster either."""
        self.step(here)
        return self.check(there) == 0

    def check(self, client: Client) -> int:
        """Collect the records before the group's offsets that it has not read.

        Return the number of records after these offsets.
        """
        group = {partition: entry.offset for (_, partition), entry in client.committed("g").items()}
        start = {p: self._checked.get(p, 0) for p in range(PARTITIONS)}
        until = {p: max(group.get(p, 0), start[p]) for p in range(PARTITIONS)}
        read, self._checked = self._read.copy(), until
        self.ahead += [value for value in values(client, start, until) if value not in read]
        self.checks += bool(group)
        ends = client.list_offsets("orders", isolation=1)
        return len(values(client, until, {p: max(ends[p], until[p]) for p in ends}))


def values(client: Client, start: dict[int, int], end: dict[int, int]) -> list[bytes]:
    """Return the values of committed records in a range of offsets by partition."""
    found: list[bytes] = client.read_arrow(
        "orders", start=start, end=end, columns=("value",), isolation="read_committed"
    )["value"].to_pylist()
    return found


def count(client: Client) -> int:
    found: int = client.read_arrow(
        "orders", columns=("offset",), isolation="read_committed"
    ).num_rows
    return found


def disturb(mirrors: list[Mirroring], brokers: list[Broker], seconds: float, seed: int) -> None:
    """Kill mirrors and brokers, and start them again, until a time has passed."""
    chance, until = random.Random(seed), time.monotonic() + seconds
    while time.monotonic() < until:
        victims: list[Mirroring | Broker] = [*mirrors, *brokers]
        victim = chance.choice(victims)
        victim.kill()
        victim.start()
        time.sleep(chance.uniform(0.5, 1.0))


def by_origin(client: Client) -> dict[tuple[int, bytes], list[bytes]]:
    """Return the values of a cluster by partition and cluster of origin, in their order."""
    found: dict[tuple[int, bytes], list[bytes]] = defaultdict(list)
    for row in rows(client, "orders"):
        found[row["partition"], row["value"].partition(b"-")[0]].append(row["value"])
    return found


def run_both_ways(folder: Path, seconds: float, seed: int) -> None:
    with Broker(process=True) as left, Broker(process=True) as right:
        for broker in (left, right):
            broker.create_topic("orders", PARTITIONS)
        files = [
            mirror_file(folder, "forth", left, right),
            mirror_file(folder, "back", right, left),
        ]
        mirrors = [Mirroring(file) for file in files]
        writers = [Writer(left, "left"), Writer(right, "right")]
        reader = Reader(left, right)
        for thread in (*writers, reader):
            thread.start()
        disturb(mirrors, [left, right], seconds, seed)
        for writer in writers:
            writer.enough.set()
            writer.join()
        expected = {
            (partition, name): writer.written[partition]
            for name, writer in zip((b"left", b"right"), writers, strict=True)
            for partition in range(PARTITIONS)
            if writer.written[partition]
        }
        total = sum(map(len, expected.values()))
        with left.client() as here, right.client() as there:
            for client in (here, there):
                wait_for(lambda c=client: count(c) >= total)  # type: ignore[misc]
            wait_for(lambda: reader.checks > 1)
            reader.enough.set()
            reader.join()
            wait_for(lambda: reader.resumed(here, there))
            for client in (here, there):
                assert by_origin(client) == expected
        for process in mirrors:
            process.kill()
        assert not reader.ahead


def test_two_clusters_stay_equal_under_kills(tmp_path: Path) -> None:
    run_both_ways(tmp_path, 4.0, seed=1)


@pytest.mark.long
@pytest.mark.timeout(60 * MINUTES + 600)
def test_two_clusters_stay_equal_for_minutes(tmp_path: Path) -> None:
    run_both_ways(tmp_path, 60 * MINUTES, seed=int(time.time()))
