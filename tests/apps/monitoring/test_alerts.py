"""Every alert fires on its fault at a real broker, and none in an hour of health before it.

Each test scrapes a broker or agent before and after a fault, and notes the alerts that fired. Rules
are evaluated by promtool.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.apps.monitoring.alerts import GROUPS, alert_rules
from penstock.apps.monitoring.declared import declared_metrics
from penstock.apps.serve import front
from penstock.base.metrics import render
from penstock.spark.pipeline.admin import QueryMetrics
from penstock.testing import Agent, Broker
from tests.apps.monitoring.prometheus import Scrape, check, parsed, scrape
from tests.broker.lag.scene import Scene
from tests.broker.test_replicated import Cluster, until
from tests.broker.wire_client import WireClient, batch
from tests.faulty_files import SYNCS, FaultyFiles
from tests.machine import disk_of
from tests.postgres import PostgresServer, postgres_server
from tests.s3 import s3_server
from tests.security.certificates import keystore

SECONDS = 30.0
PLANTED = {
    "PenstockTargetDown", "PenstockBrokerNotReady", "PenstockObjectStoreUnreachable",
    "PenstockProcessDown", "PenstockDatabaseUnreachable", "PenstockStorageFailed",
    "PenstockDiskNearlyFull", "PenstockDiskFull", "PenstockDamagedRecords",
    "PenstockPartitionsWithoutLeader", "PenstockPartitionsUnderReplicated", "PenstockProduceSlow",
    "PenstockFetchSlow", "PenstockClientsThrottled", "PenstockCertificateExpiring",
    "PenstockCertificateNotReloaded", "PenstockDisklessBacklog", "PenstockDisklessWritesFail",
    "PenstockDeadLetters", "PenstockPipelineDeadLetters", "PenstockAgentSinkRefuses",
    "PenstockGroupFallingBehind", "PenstockGroupStopped",
}  # fmt: skip
"""Alerts with a planted fault in this module; the name of the test's call has them too."""


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("rules") / "alerts.yaml"
    file.write_text(alert_rules(declared_metrics()))
    return file


def fires(rules: Path, before: Scrape, after: Scrape, *alerts: str) -> None:
    """Assert that these alerts fire after a fault, and that no alert is even pending before it."""
    assert check(rules, before, after, alerts) == ""
    assert PLANTED.issuperset(alerts)


def healthy(broker: Broker) -> Scrape:
    """Return a scrape in which all health checks have passed."""
    return scraped(broker.admin_url, "penstock_broker_ready", 1)


def scraped(url: str, name: str, value: float) -> Scrape:
    """Scrape until some series of a metric has a value."""
    end = time.monotonic() + SECONDS
    while True:
        found = scrape(url)
        values = {held for (series, _), held in found.items() if series == name}
        if value in values:
            return found
        assert time.monotonic() < end, (name, values)
        time.sleep(0.05)


def failing(broker: Broker, name: str) -> Scrape:
    """Scrape until a health check fails."""
    end = time.monotonic() + SECONDS
    while True:
        found = scrape(broker.admin_url)
        for (series, labels), value in found.items():
            if series == "penstock_broker_check_failing" and ("check", name) in labels and value:
                return found
        assert time.monotonic() < end
        time.sleep(0.05)


def test_every_alert_has_a_planted_fault() -> None:
    assert {alert.name for group in GROUPS for alert in group.alerts} == PLANTED


def test_an_hour_of_work_raises_no_alert(rules: Path) -> None:
    """The load of a second repeats for an hour and a half."""
    with Broker() as broker, broker.client() as client:
        broker.create_topic("orders", partitions=3)
        broker.create_topic("archive", configs={"diskless.enable": "true"})
        before = healthy(broker)
        for topic in ("orders", "archive"):
            for number in range(5):
                client.write_arrow(topic, pa.table({"value": [b"%d" % number] * 100}))
            assert len(client.read_arrow(topic)) == 500
        after = scrape(broker.admin_url)
    assert sum(after.values()) > sum(before.values())
    assert check(rules, before, after, ()) == ""


def test_a_killed_broker(rules: Path) -> None:
    with Broker(process=True) as broker:
        before = healthy(broker)
        broker.kill()
        fires(rules, before, scrape(broker.admin_url), "PenstockTargetDown")
        texts = {1: b"", 2: None}
    up = {1: b"", 2: b""}
    fires(
        rules, parsed(front.metrics(up).decode()), parsed(front.metrics(texts).decode()),
        "PenstockProcessDown",
    )  # fmt: skip


