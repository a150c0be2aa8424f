"""MirrorMaker 2 between two clusters, both ways, while it and the brokers are killed.

Both clusters get records of their own. At the end each has all records of the other under the
other's prefix, in order, and no record came back. A group that has read on the left continues on
the right: it misses no record, and reads at most `offset.lag.max` records of a partition again.

`PENSTOCK_MIRRORMAKER_MINUTES` is the duration of the kills; its default is 3.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa
import pytest
from benchmarks.peers.apache_kafka import ApacheKafka
from confluent_kafka import Consumer
from tests.connect.worker_bed import wait_until
from tests.mirror.bed import wait_for
from tests.mirror.test_two_ways import PARTITIONS, Writer

from compat.conftest import missing
from compat.mirroring.maker import OFFSET_LAG_MAX, MirrorMaker
from compat.parts import PartMissing, mirror_java
from compat.servers import Killable, killed_in_turn, one_or_three
from penstock.client import Client

MINUTES: Final = float(os.environ.get("PENSTOCK_MIRRORMAKER_MINUTES", "3"))
WAIT_SECONDS: Final = 180.0
MORE: Final = 10

Records = Mapping[int, list[tuple[int, bytes]]]


class Cluster(NamedTuple):
    """Cluster with a client, as writers use it."""

    server: Killable

    def client(self) -> Client:
        return Client(self.server.bootstrap)


def records(client: Client, topic: str, tail: int | None = None) -> Records:
    """Return offsets and values by partition: of all committed records, or of the last ones."""
    ends = client.list_offsets(topic, isolation=1)
    start: Mapping[int, int] | str = "earliest"
    if tail:
        start = {partition: max(0, end - tail) for partition, end in ends.items()}
    table = client.read_arrow(
        topic, start=start, end=ends, columns=("partition", "offset", "value"),
        isolation="read_committed",
    )  # fmt: skip
    found: dict[int, list[tuple[int, bytes]]] = {partition: [] for partition in ends}
    columns = (table[name].to_pylist() for name in ("partition", "offset", "value"))
    for partition, offset, value in zip(*columns, strict=True):
        found[partition].append((offset, value))
    return found


def values(found: Records, partition: int) -> list[bytes]:
    return [value for _, value in found[partition]]


class Group:
    """Group `g`, which reads `orders` on the left and continues on the right."""

    def __init__(self, left: Client, right: Client) -> None:
        self._left, self._right = left, right
        self._read: dict[int, set[bytes]] = {}

    def read(self) -> None:
        """Read all records on the left, and commit the offsets after them."""
        found = records(self._left, "orders")
        self._read = {partition: set(values(found, partition)) for partition in found}
        ends = {("orders", p): rows[-1][0] + 1 for p, rows in found.items() if rows}
        self._left.commit_offsets("g", ends)

    def left_over(self) -> dict[int, list[bytes]]:
        """Return the values after the group's offsets on the right; check that it misses none."""
        group = self._right.committed("g")
        found = records(self._right, "left.orders")
        after = {}
        for (_, partition), entry in group.items():
            rows = found[partition]
            after[partition] = [value for offset, value in rows if offset >= entry.offset]
            before = {value for offset, value in rows if offset < entry.offset}
            assert not before - set(after[partition]) - self._read[partition]
        return after

    def close_behind(self) -> bool:
        """Return whether at most `offset.lag.max` records of each partition are read again."""
        after = self.left_over()
        again = [len(set(after[p]) & self._read[p]) for p in after]
        return len(again) == PARTITIONS and max(again) <= OFFSET_LAG_MAX


class Scene:
    """Two clusters with writers, a group, and MirrorMaker between them."""

    def __init__(self, servers: tuple[Killable, Killable], maker: MirrorMaker) -> None:
        self._servers, self._maker = servers, maker
        self.clients = [Client(server.bootstrap) for server in servers]
        self.writers = [
            Writer(Cluster(server), name)  # type: ignore[arg-type]
            for server, name in zip(servers, ("left", "right"), strict=True)
        ]
        self.group = Group(*self.clients)

    def mirrored(self) -> Iterator[tuple[Client, str, Writer]]:
        """Yield each cluster's client, its mirrored topic, and the writer of these records."""
        yield self.clients[1], "left.orders", self.writers[0]
        yield self.clients[0], "right.orders", self.writers[1]

    def disturb(self, seconds: float, seed: int) -> None:
        """Kill MirrorMaker and brokers.

        After each kill, wait until records that were written later arrive in both clusters.
        """
        self._wait_for_arrivals()
        for _ in killed_in_turn([self._maker, *self._servers], seconds, seed):
            self.group.read()
            self._wait_for_arrivals()
            self.group.left_over()

    def _wait_for_arrivals(self) -> None:
        written = [int(writer.written[0][-1].split(b"-")[1]) for writer in self.writers]
        for number, (client, topic, _) in zip(written, self.mirrored(), strict=True):
            wait_until(
                lambda c=client, t=topic, n=number: newest(c, t) > n,  # type: ignore[misc]
                lambda t=topic, n=number: f"{t} ends before {n}: {self._maker.log()}",  # type: ignore[misc]
                WAIT_SECONDS,
            )


def newest(client: Client, topic: str) -> int:
    """Return the number of the newest batch in a mirrored topic, or -1."""
    if topic not in {found.name for found in client.list_topics()}:
        return -1
    found = records(client, topic, tail=200)
    return max((int(value.split(b"-")[1]) for p in found for value in values(found, p)), default=-1)


