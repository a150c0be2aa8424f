"""Tiered topics on a running broker: their configurations, and reads from their start."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, IsolationLevel, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from penstock.base.errors import PenstockError
from penstock.base.settings import load
from penstock.broker.net.errors import InvalidConfig
from penstock.broker.topics.admin import check_tiers
from penstock.partitions import LocalPartition
from penstock.records.extents import EARLIEST_LOCAL, EARLIEST_PENDING_UPLOAD, LATEST_TIERED
from penstock.storage import LogConfig
from penstock.testing import Broker
from tests.broker.handlers.calls import names, versions
from tests.broker.wire_client import WireClient

SETTINGS = {
    "remote.log.storage.system.enable": True,
    "remote.log.manager.task.interval.ms": 20,
    "log.checkpoint.interval.ms": 100,
    "diskless.sweep.interval.ms": 50,
    "diskless.sweep.unreferenced.grace.ms": 0,
}
TIERED = {
    "remote.storage.enable": "true",
    "retention.ms": "-1",
    "internal.segment.bytes": "50000",
    "local.retention.bytes": "60000",
    "file.delete.delay.ms": "0",
    "index.interval.bytes": "1000",
}
RECORDS = 4000
SECONDS = 60.0
WHERE = TopicPartition("t", 0)


def refusal(
    configs: Mapping[str, str], current: Mapping[str, str] | None = None, *, enabled: bool = True
) -> str:
    try:
        check_tiers("t", current or {}, configs, load(LogConfig, dict(configs)), enabled=enabled)
    except InvalidConfig as error:
        return str(error)
    return ""


ON = {"remote.storage.enable": "true"}


@pytest.mark.parametrize(
    ("configs", "word"),
    [
        (ON, ""),
        ({**ON, "cleanup.policy": "compact"}, "cleanup.policy"),
        ({**ON, "cleanup.policy": "compact,delete"}, "cleanup.policy"),
        ({**ON, "diskless.enable": "true"}, "diskless.enable"),
        ({**ON, "local.retention.ms": "5", "retention.ms": "5"}, ""),
        ({**ON, "local.retention.ms": "6", "retention.ms": "5"}, "local.retention.ms = 6"),
        ({**ON, "local.retention.ms": "-1", "retention.ms": "5"}, "local.retention.ms = -1"),
        ({**ON, "local.retention.ms": "-1", "retention.ms": "-1"}, ""),
        ({**ON, "local.retention.bytes": "6", "retention.bytes": "5"}, "local.retention.bytes"),
        ({**ON, "remote.log.copy.disable": "true"}, ""),
        ({**ON, "remote.log.copy.disable": "true", "local.retention.ms": "5"}, "copy.disable"),
        ({"local.retention.ms": "5"}, ""),
    ],
)
def test_which_configurations_a_tiered_topic_may_have(configs: dict[str, str], word: str) -> None:
    found = refusal(configs)
    assert word in found
    assert bool(found) is bool(word)


def test_brokers_without_tiers_reject_tiered_topics() -> None:
    assert "remote.log.storage.system.enable" in refusal(ON, enabled=False)
    assert refusal({**ON, "retention.ms": "5"}, ON, enabled=False) == ""


def test_tiers_are_disabled_only_with_their_deletion() -> None:
    assert "remote.log.delete.on.disable" in refusal({}, ON)
    assert refusal({"remote.log.delete.on.disable": "true"}, ON) == ""


# -- a running broker


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(SETTINGS, directory=tmp_path) as running:
        yield running


@pytest.fixture(scope="module")
def tiered() -> Iterator[Broker]:
    """Start a broker whose topic `t` is archived, for tests that change nothing."""
    with Broker(SETTINGS) as running:
        running.create_topic("t", 1, TIERED)
        fill(running)
        archived(running)
        yield running


def wait_for(there: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + SECONDS
    while not (found := there()):
        assert time.monotonic() < deadline, there
        time.sleep(0.02)
    return found


def partition_of(broker: Broker) -> LocalPartition:
    assert broker.server is not None
    found = broker.server.partitions.partition("t", 0)
    assert isinstance(found, LocalPartition)
    return found


def fill(broker: Broker, *, transactions: bool = False) -> list[bytes]:
    """Produce; with transactions every third hundred of records is aborted, and left out here."""
    options: dict[str, Any] = {"bootstrap.servers": broker.bootstrap, "batch.size": 5000}
    if transactions:
        options["transactional.id"] = "tiers"
    producer = Producer(options)
    if transactions:
        producer.init_transactions()
    kept: list[bytes] = []
    for first in range(0, RECORDS, 100):
        values = [b"%06d" % number + bytes(100) for number in range(first, first + 100)]
        aborted = transactions and first % 300 == 0
        if transactions:
            producer.begin_transaction()
        for number, value in enumerate(values, first):
            producer.produce("t", value=value, partition=0, timestamp=1_000_000 + number)
        producer.flush()
        if transactions:
            producer.abort_transaction() if aborted else producer.commit_transaction()
        kept += [] if aborted else values
    return kept


def archived(broker: Broker) -> LocalPartition:
    """Wait until all closed segments are in the archive, and most of the log is there alone."""
    partition = partition_of(broker)

    def done() -> bool:
        tiers = partition.tiers
        assert tiers is not None
        closed = partition.log.state.segments[-1].base_offset
        return tiers.tiered_end == closed and partition.log.log_start_offset > closed // 2

    wait_for(done)
    return partition


def consumed(
    broker: Broker, count: int, *, start: int = 0, isolation: str = "read_committed"
) -> list[bytes]:
    options = {"group.id": "g", "isolation.level": isolation, "auto.offset.reset": "error"}
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, **options})
    consumer.assign([TopicPartition("t", 0, start)])
    values: list[bytes] = []
    deadline = time.monotonic() + SECONDS
    while len(values) < count and time.monotonic() < deadline:
        for message in consumer.consume(1000, 0.5):
            assert message.error() is None, message.error()
            values.append(message.value() or b"")
    consumer.close()
    return values


def listed(broker: Broker, spec: OffsetSpec, isolation: Any = None) -> Any:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    level = isolation or IsolationLevel.READ_UNCOMMITTED
    [answer] = admin.list_offsets({WHERE: spec}, isolation_level=level).values()
    return answer.result()


def test_local_files_go_by_the_interval_of_the_tiers(tmp_path: Path) -> None:
    """The default of log.retention.check.interval.ms, five minutes, would delete nothing here."""
    with Broker({**SETTINGS, "remote.log.manager.task.interval.ms": 500}, directory=tmp_path) as it:
        it.create_topic("t", 1, TIERED)
        partition, most = partition_of(it), 0
        producer = Producer({"bootstrap.servers": it.bootstrap, "batch.size": 5000})
        sent, per_second = 0, 400
        begun = time.monotonic()
        while sent < 8 * per_second:  # 1.6 MB
            producer.produce("t", value=bytes(500), partition=0)
            sent += 1
            producer.poll(max(0.0, begun + sent / per_second - time.monotonic()))
            most = max(most, partition.log.size_bytes)
        producer.flush()
        wait_for(lambda: partition.log.size_bytes <= 60_000 + 50_000)
        # A segment, an interval of half a second, and the seconds of the housekeeping.
        assert most < 60_000 + 50_000 + per_second * 560 * (0.5 + 3)


def test_a_consumer_reads_from_the_start_through_the_archive(broker: Broker) -> None:
    broker.create_topic("t", 1, TIERED)
    sent = fill(broker)
    partition = archived(broker)
    assert partition.log_start_offset == 0
    assert consumed(broker, RECORDS) == sent
    assert consumed(broker, RECORDS - 77, start=77) == sent[77:]
    assert broker.server is not None
    assert broker.server.tiers is not None
    assert broker.server.tiers.counters.fetched_bytes > 100_000
    assert listed(broker, OffsetSpec.earliest()).offset == 0
    found = listed(broker, OffsetSpec.for_timestamp(1_000_123))
    assert (found.offset, found.timestamp) == (123, 1_000_123)
    late = partition.log.log_start_offset + 5
    assert listed(broker, OffsetSpec.for_timestamp(1_000_000 + late)).offset == late
    assert listed(broker, OffsetSpec.max_timestamp()).offset == RECORDS - 1


@pytest.mark.parametrize(
    ("timestamp", "known_from"),
    [(EARLIEST_LOCAL, 8), (LATEST_TIERED, 9), (EARLIEST_PENDING_UPLOAD, 11)],
)
def test_tiers_are_listed_from_the_version_on_that_knows_them(
    tiered: Broker, timestamp: int, known_from: int
) -> None:
    partition = partition_of(tiered)
    assert partition.tiers is not None
    end = partition.tiers.tiered_end
    expected = {
        EARLIEST_LOCAL: partition.log.log_start_offset,
        LATEST_TIERED: end - 1,
        EARLIEST_PENDING_UPLOAD: end,
    }
    assert 0 < expected[EARLIEST_LOCAL] < end

    found: dict[int, tuple[str, int, int]] = {}

    async def ask() -> None:
        host, _, port = tiered.bootstrap.partition(":")
        client = await WireClient.connect((host, int(port)))
        asked = {"partition_index": 0, "timestamp": timestamp, "current_leader_epoch": -1}
        request = {
            "replica_id": -1, "isolation_level": 0, "timeout": 1000,
            "topics": [{"name": "t", "partitions": [asked]}],
        }  # fmt: skip
        for version in versions("ListOffsets"):
            answer = await client.call("ListOffsets", version, request)
            [row] = answer.topics[0].partitions
            offset, epoch = row.offset, getattr(row, "leader_epoch", 0)
            found[version] = names(row.error_code), offset, epoch
        await client.close()

    asyncio.run(ask())
    for version, (error, offset, epoch) in found.items():
        if version < known_from:
            assert error == "unsupported_version", version
        else:
            assert (error, offset, epoch) == ("none", expected[timestamp], 0), version
    assert max(found) >= known_from


def test_archived_records_survive_a_kill(tmp_path: Path) -> None:
    with Broker(SETTINGS, directory=tmp_path, process=True) as broker:
        broker.create_topic("t", 1, TIERED)
        sent = fill(broker)
        logs = tmp_path / "log" / "t-0"
        wait_for(lambda: len(list(logs.glob("*.log"))) < 4)
        broker.kill()
        broker.start()
        assert listed(broker, OffsetSpec.earliest()).offset == 0
        assert consumed(broker, RECORDS) == sent


def test_readers_of_committed_records_see_no_aborted_ones(broker: Broker) -> None:
    broker.create_topic("t", 1, TIERED)
    kept = fill(broker, transactions=True)
    archived(broker)
    assert consumed(broker, len(kept), isolation="read_committed") == kept
    every = consumed(broker, RECORDS, isolation="read_uncommitted")
    assert len(every) == RECORDS


def test_records_are_deleted_in_the_archive_too(broker: Broker) -> None:
    broker.create_topic("t", 1, TIERED)
    sent = fill(broker)
    partition = archived(broker)
    before = partition.log.log_start_offset
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    [deleted] = admin.delete_records([TopicPartition("t", 0, 1234)]).values()
    assert deleted.result().low_watermark == 1234
    assert partition.log.log_start_offset == before
    assert listed(broker, OffsetSpec.earliest()).offset == 1234
    assert consumed(broker, RECORDS - 1234, start=1234) == sent[1234:]
    broker.restart()
    assert listed(broker, OffsetSpec.earliest()).offset == 1234


def test_a_deleted_topic_leaves_no_objects(broker: Broker, tmp_path: Path) -> None:
    broker.create_topic("t", 1, TIERED)
    fill(broker)
    archived(broker)
    objects = tmp_path / "objects" / "archive"
    assert any(path.is_file() for path in objects.rglob("*"))
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    [gone] = admin.delete_topics(["t"]).values()
    gone.result()
    wait_for(lambda: not any(path.is_file() for path in objects.rglob("*")))


def test_a_topic_that_is_tiered_no_more_begins_with_its_log(broker: Broker, tmp_path: Path) -> None:
    broker.create_topic("t", 1, TIERED)
    fill(broker)
    partition = archived(broker)
    with broker.client() as client:
        with pytest.raises(PenstockError, match=r"delete\.on\.disable"):
            client.alter_configs("topic", "t", {"remote.storage.enable": "false"})
        client.alter_configs(
            "topic",
            "t",
            {"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"},
        )
    wait_for(lambda: partition.tiers is None)
    assert listed(broker, OffsetSpec.earliest()).offset == partition.log.log_start_offset > 0
    objects = tmp_path / "objects" / "archive"
    wait_for(lambda: not any(path.is_file() for path in objects.rglob("*")))
