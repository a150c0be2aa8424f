"""kminion and kafka_exporter on Penstock: their values equal the truth and Apache Kafka's tools.

The programs are on the PATH: kafka_exporter 1.9.0 and kminion 2.3.5 were tried. Burrow is compared
in `tests/broker/lag/test_burrow.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from confluent_kafka import Consumer
from tests.broker.lag.history import offset_commit
from tests.ports import free_port
from tests.postgres import postgres_server

from compat.conftest import missing
from compat.daemons import Daemon, Series
from compat.parts import PartMissing, program
from compat.security import ADMIN, SASL_SSL, Realm, Security, grant, harness
from compat.servers import COPIES, QUICK_GROUPS, PenstockProcess, bootstrap_of, running_brokers
from compat.tools import run_tool
from penstock.client import Client
from penstock.testing import Broker

pytestmark = pytest.mark.long

PLAIN: Final = Security()
PARTITIONS: Final = 3
PROBE: Final = "kminion-end-to-end"
OFFSETS: Final = "__consumer_offsets"
Where = tuple[str, str, int]
"""A group, a topic and a partition."""
Values = dict[tuple[object, ...], int]
COMMITTED: Final[dict[Where, int]] = {
    ("caught-up", "orders", 0): 100, ("caught-up", "orders", 1): 110,
    ("caught-up", "orders", 2): 120,
    ("behind", "orders", 0): 10, ("behind", "orders", 2): 0, ("behind", "bills", 0): 7,
    ("classic", "bills", 0): 5, ("consumer", "bills", 0): 5,
}  # fmt: skip
ENDS: Final = {
    ("orders", 0): 100, ("orders", 1): 110, ("orders", 2): 120, ("bills", 0): 9,
}  # fmt: skip
OF_EXPORTER: Final = ("consumergroup", "topic", "partition")
OF_KMINION: Final = ("group_id", "topic_name", "partition_id")
"""Labels of a group, a topic and a partition."""
KMINIONS_LAG: Final = "kminion_kafka_consumer_group_topic_partition_lag"
LAGS: Final = {where: ENDS[where[1:]] - offset for where, offset in COMMITTED.items()}

RIGHTS: Final = {
    "exporter": [("describe", "topic", "*"), ("describe", "group", "*")],
    "kminion": [
        ("describe", "topic", "*"), ("describe_configs", "topic", "*"), ("describe", "group", "*"),
        ("describe", "cluster", "kafka-cluster"), ("alter", "cluster", "kafka-cluster"),
        ("create", "topic", PROBE), ("alter", "topic", PROBE), ("read", "topic", PROBE),
        ("write", "topic", PROBE), ("read", "group", f"{PROBE}*"),
    ],
}  # fmt: skip
"""Permissions of the monitors; those of kminion after the first four are for its own records."""


def _exporter() -> str:
    return program("kafka_exporter", "1.9.0")


def _kminion() -> str:
    return program("kminion", "2.3.5")


@pytest.fixture(scope="module", autouse=True)
def installed() -> None:
    """Skip the module before a broker starts, if a program is missing."""
    try:
        _exporter()
        _kminion()
    except PartMissing as error:
        missing(error)


@contextmanager
def groups(client: Client, options: Mapping[str, Any]) -> Iterator[None]:
    """Topics, two groups without members, and two with one that reads by either protocol."""
    client.create_topic("orders", PARTITIONS)
    client.create_topic("bills", 1)
    for (topic, partition), end in ENDS.items():
        client.write_arrow(topic, pa.table({"value": [b"v"] * end}), partition=partition)
    for group in ("caught-up", "behind"):
        offsets = {where[1:]: offset for where, offset in COMMITTED.items() if where[0] == group}
        client.commit_offsets(group, offsets)
    members = [_member(options, protocol) for protocol in ("classic", "consumer")]
    yield
    for member in members:
        member.close()


def _member(options: Mapping[str, Any], protocol: str) -> Consumer:
    """Return a member that has read and committed five records of `bills`."""
    member = Consumer(
        {**options, "group.id": protocol, "group.protocol": protocol}
        | {"auto.offset.reset": "earliest", "enable.auto.commit": False}
    )  # fmt: skip
    member.subscribe(["bills"])
    for _ in range(5):
        message = member.poll(60)
        assert message is not None
        assert message.error() is None
    member.commit(message, asynchronous=False)
    return member


def exporter(bootstrap: str, folder: Path, security: Security = PLAIN) -> Daemon:
    """Return kafka_exporter for brokers."""
    address = f"127.0.0.1:{free_port()}"
    command = [_exporter(), *(f"--kafka.server={server}" for server in bootstrap.split(","))]
    command += [f"--web.listen-address={address}", "--refresh.metadata=1s"]
    if not security.plain:
        command += [
            "--sasl.enabled", "--sasl.mechanism=scram-sha512",
            f"--sasl.username={security.user}", f"--sasl.password={security.password}",
            "--tls.enabled", f"--tls.ca-file={security.truststore}",
        ]  # fmt: skip
    return Daemon(command, folder / "exporter.log", f"http://{address}")


def kminion(
    bootstrap: str, folder: Path, mode: str, *, replicas: int = 0, security: Security = PLAIN
) -> Daemon:
    """Return kminion for brokers.

    Args:
        mode: `adminApi` or `offsetsTopic`, the source of committed offsets.
        replicas: replicas of the topic by which it produces and consumes records, one partition a
            broker; 0 for no such topic.
    """
    port = free_port()
    config: dict[str, Any] = {
        "kafka": {"brokers": bootstrap.split(",")},
        "minion": {
            "consumerGroups": {"scrapeMode": mode},
            "endToEnd": {
                "enabled": replicas > 0,
                "topicManagement": {"replicationFactor": replicas, "reconciliationInterval": "1s"},
                "producer": {"ackSla": "50s"},
                "consumer": {"roundtripSla": "60s"},
            },
        },
        "exporter": {"host": "127.0.0.1", "port": port},
    }
    if not security.plain:
        names = {"username": security.user, "password": security.password}
        config["kafka"] |= {
            "sasl": {"enabled": True, "mechanism": security.mechanism, **names},
            "tls": {"enabled": True, "caFilepath": security.truststore},
        }
    file = folder / f"{mode}.yaml"
    file.write_text(json.dumps(config))
    environment = {"CONFIG_FILEPATH": str(file)}
    return Daemon([_kminion()], folder / f"{mode}.log", f"http://127.0.0.1:{port}", environment)


def probe(found: Series, metric: str) -> dict[str, float]:
    """Return a metric of kminion's own records by partition."""
    return {
        dict(labels).get("partition_id", ""): value
        for (name, labels), value in found.items()
        if name == f"kminion_end_to_end_{metric}"
    }


