"""Quotas as Apache Kafka's own `kafka-configs.sh` sets them, and as clients keep them.

A program of the client that is told to wait does so by itself: what is asserted is the rate that
it gets through, over seconds in which it wants more.
"""

from __future__ import annotations

import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import confluent_kafka
import pytest
from kafka import KafkaConsumer, KafkaProducer

from compat.command_line import COMMAND_LINE
from compat.conftest import missing
from compat.parts import PartMissing
from compat.security import allowed, read, scenario, write
from compat.servers import QUOTA_WINDOWS, Server, topics

RATE_BYTES = 400_000
WINDOWS_SECONDS = QUOTA_WINDOWS - 1
"""So many seconds' worth is what the windows of a quota hold, and may be used at once."""
SECONDS = 3.0 * WINDOWS_SECONDS
BROKERS = 3 if topics() == "replicated" else 1
"""Each has windows of its own, as in Apache Kafka, and a topic of six partitions is led by all."""
VALUE = b"x" * 10_000
Configs = Callable[..., str]


def tool(bootstrap: str) -> Configs:
    """`kafka-configs.sh` with some arguments; what it printed."""

    def run(*arguments: str, fails: bool = False) -> str:
        try:
            ran = COMMAND_LINE.run(bootstrap, "org.apache.kafka.tools.ConfigCommand", *arguments)
        except PartMissing as error:
            missing(error)
        said = ran.out + ran.errors
        assert (ran.status != 0) is fails, said
        return said

    return run


@pytest.fixture(scope="module")
def configs(server: Server) -> Configs:
    return tool(server.bootstrap)


@contextmanager
def quota(configs: Configs, client_id: str, key: str) -> Iterator[None]:
    whose = ("--entity-type", "clients", "--entity-name", client_id)
    configs("--alter", *whose, "--add-config", f"{key}={RATE_BYTES}")
    try:
        yield
    finally:
        configs("--alter", *whose, "--delete-config", key)


def test_kafkas_own_tool_sets_shows_and_removes_quotas(configs: Configs) -> None:
    client = ("--entity-type", "clients", "--entity-name", "c")
    user = ("--entity-type", "users", "--entity-name", "alice")
    both = (*user, "--entity-type", "clients", "--entity-default")
    configs("--alter", *client, "--add-config", "producer_byte_rate=1024,request_percentage=12.5")
    configs("--alter", *both, "--add-config", "consumer_byte_rate=2048")
    shown = configs("--describe", *client)
    assert "producer_byte_rate=1024.0" in shown
    assert "request_percentage=12.5" in shown
    assert "consumer_byte_rate=2048.0" in configs("--describe", *both)
    configs("--alter", *client, "--delete-config", "producer_byte_rate,request_percentage")
    configs("--alter", *both, "--delete-config", "consumer_byte_rate")
    assert "producer_byte_rate" not in configs("--describe", *client)
    wrong = configs("--alter", *client, "--add-config", "producer_byte_rate=-1", fails=True)
    assert "InvalidRequestException" in wrong


def test_kafkas_own_tool_sets_quotas_of_addresses(configs: Configs) -> None:
    address = ("--entity-type", "ips", "--entity-name", "10.1.2.3")
    configs("--alter", *address, "--add-config", "connection_creation_rate=7")
    assert "connection_creation_rate=7.0" in configs("--describe", *address)
    configs("--alter", *address, "--delete-config", "connection_creation_rate")
    assert "connection_creation_rate" not in configs("--describe", *address)


def within(sent_bytes: int, seconds: float) -> None:
    """What got through is the windows' bytes and the rate after them, some above and below."""
    allowed = RATE_BYTES * (seconds + WINDOWS_SECONDS)
    assert 0.3 * allowed < sent_bytes < 2 * allowed * BROKERS, (sent_bytes, allowed)


