"""Links and a migration from Apache Kafka: the same batches, no record lost or doubled."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from benchmarks.peers.apache_kafka import ApacheKafka
from click.testing import CliRunner

from penstock.apps.cli import root
from penstock.client import Client
from penstock.security.acls import AclBinding
from penstock.testing import Broker

pytestmark = pytest.mark.long
TOPICS = 100
GROUPS = 20
PAUSE_MS_MAX = 5_000
AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:admin",
    "allow.everyone.if.no.acl.found": "true",
}


@pytest.fixture(scope="module")
def kafka() -> Iterator[ApacheKafka]:
    server = ApacheKafka(heap="512m", configs=AUTHORIZER).start()
    try:
        yield server
    finally:
        server.stop()


def values(*texts: str) -> pa.Table:
    data = [text.encode() for text in texts]
    return pa.table({"key": data, "value": data})


def test_transactions_compression_and_compaction_are_copied_as_they_are(
    kafka: ApacheKafka,
) -> None:
    with Broker() as broker, Client(kafka.bootstrap) as source, broker.client() as target:
        source.create_topic("kinds", 1, {"cleanup.policy": "compact"})
        for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
            source.write_arrow("kinds", values(*map(str, range(50))), codec=codec)
        producer = source.transactional("kinds")
        for end in (producer.commit, producer.abort):
            producer.begin()
            producer.write_arrow("kinds", values(end.__name__))
            end()
        places = ["-b", broker.bootstrap]
        run = CliRunner().invoke
        made = run(root, ["link", "create", "kinds", "--source", kafka.bootstrap, *places])
        assert made.exit_code == 0, made.output
        assert run(root, ["link", "promote", "kinds", *places]).exit_code == 0
        kept = [
            client.read_arrow("kinds", isolation="read_committed").column("value").to_pylist()
            for client in (source, target)
        ]
        assert kept[0] == kept[1]
        assert b"commit" in kept[1]
        assert b"abort" not in kept[1]


def test_a_cluster_is_migrated_under_load(kafka: ApacheKafka, tmp_path: Path) -> None:
    record = str(tmp_path / "record.json")
    secured = Broker({"authorizer.class.name": "acls", "super.users": "User:ANONYMOUS"})
    with secured as broker, Client(kafka.bootstrap) as source, broker.client() as target:
        _fill(source)
        places = ["--source", kafka.bootstrap, "-b", broker.bootstrap]
        names = [f"t{number}" for number in range(TOPICS)]
        run = CliRunner().invoke
        linked = run(root, ["migrate", "run", *names, *places, "--wait-seconds", "60"])
        assert linked.exit_code == 0, (linked.output, linked.exception)
        written: list[str] = []
        load = threading.Thread(target=_load, args=(kafka.bootstrap, written))
        load.start()
        over = run(
            root, ["migrate", "cut-over", *names, *places, "--deny-writes", "--record", record]
        )
        load.join()
        assert over.exit_code == 0, (over.output, over.exception)
        assert int(over.output.split("promoted, ")[1].split(" ms")[0]) <= PAUSE_MS_MAX
        found = [
            value.decode()
            for name in names
            for value in target.read_arrow(name).column("value").to_pylist()
        ]
        assert sorted(found) == sorted([*written, *(["first"] * TOPICS)])
        for group in range(GROUPS):
            assert len(target.committed(f"g{group}")) == TOPICS
        target.write_arrow("t1", values("new", "newer"), partition=0)
        back = run(root, ["migrate", "back", *places, "--writers-stopped", "--record", record])
        assert back.exit_code == 0, (back.output, back.exception)
        assert source.list_offsets("t1") == target.list_offsets("t1")
        source.write_arrow("t1", values("writable again"))


def _fill(source: Client) -> None:
    source.create_acls([
        AclBinding(
            resource_type=kind, name=name, pattern_type="literal", principal="User:ANONYMOUS",
            host="*", operation="all", permission="allow",
        )
        for kind, name in (("topic", "*"), ("group", "*"), ("cluster", "kafka-cluster"))
    ])  # fmt: skip
    for number in range(TOPICS):
        source.create_topic(f"t{number}", 2)
        source.write_arrow(f"t{number}", values("first"), partition=0)
    for group in range(GROUPS):
        source.commit_offsets(f"g{group}", {(f"t{number}", 0): 1 for number in range(TOPICS)})


def _load(bootstrap: str, written: list[str]) -> None:
    """Write until the cluster rejects a record, and note each acknowledged one."""
    from penstock.base.errors import PenstockError

    with Client(bootstrap) as client:
        while True:
            text = f"load {len(written)}"
            try:
                client.write_arrow(f"t{len(written) % TOPICS}", values(text))
            except PenstockError:
                return
            written.append(text)
