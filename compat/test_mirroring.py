"""`penstock mirror` beside Apache Kafka: records are mirrored from it and back, and MirrorMaker's
client class translates the offsets of groups.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pyarrow as pa
import pytest
from benchmarks.peers.apache_kafka import ApacheKafka
from tests.mirror.bed import mirror, mirror_file, rows

from compat.conftest import missing
from compat.parts import PartMissing, jars, mirror_java
from penstock.client import Client
from penstock.testing import Broker

POLICIES = {"identity": "IdentityReplicationPolicy", "prefix": "DefaultReplicationPolicy"}


@pytest.mark.parametrize("policy", POLICIES)
def test_remote_cluster_utils_translates_offsets(tmp_path: Path, policy: str) -> None:
    try:
        classes = mirror_java()
    except PartMissing as error:
        missing(error)
    with Broker() as source, Broker() as target:
        with source.client() as left, target.client() as right:
            left.create_topic("orders", 2)
            for partition in range(2):
                left.write_arrow("orders", pa.table({"value": [b"v"] * 100}), partition=partition)
            mirror(mirror_file(tmp_path, "first", source, target, policy))
            left.write_arrow("orders", pa.table({"value": [b"w"] * 100}), partition=1)
            left.commit_offsets("g", {("orders", 0): 100, ("orders", 1): 150})
            mirror(mirror_file(tmp_path, "first", source, target, policy))
            committed = {f"{topic}-{partition} {found.offset}"
                         for (topic, partition), found in right.committed("g").items()}  # fmt: skip
        name = f"org.apache.kafka.connect.mirror.{POLICIES[policy]}"
        result = subprocess.run(
            ["java", "-cp", classes, "Offsets", target.bootstrap, "source", "g", name],
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
    assert set(result.stdout.split("\n")) - {""} == committed, result.stderr[-2_000:]
    prefix = "source." if policy == "prefix" else ""
    # Offset 150 is inside of the second batch, which begins at 100.
    assert committed == {f"{prefix}orders-0 100", f"{prefix}orders-1 100"}


@pytest.mark.long
def test_records_are_mirrored_from_apache_kafka_and_back(tmp_path: Path) -> None:
    try:
        jars("kafka")
    except PartMissing as error:
        missing(error)
    with (
        ApacheKafka() as kafka,
        Broker() as broker,
        Client(kafka.bootstrap) as there,
        broker.client() as here,
    ):
        there.create_topic("orders", 3, {"retention.ms": "86400000"})
        keys = [b"%d" % number for number in range(500)]
        for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
            there.write_arrow("orders", pa.table({"key": keys, "value": keys}), codec=codec)
        there.commit_offsets("g", {("orders", 0): there.list_offsets("orders")[0]})
        forth = mirror_file(tmp_path, "forth", kafka, broker)
        back = mirror_file(tmp_path, "back", broker, kafka)
        mirror(forth)
        here.write_arrow("orders", pa.table({"value": [b"from here"] * 10}), partition=2)
        mirror(back)
        mirror(forth)
        left, right = rows(there, "orders"), rows(here, "orders")
        assert len(left) == len(right) == 2_510
        for partition in range(3):
            assert values(left, partition) == values(right, partition)
        settings = {e.name: e.value for e in here.describe_configs("topic", "orders")}
        assert settings["retention.ms"] == "86400000"
        ends = here.list_offsets("orders", isolation=1)
        after = here.committed("g")["orders", 0].offset
        assert not [row for row in right if row["partition"] == 0 and row["offset"] >= after]
        assert after <= ends[0]


def values(found: list[dict[str, object]], partition: int) -> list[object]:
    return [row["value"] for row in found if row["partition"] == partition]