def test_an_object_store_that_is_gone(rules: Path) -> None:
    with s3_server() as store:
        settings = {
            "diskless.storage.url": store.fresh_url(),
            "diskless.storage.options": [
                f"{name}={value}" for name, value in store.options().items()
            ],
            "diskless.write.timeout.ms": 1_000,
        }
        with Broker(settings) as broker, broker.client() as client:
            broker.create_topic("archive", configs={"diskless.enable": "true"})
            client.write_arrow("archive", pa.table({"value": [b"a"]}))
            before = healthy(broker)
            store.stop()
            with ThreadPoolExecutor(1) as pool:
                writing = pool.submit(_write, broker, "archive")
                failing(broker, "object store")
                after = scraped(broker.admin_url, "penstock_diskless_objects_failed_total", 1)
                store.start()
                writing.result()
    fires(
        rules, before, after, "PenstockObjectStoreUnreachable", "PenstockBrokerNotReady",
        "PenstockDisklessWritesFail",
    )  # fmt: skip


def _write(broker: Broker, topic: str) -> None:
    with broker.client() as client:
        client.write_arrow(topic, pa.table({"value": [b"late"]}))


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


def test_a_database_that_hangs(rules: Path, own_postgres: PostgresServer, tmp_path: Path) -> None:
    settings = {
        "control.url": own_postgres.url("postgres"),
        "diskless.storage.url": tmp_path.as_uri(),
    }
    with Broker(settings) as broker, broker.client() as client:
        broker.create_topic("archive", configs={"diskless.enable": "true"})
        client.write_arrow("archive", pa.table({"value": [b"a"]}))
        before = healthy(broker)
        with ThreadPoolExecutor(1) as pool:
            own_postgres.freeze()
            try:
                writing = pool.submit(_write, broker, "archive")
                failing(broker, "database")
                after = scraped(broker.admin_url, "penstock_diskless_objects_in_flight", 1)
                fires(
                    rules, before, after, "PenstockDatabaseUnreachable", "PenstockDisklessBacklog"
                )
            finally:
                own_postgres.freeze(thaw=True)
            writing.result()
        after = scraped(broker.admin_url, "penstock_diskless_objects_in_flight", 0)
        fires(rules, before, after, "PenstockProduceSlow")


@pytest.mark.long
def test_slow_fetches(rules: Path) -> None:
    with Broker() as broker:
        broker.create_topic("idle")
        before = healthy(broker)
        fetched(broker, "idle", 5_200)
        fires(rules, before, scrape(broker.admin_url), "PenstockFetchSlow")


def fetched(broker: Broker, topic: str, wait_ms: int) -> None:
    """Fetch a partition's first records, and wait for them up to a time."""

    async def fetch() -> None:
        host, _, port = broker.bootstrap.rpartition(":")
        client = await WireClient.connect((host, int(port)))
        try:
            await client.fetch(topic, 0, max_wait=wait_ms)
        finally:
            await client.close()

    asyncio.run(fetch())


async def test_a_disk_that_fails_to_sync(rules: Path, tmp_path: Path, postgres_url: str) -> None:
    cluster, disk = Cluster(tmp_path, postgres_url), FaultyFiles()
    cluster.files[1] = disk
    async with cluster.running(1):
        await cluster.create_single("t")
        await cluster.produce(b"before", "t")
        before = samples_of(cluster, 1)
        disk.fail = lambda name, path: 5 if name in SYNCS else None
        await cluster.clients[1].produce("t", batch(b"value"))
        fires(rules, before, samples_of(cluster, 1), "PenstockStorageFailed")


def samples_of(cluster: Cluster, node_id: int) -> Scrape:
    return parsed(render(cluster.brokers[node_id].registry.collect()).decode())


async def test_a_broker_that_is_gone(rules: Path, tmp_path: Path, postgres_url: str) -> None:
    cluster = Cluster(tmp_path, postgres_url)
    async with cluster.running(1, 2, 3):
        await cluster.create("replicated", factor=3)
        singles = 0
        while not any(leads(cluster, f"s{place}", 3) for place in range(singles)):
            await cluster.create_single(f"s{singles}")
            singles += 1
        before = {node_id: samples_of(cluster, node_id) for node_id in (1, 2)}
        gone = await cluster.fall_silent(3)
        server = cluster.brokers[1]
        await until(lambda: len(server.cluster.image.brokers) == 2)
        await until(lambda: cluster.leader("replicated") in (1, 2))
        led = cluster.leader("replicated")
        rows = cluster.brokers[led].cluster
        await until(lambda: 3 not in rows.image.topics["replicated"].partitions[0].isr)
        fires(
            rules, before[led], samples_of(cluster, led), "PenstockPartitionsWithoutLeader",
            "PenstockPartitionsUnderReplicated",
        )  # fmt: skip
        await gone.stop()


def leads(cluster: Cluster, topic: str, node_id: int) -> bool:
    return cluster.brokers[1].cluster.image.topics[topic].partitions[0].leader == node_id


