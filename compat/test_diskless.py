"""Diskless topics through foreign clients: the short form, for every run.

`make compat-diskless` runs the whole suite with every topic diskless, on SQLite and a directory and
on PostgreSQL and S3.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from compat.conftest import missing
from compat.drivers import DRIVERS, Driver, eventually
from compat.drivers.confluent import Confluent
from compat.parts import PartMissing
from compat.scenes import in_order, plain_records, with_offsets
from compat.servers import PenstockProcess


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PenstockProcess]:
    """A broker that makes every topic diskless."""
    directory: Path = tmp_path_factory.mktemp("diskless")
    configs = {"log.diskless.enable": "true", "group.initial.rebalance.delay.ms": "0"}
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
    assert [one.value for one in in_order(client.consume(name, starts, 300))] == values
    assert [one.value for one in in_order(helper.consume(name, starts, 300))] == values
    assert helper.bounds(name, range(3)) == dict.fromkeys(range(3), (0, 100))
    if "join" in client.able:
        member = client.join(f"group-{name}", name)
        eventually(lambda: len(member.records()) == 300, lambda: str(len(member.records())))
        member.close()
    assert list((broker.directory / "data" / "objects" / "wal").iterdir())
    assert not list((broker.directory / "data" / "log").glob(f"{name}-*"))