def wait_for_probes(mini: Daemon, partitions: int, count: int = 20) -> None:
    """Wait until kminion has received `count` more records from each of its partitions."""
    before = probe(mini.metrics(), "messages_received_total")

    def received() -> bool:
        now = probe(mini.metrics(), "messages_received_total")
        more = [value - before.get(partition, 0) for partition, value in now.items()]
        return len(more) == partitions and min(more) >= count

    mini.wait_until(received, mini.metrics)
    for metric in ("messages_lost_total", "messages_produced_failed_total"):
        assert not any(probe(mini.metrics(), metric).values()), mini.metrics()


def by_place(found: Series, metric: str, names: tuple[str, ...]) -> Values:
    """Return a metric's values by the labels `names`, the last of which is a partition.

    -1, which kafka_exporter reports for a partition without a committed offset, is omitted.
    """
    values = {
        tuple(dict(labels)[name] for name in names): int(value)
        for (name, labels), value in found.items()
        if name == metric and value >= 0
    }
    return {(*where[:-1], int(where[-1])): value for where, value in values.items()}


def without_probe(found: Values) -> Values:
    """Return the values without those of kminion's own groups and topic."""
    return {where: value for where, value in found.items() if not str(where[0]).startswith(PROBE)}


def check_monitors(exported: Daemon, mini: Daemon) -> None:
    """Wait until both monitors have the right lag, and check their offsets."""
    lag = "kafka_consumergroup_lag"
    exported.wait_until(
        lambda: by_place(exported.metrics(), lag, OF_EXPORTER) == LAGS, exported.metrics
    )
    found = exported.metrics()
    assert by_place(found, "kafka_consumergroup_current_offset", OF_EXPORTER) == COMMITTED
    ends = by_place(found, "kafka_topic_partition_current_offset", ("topic", "partition"))
    assert without_probe(ends) == ENDS
    mini.wait_until(
        lambda: without_probe(by_place(mini.metrics(), KMINIONS_LAG, OF_KMINION)) == LAGS,
        mini.metrics,
    )
    found = mini.metrics()
    name = "kminion_kafka_topic_partition_high_water_mark"
    assert without_probe(by_place(found, name, ("topic_name", "partition_id"))) == ENDS
    assert found["kminion_exporter_up", frozenset({("version", "")})] == 1


