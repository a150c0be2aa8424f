"""Leaders hand over their partitions: graceful shutdowns and elections."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Message, Producer

from penstock.broker.partitions.replicas import Replicas
from penstock.control import Partition
from penstock.replication.service import ReplicatedLog
from tests.broker.test_replicated import Cluster, everything, has, until
from tests.broker.wire_client import WireClient, batch

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
async def three(tmp_path: Path, postgres_url: str) -> AsyncIterator[Cluster]:
    made = Cluster(tmp_path, postgres_url)
    # Nobody is taken for dead here: whoever leads next was told to.
    made.settings = {"shutdown.timeout.ms": 10_000, "broker.session.timeout.ms": 60_000}
    async with made.running(1, 2, 3):
        yield made


def replicas(cluster: Cluster, node_id: int) -> Replicas:
    found = cluster.brokers[node_id].replicas
    assert isinstance(found, Replicas)
    return found


def in_sync(cluster: Cluster, topic: str = "t") -> bool:
    """Whether the leader knows that all copies have everything."""
    leader = cluster.leader(topic)
    leading = cluster.log(leader, topic).leading if leader else None
    if leading is None:
        return False
    others = [broker_id for broker_id in (1, 2, 3) if broker_id != leader]
    ends = {follower.durable for follower in leading.core.followers.values()}
    return all(map(leading.may_inherit, others)) and ends == {leading.core.end}


class Sending:
    """A client's producer with acks=all in a thread of its own, one record after another."""

    def __init__(self, addresses: list[str], topic: str) -> None:
        self.errors: list[str] = []
        self.acknowledged: list[float] = []
        self._over = threading.Event()
        self._topic = topic
        self._producer = Producer(
            {
                "bootstrap.servers": ",".join(addresses),
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 0,
                "retry.backoff.ms": 20,
                "reconnect.backoff.ms": 20,  # a broker that comes back has another port here
                "reconnect.backoff.max.ms": 100,
                "topic.metadata.refresh.fast.interval.ms": 20,
            }
        )
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._over.is_set():
            value = b"record %d" % number
            self._producer.produce(self._topic, value, partition=0, on_delivery=self._delivered)
            self._producer.poll(0.005)
            number += 1
        self._producer.flush(60)

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self.errors.append(str(error))
        self.acknowledged.append(time.monotonic())

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def pause_seconds(self) -> float:
        """The longest time without an acknowledgement."""
        return max(after - before for before, after in pairwise(self.acknowledged))


