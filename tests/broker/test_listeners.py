"""Listeners are parsed or rejected by name, and advertised to their clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from penstock.base.errors import InvalidSetting
from penstock.broker.net.listeners import Listener, advertised, parse_listeners, shown
from tests.broker.conftest import StartBroker
from tests.broker.wire_client import WireClient

KAFKAS = ("PLAINTEXT:PLAINTEXT", "SSL:SSL")
OWN = ("INTERNAL:PLAINTEXT", "EXTERNAL:plaintext", "SAFE:SSL")


@pytest.mark.parametrize(
    ("text", "protocols", "listener"),
    [
        ("PLAINTEXT://h:1", KAFKAS, Listener(name="PLAINTEXT", host="h", port=1)),
        ("plaintext://:0", KAFKAS, Listener(name="PLAINTEXT", host="", port=0)),
        ("PLAINTEXT://[::1]:9092", KAFKAS, Listener(name="PLAINTEXT", host="::1", port=9092)),
        ("EXTERNAL://h:1", OWN, Listener(name="EXTERNAL", host="h", port=1)),
    ],
)
def test_reads(text: str, protocols: tuple[str, ...], listener: Listener) -> None:
    assert parse_listeners([text], protocols) == [listener]


@pytest.mark.parametrize(
    ("text", "protocols", "said"),
    [
        ("h:1", KAFKAS, "must read NAME://host:port"),
        ("://h:1", KAFKAS, "must read NAME://host:port"),
        ("PLAINTEXT://h", KAFKAS, "must end in a port"),
        ("PLAINTEXT://h:70000", KAFKAS, "must end in a port"),
        ("ODD://h:1", (*OWN, "ODD:GSSAPI"), "has protocol GSSAPI; supported are PLAINTEXT, SSL"),
        ("OTHER://h:1", OWN, "has no entry in listener.security.protocol.map"),
        ("INTERNAL://h:1", ("INTERNAL",), "must read NAME:PROTOCOL"),
    ],
)
def test_refuses(text: str, protocols: tuple[str, ...], said: str) -> None:
    with pytest.raises(InvalidSetting, match=said):
        parse_listeners([text], protocols)


BOUND = {"INTERNAL": ("127.0.0.1", 1001), "EXTERNAL": ("0.0.0.0", 1002)}
LISTENERS = parse_listeners(["INTERNAL://127.0.0.1:0", "EXTERNAL://0.0.0.0:0"], OWN)


@pytest.mark.parametrize(
    ("texts", "told"),
    [
        ([], {"INTERNAL": ("127.0.0.1", 1001), "EXTERNAL": ("localhost", 1002)}),
        (
            ["EXTERNAL://far:9092"],
            {"INTERNAL": ("127.0.0.1", 1001), "EXTERNAL": ("far", 9092)},
        ),
        (
            ["EXTERNAL://far:0", "INTERNAL://near:2"],
            {"INTERNAL": ("near", 2), "EXTERNAL": ("far", 1002)},
        ),
    ],
)
def test_each_listener_is_advertised_by_itself(
    texts: list[str], told: Mapping[str, tuple[str, int]]
) -> None:
    assert advertised(texts, LISTENERS, BOUND) == told


def test_a_name_that_no_listener_has_is_not_advertised() -> None:
    with pytest.raises(InvalidSetting, match="no listener OTHER; listeners are INTERNAL, EXTERNAL"):
        advertised(["OTHER://h:1"], LISTENERS, BOUND)


def test_an_address_is_shown_as_it_is_set() -> None:
    assert shown("A", ("h", 1)) == "A://h:1"
    assert shown("A", ("::1", 1)) == "A://[::1]:1"


async def seen_addresses(client: WireClient) -> set[tuple[str, int]]:
    """The addresses of the broker in all answers that have one."""
    metadata: Any = await client.call("Metadata", 1, {"topics": []})
    request = {"include_cluster_authorized_operations": False}
    cluster: Any = await client.call("DescribeCluster", 0, request)
    asked = {"key_type": 0, "coordinator_keys": ["g"]}
    found: Any = await client.call("FindCoordinator", 4, asked)
    answers = [*metadata.brokers, *cluster.brokers, *found.coordinators]
    assert len(answers) == 3
    return {(answer.host, answer.port) for answer in answers}


async def test_clients_get_the_address_of_their_listener(
    start_broker: StartBroker,
) -> None:
    broker = await start_broker(
        {
            "listeners": "INTERNAL://127.0.0.1:0,EXTERNAL://127.0.0.1:0,MORE://127.0.0.1:0",
            "listener.security.protocol.map": (
                "INTERNAL:PLAINTEXT,EXTERNAL:PLAINTEXT,MORE:PLAINTEXT,SSL:SSL"
            ),
            "advertised.listeners": "EXTERNAL://far.example:9093,INTERNAL://near.example:9092",
        }
    )
    addresses = {
        "INTERNAL": {("near.example", 9092)},
        "EXTERNAL": {("far.example", 9093)},
        "MORE": {broker.bound["MORE"]},
    }
    for name, expected in addresses.items():
        client = await WireClient.connect(broker.bound[name])
        assert await seen_addresses(client) == expected
        assert await seen_addresses(client) == expected, "from the cache"
        await client.close()
    (row,) = broker.cluster.image.brokers
    assert (row.host, row.port) == ("near.example", 9092)


async def test_a_broker_of_before_has_one_address_for_all(start_broker: StartBroker) -> None:
    broker = await start_broker()
    await broker.control.register_broker(
        broker_id=0, host="old.example", port=9, rack=None, incarnation=broker._incarnation
    )
    await broker.cluster.refresh()
    client = await WireClient.connect(broker.kafka_address)
    metadata: Any = await client.call("Metadata", 1, {"topics": []})
    assert ("old.example", 9) in [(broker.host, broker.port) for broker in metadata.brokers]
    await client.close()
