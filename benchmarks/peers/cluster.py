"""Brokers that make one cluster, of Penstock or of Apache Kafka, on loopback."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

from compat.servers import PenstockProcess, await_all_known, bootstrap_of, running_brokers
from confluent_kafka.admin import AdminClient
from tests.ports import free_port
from tests.postgres import PostgresServer, postgres_server

from benchmarks.peers.apache_kafka import ApacheKafka

OURS, APACHE = "penstock", "Apache Kafka, 3 nodes, not synced"
SESSION_SECONDS = 2.0
_COPIES = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "broker.session.timeout.ms": f"{SESSION_SECONDS * 1000:.0f}",
    "broker.heartbeat.interval.ms": "500",
}


class Broker(Protocol):
    """A broker of either kind."""

    bootstrap: str

    @property
    def pid(self) -> int: ...

    def kill(self) -> None: ...
    def stop(self) -> object: ...
    def start(self) -> object: ...


@contextmanager
def cluster(name: str) -> Iterator[Sequence[Broker]]:
    """Three brokers, `OURS` or `APACHE`, whose topics have three copies, two of them in sync."""
    if name == OURS:
        configs = {**_COPIES, "replication.listener": "127.0.0.1:0"}
        with (
            postgres_server(durable=True) as postgres,
            penstock_cluster(postgres, 3, configs) as brokers,
        ):
            yield brokers
    else:
        configs = {**_COPIES, "offsets.topic.replication.factor": "3"}
        with kafka_cluster(3, configs) as nodes:
            yield nodes


@contextmanager
def penstock_cluster(
    postgres: PostgresServer, count: int, configs: Mapping[str, str]
) -> Iterator[list[PenstockProcess]]:
    """So many brokers on a database and a store of their own, by rising node id from 1."""
    with (
        tempfile.TemporaryDirectory(prefix="penstock-bench-") as name,
        running_brokers(postgres, Path(name), count, configs) as brokers,
    ):
        yield brokers


@contextmanager
def kafka_cluster(count: int, configs: Mapping[str, str]) -> Iterator[list[ApacheKafka]]:
    """So many nodes, each broker and controller, by rising node id from 1."""
    ports = [(free_port(), free_port()) for _ in range(count)]
    voters = ",".join(f"{node}@127.0.0.1:{port}" for node, (_, port) in enumerate(ports, 1))
    with ExitStack() as stack:
        nodes = []
        for number, pair in enumerate(ports, 1):
            own = {"node.id": str(number), "controller.quorum.voters": voters}
            node = ApacheKafka(heap="512m", configs={**configs, **own}, ports=pair)
            stack.callback(node.discard)
            node.launch()
            nodes.append(node)
        for node in nodes:
            node.wait_until_ready()
        await_all_known(nodes)
        yield nodes


def leaders(brokers: Sequence[Broker], topic: str) -> list[int]:
    """The leaders of a topic's partitions by their number, as one of the brokers knows them."""
    admin = AdminClient({"bootstrap.servers": bootstrap_of(brokers), "log_level": 0})
    partitions = admin.list_topics(topic, timeout=30).topics[topic].partitions
    return [partitions[number].leader for number in sorted(partitions)]
