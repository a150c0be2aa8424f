"""Metrics that the Java client pushes by itself, and Kafka's own tool that asks for them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from compat.conftest import missing
from compat.drivers import DRIVERS
from compat.parts import PartMissing
from compat.scenes import plain_records
from compat.servers import QUICK_GROUPS, PenstockProcess
from compat.test_quotas import Configs, tool

SECONDS = 60.0
WANTED = "kafka_client_producer_connection_creation_total{"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[PenstockProcess]:
    with PenstockProcess(tmp_path, configs=QUICK_GROUPS) as broker:
        yield broker


def shown(broker: PenstockProcess) -> str:
    with urlopen(f"{broker.admin_url}/metrics", timeout=30) as answer:
        text: str = answer.read().decode()
    return text


@pytest.fixture
def configs(broker: PenstockProcess) -> Configs:
    return tool(broker.bootstrap)


def test_the_java_client_pushes_what_kafkas_tool_asks_for(
    broker: PenstockProcess, configs: Configs, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = ("--entity-type", "client-metrics", "--entity-name", "all")
    configs("--alter", *one, "--add-config", "metrics=[*],interval.ms=100")
    described = configs("--describe", *one)
    assert "interval.ms=100" in described
    assert "metrics=*" in described
    monkeypatch.setenv("METRICS_PUSH", "true")
    try:
        java = DRIVERS["java"](broker.bootstrap)
    except PartMissing as error:
        missing(error)
    try:
        java.create_topic("t", 6, {})
        with java.transactional("open meanwhile") as producer:
            producer.begin()
            producer.send("t", plain_records(100, timestamp=1_700_000_000_000))
            deadline = time.monotonic() + SECONDS
            while WANTED not in (text := shown(broker)):
                assert time.monotonic() < deadline, text
                time.sleep(0.05)
            producer.end(commit=True)
    finally:
        java.close()
    assert 'client_software="apache-kafka-java"' in text
    configs("--alter", *one, "--delete-config", "metrics,interval.ms")
    assert "interval.ms=100" not in configs("--describe", *one)
