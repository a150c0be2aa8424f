"""Two clusters that are mirrored both ways, while mirrors, brokers and their network are cut off.

The process of a mirror or a broker is killed. The network between the clusters refuses connections,
or loses all packets: mirror `forth` reads from the left cluster through it, and mirror `back`
writes through it. Both clusters get records of their own. At the end, both have each record once,
and the records that were written to one cluster have the same order in both. A group on one
cluster is never ahead on the other, and at most one batch behind.

`PENSTOCK_MIRROR_MINUTES` is the duration of the long tests; its default is 20.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from penstock.base.errors import PenstockError
from penstock.client import Client
from penstock.testing import Broker
from tests.client.proxy import Proxy
from tests.mirror.bed import Address, Mirroring, mirror_file, wait_for
from tests.ports import free_port

PARTITIONS = 2
BATCH = 50
MINUTES = float(os.environ.get("PENSTOCK_MIRROR_MINUTES", "20"))
NAMES = (b"left", b"right")
Contents = dict[tuple[int, bytes], list[bytes]]
"""Values by partition and cluster of origin."""
ALIASES = ('alias = "a"', 'alias = "b"')


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
                self.write(client, number)
                number += 1
                self.enough.wait(0.04)

    def write(self, client: Client, number: int) -> None:
        partition = number % PARTITIONS
        values = [b"%s-%d-%d" % (self._name.encode(), number, i) for i in range(BATCH)]
        client.write_arrow("orders", pa.table({"value": values}), partition=partition)
        self.written[partition] += values


class Reader(threading.Thread):
    """Member-less reader of group `g` on one cluster, which checks the group on the other one."""

    def __init__(self, here: Broker, there: Broker, mirrored: str) -> None:
        super().__init__(name="reader", daemon=True)
        self._here = here
        self._there = there
        self._mirrored = mirrored
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
                    self.step(here)
                    self.check(there)
                except PenstockError:
                    continue  # a broker was killed

    def step(self, client: Client, before_end: int = 0) -> None:
        """Read all records but the last ones of each partition, and commit the offsets after."""
        start = {p: self._offsets.get(("orders", p), 0) for p in range(PARTITIONS)}
        ends = client.list_offsets("orders", isolation=1)
        ends = {p: max(start[p], end - before_end) for p, end in ends.items()}
        self._read.update(values(client, "orders", start, ends))
        self._offsets |= {("orders", partition): end for partition, end in ends.items()}
        client.commit_offsets("g", self._offsets)

    def check(self, client: Client) -> int:
        """Collect the records before the group's offsets that it has not read.

        Return the number of records after these offsets that it has read.
        """
        group = {
            partition: entry.offset
            for (topic, partition), entry in client.committed("g").items()
            if topic == self._mirrored
        }
        if not group:
            return len(self._read)
        start = {p: self._checked.get(p, 0) for p in range(PARTITIONS)}
        until = {p: max(group.get(p, 0), start[p]) for p in range(PARTITIONS)}
        before = values(client, self._mirrored, start, until)
        self._checked = until
        self.ahead += [value for value in before if value not in self._read]
        self.checks += 1
        ends = client.list_offsets(self._mirrored, isolation=1)
        after = values(client, self._mirrored, until, {p: max(ends[p], until[p]) for p in ends})
        return sum(value in self._read for value in after)


def values(client: Client, topic: str, start: dict[int, int], end: dict[int, int]) -> list[bytes]:
    """Return the values of committed records in a range of offsets by partition."""
    found: list[bytes] = client.read_arrow(
        topic, start=start, end=end, columns=("value",), isolation="read_committed"
    )["value"].to_pylist()
    return found


class Network:
    """Network to a broker, through which its listener `address` is reached."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self.port = free_port()
        proxy.target = ("127.0.0.1", self.port)
        self.address = Address(proxy.address)
        self.settings = {
            "listeners": f"LINK://127.0.0.1:{self.port}",
            "advertised.listeners": f"LINK://{proxy.address}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,LINK:PLAINTEXT",
        }

    def disturb(self, chance: random.Random, seconds: float) -> None:
        """Refuse connections, or lose all packets, for at most some time."""
        begin, end = chance.choice((
            (self._proxy.cut, self._proxy.mend), (self._proxy.hold, self._proxy.resume)
        ))  # fmt: skip
        begin()
        time.sleep(chance.uniform(0.1, seconds))
        end()


def disturb(
    parts: list[Mirroring | Broker], network: Network, seconds: float, seed: int, pause: float
) -> None:
    """Kill mirrors and brokers and start them again, and cut the network, until a time is over."""
    chance, until = random.Random(seed), time.monotonic() + seconds
    turns: list[Mirroring | Broker | Network] = []
    while time.monotonic() < until:
        turns = turns or chance.sample([*parts, network], len(parts) + 1)
        victim = turns.pop()
        if isinstance(victim, Network):
            victim.disturb(chance, 4 * pause)
        else:
            victim.kill()
            victim.start()
        time.sleep(chance.uniform(0.5, 1.0) * pause)