@pytest.mark.slow
def test_confluent_kafka_produces_at_its_quota(
    configs: Configs, server: Server, topic: str
) -> None:
    client_id = f"quota-{uuid.uuid4().hex[:8]}"
    throttles: list[float] = []
    delivered = 0

    def reported(error: object, message: object) -> None:
        nonlocal delivered
        delivered += error is None

    producer = confluent_kafka.Producer(
        {
            **scenario(server.bootstrap, write(topic)),
            "client.id": client_id,
            "throttle_cb": lambda event: throttles.append(event.throttle_time),
            "queue.buffering.max.kbytes": 4000,
            "linger.ms": 5,
        }
    )
    with quota(configs, client_id, "producer_byte_rate"):
        began = time.monotonic()
        while time.monotonic() - began < SECONDS:
            try:
                producer.produce(topic, VALUE, on_delivery=reported)
            except BufferError:
                producer.poll(0.05)
            producer.poll(0)
        within(delivered * len(VALUE), time.monotonic() - began)
        assert max(throttles) > 0, "the client was told"
    producer.flush(30)


@pytest.mark.long
def test_kafka_python_produces_at_its_quota(configs: Configs, server: Server, topic: str) -> None:
    client_id = f"quota-{uuid.uuid4().hex[:8]}"
    producer = KafkaProducer(
        bootstrap_servers=server.bootstrap, client_id=client_id, linger_ms=5,
        **allowed(server.bootstrap, write(topic)),
    )  # fmt: skip
    waiting: deque[Any] = deque()
    delivered = 0
    with quota(configs, client_id, "producer_byte_rate"):
        began = time.monotonic()
        while time.monotonic() - began < SECONDS:
            while len(waiting) < 200:
                waiting.append(producer.send(topic, VALUE))
            while waiting and waiting[0].is_done:
                assert waiting.popleft().succeeded()
                delivered += 1
            time.sleep(0.005)
        within(delivered * len(VALUE), time.monotonic() - began)
    producer.close(timeout=60)


@pytest.mark.long
def test_confluent_kafka_consumes_at_its_quota(
    configs: Configs, server: Server, topic: str
) -> None:
    client_id = f"quota-{uuid.uuid4().hex[:8]}"
    fill(server, topic)
    consumer = confluent_kafka.Consumer(
        {
            **scenario(server.bootstrap, *read(topic, client_id)),
            "client.id": client_id,
            "group.id": client_id,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    with quota(configs, client_id, "consumer_byte_rate"):
        consumer.assign([confluent_kafka.TopicPartition(topic, n, 0) for n in range(6)])
        began, size = time.monotonic(), 0
        while time.monotonic() - began < SECONDS:
            for message in consumer.consume(100, 0.1):
                assert message.error() is None
                size += len(message.value())
        within(size, time.monotonic() - began)
    consumer.close()


@pytest.mark.long
def test_kafka_python_consumes_at_its_quota(configs: Configs, server: Server, topic: str) -> None:
    client_id = f"quota-{uuid.uuid4().hex[:8]}"
    fill(server, topic)
    consumer = KafkaConsumer(
        topic, bootstrap_servers=server.bootstrap, client_id=client_id, group_id=None,
        **allowed(server.bootstrap, *read(topic)),
        auto_offset_reset="earliest", enable_auto_commit=False,
    )  # fmt: skip
    with quota(configs, client_id, "consumer_byte_rate"):
        began, size = time.monotonic(), 0
        while time.monotonic() - began < SECONDS:
            for records in consumer.poll(100).values():
                size += sum(len(record.value) for record in records)
        within(size, time.monotonic() - began)
    consumer.close()


def fill(server: Server, topic: str) -> None:
    """More than is consumed within a quota."""
    producer = confluent_kafka.Producer(
        {**scenario(server.bootstrap, write(topic)), "queue.buffering.max.kbytes": 100_000}
    )
    for _ in range(1000):
        producer.produce(topic, VALUE)
        producer.poll(0)
    assert producer.flush(60) == 0
