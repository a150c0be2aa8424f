"""Brokers of one cluster check produced records against schemas that any of them registered."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.base.errors import PenstockError
from penstock.client import Client
from penstock.client.schemas import SchemaClient, StoredSchema
from tests.apps.test_serve import LOCAL, TIMEOUT_SECONDS, serving
from tests.broker.registered import framed

REGISTRIES = ("-X", "registry.enable=true", "-X", "registry.listener=127.0.0.1:0")
READY = re.compile(r"penstock ready kafka=(\S+) admin=\S+ registry=(\S+)\n")
PARTITIONS = 4
ROUNDS = 20


class Cluster:
    """Two brokers, each with its address and a client of its registry."""

    def __init__(self, bootstrap: str, registries: list[SchemaClient]) -> None:
        self.bootstrap = bootstrap
        self.registries = registries
        self.admin = AdminClient({"bootstrap.servers": bootstrap})

    def create(self, topic: str, **configs: str) -> None:
        given = {name.replace("_", "."): value for name, value in configs.items()}
        made = self.admin.create_topics([NewTopic(topic, PARTITIONS, 1, config=given)])
        made[topic].result(TIMEOUT_SECONDS)

    def leaders(self, topic: str) -> dict[int, int]:
        """The leader of each partition."""
        found = self.admin.list_topics(topic, timeout=TIMEOUT_SECONDS).topics[topic].partitions
        return {index: row.leader for index, row in found.items()}

    def send(self, topic: str, value: bytes | None, partition: int, codec: str = "none") -> int:
        """Produce a record by librdkafka; the number of the error, or 0."""
        ended: list[KafkaError | None] = []

        def report(error: KafkaError | None, _: Message) -> None:
            ended.append(error)

        settings = {"bootstrap.servers": self.bootstrap, "compression.type": codec}
        producer = Producer(settings)
        producer.produce(topic, value, partition=partition, on_delivery=report)
        assert producer.flush(TIMEOUT_SECONDS) == 0
        (error,) = ended
        return 0 if error is None else int(error.code())

    def refusal(self, topic: str, value: bytes) -> str:
        """Produce a record by the columnar client; the text of the error."""
        with Client(self.bootstrap) as client, pytest.raises(PenstockError) as caught:
            client.write_arrow(topic, pa.table({"value": [value]}))
        return str(caught.value)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("cluster")
    with ExitStack() as stack:
        words = (*LOCAL, *REGISTRIES, "--processes", "2")
        process, line = stack.enter_context(serving(directory, *words))
        found = READY.fullmatch(line)
        assert found is not None, line
        urls = [f"http://{address}" for address in found[2].split(",")]
        clients = [stack.enter_context(SchemaClient(url)) for url in urls]
        yield Cluster(found[1], clients)
        process.terminate()
        assert process.wait(TIMEOUT_SECONDS) == 0
        assert isinstance(process, subprocess.Popen)


def record(name: str) -> StoredSchema:
    return StoredSchema(schema=f'{{"type":"record","name":"{name}","fields":[]}}')


def test_an_id_is_accepted_by_every_broker_as_soon_as_one_has_registered_it(
    cluster: Cluster,
) -> None:
    cluster.create("orders", schema_validation_value="true")
    leaders = cluster.leaders("orders")
    assert set(leaders.values()) == {1, 2}
    for number in range(ROUNDS):
        for place, registry in enumerate(cluster.registries, 1):
            partition = next(index for index, leader in leaders.items() if leader != place)
            schema_id = registry.register(f"s{number}-{place}", record(f"R{number}_{place}"))
            value = framed(schema_id)
            assert cluster.send("orders", value, partition) == 0


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_other_records_are_refused_with_the_reason(cluster: Cluster, codec: str) -> None:
    topic = f"refusing-{codec}"
    demands = {"schema_validation_value": "true", "schema_validation_subject_strategy": "topic"}
    cluster.create(topic, **demands)
    refused = int(KafkaError.INVALID_RECORD)
    for partition in range(PARTITIONS):
        assert cluster.send(topic, b"plain", partition, codec) == refused
        assert cluster.send(topic, framed(1_000_000), partition, codec) == refused
        assert cluster.send(topic, None, partition, codec) == 0
    reason = f"topic '{topic}': record 0 of 1 has no schema id in its value"
    assert reason in cluster.refusal(topic, b"plain")
    assert f"is not a version of subject '{topic}-value'" in cluster.refusal(topic, framed(9_999))
    schema_id = cluster.registries[0].register(f"{topic}-value", record("Own"))
    for partition in range(PARTITIONS):
        assert cluster.send(topic, framed(schema_id), partition, codec) == 0


def test_a_broker_that_serves_no_registry_refuses_the_setting(tmp_path: Path) -> None:
    with serving(tmp_path, *LOCAL) as (_, line):
        cluster = Cluster(line.split("kafka=")[1].split(" ")[0], [])
        with pytest.raises(KafkaException, match=r"needs registry\.enable = true"):
            cluster.create("orders", schema_validation_value="true")


def test_a_broker_that_serves_no_registry_any_more_refuses_records(tmp_path: Path) -> None:
    with serving(tmp_path, *LOCAL, *REGISTRIES) as (process, line):
        found = READY.fullmatch(line)
        assert found is not None, line
        cluster = Cluster(found[1], [])
        cluster.create("orders", schema_validation_value="true")
        with SchemaClient(f"http://{found[2]}") as registry:
            value = framed(registry.register("orders-value", record("Order")))
        assert cluster.send("orders", value, 0) == 0
        process.terminate()
        assert process.wait(TIMEOUT_SECONDS) == 0
    with serving(tmp_path, *LOCAL) as (_, line):
        cluster = Cluster(line.split("kafka=")[1].split(" ")[0], [])
        assert cluster.send("orders", value, 0) == int(KafkaError.INVALID_CONFIG)
        reason = "topic 'orders': schema.validation.value = true needs registry.enable"
        assert reason in cluster.refusal("orders", value)