def by_origin(client: Client, topic: str) -> Contents:
    """Return the values of a topic by partition and cluster of origin, in their order."""
    table = client.read_arrow(topic, columns=("partition", "value"), isolation="read_committed")
    found: Contents = {}
    for partition in range(PARTITIONS):
        column = table.filter(pc.field("partition") == partition)["value"]
        for name in NAMES:
            if listed := column.filter(pc.starts_with(column, name)).to_pylist():
                found[partition, name] = listed
    return found


class Clusters:
    """Both clusters with their writers, and the topics that each has to have at the end."""

    def __init__(self, left: Client, right: Client, writers: list[Writer], policy: str) -> None:
        self.left = left
        self.right = right
        self._writers = writers
        self._identity = policy == "identity"

    def contents(self) -> list[tuple[Client, str, Contents]]:
        left, right = [
            {(p, name): listed.copy() for p, listed in writer.written.items() if listed}
            for writer, name in zip(self._writers, NAMES, strict=True)
        ]
        if self._identity:
            return [(client, "orders", left | right) for client in (self.left, self.right)]
        return [
            (self.left, "orders", left), (self.right, "a.orders", left),
            (self.right, "orders", right), (self.left, "b.orders", right),
        ]  # fmt: skip

    def write(self, number: int) -> None:
        """Write a batch to each cluster after the other, and wait until it is mirrored."""
        for writer, client in zip(self._writers, (self.left, self.right), strict=True):
            writer.write(client, number)
            self.wait()

    def wait(self) -> None:
        """Wait until each cluster has as many records as it has to have."""
        for client, topic, contents in self.contents():
            total = sum(map(len, contents.values()))
            wait_for(lambda c=client, t=topic, n=total: count(c, t) >= n)  # type: ignore[misc]

    def check(self) -> None:
        """Check that each cluster has each record once, in the order in which it was written."""
        topics: dict[Client, set[str]] = {}
        for client, topic, contents in self.contents():
            assert by_origin(client, topic) == contents
            topics.setdefault(client, set()).add(topic)
        for client, expected in topics.items():
            names = {topic.name for topic in client.list_topics() if "orders" in topic.name}
            assert names == expected


def count(client: Client, topic: str) -> int:
    found: int = client.read_arrow(topic, columns=("offset",), isolation="read_committed").num_rows
    return found


def run_both_ways(folder: Path, policy: str, seconds: float, seed: int, pause: float) -> None:
    with ExitStack() as opened:
        network = Network(opened.enter_context(Proxy()))
        left = opened.enter_context(Broker(network.settings, process=True))
        right = opened.enter_context(Broker(process=True))
        for broker in (left, right):
            broker.create_topic("orders", PARTITIONS)
        files = [
            mirror_file(folder, "forth", network.address, right, policy, *ALIASES),
            mirror_file(folder, "back", right, network.address, policy, *ALIASES[::-1]),
        ]
        writers = [Writer(left, "left"), Writer(right, "right")]
        reader = Reader(left, right, "orders" if policy == "identity" else "a.orders")
        mirrors = []
        for file in files:
            mirrors.append(Mirroring(file))
            opened.callback(mirrors[-1].kill)
        for thread in (*writers, reader):
            thread.start()
        disturb([*mirrors, left, right], network, seconds, seed, pause)
        for writer in writers:
            writer.enough.set()
            writer.join()
        wait_for(lambda: reader.checks > 1)
        reader.enough.set()
        reader.join()
        here, there = (opened.enter_context(broker.client()) for broker in (left, right))
        clusters = Clusters(here, there, writers, policy)
        clusters.wait()
        check_group(reader, clusters)
        clusters.check()


def check_group(reader: Reader, clusters: Clusters) -> None:
    """Check that the group resumes where it has stopped, and in a batch at most a batch behind."""

    def arrived(behind: int) -> Callable[[], bool]:
        return lambda: reader.check(clusters.right) <= behind

    reader.step(clusters.left)
    wait_for(arrived(0))
    for number in range(1_000_000, 1_000_000 + PARTITIONS):
        clusters.write(number)
    reader.step(clusters.left, before_end=BATCH // 2)
    wait_for(arrived(2 * PARTITIONS * BATCH))
    assert not reader.ahead


def test_two_clusters_stay_equal_under_kills(tmp_path: Path) -> None:
    run_both_ways(tmp_path, "identity", 4.0, seed=1, pause=0.5)


@pytest.mark.long
@pytest.mark.timeout(60 * MINUTES + 600)
@pytest.mark.parametrize("policy", ["identity", "prefix"])
def test_two_clusters_stay_equal_for_minutes(tmp_path: Path, policy: str) -> None:
    run_both_ways(tmp_path, policy, 60 * MINUTES, seed=int(time.time()), pause=3.0)
