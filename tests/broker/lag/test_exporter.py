"""Metrics under kafka_exporter's names: their values, and those of the real exporter."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from compat.conftest import missing
from compat.daemons import Daemon, Series, series_of
from compat.parts import PartMissing, program
from confluent_kafka import Consumer, TopicPartition

from tests.broker.lag.scene import TOPIC, Scene
from tests.ports import free_port

NOT_OURS = {"kafka_exporter_build_info", "kafka_broker_info"}
"""Metrics of the exporter itself."""
NAMES = {
    "kafka_brokers", "kafka_topic_partitions", "kafka_topic_partition_current_offset",
    "kafka_topic_partition_oldest_offset", "kafka_topic_partition_leader",
    "kafka_topic_partition_replicas", "kafka_topic_partition_in_sync_replica",
    "kafka_topic_partition_leader_is_preferred",
    "kafka_topic_partition_under_replicated_partition", "kafka_consumergroup_members",
    "kafka_consumergroup_current_offset", "kafka_consumergroup_current_offset_sum",
    "kafka_consumergroup_lag", "kafka_consumergroup_lag_sum",
}  # fmt: skip


def shared(found: Series) -> Series:
    """Return the metrics that the broker and the exporter have."""
    return {
        series: value
        for series, value in found.items()
        if series[0].startswith("kafka_") and series[0] not in NOT_OURS
    }


@asynccontextmanager
async def populated(scene: Scene) -> AsyncIterator[None]:
    """Two topics, a group with a member and one without, and a log that begins at 3."""
    await scene.create(partitions=2)
    await scene.create("other")
    await scene.produce(10)
    await scene.produce(7, partition=1)
    await scene.produce(5, "other")
    for future in scene.admin.delete_records([TopicPartition("other", 0, 3)]).values():
        await asyncio.to_thread(future.result)
    await scene.commit("simple", 4)
    await scene.commit("simple", 7, partition=1)
    member = Consumer(
        scene.conf | {"group.id": "member", "auto.offset.reset": "earliest"}
        | {"enable.auto.commit": False}
    )  # fmt: skip

    def read() -> None:
        member.subscribe(["other"])
        message = member.poll(60)
        assert message is not None
        assert message.error() is None
        member.commit(message, asynchronous=False)

    await asyncio.to_thread(read)
    yield
    await asyncio.to_thread(member.close)


async def own_series(scene: Scene) -> Series:
    status, text = await scene.get("/metrics/kafka_exporter")
    assert status == 200
    return shared(series_of(text))


async def test_values(scene: Scene) -> None:
    async with populated(scene):
        found = await own_series(scene)
    assert {name for name, _ in found} == NAMES

    def value(name: str, **labels: str) -> float:
        return found[f"kafka_{name}", frozenset(labels.items())]

    assert value("brokers") == 1
    assert value("topic_partitions", topic=TOPIC) == 2
    assert value("topic_partition_current_offset", topic=TOPIC, partition="1") == 7
    assert value("topic_partition_oldest_offset", topic="other", partition="0") == 3
    assert value("consumergroup_lag", consumergroup="simple", topic=TOPIC, partition="0") == 6
    assert value("consumergroup_lag_sum", consumergroup="simple", topic=TOPIC) == 6
    assert value("consumergroup_current_offset_sum", consumergroup="simple", topic=TOPIC) == 11
    assert value("consumergroup_lag", consumergroup="member", topic="other", partition="0") == 1
    assert value("consumergroup_members", consumergroup="member") == 1
    assert value("consumergroup_members", consumergroup="simple") == 0


async def test_metrics_has_the_state_of_groups_and_not_the_exporters(scene: Scene) -> None:
    await scene.create()
    await scene.produce(5)
    for offset in (3, 2):
        await scene.commit("g", offset)
    await scene.commit("h", 5)
    _, text = await scene.get("/metrics")
    lines = text.splitlines()
    assert 'penstock_group_state{consumergroup="g"} 6.0' in lines
    assert 'penstock_group_state{consumergroup="h"} 1.0' in lines
    assert 'penstock_group_states{state="REWIND"} 1.0' in lines
    assert 'penstock_group_lag_seconds{consumergroup="h"} 0.0' in lines
    assert any(line.startswith('penstock_group_lag_seconds{consumergroup="g"} ') for line in lines)
    assert "penstock_group_windows 2.0" in lines
    assert "kafka_topic_partition_in_sync_replica" not in text


async def test_the_list_of_groups_begins_with_the_worst(scene: Scene) -> None:
    await scene.create()
    await scene.produce(5)
    for group, offset in (("a", 5), ("b", 3), ("b", 2), ("c", 1)):
        await scene.commit(group, offset)
    _, answer = await scene.get("/v1/lag")
    found = [(row["group_id"], row["state"], row["lag_records"]) for row in answer["groups"]]
    assert found == [("b", "REWIND", 3), ("c", "OK", 4), ("a", "OK", 0)]
    assert answer["states"]["OK"] == 2
    _, answer = await scene.get("/v1/lag?state=REWIND")
    assert [row["group_id"] for row in answer["groups"]] == ["b"]


@pytest.mark.long
async def test_the_real_exporter_agrees(scene: Scene, tmp_path: Path) -> None:
    try:
        executable = program("kafka_exporter", "1.9.0")
    except PartMissing as error:
        missing(error)
    address = f"127.0.0.1:{free_port()}"
    command = [executable, f"--kafka.server={scene.bootstrap}", f"--web.listen-address={address}"]
    exporter = Daemon(command, tmp_path / "log", f"http://{address}")
    async with populated(scene):
        with exporter, suppress(TimeoutError):  # a scrape may lack the last series
            ours = await own_series(scene)
            theirs: Series = {}
            async with asyncio.timeout(60):
                while ours != theirs:
                    theirs = shared(await asyncio.to_thread(exporter.metrics))
                    await asyncio.sleep(0.05)
    assert {name for name, _ in theirs} == NAMES
    assert ours == theirs
