"""Real clients in consumer groups whose coordinator assigns (KIP-848)."""

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupState, ConsumerGroupType, Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
)

from penstock.client import Client
from tests.broker.handlers.running import RunningBroker

TIMEOUT_SECONDS = 60.0
PARTITIONS = 6
SETTINGS = {
    "group.consumer.min.session.timeout.ms": 500,
    "group.consumer.session.timeout.ms": 3_000,
    "group.consumer.min.heartbeat.interval.ms": 50,
    "group.consumer.heartbeat.interval.ms": 100,
    "group.consumer.assignment.interval.ms": 0,
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    running = RunningBroker(tmp_path_factory.mktemp("broker"), SETTINGS)
    yield running
    running.close()


@pytest.fixture
def admin(broker: RunningBroker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})


@pytest.fixture
def topic(admin: AdminClient) -> str:
    name = f"topic-{uuid.uuid4().hex[:8]}"
    admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(TIMEOUT_SECONDS)
    return name


class Members:
    """Consumers of one group, polled in turn."""

    def __init__(self, broker: RunningBroker, group: str) -> None:
        self.broker = broker
        self.group = group
        self.consumers: list[Consumer] = []
        self.values: list[int] = []
        self.places: list[tuple[str, int | None, int | None]] = []
        self.deleted: set[str | None] = set()

    def join(self, *topics: str, **more: Any) -> Consumer:
        consumer = Consumer(
            {
                "bootstrap.servers": self.broker.bootstrap,
                "group.id": self.group,
                "group.protocol": "consumer",
                "log_level": 0,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                **more,
            }
        )
        consumer.subscribe(list(topics))
        self.consumers.append(consumer)
        return consumer

    def leave(self, consumer: Consumer) -> None:
        self.consumers.remove(consumer)
        consumer.close()

    def commit(self) -> None:
        for consumer in self.consumers:
            consumer.commit(asynchronous=False)

    def owned(self) -> list[set[tuple[str, int]]]:
        return [
            {(p.topic, p.partition) for p in consumer.assignment()} for consumer in self.consumers
        ]

    def poll_until(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not done():
            assert time.monotonic() < deadline, (self.owned(), len(self.values))
            for consumer in self.consumers:
                message = consumer.poll(0.02)
                # librdkafka reports a topic that was deleted before it had asked for its offsets.
                if message is not None and message.topic() not in self.deleted:
                    assert message.error() is None, message.error()
                    self.values.append(int(message.value()))
                    place = (message.value().decode(), message.partition(), message.offset())
                    self.places.append(place)

    def poll_until_sizes(self, *sizes: int) -> None:
        """Until the members own so many partitions, each of them one member's."""

        def shared() -> bool:
            owned = self.owned()
            count = len(set().union(*owned))
            return sorted(map(len, owned)) == sorted(sizes) and count == sum(sizes)

        self.poll_until(shared)


@contextmanager
def members_of(broker: RunningBroker, group: str = "") -> Iterator[Members]:
    members = Members(broker, group or f"group-{uuid.uuid4().hex[:8]}")
    try:
        yield members
    finally:
        for consumer in members.consumers:
            consumer.close()


def fill(broker: RunningBroker, topic: str, numbers: range) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    for number in numbers:
        producer.produce(topic, value=str(number), partition=number % PARTITIONS)
    assert producer.flush(TIMEOUT_SECONDS) == 0


def test_members_come_read_commit_and_go(
    broker: RunningBroker, admin: AdminClient, topic: str
) -> None:
    fill(broker, topic, range(60))
    with members_of(broker) as members:
        first = members.join(topic)
        members.poll_until_sizes(6)
        second = members.join(topic)
        members.poll_until_sizes(3, 3)
        members.poll_until(lambda: set(members.values) == set(range(60)))
        described = admin.describe_consumer_groups([members.group])[members.group].result(60)
        assert described.state == ConsumerGroupState.STABLE
        assert described.type == ConsumerGroupType.CONSUMER
        assert [len(m.assignment.topic_partitions) for m in described.members] == [3, 3]
        with Client(broker.bootstrap) as client:
            seen = client.describe_group(members.group)
            assert (seen.state, seen.protocol) == ("Stable", "uniform")
            assert [len(member.partitions) for member in seen.members] == [3, 3]
            types = {
                listed_group.group_id: listed_group.group_type
                for listed_group in client.list_groups()
            }
            assert types[members.group] == "consumer"
            assert client.describe_group("no such group").state == "Dead"
        first.commit(asynchronous=False)
        second.commit(asynchronous=False)
        members.leave(first)
        members.poll_until_sizes(6)
        fill(broker, topic, range(60, 120))
        members.values.clear()
        members.poll_until(lambda: set(members.values) == set(range(60, 120)))
        assert len(members.values) == 60, "what was committed came again"
        members.leave(second)
    listed = admin.list_consumer_groups().result(60).valid
    assert (members.group, "Empty") in [
        (
            listed_group.group_id,
            {"EMPTY": "Empty"}.get(listed_group.state.name, listed_group.state.name),
        )
        for listed_group in listed
    ]
    admin.delete_consumer_groups([members.group])[members.group].result(TIMEOUT_SECONDS)
    listed = admin.list_consumer_groups().result(60).valid
    assert members.group not in [listed_group.group_id for listed_group in listed]


def test_new_partitions_and_topics_are_assigned(
    broker: RunningBroker, admin: AdminClient, topic: str
) -> None:
    later = f"{topic}-later"
    with members_of(broker) as members:
        members.join(topic, later)
        members.join(topic, later)
        members.poll_until_sizes(3, 3)
        admin.create_partitions([NewPartitions(topic, 8)])[topic].result(TIMEOUT_SECONDS)
        members.poll_until_sizes(4, 4)
        admin.create_topics([NewTopic(later, 2, 1)])[later].result(TIMEOUT_SECONDS)
        members.poll_until_sizes(5, 5)
        members.deleted.add(later)
        admin.delete_topics([later])[later].result(TIMEOUT_SECONDS)
        members.poll_until_sizes(4, 4)


def test_topics_are_subscribed_by_regular_expression(
    broker: RunningBroker, admin: AdminClient
) -> None:
    prefix = f"re-{uuid.uuid4().hex[:8]}"
    names = [f"{prefix}.a", f"{prefix}.b", f"{prefix}-c"]
    for name in names:
        admin.create_topics([NewTopic(name, 2, 1)])[name].result(TIMEOUT_SECONDS)
    with members_of(broker) as members:
        members.join(rf"^{prefix}\.(a|b)$")
        members.poll_until_sizes(4)
        assert {name for name, _ in members.owned()[0]} == set(names[:2])


def test_a_static_member_returns_to_what_it_had(broker: RunningBroker, topic: str) -> None:
    with members_of(broker) as members:
        static = members.join(topic, **{"group.instance.id": "one"})
        members.join(topic)
        members.poll_until_sizes(3, 3)
        before, others = members.owned()
        members.leave(static)
        members.join(topic, **{"group.instance.id": "one"})
        members.poll_until_sizes(3, 3)
        assert members.owned() == [others, before]


def test_a_group_has_times_of_its_own(broker: RunningBroker, admin: AdminClient) -> None:
    async def heartbeat_intervals() -> tuple[int, int]:
        limits = broker.server.coordinator._consumer_limits()
        return limits.heartbeat_interval_ms("own-times"), limits.heartbeat_interval_ms("others")

    assert broker.call(heartbeat_intervals) == (100, 100)
    change = ConfigResource(
        ConfigResource.Type.GROUP,
        "own-times",
        incremental_configs=[
            ConfigEntry(
                "consumer.heartbeat.interval.ms",
                "70",
                incremental_operation=AlterConfigOpType.SET,
            )
        ],
    )
    admin.incremental_alter_configs([change])[change].result(TIMEOUT_SECONDS)
    assert broker.call(heartbeat_intervals) == (70, 100)


def test_members_continue_after_a_broker_restart(broker: RunningBroker, topic: str) -> None:
    with members_of(broker) as members:
        members.join(topic)
        members.join(topic)
        members.poll_until_sizes(3, 3)
        before = members.owned()
        fill(broker, topic, range(12))  # a partition that moved before the commit is read again
        members.poll_until(lambda: set(members.values) == set(range(12)))
        members.commit()
        broker.restart(same_port=True)
        fill(broker, topic, range(12, 24))
        members.poll_until(lambda: set(members.values) == set(range(24)))
        members.poll_until(lambda: members.owned() == before)
        committed = sorted(value for value in members.values if value < 12)
        assert committed == [*range(12)], members.places


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_members_choose_an_assignor(
    broker: RunningBroker, admin: AdminClient, topic: str, assignor: str
) -> None:
    with members_of(broker) as members:
        for _ in range(2):
            members.join(topic, **{"group.remote.assignor": assignor})
        members.poll_until_sizes(3, 3)
        described = admin.describe_consumer_groups([members.group])[members.group].result(60)
        assert described.partition_assignor == assignor
        numbers = sorted(sorted(number for _, number in owned) for owned in members.owned())
        if assignor == "range":
            assert numbers == [[0, 1, 2], [3, 4, 5]]


CLASSIC = {"group.protocol": "classic", "session.timeout.ms": 6_000, "heartbeat.interval.ms": 100}


def group_type(admin: AdminClient, group: str) -> ConsumerGroupType:
    for listed in admin.list_consumer_groups().result(60).valid:
        if listed.group_id == group:
            return listed.type
    raise AssertionError(f"there is no group {group}")


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_members_are_moved_to_the_new_protocol_and_back_one_by_one(
    broker: RunningBroker, admin: AdminClient, topic: str, strategy: str
) -> None:
    classic = {**CLASSIC, "partition.assignment.strategy": strategy}
    fill(broker, topic, range(12))
    with members_of(broker) as members:
        old = [members.join(topic, **classic) for _ in range(2)]
        members.poll_until_sizes(3, 3)
        assert group_type(admin, members.group) == ConsumerGroupType.CLASSIC
        members.poll_until(lambda: set(members.values) == set(range(12)))
        for consumer in old:
            consumer.commit(asynchronous=False)
        new = members.join(topic)
        members.poll_until_sizes(2, 2, 2)
        assert group_type(admin, members.group) == ConsumerGroupType.CONSUMER
        members.leave(old[0])
        members.poll_until_sizes(3, 3)
        members.join(topic)
        members.leave(old[1])
        members.poll_until_sizes(3, 3)
        members.join(topic, **classic)
        members.poll_until_sizes(2, 2, 2)
        assert group_type(admin, members.group) == ConsumerGroupType.CONSUMER
        members.leave(new)
        members.leave(members.consumers[0])
        members.poll_until_sizes(6)
        assert group_type(admin, members.group) == ConsumerGroupType.CLASSIC
        fill(broker, topic, range(12, 24))
        members.poll_until(lambda: set(range(12, 24)) <= set(members.values))


def test_a_group_without_members_takes_either_protocol(
    broker: RunningBroker, admin: AdminClient, topic: str
) -> None:
    fill(broker, topic, range(12))
    with members_of(broker) as members:
        committed = False
        for more in (CLASSIC, {}, CLASSIC):
            consumer = members.join(topic, **more)
            members.poll_until_sizes(6)
            members.poll_until(lambda: set(members.values) == set(range(12)))
            if more is CLASSIC and not committed:
                consumer.commit(asynchronous=False)
                committed = True
            members.leave(consumer)
        assert len(members.values) == 12, "what was committed came again"
