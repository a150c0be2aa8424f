"""Replicas of topics that were linked: the log keeps the source's leader epochs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner

from penstock.apps.cli import root
from penstock.base.errors import PenstockError
from penstock.client import Client
from penstock.control import Partition
from penstock.link.source import Origin
from penstock.link.topics import compare, create
from penstock.testing import Broker
from tests.broker.test_replicated import Cluster, everything, has, until

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def source() -> Iterator[Client]:
    with Broker() as broker, broker.client() as client:
        yield client


@pytest.fixture
async def three(tmp_path: Path, postgres_url: str) -> AsyncIterator[Cluster]:
    made = Cluster(tmp_path, postgres_url)
    async with made.running(1, 2, 3):
        yield made


def values(*texts: str) -> pa.Table:
    return pa.table({"value": [text.encode() for text in texts]})


def origin(source: Client) -> Origin:
    [node] = source.metadata(()).nodes.values()
    return Origin(f"{node.host}:{node.port}")


def fill(source: Client, topic: str) -> None:
    """Write records of three leader epochs."""
    source.create_topic(topic)
    for text in ("a", "b", "c"):
        source.write_arrow(topic, values(text, f"{text}2"))
        if text != "c":  # the end of a link raises the leader epoch
            source.alter_configs("topic", topic, {"link.source": "127.0.0.1:1"})
            source.alter_configs("topic", topic, delete=["link.source"])


def at(cluster: Cluster) -> str:
    addresses = [server.kafka_address for server in cluster.brokers.values()]
    return ",".join(f"{host}:{port}" for host, port in addresses)


def row(cluster: Cluster, topic: str) -> Partition:
    server = next(iter(cluster.brokers.values()))
    return server.cluster.image.topics[topic].partitions[0]


def epochs(cluster: Cluster, node_id: int, topic: str) -> list[tuple[int, int]]:
    return list(cluster.log(node_id, topic).log.state.epochs.entries)


async def same_everywhere(cluster: Cluster, topic: str, end: int) -> bytes:
    """Return the batches of the topic's replicas, which must be equal, up to an end offset."""
    await cluster.whole(topic)
    logs = [cluster.log(node_id, topic) for node_id in cluster.brokers]
    await until(lambda: all(has(log, end) for log in logs))
    [found] = {everything(log) for log in logs}
    return found


@pytest.mark.parametrize("written", [True, False])
async def test_a_promoted_topic_survives_its_leader(
    three: Cluster, source: Client, written: bool
) -> None:
    topic = f"kept-{written}"
    fill(source, topic)

    def link() -> None:
        with Client(at(three)) as target:
            create(source, target, [topic], origin(source))
            with pytest.raises(PenstockError, match="promote --replication-factor"):
                raise next(iter(target.reassign({(topic, 0): (1, 2, 3)}).values()))
            command = ["link", "promote", topic, "--replication-factor", "3", "-b", at(three)]
            done = CliRunner().invoke(root, command)
            assert done.exit_code == 0, done.output
            copied = target.fetch_raw(topic, 0, 0).data
            assert copied == source.fetch_raw(topic, 0, 0).data
            if written:
                target.write_arrow(topic, values("d"))

    await asyncio.to_thread(link)
    leader, end = await three.led(topic), 7 if written else 6
    before = await same_everywhere(three, topic, end)
    assert [epoch for epoch, _ in epochs(three, leader, topic)][:3] == [0, 1_000, 2_000]
    hung = await three.fall_silent(leader)
    await until(lambda: three.leader(topic) not in (0, leader))
    assert await three.produce(b"after", topic) == end
    await hung.stop()
    for node_id in list(three.brokers):  # all logs are opened from their files
        await three.stop(node_id)
    for node_id in (1, 2, 3):
        await three.start(node_id)
    await three.led(topic)
    after = await same_everywhere(three, topic, end + 1)
    assert after.startswith(before)
    assert row(three, topic).replicas != (leader,)


async def test_a_replicated_former_source_follows_and_gets_its_replicas_back(
    three: Cluster,
) -> None:
    topic = "returns"
    await three.create(topic)
    for number in range(5):
        await three.produce(b"%d" % number, topic)
    with Broker() as broker, broker.client() as other:

        def run(*words: str, status: int = 0) -> str:
            done = CliRunner().invoke(root, ["link", *words])
            assert done.exit_code == status, done.output
            return done.output

        def there() -> None:
            run("create", topic, "--source", at(three), "-b", broker.bootstrap)
            run("promote", topic, "-b", broker.bootstrap)
            other.write_arrow(topic, values("there"))

        await asyncio.to_thread(there)
        await three.produce(b"only here", topic)
        await three.stop(three.leader(topic))  # its successor raises the leader epoch
        await three.produce(b"only here", topic)

        def back() -> None:
            words = ["reverse", topic, "--source", broker.bootstrap, "-b", at(three)]
            assert "5" in run(*words, status=2)
            assert "min.insync.replicas = 1" in run(*words, "--yes")
            run("promote", topic, "--replication-factor", "2", "-b", at(three))
            with Client(at(three)) as client:
                [sums] = compare(other, client, topic)
                assert sums.equal
                assert (sums.start, sums.end) == (0, 6)

        await asyncio.to_thread(back)
    assert await three.produce(b"after", topic) == 6
    await same_everywhere(three, topic, 7)
    [missing] = {1, 2, 3} - set(three.brokers)
    await three.start(missing)  # its log of before the reversal differs
    leader = await three.led(topic)
    replicas = [leader, missing, *({1, 2, 3} - {leader, missing})]

    def all_three() -> None:
        with Client(at(three)) as client:
            assert client.reassign({(topic, 0): replicas}) == {}
            client.await_reassigned([(topic, 0)], 20.0, lambda *_: None)

    await asyncio.to_thread(all_three)
    assert len(await same_everywhere(three, topic, 7)) > 0
