"""The audit topic contains every line once, and only brokers write to it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from penstock.base.system import SYSTEM_CLOCK
from penstock.broker.server import BrokerServer
from penstock.broker.topics.audit_topic import AuditTopic, OwnAppender
from penstock.client import Client
from penstock.client.errors import TimedOut
from penstock.client.producers import ProducerIdentity
from penstock.records.columnar import decode_batches
from penstock.security.audit import AuditLog, Line
from penstock.testing import Broker
from tests.broker.conftest import StartBroker
from tests.broker.security.secured import PASSWORD, authenticate, exchange, users_file
from tests.broker.test_replicated import Cluster, until
from tests.broker.wire_client import WireClient

TOPIC = "__audit"
SECONDS = 60.0
Connect = Callable[[BrokerServer], Any]


class Told(NamedTuple):
    """A record of the topic."""

    key: bytes | None
    timestamp_ms: int
    fields: dict[str, Any]

    @property
    def what(self) -> tuple[str, ...]:
        found = self.fields
        return found["event"], found["outcome"], found["operation"], *found["resources"]


def read(bootstrap: str, last: str) -> list[Told]:
    """The topic from its begin, up to the line of which `last` is a resource."""
    consumer = Consumer({
        "bootstrap.servers": bootstrap, "group.id": "auditors", "log_level": 0,
        "auto.offset.reset": "earliest", "topic.metadata.refresh.interval.ms": 100,
    })  # fmt: skip
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    found: list[Told] = []
    try:
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            message = consumer.poll(1)
            if message is None or message.error() is not None:
                continue
            value = message.value()
            assert value is not None
            assert not value.endswith(b"\n")
            key = message.key()
            assert not isinstance(key, str)
            found.append(Told(key, message.timestamp()[1], json.loads(value)))
            if last in found[-1].fields["resources"]:
                return found
    finally:
        consumer.close()
    raise AssertionError(f"no line about {last} among {found}")


def admin_of(bootstrap: str, user: str = "") -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 0, **login(user)})


def login(user: str) -> dict[str, str]:
    if not user:
        return {}
    return {
        "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": user,
        "sasl.password": PASSWORD,
    }  # fmt: skip


def create(admin: AdminClient, name: str) -> None:
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(SECONDS)


def allow_writing(admin: AdminClient, name: str, user: str) -> None:
    binding = AclBinding(
        ResourceType.TOPIC, name, ResourcePatternType.LITERAL, f"User:{user}", "*",
        AclOperation.WRITE, AclPermissionType.ALLOW,
    )  # fmt: skip
    admin.create_acls([binding])[binding].result(SECONDS)


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Broker]:
    """Start a broker with ACLs, on which only anonymous clients are super users."""
    settings = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.users.file": users_file(tmp_path, "alice", "bob"),
        "connection.failed.authentication.delay.ms": 0,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "audit.topic": TOPIC,
    }
    with Broker(settings) as broker:
        yield broker


def with_names(broker: Broker) -> tuple[str, int]:
    """The address where clients have names."""
    assert broker.server is not None
    return broker.server.bound["SASL_PLAINTEXT"]


async def fail_to_log_in(address: tuple[str, int]) -> None:
    client = await WireClient.connect(address)
    answer = await authenticate(client, "PLAIN", exchange("PLAIN", "alice", "not her password"))
    assert answer.error_code.name == "sasl_authentication_failed"
    await client.close()


def test_each_event_is_a_record_once(guarded: Broker) -> None:
    admin = admin_of(guarded.bootstrap)
    host, port = with_names(guarded)
    before_ms = int(time.time() * 1000)
    asyncio.run(fail_to_log_in((host, port)))
    with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
        create(admin_of(f"{host}:{port}", "alice"), "hers")
    allow_writing(admin, "orders", "alice")
    create(admin, "orders")
    create(admin, "the-last")
    told = read(guarded.bootstrap, "the-last")
    successes = [event for event in told if event.what == ("authentication", "success", "")]
    assert "User:alice" in [success.fields["principal"] for success in successes]
    assert [event.what for event in told if event not in successes] == [
        ("authentication", "failure", ""),
        ("denial", "denied", "CreateTopics", "hers"),
        ("change", "success", "CreateAcls", "orders User:alice"),
        ("change", "success", "CreateTopics", "orders"),
        ("change", "success", "CreateTopics", "the-last"),
    ]
    # The broker has told nothing of its writing but that it logged in.
    own = [event for event in told if event.fields["principal"] == "Broker:cluster"]
    assert 1 <= len(own) <= 2
    assert all(event in successes for event in own)
    assert {event.key for event in told} == {b"User:alice", b"User:ANONYMOUS", b"Broker:cluster"}
    for event in told:
        assert event.fields["broker"] == 1
        assert before_ms <= event.timestamp_ms <= time.time() * 1000
        assert event.key == event.fields["principal"].encode()
    assert PASSWORD not in repr(told)
    assert "not her password" not in repr(told)


def test_only_brokers_write_the_topic(guarded: Broker) -> None:
    admin = admin_of(guarded.bootstrap)
    create(admin, "first")
    read(guarded.bootstrap, "first")
    host, port = with_names(guarded)
    assert refused(f"{host}:{port}", "alice") == KafkaError.TOPIC_AUTHORIZATION_FAILED
    allow_writing(admin, TOPIC, "alice")
    assert refused(f"{host}:{port}", "alice") == KafkaError.TOPIC_EXCEPTION
    assert refused(guarded.bootstrap) == KafkaError.TOPIC_EXCEPTION
    place = TopicPartition(TOPIC, 0, 1)
    with pytest.raises(KafkaException) as failed:
        admin.delete_records([place])[place].result(SECONDS)
    assert failed.value.args[0].code() == KafkaError.TOPIC_EXCEPTION
    create(admin, "second")
    told = [event.what for event in read(guarded.bootstrap, "second")]
    assert ("denial", "denied", "Metadata", TOPIC) in told
    assert ("change", "failure", "DeleteRecords", TOPIC) in told
    assert not [what for what in told if "forged" in what]


def refused(bootstrap: str, user: str = "") -> int:
    """With which error a record for the topic is refused."""
    codes: list[int] = []
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0, **login(user)})
    forged = json.dumps({"event": "forged", "outcome": "", "operation": "", "resources": []})
    producer.produce(
        TOPIC, forged, partition=0,
        on_delivery=lambda error, _: codes.append(error.code() if error else 0),
    )  # fmt: skip
    assert producer.flush(SECONDS) == 0
    return codes[0]


@pytest.mark.long
def test_a_killed_broker_keeps_what_was_written() -> None:
    with Broker({"audit.topic": TOPIC}, process=True) as broker:
        for number in range(20):
            broker.create_topic(f"t{number}")
        told = changes(read(broker.bootstrap, "t19"))
        broker.kill()
        broker.start()
        broker.create_topic("after")
        assert changes(read(broker.bootstrap, "after")) == [*told, "after"]
    assert told == [f"t{number}" for number in range(20)]


def test_a_broker_that_stops_writes_what_waits() -> None:
    with Broker({"audit.topic": TOPIC}) as broker:
        names = [f"t{number}" for number in range(20)]
        for name in names:
            broker.create_topic(name)
        broker.restart()
        assert changes(read(broker.bootstrap, names[-1])) == names


def changes(told: Sequence[Told]) -> list[str]:
    return [name for event in told if event.fields["event"] == "change" for name in event.what[3:]]


def test_a_topic_that_is_deleted_is_made_again() -> None:
    with Broker({"audit.topic": TOPIC}) as broker, broker.client() as client:
        client.create_topic("first")
        read(broker.bootstrap, "first")
        client.delete_topic(TOPIC)
        client.create_topic("second")
        assert ("change", "success", "DeleteTopics", TOPIC) in [
            event.what for event in read(broker.bootstrap, "second")
        ]


async def test_what_waits_for_the_topic_is_written_when_it_can_be(
    start_broker: StartBroker, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    topic = AuditTopic(TOPIC, lines_max=3)
    audit = AuditLog([topic], clock=SYSTEM_CLOCK, origin={"broker": 1})
    server = await start_broker({"default.replication.factor": 2}, audit=audit, audit_topic=topic)
    client = await connect(server)
    for name in ("a", "b"):
        await client.create(name)
    await until(lambda: f"retrying to write audit events to topic {TOPIC}: " in caplog.text)
    for name in ("c", "d"):
        await client.create(name)
    assert topic.dropped == 1
    await client.create(TOPIC)
    row = await client.fetch(TOPIC)
    while not row.records:
        row = await client.fetch(TOPIC)
    there = [name for name in "abcd" if f'["{name}"]'.encode() in row.records]
    assert there == ["a", "b", "c"]
    assert caplog.text.count("retrying to write audit events") == 1


async def test_a_batch_whose_answer_is_lost_is_there_once(
    start_broker: StartBroker, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, lost = OwnAppender.append, iter([False, True, True])

    async def losing(self: OwnAppender, producer: ProducerIdentity, *more: Any) -> None:
        lose = next(lost, False)
        await append(self, deepcopy(producer) if lose else producer, *more)
        if lose:
            raise TimedOut("no client received the answer")

    monkeypatch.setattr(OwnAppender, "append", losing)
    topic = AuditTopic(TOPIC, lines_max=10)
    server = await start_broker(audit_topic=topic)
    client = await connect(server)
    found = b""
    for line in (b"first\n", b"second\n", b"third\n"):
        topic.offer(Line(line, 1, b""))
        while line.strip() not in found:
            row = await client.fetch(TOPIC)
            found = bytes(row.records or b"")
    lines = decode_batches(found)
    assert lines["value"].to_pylist() == [b"first", b"second", b"third"]
    assert (next(lost, None), topic.dropped) == (None, 0)


async def test_a_line_that_never_fits_is_dropped(
    start_broker: StartBroker, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    topic = AuditTopic(TOPIC, lines_max=10)
    server = await start_broker({"message.max.bytes": 1000}, audit_topic=topic)
    topic.offer(Line(b"x" * 900 + b"\n", 1, b""))
    topic.offer(Line(b"small\n", 2, b"User:a"))
    client = await connect(server)
    await until(lambda: server.cluster.image.topics.get(TOPIC))
    row = await client.fetch(TOPIC)
    while not row.records:
        row = await client.fetch(TOPIC)
    assert b"small" in row.records
    assert b"xxx" not in row.records
    assert topic.dropped == 1
    assert "audit event of 965 bytes is too large" in caplog.text


class AuditedCluster(Cluster):
    """Each broker writes its lines to the topic."""

    def parts(self, node_id: int) -> dict[str, Any]:
        topic = AuditTopic(TOPIC, lines_max=1000)
        audit = AuditLog([topic], clock=SYSTEM_CLOCK, origin={"broker": node_id})
        return {"audit": audit, "audit_topic": topic}


@pytest.mark.timeout(300)
async def test_lines_of_all_brokers_reach_any_leader(tmp_path: Path, postgres_url: str) -> None:
    cluster = AuditedCluster(tmp_path, postgres_url)
    cluster.settings = {"default.replication.factor": 3}
    async with cluster.running(1, 2, 3):
        for node_id in (1, 2, 3):
            await cluster.clients[node_id].create(f"of-{node_id}")
        await until(lambda: TOPIC in cluster.brokers[1].cluster.image.topics)
        assert cluster.brokers[1].cluster.image.topics[TOPIC].internal
        await cluster.whole(TOPIC)
        leader = await cluster.led(TOPIC)
        silent = await cluster.fall_silent(leader)
        await cluster.led(TOPIC)
        left = list(cluster.brokers)
        for node_id in left:
            await cluster.clients[node_id].create(f"later-of-{node_id}")
        lines = await asyncio.to_thread(created, cluster, 3 + len(left))
        await silent.stop()
    assert sorted(lines) == sorted(
        [(broker_id, f"of-{broker_id}") for broker_id in (1, 2, 3)]
        + [(broker_id, f"later-of-{broker_id}") for broker_id in left]
    )


def created(cluster: Cluster, count: int) -> list[tuple[int, str]]:
    """Wait for `count` created topics; return brokers and topics of these events."""
    addresses = [":".join(map(str, broker.kafka_address)) for broker in cluster.brokers.values()]
    with Client(addresses) as client:
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            values = client.read_arrow(TOPIC, columns=["value"])["value"].to_pylist()
            lines = [json.loads(value) for value in values]
            found = [
                (line["broker"], line["resources"][0])
                for line in lines
                if line["event"] == "change"
            ]
            if len(found) >= count:
                return found
    raise AssertionError(f"{found} are not {count}")


async def test_what_does_not_fit_the_queue_is_counted() -> None:
    topic = AuditTopic(TOPIC, lines_max=5)
    for number in range(8):
        topic.offer(Line(b"%d\n" % number, number, b""))
    assert topic.dropped == 3
    await topic.stop()
    topic.offer(Line(b"late\n", 0, b""))
    assert topic.dropped == 4
