"""Partitions that stop are named within 10 seconds, in the status, the metrics and the log."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.base.metrics import render
from penstock.mirror import running as mirror_running
from penstock.mirror.page import samples
from penstock.mirror.watching import Watch
from penstock.testing import Broker
from tests.mirror.bed import Address, mirror, mirror_file, rows, running, wait_for
from tests.postgres import PostgresServer

WITHIN_SECONDS = 10.0


@pytest.fixture
def clusters() -> Iterator[tuple[Broker, Broker]]:
    with Broker() as source, Broker() as target:
        yield source, target


def shown(watch: Watch, partition: int, reason: str, log: pytest.LogCaptureFixture) -> bool:
    """Return whether a partition of `orders` is named with a reason in all three places."""
    metrics = bytes(render(samples(watch, 0))).decode()
    status = watch.status.status
    line = f'partition_stopped{{mirror="dr",partition="{partition}",topic="orders"}} 1.0'
    name = f"orders-{partition}"
    return (
        status.state == "RETRYING"
        and name in str(status.cause)
        and reason in str(status.cause)
        and name in status.facts.get("stopped", ())
        and line in metrics
        and any(name in text and reason in text for text in log.messages)
    )


def values(broker: Broker, topic: str) -> list[bytes]:
    with broker.client() as client:
        return [row["value"] for row in rows(client, topic)]


def test_a_topic_that_the_target_rejects_does_not_stop_others(
    tmp_path: Path, clusters: tuple[Broker, Broker], caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(mirror_running, "REJECTED_SECONDS", 3.0)
    caplog.set_level(logging.WARNING)
    source, target = clusters
    large = pa.table({"value": [b"x" * 2_000]})
    with source.client() as left, target.client() as right:
        for topic in ("orders", "b.orders"):
            left.create_topic(topic, 1)
            right.create_topic(topic, 1, {"max.message.bytes": "1000"})
        with running(mirror_file(tmp_path, "dr", source, target)) as watch:
            left.write_arrow("orders", large)
            wait_for(lambda: shown(watch, 0, "MESSAGE_TOO_LARGE", caplog), WITHIN_SECONDS)
            left.write_arrow("b.orders", pa.table({"value": [b"small"]}))
            wait_for(lambda: values(target, "b.orders") == [b"small"])
            right.alter_configs("topic", "orders", {}, delete=["max.message.bytes"])
            wait_for(lambda: len(values(target, "orders")) == 1)
            wait_for(lambda: watch.status.status.state == "RUNNING" and not watch.stopped)


def test_a_topic_that_was_deleted_from_the_target_is_reported(
    tmp_path: Path, clusters: tuple[Broker, Broker]
) -> None:
    source, target = clusters
    lines: list[str] = []
    with source.client() as left, target.client() as right:
        left.create_topic("orders", 1)
        left.write_arrow("orders", pa.table({"value": [b"first"] * 5}))
        file = mirror_file(tmp_path, "dr", source, target)
        mirror(file)
        right.delete_topic("orders")
        left.write_arrow("orders", pa.table({"value": [b"later"]}))
        mirror(file, report=lines.append)
        assert lines == [
            "create topic orders with 1 partitions; it was deleted from the target, and records"
            " that were mirrored before are not copied again"
        ]
        assert values(target, "orders") == [b"later"]


@pytest.mark.long
def test_a_partition_without_its_leader_is_named_and_others_are_mirrored(
    tmp_path: Path, postgres: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    settings = {
        "control.url": postgres.schema(), "replication.listener": "127.0.0.1:0",
        "diskless.storage.url": tmp_path.as_uri(),
    }  # fmt: skip
    with ExitStack() as opened:
        brokers = [
            opened.enter_context(
                Broker({**settings, "node.id": node_id}, process=True, admin=False)
            )
            for node_id in (1, 2)
        ]
        target = opened.enter_context(Broker())
        source = Address(",".join(broker.bootstrap for broker in brokers))
        with brokers[0].client() as left:
            left.create_topic("orders", 2, replication_factor=1)
            topic = left.describe_topic("orders")
            dead = next(item.index for item in topic.partitions if item.leader == 2)
            with running(mirror_file(tmp_path, "dr", source, target)) as watch:
                for partition in (0, 1):
                    left.write_arrow(
                        "orders", pa.table({"value": [b"before"]}), partition=partition
                    )
                wait_for(lambda: len(values(target, "orders")) == 2)
                brokers[1].kill()
                wait_for(lambda: shown(watch, dead, "", caplog), WITHIN_SECONDS)
                assert [place[1] for place in watch.stopped] == [dead]
                left.write_arrow("orders", pa.table({"value": [b"after"]}), partition=1 - dead)
                began = time.monotonic()
                wait_for(lambda: b"after" in values(target, "orders"), WITHIN_SECONDS)
                assert time.monotonic() - began < WITHIN_SECONDS
                brokers[1].start()
                wait_for(lambda: watch.status.status.state == "RUNNING")
