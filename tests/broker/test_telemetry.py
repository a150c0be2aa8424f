"""Metrics of clients on the wire: subscriptions, pushes, and what the admin endpoint shows."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.request import urlopen
from uuid import UUID

import confluent_kafka
import pytest

from penstock.base.metrics import render
from penstock.broker.server import BrokerServer
from penstock.records.compression import compress
from penstock.testing import Broker
from penstock.wire.kafka.apis import BY_NAME
from tests.broker.telemetry.pushes import NAME, gauge, point, pushed, total
from tests.broker.wire_client import WireClient

CLIENT_METRICS = 16
SET, DELETE = 0, 1
INVALID_CONFIG, INVALID_REQUEST, INVALID_RECORD, THROTTLED = 40, 42, 87, 89
UNSUPPORTED_COMPRESSION, UNKNOWN_SUBSCRIPTION, TOO_LARGE = 76, 117, 118
DATA = pushed(total(NAME, point(3)), gauge("org.apache.kafka.producer.x", point(1.5)))
Connect = Callable[[BrokerServer], Awaitable[WireClient]]


async def subscribe(client: WireClient, name: str, **configs: str | None) -> tuple[int, str]:
    entries = [
        {
            "name": key.replace("_", "."),
            "config_operation": DELETE if value is None else SET,
            "value": value,
        }
        for key, value in configs.items()
    ]
    resource = {"resource_type": CLIENT_METRICS, "resource_name": name, "configs": entries}
    answer = await client.call(
        "IncrementalAlterConfigs", 1, {"resources": [resource], "validate_only": False}
    )
    (one,) = answer.responses
    return one.error_code, one.error_message or ""


async def ask(client: WireClient, instance_id: UUID | None = None) -> Any:
    return await client.call("GetTelemetrySubscriptions", 0, {"client_instance_id": instance_id})


async def push(client: WireClient, asked: Any, data: bytes = DATA, **changes: Any) -> int:
    body = {
        "client_instance_id": asked.client_instance_id,
        "subscription_id": asked.subscription_id,
        "terminating": False,
        "compression_type": 0,
        "metrics": data,
        **changes,
    }
    return int((await client.call("PushTelemetry", 0, body)).error_code)


def shown(broker: BrokerServer) -> str:
    return render(broker.registry.collect()).decode()


async def test_subscriptions_are_config_resources(client: WireClient) -> None:
    assert await subscribe(client, "all", metrics="*", interval_ms="5000") == (0, "")
    described = await client.call(
        "DescribeConfigs",
        4,
        {
            "resources": [
                {
                    "resource_type": CLIENT_METRICS,
                    "resource_name": "all",
                    "configuration_keys": None,
                }
            ],
            "include_synonyms": False,
            "include_documentation": False,
        },
    )
    (result,) = described.results
    found = {config.name: (config.value, config.config_source) for config in result.configs}
    assert found == {"interval.ms": ("5000", 7), "metrics": ("*", 7), "match": ("", 5)}
    for version in (0, 1):
        listed = await client.call("ListConfigResources", version, {"resource_types": [16]})
        assert [config_resource.resource_name for config_resource in listed.config_resources] == [
            "all"
        ]
    assert await subscribe(client, "all", metrics=None, interval_ms=None) == (0, "")
    listed = await client.call("ListConfigResources", 0, {})
    assert listed.config_resources == ()


async def test_subscriptions_that_cannot_be(client: WireClient) -> None:
    number, message = await subscribe(client, "s", interval_ms="99")
    assert (number, "interval.ms" in message) == (INVALID_REQUEST, True)
    number, message = await subscribe(client, "s", match="colour=red")
    assert (number, "colour=red" in message) == (INVALID_CONFIG, True)
    number, message = await subscribe(client, "", metrics="*")
    assert (number, "must not be empty" in message) == (INVALID_REQUEST, True)


async def test_a_client_is_asked_for_what_matches_it(client: WireClient) -> None:
    await subscribe(
        client, "mine", metrics="org.apache", match="client_id=tests", interval_ms="700"
    )
    await subscribe(client, "other", metrics="*", match="client_software_name=other")
    asked = await ask(client)
    assert asked.client_instance_id is not None
    assert asked.requested_metrics == ("org.apache",)
    assert asked.push_interval.total_seconds() == 0.7
    assert asked.accepted_compression_types == (4, 3, 1, 2)
    assert asked.telemetry_max_bytes == 1 << 20
    assert asked.delta_temporality


async def test_the_software_that_a_client_names_is_matched(
    broker: BrokerServer, client: WireClient
) -> None:
    await subscribe(
        client, "mine", metrics="*", match="client_software_name=r.*,client_software_version=2"
    )
    assert (await ask(client)).requested_metrics == ()
    software = {"client_software_name": "ruby", "client_software_version": "2"}
    await client.call("ApiVersions", 3, software)
    assert (await ask(client)).requested_metrics == ("*",)


@pytest.mark.parametrize("codec", range(5))
async def test_pushes_are_shown(broker: BrokerServer, client: WireClient, codec: int) -> None:
    await subscribe(client, "all", metrics="*", interval_ms="100")
    asked = await ask(client)
    assert await push(client, asked, compress(codec, DATA), compression_type=codec) == 0
    text = shown(broker)
    assert 'kafka_client_producer_connection_creation_total{client_id="tests"' in text
    assert "kafka_client_producer_x{" in text
    assert "penstock_client_metrics_pushes_total 1.0" in text
    assert "penstock_client_metrics_series 2.0" in text


async def test_errors_of_a_push_are_returned(broker: BrokerServer, client: WireClient) -> None:
    await subscribe(client, "all", metrics="*", interval_ms="3600000")
    asked = await ask(client)
    assert await push(client, asked, client_instance_id=None) == INVALID_REQUEST
    other = asked.subscription_id ^ 1
    assert await push(client, asked, subscription_id=other) == UNKNOWN_SUBSCRIPTION
    again = await ask(client, asked.client_instance_id)
    assert (again.error_code, again.subscription_id) == (0, asked.subscription_id)
    assert await push(client, asked, compression_type=9) == UNSUPPORTED_COMPRESSION
    await ask(client, asked.client_instance_id)
    assert await push(client, asked, bytes((1 << 20) + 1)) == TOO_LARGE
    assert await push(client, asked) == THROTTLED
    early = await ask(client, asked.client_instance_id)
    assert (early.error_code, early.requested_metrics) == (THROTTLED, ())
    assert await push(client, asked, b"\xff", terminating=True) == INVALID_RECORD
    assert await push(client, asked, terminating=True) == INVALID_REQUEST
    assert "penstock_client_metrics_pushes_total 0.0" in shown(broker)


async def test_a_push_that_inflates_beyond_all_bounds_is_refused(client: WireClient) -> None:
    await subscribe(client, "all", metrics="*")
    data = compress(1, bytes(64 << 20))
    assert len(data) < 1 << 20
    assert await push(client, await ask(client), data, compression_type=1) == INVALID_RECORD


async def test_a_client_without_subscription_gets_no_metrics(client: WireClient) -> None:
    asked = await ask(client)
    assert asked.requested_metrics == ()
    assert asked.push_interval.total_seconds() == 300


def test_librdkafka_pushes_by_itself() -> None:
    """It requests, compresses and pushes without configuration, and terminates."""
    with Broker() as broker, broker.client() as admin:
        admin.create_topic("t", 1)
        admin.alter_configs("client-metrics", "all", {"metrics": "*", "interval.ms": "200"})
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": broker.bootstrap, "client.id": "pusher"}
        )
        wanted = 'kafka_client_producer_connection_creation_total{client_id="pusher"'
        deadline = time.monotonic() + 60
        text = ""
        while wanted not in text and time.monotonic() < deadline:
            producer.produce("t", b"x")
            producer.poll(0.05)
            with urlopen(f"{broker.admin_url}/metrics", timeout=30) as answer:
                text = answer.read().decode()
        assert wanted in text
        assert 'client_software="confluent-kafka-python"' in text
        producer.flush(30)


async def test_metrics_of_clients_are_advertised_while_some_are_asked_for(
    client: WireClient,
) -> None:
    """Apache Kafka leaves these requests out too, where nothing receives what clients push."""

    async def advertised() -> set[int]:
        answer = await client.call("ApiVersions", 0, {})
        return {api.api_key for api in answer.api_keys}

    keys = {BY_NAME["GetTelemetrySubscriptions"].key, BY_NAME["PushTelemetry"].key}
    without = await advertised()
    assert not keys & without
    await subscribe(client, "none", interval_ms="5000")
    assert await advertised() == without, "it asks for no metrics"
    await subscribe(client, "all", metrics="*")
    assert await advertised() == without | keys
    await subscribe(client, "all", metrics=None)
    assert await advertised() == without


def test_librdkafka_says_nothing_at_its_default_level(caplog: pytest.LogCaptureFixture) -> None:
    """A client that asks for subscriptions logs the id that it gets, at the level of notices."""
    caplog.set_level(logging.DEBUG)
    with Broker() as broker, broker.client() as admin:
        admin.create_topic("t", 1)
        said = logging.getLogger("librdkafka")
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap}, logger=said)
        for _ in range(20):
            producer.produce("t", b"x")
            producer.poll(0.05)
        assert producer.flush(30) == 0
        producer.poll(0.5)
        assert "GETSUBSCRIPTIONS" not in caplog.text
