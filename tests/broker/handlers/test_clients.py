"""Real clients administer a real broker, and form groups on it."""

import asyncio
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
import requests
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
)

from penstock.records.header import split_batches
from tests.broker.handlers.running import RunningBroker

TIMEOUT_SECONDS = 60.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    running = RunningBroker(tmp_path_factory.mktemp("broker"))
    yield running
    running.close()


@pytest.fixture
def admin(broker: RunningBroker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})


@pytest.fixture
def topic(admin: AdminClient) -> str:
    name = f"topic-{uuid.uuid4().hex[:8]}"
    admin.create_topics([NewTopic(name, 2, 1)])[name].result(TIMEOUT_SECONDS)
    return name


def fill(broker: RunningBroker, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    for number in range(count):
        producer.produce(topic, value=str(number), partition=number % 2)
    assert producer.flush(TIMEOUT_SECONDS) == 0


def read(consumer: Consumer, count: int) -> list[int]:
    found: list[int] = []
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while len(found) < count and time.monotonic() < deadline:
        for message in consumer.consume(count - len(found), timeout=1.0):
            assert message.error() is None
            found.append(int(message.value()))
    return found


def group_consumer(broker: RunningBroker, group: str, **more: Any) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": group,
            "log_level": 0,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 30_000,
            "heartbeat.interval.ms": 200,
            **more,
        }
    )


def test_confluent_creates_and_refuses(admin: AdminClient, topic: str) -> None:
    assert len(admin.list_topics(timeout=TIMEOUT_SECONDS).topics[topic].partitions) == 2
    refused = NewTopic("t-conf", 1, 1, config={"retention.ms": "soon"})
    for new, named in (
        (NewTopic(topic, 1, 1), "TOPIC_ALREADY_EXISTS"),
        (NewTopic("t-many", 1, 3), "INVALID_REPLICATION_FACTOR"),
        (refused, "INVALID_CONFIG"),
    ):
        with pytest.raises(KafkaException) as caught:
            admin.create_topics([new])[new.topic].result(TIMEOUT_SECONDS)
        assert caught.value.args[0].name() == named
    admin.create_partitions([NewPartitions(topic, 4)])[topic].result(TIMEOUT_SECONDS)
    assert len(admin.list_topics(timeout=TIMEOUT_SECONDS).topics[topic].partitions) == 4
    admin.delete_topics([topic])[topic].result(TIMEOUT_SECONDS)
    assert topic not in admin.list_topics(timeout=TIMEOUT_SECONDS).topics


def test_confluent_describes_and_alters_configs(admin: AdminClient, topic: str) -> None:
    change = ConfigResource(
        ConfigResource.Type.TOPIC,
        topic,
        incremental_configs=[
            ConfigEntry("retention.ms", "12345", incremental_operation=AlterConfigOpType.SET)
        ],
    )
    admin.incremental_alter_configs([change])[change].result(TIMEOUT_SECONDS)
    asked = ConfigResource(ConfigResource.Type.TOPIC, topic)
    described = admin.describe_configs([asked])[asked].result(TIMEOUT_SECONDS)
    assert described["retention.ms"].value == "12345"
    assert described["retention.ms"].source == 1
    assert described["segment.bytes"].is_default
    own = ConfigResource(ConfigResource.Type.BROKER, "1")
    described = admin.describe_configs([own])[own].result(TIMEOUT_SECONDS)
    assert described["node.id"].is_read_only


def test_confluent_describes_cluster_and_offsets(
    broker: RunningBroker, admin: AdminClient, topic: str
) -> None:
    cluster = admin.describe_cluster().result(TIMEOUT_SECONDS)
    assert [node.id for node in cluster.nodes] == [1]
    fill(broker, topic, 10)
    partition = TopicPartition(topic, 0)
    listed = admin.list_offsets({partition: OffsetSpec.latest()})[partition]
    assert listed.result(TIMEOUT_SECONDS).offset == 5
    trimmed = admin.delete_records([TopicPartition(topic, 0, 3)])
    assert trimmed[partition].result(TIMEOUT_SECONDS).low_watermark == 3


def ask(broker: RunningBroker, path: str) -> Any:
    answer = requests.get(broker.admin_url + path, timeout=TIMEOUT_SECONDS)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_extents_are_the_bytes_of_the_log(broker: RunningBroker, topic: str) -> None:
    fill(broker, topic, 100)
    answer = ask(broker, f"/v1/topics/{topic}/partitions/0/extents?start=0&end=40")
    assert (answer["log_start_offset"], answer["high_watermark"]) == (0, 50)
    expected = 0
    for extent in answer["extents"]:
        path = Path(unquote(urlsplit(extent["url"]).path))
        data = path.read_bytes()[extent["position"] :][: extent["size_bytes"]]
        assert len(data) == extent["size_bytes"]
        assert extent["base_offset"] == expected
        for header in split_batches(memoryview(data)):
            assert header.base_offset == expected
            expected = header.next_offset
        assert extent["next_offset"] == expected
    assert expected >= 40


