"""Apache Kafka's command line and librdkafka at three brokers: requests about what others lead."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.postgres import postgres_server

from compat.conftest import missing
from compat.parts import PartMissing
from compat.security import harness
from compat.servers import COPIES, PenstockProcess, bootstrap_of, running_brokers
from compat.tools import run_tool

SECONDS = 60.0
GROUPS = ("g0", "g1", "g2", "g3")
"""Several, so that some have coordinators that lead none of their partitions."""


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[PenstockProcess]]:
    """Three brokers on PostgreSQL."""
    try:
        with (
            postgres_server() as server,
            running_brokers(server, tmp_path_factory.mktemp("brokers"), 3, COPIES) as running,
        ):
            yield running
    except PartMissing as error:
        missing(error)


def create(brokers: list[PenstockProcess], topic: str, partitions: int) -> None:
    admin = AdminClient(harness(bootstrap_of(brokers)))
    admin.create_topics([NewTopic(topic, partitions, 3)])[topic].result(SECONDS)


@pytest.mark.timeout(180)
def test_librdkafka_asks_for_offsets_right_after_the_creation(
    brokers: list[PenstockProcess],
) -> None:
    """Its test 0054_offset_time does so."""
    for number in range(6):
        topic = f"new{number}"
        create(brokers, topic, 1)
        consumer = Consumer({**harness(bootstrap_of(brokers)), "group.id": "g"})
        [found] = consumer.offsets_for_times([TopicPartition(topic, 0, 0)], timeout=SECONDS)
        assert found.error is None, found.error
        consumer.close()


@pytest.mark.timeout(180)
def test_kafkas_tools_ask_brokers_that_follow(brokers: list[PenstockProcess]) -> None:
    bootstrap = bootstrap_of(brokers)
    create(brokers, "t", 3)
    producer = Producer({**harness(bootstrap), "enable.idempotence": True})
    for number in range(12):
        producer.produce("t", b"%d" % number, partition=number % 3)
    assert producer.flush(SECONDS) == 0
    tool = partial(run_tool, bootstrap)
    for broker_id in ("1", "2", "3"):
        assert tool("TransactionsCommand", "find-hanging", "--broker-id", broker_id) == []
    shares = "consumer.group.ShareGroupCommand"
    for group in GROUPS:
        where = ("--group", group, "--topic", "t")
        moved = tool(shares, "--reset-offsets", *where, "--to-earliest", "--execute")
        assert [row["NEW-OFFSET"] for row in moved] == ["0", "0", "0"]
        described = tool(shares, "--describe", "--group", group)
        assert {row["PARTITION"]: row["LAG"] for row in described} == dict.fromkeys("012", "4")
