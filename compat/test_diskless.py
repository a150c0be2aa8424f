"""Diskless and tiered topics through foreign clients: the short form, for every run.

`make compat-diskless` runs the whole suite with every topic diskless, on SQLite and a directory and
on PostgreSQL and S3.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import pytest
from confluent_kafka import Producer

from compat.conftest import missing
from compat.drivers import DRIVERS, Driver, eventually
from compat.drivers.confluent import Confluent
from compat.drivers.port import WAIT_SECONDS
from compat.parts import PartMissing
from compat.scenes import in_order, plain_records, with_offsets
from compat.security import administrator, ours, read, scenario, transactions, write
from compat.servers import PenstockProcess


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PenstockProcess]:
    """A broker that makes every topic diskless, unless it says otherwise."""
    directory: Path = tmp_path_factory.mktemp("diskless")
    configs = {
        "log.diskless.enable": "true",
        "group.initial.rebalance.delay.ms": "0",
        "remote.log.storage.system.enable": "true",
        "remote.log.manager.task.interval.ms": "50",
        "log.retention.check.interval.ms": "50",
        "log.checkpoint.interval.ms": "100",
    }
    process = PenstockProcess(directory, configs=configs)
    process.start()
    yield process
    assert process.stop() == 0


@pytest.fixture
def helper(broker: PenstockProcess) -> Iterator[Driver]:
    """The client that sets the scene and checks it."""
    with Confluent(broker.bootstrap) as driver:
        yield driver


@pytest.fixture
def client(broker: PenstockProcess, request: pytest.FixtureRequest) -> Iterator[Driver]:
    """The client under test (the parameter is its name)."""
    try:
        driver = DRIVERS[request.param](broker.bootstrap)
    except PartMissing as error:
        missing(error)
    with driver:
        yield driver


@pytest.mark.parametrize("client", list(DRIVERS), indirect=True)
def test_a_client_writes_reads_and_joins(
    client: Driver, helper: Driver, broker: PenstockProcess, name: str, now_ms: int
) -> None:
    helper.create_topic(name, 3, {})
    assert helper.configs(name)["diskless.enable"] == "true"
    sent = plain_records(300, partitions=3, timestamp=now_ms)
    expected = in_order(with_offsets(sent, client.produce(name, sent, codec="gzip")))
    starts = dict.fromkeys(range(3), 0)
    values = [record.value for record in expected]
    assert [record.value for record in in_order(client.consume(name, starts, 300))] == values
    assert [record.value for record in in_order(helper.consume(name, starts, 300))] == values
    assert helper.bounds(name, range(3)) == dict.fromkeys(range(3), (0, 100))
    if "join" in client.able:
        member = client.join(f"group-{name}", name)
        eventually(lambda: len(member.records()) == 300, lambda: str(len(member.records())))
        member.close()
    assert list((broker.directory / "data" / "objects" / "wal").iterdir())
    assert not list((broker.directory / "data" / "log").glob(f"{name}-*"))


@pytest.mark.parametrize("client", list(DRIVERS), indirect=True)
def test_a_client_reads_a_tiered_topic_from_its_start(
    client: Driver, helper: Driver, broker: PenstockProcess, name: str, now_ms: int
) -> None:
    configs = {
        "diskless.enable": "false", "remote.storage.enable": "true", "retention.ms": "-1",
        "internal.segment.bytes": "4000", "local.retention.bytes": "4000",
        "file.delete.delay.ms": "0",
    }  # fmt: skip
    helper.create_topic(name, 1, configs)
    expected = []
    for start in range(0, 300, 20):  # several segments
        sent = plain_records(20, partitions=1, start=start, timestamp=now_ms)
        expected += with_offsets(sent, helper.produce(name, sent))
    files = broker.directory / "data" / "log" / f"{name}-0"

    def bases() -> list[int]:
        return sorted(int(path.stem) for path in files.glob("*.log"))

    eventually(lambda: 150 < bases()[0] <= bases()[-1], bases)
    newest = bases()[-1]
    assert in_order(client.consume(name, {0: 0}, 300)) == expected
    assert in_order(client.consume(name, {0: 99}, 201)) == expected[99:]
    assert in_order(helper.consume(name, {0: 0}, 300)) == expected
    if "bounds" in client.able:
        assert client.bounds(name, [0]) == {0: (0, 300)}
    if "offsets_at" in client.able:
        assert client.offsets_at(name, now_ms + 33, [0]) == {0: 33}
    if "tiers" in client.able:
        eventually(lambda: client.tiers(name, [0]) == {0: (bases()[0], newest - 1)}, bases)


def test_only_committed_records_become_dead_letters(broker: PenstockProcess) -> None:
    """Rejected records become dead letters, both on diskless topics; aborted ones are nobody's."""
    needs = (*read("queued", "queued"), *read("dlq.queued"))
    with administrator(broker.bootstrap) as admin, ours(broker.bootstrap, *needs) as client:
        admin.create_topic("queued")
        enabled = {"errors.deadletterqueue.group.enable": "true"}
        admin.create_topic("dlq.queued", configs=enabled)
        settings = {
            "share.auto.offset.reset": "earliest",
            "share.isolation.level": "read_committed",
            "errors.deadletterqueue.topic.name": "dlq.queued",
        }
        admin.alter_configs("group", "queued", settings)
        producer = Producer(
            {
                **scenario(broker.bootstrap, transactions("queued"), write("queued")),
                "transactional.id": "queued",
            }
        )
        producer.init_transactions(WAIT_SECONDS)
        for number, commits in enumerate((True, False, True)):
            producer.begin_transaction()
            producer.produce("queued", b"%d" % number)
            producer.flush(WAIT_SECONDS)
            end = producer.commit_transaction if commits else producer.abort_transaction
            end(WAIT_SECONDS)
        rejected: list[bytes] = []
        letters: list[bytes] = []
        deadline = monotonic() + 3 * WAIT_SECONDS
        with client.queue("queued", "queued") as queue:
            while len(letters) < 2:
                assert monotonic() < deadline, (rejected, letters)
                taken = queue.take(wait_ms=500)
                rejected += taken.table["value"].to_pylist()
                taken.reject()
                letters = client.read_arrow("dlq.queued")["value"].to_pylist()
    assert sorted(rejected) == sorted(letters) == [b"0", b"2"]