async def test_a_rolling_restart_shows_no_error(
    three: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    await three.create()
    addresses = [":".join(map(str, broker.kafka_address)) for broker in three.brokers.values()]
    sending = Sending(addresses, "t")
    try:
        for node_id in (1, 2, 3):
            await until(lambda: in_sync(three))
            count = len(sending.acknowledged)
            await three.stop(node_id)
            assert three.leader() not in (0, node_id)
            await until(lambda: len(sending.acknowledged) > count + 20)  # noqa: B023
            await three.start(node_id)
    finally:
        await asyncio.to_thread(sending.stop)
    assert sending.errors == []
    with capsys.disabled():
        print(f"longest time without an acknowledgement: {sending.pause_seconds():.3f} s")
    assert sending.pause_seconds() < 30, "half a session: a broker was expired"
    leader = await three.led()
    end = three.log(leader).log.log_end_offset
    assert end == len(sending.acknowledged)
    for node_id in (1, 2, 3):
        await until(partial(has, three.log(node_id), end))
        assert everything(three.log(node_id)) == everything(three.log(leader))


async def test_a_successor_that_does_nothing_is_dropped(three: Cluster) -> None:
    leader = await three.create()
    await three.produce(b"before")
    await until(lambda: in_sync(three))
    successor = next(broker_id for broker_id in (1, 2, 3) if broker_id != leader)
    replicas(three, successor).replication.inherit = _nothing  # type: ignore[method-assign]
    handing = asyncio.create_task(
        replicas(three, leader).hand_over({three.log(leader): successor}, seconds=1.0)
    )
    await until(lambda: three.log(leader).leading.successor == successor)  # type: ignore[union-attr]
    client = await WireClient.connect(three.brokers[leader].kafka_address)
    for acks in (-1, 1):
        row = await client.produce("t", batch(b"to nobody"), acks=acks)
        assert row.error_code.name == "not_leader_or_follower"
    await client.close()
    await handing
    assert await three.produce(b"after") == 1
    assert three.leader() == leader


async def test_the_successor_has_everything_in_flight(three: Cluster) -> None:
    leader = await three.create()
    successor = next(broker_id for broker_id in (1, 2, 3) if broker_id != leader)
    await three.produce(b"before")
    await until(lambda: in_sync(three))
    client = three.clients[leader]
    sent = [asyncio.create_task(client.produce("t", batch(b"in flight")))]
    await until(lambda: three.log(leader).log.log_end_offset == 2)
    await replicas(three, leader).hand_over({three.log(leader): successor}, seconds=10)
    (row,) = await asyncio.gather(*sent)
    assert row.error_code.name == "none"
    assert row.base_offset == 1
    assert await three.led(by=successor) == successor
    assert await three.produce(b"after") == 2
    former: ReplicatedLog = three.log(leader)
    await until(partial(has, former, 3))
    assert not former.claims or former.leading.successor == successor  # type: ignore[union-attr]


def _nothing(log: ReplicatedLog, epoch: int) -> None: ...


# -- elections


async def elect(
    cluster: Cluster, via: int, partitions: dict[str, list[int]] | None, *, kind: int = 0
) -> dict[tuple[str, int], tuple[str, str | None]]:
    """Error and message of each partition, as one broker answers."""
    rows = partitions and [{"topic": name, "partitions": p} for name, p in partitions.items()]
    body = {"election_type": kind, "topic_partitions": rows, "timeout": 10_000}
    answer = await cluster.clients[via].call("ElectLeaders", 2, body)
    assert answer.error_code.name == "none"
    return {
        (topic.topic, row.partition_id): (row.error_code.name, row.error_message)
        for topic in answer.replica_election_results
        for row in topic.partition_result
    }


async def test_the_preferred_replica_leads_again(three: Cluster) -> None:
    preferred = await three.create()
    first, other, asked = row_of(three, preferred).replicas
    assert first == preferred
    await three.produce(b"before")
    assert await elect(three, asked, None) == {}
    (not_needed,) = (await elect(three, asked, {"t": [0]})).values()
    assert not_needed == ("election_not_needed", f"broker {preferred} already leads t-0")
    # It is off, then behind, then in sync.
    await three.stop(preferred)
    await until(lambda: preferred not in row_of(three, asked).isr)
    (missing,) = (await elect(three, asked, {"t": [0]})).values()
    assert missing[0] == "preferred_leader_not_available"
    assert f"broker {preferred} is not in sync" in str(missing[1])
    assert await three.led() == other
    await three.start(preferred)
    await until(lambda: in_sync(three) and preferred in row_of(three, asked).isr)
    for via in (other, asked):  # one leads and gives, then there is nothing to do
        found = await elect(three, via, {"t": [0, 7], "none": [0]})
        assert found == {
            ("t", 0): ("none", None) if via == other else not_needed,
            ("t", 7): ("unknown_topic_or_partition", "partition t-7 does not exist"),
            ("none", 0): ("unknown_topic_or_partition", "topic 'none' does not exist"),
        }
        assert await three.led(by=preferred) == preferred
    assert await three.produce(b"after") == 1


async def test_a_broker_without_a_part_in_it_has_the_leader_give_it_up(three: Cluster) -> None:
    leader = await three.create(factor=2, minimum=1)
    row = row_of(three, leader)
    bystander = next(broker_id for broker_id in (1, 2, 3) if broker_id not in row.replicas)
    await three.produce(b"before")
    other = row.replicas[1]
    await until(lambda: three.log(leader).leading.may_inherit(other))  # type: ignore[union-attr]
    await replicas(three, leader).hand_over({three.log(leader): other}, seconds=10)
    assert await three.led() == other
    found: dict[tuple[str, int], tuple[str, str | None]]
    found = {("t", 0): ("preferred_leader_not_available", None)}
    while found["t", 0][0] == "preferred_leader_not_available":  # as a client that tries again
        found = await elect(three, bystander, None)
    assert found == {("t", 0): ("none", None)}
    assert await three.led(by=leader) == leader


async def test_unclean_elections_are_refused(three: Cluster) -> None:
    leader = await three.create()
    found = await elect(three, leader, {"t": [0]}, kind=1)
    assert found["t", 0][0] == "election_not_needed"
    body = {"election_type": 5, "topic_partitions": None, "timeout": 10_000}
    answer = await three.clients[leader].call("ElectLeaders", 2, body)
    assert answer.error_code.name == "invalid_request"


def row_of(cluster: Cluster, node_id: int) -> Partition:
    return cluster.brokers[node_id].cluster.image.topics["t"].partitions[0]


async def test_a_leader_that_is_fenced_by_a_claim_that_was_dropped_leads_again(
    three: Cluster,
) -> None:
    """No other broker claims, and no notification triggers a check."""
    leader = await three.create()
    assert await three.produce(b"before") == 0
    other = leader % 3 + 1
    replication, log = replicas(three, other).replication, three.log(other)
    await until(lambda: has(log, 1))
    await replication.links.close()
    replication.claim([log.key])
    await until(lambda: log.log.replica.promised > log.copy.core.epoch)
    await three.stop(other)
    await three.start(other)
    await until(lambda: has(three.log(other), 1))
    assert await three.produce(b"after") == 1
