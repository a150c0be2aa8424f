"""Leaders that die, stop and move at each step of a query, which continues and has each row once.

Three brokers have a copy of every partition. The broker that is ended is the leader of the first
partition of the topic that the step is about, and mostly of others too.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pytest
from compat.servers import COPIES, PenstockProcess, bootstrap_of, running_brokers
from pyspark.sql import DataFrame, SparkSession

from penstock.client import Client
from penstock.spark import LogSink
from tests.spark import stepped
from tests.spark.conftest import KEEP, until

if TYPE_CHECKING:
    from tests.postgres import PostgresServer

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

NUMBERS: Final = itertools.count()
ROWS: Final = 2_000
PARTITIONS: Final = 3
CALL_TIMEOUT_MS: Final = 120_000
ACTIONS: Final = ("kill", "return", "stop", "move")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Three brokers, and a client of all of them."""

    brokers: list[PenstockProcess]
    client: Client
    spark: SparkSession

    def addresses(self, *, direct: bool = True) -> dict[str, str]:
        """Options that name the brokers; `direct` ones let tasks read files."""
        admin = {"penstock.admin.url": ",".join(broker.admin_url for broker in self.brokers)}
        return {"bootstrap": bootstrap_of(self.brokers)} | (admin if direct else {})

    def topic(self) -> str:
        name = f"leaders-{next(NUMBERS)}"
        self.client.create_topic(name, partitions=PARTITIONS, configs=KEEP)
        return name

    def filled(self) -> tuple[str, Counter[bytes]]:
        """A topic with records, and how often each is in it."""
        name = self.topic()
        values = [b"value %d" % number for number in range(ROWS)]
        self.client.write_arrow(name, pa.table({"value": pa.array(values)}))
        return name, Counter(values)

    def values(self, topic: str) -> Counter[bytes]:
        return Counter(self.client.read_arrow(topic, columns=("value",))["value"].to_pylist())

    def action(self, kind: str, topic: str) -> stepped.Action:
        """Something that befalls the leader of a topic's first partition."""

        def act() -> Any:
            until("all replicas are in sync", lambda: self.whole(topic))
            partition = self.client.describe_topic(topic).partitions[0]
            leader = self.brokers[partition.leader - 1]
            if kind == "move":
                others = [node for node in partition.replicas if node != partition.leader]
                refused = self.client.reassign({(topic, 0): [*others, partition.leader]})
                assert not refused, refused
                self.client.elect_leaders(topic, [0])
                return lambda: None
            if kind == "stop":
                leader.stop()
            else:
                leader.kill()
            if kind == "return":
                leader.start()
                return lambda: None
            return leader.start

        return act

    def whole(self, topic: str) -> bool:
        """Whether all replicas of a topic are in sync."""
        found = self.client.describe_topic(topic).partitions
        return all(len(partition.isr) == len(self.brokers) for partition in found)