def check_records(scene: Scene, exactly_once: Collection[str]) -> None:
    """Wait until all records have arrived; check their order, and that none has come back.

    Args:
        exactly_once: clusters in which no record may be repeated.
    """
    for target, (client, topic, writer) in zip(("right", "left"), scene.mirrored(), strict=True):
        for partition, written in writer.written.items():
            expected = set(written)
            wait_for(
                lambda c=client, t=topic, p=partition, e=expected:  # type: ignore[misc]
                e <= set(values(records(c, t), p)), WAIT_SECONDS,
            )  # fmt: skip
            found = values(records(client, topic), partition)
            # MirrorMaker without transactions repeats records after a kill.
            assert (found if target in exactly_once else list(dict.fromkeys(found))) == written
    for client, writer, other in zip(scene.clients, scene.writers, ("right", "left"), strict=True):
        names = {topic.name for topic in client.list_topics() if "orders" in topic.name}
        assert names == {"orders", f"{other}.orders"}
        own = records(client, "orders")
        assert {partition: values(own, partition) for partition in own} == writer.written


def check_failover(scene: Scene, right: Killable, classes: str) -> None:
    """Check the group's offsets on the right, and continue there with a consumer."""
    left_client, right_client = scene.clients
    scene.group.read()
    wait_for(scene.group.close_behind, WAIT_SECONDS)
    committed = {
        f"{topic}-{partition} {entry.offset}"
        for (topic, partition), entry in right_client.committed("g").items()
    }
    policy = "org.apache.kafka.connect.mirror.DefaultReplicationPolicy"
    result = subprocess.run(
        ["java", "-cp", classes, "Offsets", right.bootstrap, "left", "g", policy],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert set(result.stdout.split("\n")) - {""} == committed, result.stderr[-2_000:]
    expected = [value for found in scene.group.left_over().values() for value in found]
    for partition in range(PARTITIONS):
        more = [b"left-more-%d-%d" % (partition, number) for number in range(MORE)]
        left_client.write_arrow("orders", pa.table({"value": more}), partition=partition)
        expected += more
    consumer = Consumer(
        {"bootstrap.servers": right.bootstrap, "group.id": "g", "auto.offset.reset": "error",
         "isolation.level": "read_committed"}
    )  # fmt: skip
    try:
        consumer.subscribe(["left.orders"])
        found: list[bytes] = []

        def all_read() -> bool:
            message = consumer.poll(0.5)
            if message is not None:
                assert message.error() is None, message.error()
                found.append(message.value())
            return set(expected) <= set(found)

        wait_for(all_read, WAIT_SECONDS)
        assert sorted(found) == sorted(expected)
    finally:
        consumer.close()


def check_topics(left: Client, right: Client) -> None:
    """Change settings and partitions of the source, and wait until the mirrored topic has them."""
    assert right.own_configs("left.orders")["retention.ms"] == "86400000"
    left.alter_configs("topic", "orders", {"retention.ms": "90000000"})
    left.create_partitions("orders", PARTITIONS + 1)
    left.write_arrow("orders", pa.table({"value": [b"added"]}), partition=PARTITIONS)
    wait_for(
        lambda: (
            right.own_configs("left.orders")["retention.ms"] == "90000000"
            and len(right.describe_topic("left.orders").partitions) == PARTITIONS + 1
        ),
        WAIT_SECONDS,
    )
    wait_for(lambda: values(records(right, "left.orders"), PARTITIONS) == [b"added"], WAIT_SECONDS)


@pytest.mark.long
@pytest.mark.timeout(60 * MINUTES + 900)
@pytest.mark.parametrize(
    ("brokers", "exactly_once"),
    [
        (1, ("left", "right")),
        (1, ()),
        # A task that writes to Apache Kafka in transactions can stop after a kill of that broker:
        # compat/FINDINGS.md.
        (0, ("right",)),
        (3, ("left", "right")),
    ],
    ids=["exactly once", "at least once", "from Apache Kafka", "replicated"],
)
def test_mirrormaker_under_kills(
    tmp_path: Path, brokers: int, exactly_once: Collection[str]
) -> None:
    """Mirror from one broker or three, or from Apache Kafka (0), to one broker, and back.

    MirrorMaker's own topics have one replica, as in the file that it comes with.
    """
    try:
        classes = mirror_java()
    except PartMissing as error:
        missing(error)
    with ExitStack() as stack:
        left: Killable = stack.enter_context(
            one_or_three(tmp_path, brokers) if brokers else ApacheKafka()
        )
        right = stack.enter_context(one_or_three(tmp_path, 1))
        for server in (left, right):
            with Client(server.bootstrap) as client:
                client.create_topic("orders", PARTITIONS, {"retention.ms": "86400000"})
        maker = MirrorMaker(tmp_path, left, right, "orders", exactly_once=exactly_once)
        stack.enter_context(maker)
        scene = Scene((left, right), maker)
        for client in scene.clients:
            stack.callback(client.close)
        for writer in scene.writers:
            stack.callback(writer.enough.set)
            writer.start()
        wait_for(lambda: all(writer.written[0] for writer in scene.writers))
        scene.disturb(60 * MINUTES, seed=int(time.time()))
        for writer in scene.writers:
            writer.enough.set()
            writer.join()
        check_records(scene, exactly_once)
        check_failover(scene, right, classes)
        check_topics(*scene.clients)