def test_values_equal_the_truth(tmp_path: Path) -> None:
    with (
        Broker(process=True) as broker,
        broker.client() as client,
        groups(client, harness(broker.bootstrap, PLAIN)),
        exporter(broker.bootstrap, tmp_path) as exported,
        kminion(broker.bootstrap, tmp_path, "adminApi", replicas=1) as mini,
    ):
        check_monitors(exported, mini)
        for group in {where[0] for where in COMMITTED}:
            command = "consumer.group.ConsumerGroupCommand"
            rows = run_tool(broker.bootstrap, command, "--describe", "--group", group)
            assert {
                (row["GROUP"], row["TOPIC"], int(row["PARTITION"])): int(row["LAG"])
                for row in rows
                if row["LAG"] != "-"
            } == {where: lag for where, lag in LAGS.items() if where[0] == group}


def test_monitors_need_these_permissions(tmp_path: Path) -> None:
    known = Realm(tmp_path)
    known.keystore("broker")
    known.add_users(ADMIN, "exporter", "kminion")
    configs = {**QUICK_GROUPS, **known.broker_settings()}
    admin, users = known.user(ADMIN), {name: known.user(name) for name in RIGHTS}
    with (
        PenstockProcess(tmp_path / "broker", protocol=SASL_SSL, configs=configs) as broker,
        Client(broker.bootstrap, security=admin.options()) as client,
        groups(client, harness(broker.bootstrap, admin)),
    ):
        for name, needs in RIGHTS.items():
            grant(broker.bootstrap, name, needs, admin)
        with (
            exporter(broker.bootstrap, tmp_path, users["exporter"]) as exported,
            kminion(
                broker.bootstrap, tmp_path, "adminApi", replicas=1, security=users["kminion"]
            ) as mini,
        ):
            check_monitors(exported, mini)
            wait_for_probes(mini, 1)


def test_kminions_probe_loses_nothing_over_a_killed_broker(tmp_path: Path) -> None:
    with (
        Broker(process=True) as broker,
        kminion(broker.bootstrap, tmp_path, "adminApi", replicas=1) as mini,
    ):
        wait_for_probes(mini, 1)
        mini.wait_until(lambda: any(probe(mini.metrics(), "offset_commits_total").values()))
        broker.kill()
        broker.start()
        wait_for_probes(mini, 1)


def test_kminion_adds_partitions_and_replicas_on_three_brokers(tmp_path: Path) -> None:
    with (
        postgres_server() as postgres,
        running_brokers(postgres, tmp_path, 3, COPIES) as brokers,
        Client(bootstrap_of(brokers)) as client,
    ):
        client.create_topic(PROBE, 1, replication_factor=1)
        with kminion(bootstrap_of(brokers), tmp_path, "adminApi", replicas=3) as mini:
            wait_for_probes(mini, 3)
            found = client.describe_topic(PROBE).partitions
            assert [sorted(partition.replicas) for partition in found] == [[1, 2, 3]] * 3
            assert {partition.replicas[0] for partition in found} == {1, 2, 3}
            brokers[1].kill()
            wait_for_probes(mini, 3)
            brokers[1].start()
            wait_for_probes(mini, 3)


def test_kminion_reads_commits_from_a_topic(tmp_path: Path) -> None:
    with (
        Broker(process=True) as broker,
        broker.client() as client,
        groups(client, harness(broker.bootstrap, PLAIN)),
    ):
        client.create_topic(OFFSETS, PARTITIONS, {"cleanup.policy": "compact"})
        pairs = [offset_commit(*where, offset, 0) for where, offset in COMMITTED.items()]
        keys, values = (list(column) for column in zip(*pairs, strict=True))
        client.write_arrow(OFFSETS, pa.table({"key": keys, "value": values}))
        with kminion(broker.bootstrap, tmp_path, "offsetsTopic") as mini:
            mini.wait_until(
                lambda: by_place(mini.metrics(), KMINIONS_LAG, OF_KMINION) == LAGS, mini.metrics
            )
