"""Leaders of diskless partitions: by rack, evenly, and with few moves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import pytest

from penstock.broker.metadata.leaders import Placement, preferred, rack_of
from penstock.control import Broker, MetadataImage
from tests.broker.diskless.conftest import Cluster
from tests.broker.wire_client import WireClient, batch, fetch_request

Create = Callable[..., Awaitable[Any]]
TOPIC = UUID(int=9)


def brokers(racks: dict[int, str | None]) -> tuple[Broker, ...]:
    return tuple(
        Broker(broker_id=number, host="h", port=1, rack=rack, incarnation=UUID(int=number), epoch=1)
        for number, rack in racks.items()
    )


SIX = {1: "a", 2: "a", 3: "b", 4: "b", 5: "c", 6: None}


def leaders(racks: dict[int, str | None], rack: str = "", count: int = 1000) -> list[int]:
    placement = Placement(brokers(racks), rack)
    return [placement.replicas(TOPIC, index)[0] for index in range(count)]


def test_leaders_are_even_over_all_brokers() -> None:
    shares = Counter(leaders(SIX))
    assert set(shares) == set(SIX)
    assert min(shares.values()) > 100


@pytest.mark.parametrize(("rack", "ids"), [("a", {1, 2}), ("c", {5})])
def test_a_client_of_a_rack_stays_in_it(rack: str, ids: set[int]) -> None:
    shares = Counter(leaders(SIX, rack))
    assert set(shares) == ids
    assert min(shares.values()) > 350


def test_every_other_rack_has_one_replica_and_all_clients_name_the_same() -> None:
    for index in range(50):
        near = Placement(brokers(SIX), "a").replicas(TOPIC, index)
        far = Placement(brokers(SIX), "b").replicas(TOPIC, index)
        assert len(near) == len(set(near)) == 3
        assert {SIX[number] for number in near} == {"a", "b", "c"}
        assert set(near) == set(far)


def test_a_broker_that_goes_moves_only_what_it_led() -> None:
    before = leaders(SIX)
    after = leaders({number: rack for number, rack in SIX.items() if number != 3})
    moved = [old for old, new in zip(before, after, strict=True) if old != new]
    assert set(moved) == {3}


def test_partitions_of_topics_are_spread_differently() -> None:
    placement = Placement(brokers(SIX), "")
    firsts = Counter(placement.replicas(UUID(int=number), 0)[0] for number in range(1000))
    assert set(firsts) == set(SIX)
    assert min(firsts.values()) > 100


def test_there_is_no_leader_without_a_broker() -> None:
    assert Placement((), "").replicas(TOPIC, 0) == ()


@pytest.mark.parametrize(
    ("client_id", "rack"),
    [
        ("diskless_az=a", "a"),
        ("my-app,diskless_az=b", "b"),
        ("my-app diskless_az=b,more=1", "b"),
        ("my_diskless_az=a", ""),
        ("diskless_az=none", ""),
        ("diskless_az=", ""),
        ("app", ""),
        (None, ""),
    ],
)
def test_the_rack_in_a_client_id(client_id: str | None, rack: str) -> None:
    image = MetadataImage(version=1, cluster_id="c", brokers=brokers(SIX))
    assert rack_of(client_id, image) == rack


def test_the_preferred_replica_is_in_the_consumers_rack() -> None:
    image = MetadataImage(version=1, cluster_id="c", brokers=brokers(SIX))
    for index in range(20):
        key = (TOPIC, index)
        assert preferred(image, "a", 3, key) == Placement(image.brokers, "a").replicas(*key)[0]
        assert preferred(image, "b", 3, key) == -1  # it is there already
        assert preferred(image, "nowhere", 3, key) == -1


async def shown(client: WireClient, client_id: bytes, topic: str) -> list[tuple[int, ...]]:
    from penstock.wire.kafka.apis import BY_NAME
    from penstock.wire.kafka.encoder import encoder
    from penstock.wire.kafka.framing import request_frame

    body = encoder("Metadata", 9, "request")({"topics": [{"name": topic}]})
    client.writer.write(request_frame(BY_NAME["Metadata"].key, 9, 77, client_id, body))
    answer = await client.response("Metadata", 9)
    parts = sorted(answer.topics[0].partitions, key=lambda one: one.partition_index)
    assert all(part.leader_epoch == 0 for part in parts)
    assert all(part.leader_id == part.replica_nodes[0] for part in parts)
    return [tuple(part.replica_nodes) for part in parts]


async def test_metadata_depends_on_the_rack_of_the_client(cluster: Cluster) -> None:
    first = await cluster.start({"broker.rack": "a"})
    client = await cluster.connect(first)
    await cluster.start({"broker.rack": "b"})
    await cluster.start({"broker.rack": "b"})
    await client.call(
        "CreateTopics",
        7,
        {
            "topics": [
                {
                    "name": "t",
                    "num_partitions": 100,  # each broker has some of them, whatever the id
                    "replication_factor": 1,
                    "assignments": [],
                    "configs": [{"name": "diskless.enable", "value": "true"}],
                }
            ],
            "timeout": 5000,
        },
    )
    for _ in range(2):  # the second time from the cache
        near = await shown(client, b"diskless_az=a", "t")
        far = await shown(client, b"diskless_az=b", "t")
        anyone = await shown(client, b"app", "t")
        assert {replicas[0] for replicas in near} == {1}
        assert {replicas[0] for replicas in far} == {2, 3}
        assert {replicas[0] for replicas in anyone} == {1, 2, 3}
    pages = await client.call(
        "DescribeTopicPartitions",
        0,
        {"topics": [{"name": "t"}], "response_partition_limit": 100, "cursor": None},
    )
    assert {partition.leader_id for partition in pages.topics[0].partitions} == {1, 2, 3}
    # A consumer that says where it is gets the broker of its rack, and no records from here.
    await client.produce("t", batch(b"a"))
    request = fetch_request({("t", 0): 0}, max_wait=30_000, rack_id="b")
    (answer,) = (await client.call("Fetch", 12, request)).responses[0].partitions
    assert answer.preferred_read_replica == far[0][0]
    assert not answer.records
    own = fetch_request({("t", 0): 0}, max_wait=30_000, rack_id="a")
    (answer,) = (await client.call("Fetch", 12, own)).responses[0].partitions
    assert answer.preferred_read_replica == -1
    assert answer.records