@pytest.fixture(scope="module")
def cluster(
    postgres: PostgresServer, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("brokers")
    with (
        running_brokers(postgres, directory, 3, COPIES) as brokers,
        Client(bootstrap_of(brokers), api_timeout_ms=CALL_TIMEOUT_MS) as client,
    ):
        yield Cluster(brokers=brokers, client=client, spark=spark)


def copy_by_batches(
    cluster: Cluster, topic: str, out: str, folder: Path, batches: int, *, direct: bool = True
) -> None:
    """A stream whose batches are staged and committed from the driver."""
    sink = LogSink(
        application=out,
        topic=out,
        bootstrap=cluster.addresses()["bootstrap"],
        admin_url=cluster.addresses()["penstock.admin.url"],
    )

    def write(batch: DataFrame, batch_id: int) -> None:
        stepped.reach(str(folder), "staging")
        staged = sink.stage(batch.select("value"), batch_id)
        stepped.reach(str(folder), "staged")
        staged.commit()
        stepped.reach(str(folder), "committed")

    query = (
        stream(cluster, topic, direct=direct, groupId=out, maxRecordsPerTrigger=ROWS // batches)
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def copy_by_writer(
    cluster: Cluster, topic: str, out: str, folder: Path, batches: int, *, direct: bool = True
) -> None:
    """A stream whose batches Spark writes to the log by itself."""
    query = (
        stream(cluster, topic, direct=direct, groupId=out, maxRecordsPerTrigger=ROWS // batches)
        .select("value")
        .writeStream.format(stepped.FORMAT)
        .options(**cluster.addresses(), topic=out)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def stream(cluster: Cluster, topic: str, *, direct: bool, **more: object) -> DataFrame:
    given = cluster.addresses(direct=direct) | {name: str(value) for name, value in more.items()}
    reader = cluster.spark.readStream.format(stepped.FORMAT).options(**given)
    return reader.options(subscribe=topic, startingOffsets="earliest").load()


def check_copied(cluster: Cluster, topic: str, out: str, written: Counter[bytes]) -> None:
    assert cluster.values(out) == written
    ends = cluster.client.list_offsets(topic, "latest")

    def shown() -> bool:
        found = cluster.client.committed(out)
        return {at[1]: one.offset for at, one in found.items()} == ends

    until("the group shows the end of the stream", shown)
    until("all replicas are in sync again", lambda: cluster.whole(topic) and cluster.whole(out))


def test_a_stream_follows_its_leaders(cluster: Cluster, tmp_path: Path) -> None:
    topic, written = cluster.filled()
    out = cluster.topic()
    cluster.spark.dataSource.register(stepped.source(str(tmp_path)))
    steps = [("planning", "return", topic), ("staged", "kill", out)]
    orders = [(step, cluster.action(kind, about)) for step, kind, about in steps]
    with stepped.Orders(tmp_path, orders) as carried:
        copy_by_batches(cluster, topic, out, tmp_path, batches=2)
    assert carried.done == [step for step, *_ in steps]
    check_copied(cluster, topic, out, written)


def test_a_batch_read_follows_its_leaders(cluster: Cluster, tmp_path: Path) -> None:
    topic, written = cluster.filled()
    cluster.spark.dataSource.register(stepped.source(str(tmp_path)))
    with stepped.Orders(tmp_path, [("read", cluster.action("kill", topic))]) as carried:
        assert read(cluster, topic, direct=False) == written
    assert carried.done == ["read"]
    until("all replicas are in sync again", lambda: cluster.whole(topic))


def read(cluster: Cluster, topic: str, *, direct: bool) -> Counter[bytes]:
    reader = cluster.spark.read.format(stepped.FORMAT).options(**cluster.addresses(direct=direct))
    frame = reader.option("subscribe", topic).load().select("value")
    return Counter(frame.toArrow()["value"].to_pylist())


@pytest.mark.long
@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("kind", ACTIONS)
@pytest.mark.parametrize("step", ["load", "planning", "read"])
def test_a_batch_read_follows_at_each_step(
    cluster: Cluster, tmp_path: Path, step: str, kind: str, direct: bool
) -> None:
    topic, written = cluster.filled()
    cluster.spark.dataSource.register(stepped.source(str(tmp_path)))
    with stepped.Orders(tmp_path, [(step, cluster.action(kind, topic))]) as carried:
        assert read(cluster, topic, direct=direct) == written
    assert carried.done == [step]
    until("all replicas are in sync again", lambda: cluster.whole(topic))


@pytest.mark.long
@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("kind", ACTIONS)
@pytest.mark.parametrize("copy", [copy_by_batches, copy_by_writer])
def test_a_stream_follows_at_each_step(
    cluster: Cluster, tmp_path: Path, copy: Any, kind: str, direct: bool
) -> None:
    topic, written = cluster.filled()
    out = cluster.topic()
    cluster.spark.dataSource.register(stepped.source(str(tmp_path)))
    orders = [(step, cluster.action(kind, topic)) for step in stepped.SOURCE_STEPS]
    orders += [(step, cluster.action(kind, out)) for step in stepped.SINK_STEPS]
    with stepped.Orders(tmp_path, orders) as carried:
        copy(cluster, topic, out, tmp_path, batches=len(orders), direct=direct)
    assert carried.done == [step for step, _ in orders]
    check_copied(cluster, topic, out, written)