def test_a_disk_that_fills(rules: Path, tmp_path: Path) -> None:
    with disk_of("1g", tmp_path / "disk") as place, Broker(directory=place / "data") as broker:
        healthy(broker)
        before = scrape(broker.admin_url, disk=True)
        with (place / "ballast").open("wb") as ballast:
            ballast.truncate(0)
            os.posix_fallocate(ballast.fileno(), 0, 985 << 20)
        failing(broker, "disk")
        after = scrape(broker.admin_url, disk=True)
        fires(rules, before, after, "PenstockDiskNearlyFull", "PenstockDiskFull")


def test_damaged_records(rules: Path, tmp_path: Path) -> None:
    with Broker(directory=tmp_path) as broker, broker.client() as client:
        broker.create_topic("orders")
        client.write_arrow("orders", pa.table({"value": [b"x" * 1000] * 50}))
    [segment] = tmp_path.glob("log/**/00000000000000000000.log")
    with segment.open("r+b") as file:
        file.seek(500)
        file.write(b"damage")
    with Broker(directory=tmp_path) as broker:
        before = healthy(broker)
        fetched(broker, "orders", 0)
        after = scrape(broker.admin_url)
        fires(rules, before, after, "PenstockDamagedRecords")


def test_a_client_above_its_quota(rules: Path) -> None:
    with Broker() as broker, broker.client() as client:
        broker.create_topic("orders")
        before = healthy(broker)
        client.alter_quotas({"client-id": None}, {"producer_byte_rate": 1000.0})
        for _ in range(3):
            client.write_arrow("orders", pa.table({"value": [b"x" * 5000]}))
        fires(rules, before, scrape(broker.admin_url), "PenstockClientsThrottled")


def test_a_certificate_that_expires(rules: Path, tmp_path: Path) -> None:
    path = keystore(tmp_path, days=60)
    settings: dict[str, Any] = {"listeners": "SSL://127.0.0.1:0", "ssl.keystore.location": path}
    with Broker(settings) as broker:
        before = healthy(broker)
        keystore(tmp_path, days=5)
        assert reload(broker)["failures"] == []
        soon = scrape(broker.admin_url)
        fires(rules, before, soon, "PenstockCertificateExpiring")
        Path(path).write_text("no certificate")
        assert reload(broker)["failures"]
        fires(rules, before, scrape(broker.admin_url), "PenstockCertificateNotReloaded")


def reload(broker: Broker) -> dict[str, Any]:
    request = urllib.request.Request(f"{broker.admin_url}/v1/security/reload", method="POST")
    with urllib.request.urlopen(request, timeout=30) as answer:
        return dict(json.loads(answer.read()))


def test_records_that_consumers_reject(rules: Path) -> None:
    settings = {"group.share.assignment.interval.ms": 0}
    with Broker(settings) as broker, broker.client() as client:
        broker.create_topic("orders")
        broker.create_topic("dlq.g", configs={"errors.deadletterqueue.group.enable": "true"})
        client.alter_configs("group", "g", {
            "share.auto.offset.reset": "earliest", "errors.deadletterqueue.topic.name": "dlq.g",
        })  # fmt: skip
        client.write_arrow("orders", pa.table({"value": [b"a", b"b"]}))
        before = healthy(broker)
        with client.queue("g", "orders") as queue:
            taken = queue.take(max_records=2, wait_ms=5_000)
            taken.reject()
        after = scraped(broker.admin_url, "penstock_share_dead_letters_total", len(taken))
        fires(rules, before, after, "PenstockDeadLetters")


def test_dead_letters_of_a_pipeline(rules: Path) -> None:
    metrics = QueryMetrics()
    before = parsed(render(metrics.samples("orders", "lake")).decode())
    metrics.dead_letters += 3
    after = parsed(render(metrics.samples("orders", "lake")).decode())
    fires(rules, before, after, "PenstockPipelineDeadLetters")


async def test_a_group_that_falls_behind_and_stalls(rules: Path, scene: Scene) -> None:
    await scene.create()
    await scene.get("/metrics")  # starts the probes of the health checks
    for index in range(10):
        await scene.produce(20)
        await scene.commit("behind", 10 * index)
        await scene.commit("stalled", 7, step_ms=0)
        await scene.server.assembly.lag.sample()
        if not index:
            _, text = await scene.get("/metrics")
    before = parsed(text)
    _, text = await scene.get("/metrics")
    fires(rules, before, parsed(text), "PenstockGroupFallingBehind", "PenstockGroupStopped")


def test_an_agent_without_brokers(rules: Path) -> None:
    with Broker() as broker:
        settings = {"host.drain.timeout.ms": 100}
        with Agent(broker.bootstrap, settings, http=True) as agent:
            before = scraped(agent.http_url, "penstock_host_sink_accepts", 1)
            broker.stop()
            after = scraped(agent.http_url, "penstock_host_sink_accepts", 0)
            fires(rules, before, after, "PenstockAgentSinkRefuses")