def test_groups_and_their_lag_are_shown(broker: RunningBroker, topic: str) -> None:
    fill(broker, topic, 20)
    group = f"lag-{topic}"
    consumer = group_consumer(broker, group)
    consumer.commit(offsets=[TopicPartition(topic, 0, 4)], asynchronous=False)
    consumer.close()
    shown = ask(broker, f"/v1/groups/{group}")
    assert (shown["state"], shown["members"], shown["lag_records"]) == ("Empty", [], 6)
    assert group in {item["group_id"] for item in ask(broker, "/v1/groups")["groups"]}
    metrics = requests.get(broker.admin_url + "/metrics", timeout=TIMEOUT_SECONDS).text
    labels = f'consumergroup="{group}",partition="0",topic="{topic}"'
    assert f"kafka_consumergroup_lag{{{labels}}} 6.0" in metrics


def test_confluent_groups(broker: RunningBroker, admin: AdminClient, topic: str) -> None:
    group = f"group-{topic}"
    fill(broker, topic, 20)
    first = group_consumer(broker, group)
    first.subscribe([topic])
    assert sorted(read(first, 20)) == list(range(20))
    first.commit(asynchronous=False)
    described = admin.describe_consumer_groups([group])[group].result(TIMEOUT_SECONDS)
    assert described.state.name == "STABLE"
    assert len(described.members[0].assignment.topic_partitions) == 2
    with pytest.raises(KafkaException):
        admin.delete_consumer_groups([group])[group].result(TIMEOUT_SECONDS)
    first.close()
    second = group_consumer(broker, group)
    committed = second.committed(
        [TopicPartition(topic, 0), TopicPartition(topic, 1)], timeout=TIMEOUT_SECONDS
    )
    assert [item.offset for item in committed] == [10, 10]
    second.close()
    asked = ConsumerGroupTopicPartitions(group)
    listed = admin.list_consumer_group_offsets([asked])[group].result(TIMEOUT_SECONDS)
    assert sorted(item.offset for item in listed.topic_partitions) == [10, 10]
    change = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 4)])
    admin.alter_consumer_group_offsets([change])[group].result(TIMEOUT_SECONDS)
    listing = admin.list_consumer_groups().result(TIMEOUT_SECONDS)
    assert group in {item.group_id for item in listing.valid}
    admin.delete_consumer_groups([group])[group].result(TIMEOUT_SECONDS)


def test_confluent_members_share_and_take_over(broker: RunningBroker, topic: str) -> None:
    fill(broker, topic, 20)
    group = f"group-{topic}"
    first, second = group_consumer(broker, group), group_consumer(broker, group)
    first.subscribe([topic])
    second.subscribe([topic])
    found = set()
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        for consumer in (first, second):
            for message in consumer.consume(20, timeout=0.1):
                found.add(int(message.value()))
        shares = [len(consumer.assignment()) for consumer in (first, second)]
        if shares == [1, 1] and found == set(range(20)):
            break
    assert (shares, found) == ([1, 1], set(range(20)))
    second.close()
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while len(first.assignment()) != 2 and time.monotonic() < deadline:
        first.poll(0.1)
    assert len(first.assignment()) == 2
    first.close()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the client's own imports
def test_kafka_python_administers(broker: RunningBroker) -> None:
    from kafka import KafkaAdminClient
    from kafka.admin import NewTopic as PythonNewTopic

    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    try:
        name = f"python-{uuid.uuid4().hex[:8]}"
        admin.create_topics([PythonNewTopic(name, 3, 1)])
        assert name in admin.list_topics()
        assert len(admin.describe_topics([name])[0]["partitions"]) == 3
        admin.delete_topics([name])
        assert name not in admin.list_topics()
    finally:
        admin.close()


async def test_aiokafka_groups(broker: RunningBroker, topic: str) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap)
    await producer.start()
    try:
        for number in range(10):
            await producer.send_and_wait(topic, str(number).encode(), partition=number % 2)
    finally:
        await producer.stop()
    consumers = [
        AIOKafkaConsumer(
            topic,
            bootstrap_servers=broker.bootstrap,
            group_id=f"aio-{topic}",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            heartbeat_interval_ms=200,
        )
        for _ in range(2)
    ]
    await asyncio.gather(*(consumer.start() for consumer in consumers))
    try:
        found: set[int] = set()
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while time.monotonic() < deadline and found != set(range(10)):
            for consumer in consumers:
                batches = await consumer.getmany(timeout_ms=100)
                found |= {int(r.value) for records in batches.values() for r in records}
                if batches:
                    await consumer.commit()
        assert found == set(range(10))
    finally:
        for consumer in consumers:
            await consumer.stop()


def test_groups_survive_a_restart(broker: RunningBroker, topic: str) -> None:
    fill(broker, topic, 10)
    group = f"group-{topic}"
    consumer = group_consumer(broker, group)
    consumer.subscribe([topic])
    assert len(read(consumer, 10)) == 10
    consumer.commit(asynchronous=False)
    consumer.close()
    broker.restart()
    again = group_consumer(broker, group)
    committed = again.committed(
        [TopicPartition(topic, 0), TopicPartition(topic, 1)], timeout=TIMEOUT_SECONDS
    )
    assert [item.offset for item in committed] == [5, 5]
    again.close()
