"""Two brokers: each evaluates its own groups, also in partitions that the other one leads."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from uuid import UUID

from confluent_kafka import TopicPartition as Where

from penstock.base.ids import TopicPartition
from penstock.broker.groups.runtime.saving import owner_of
from penstock.broker.server import BrokerServer
from tests.broker.lag.scene import SECOND, TOPIC, MovedClock, Scene
from tests.broker.test_replicated import Cluster

TOPIC_ID = UUID(int=5)


def group_of(server: BrokerServer, broker_id: int) -> str:
    names = (f"g{number}" for number in range(100))
    image = server.cluster.image
    return next(name for name in names if owner_of(image, name).broker_id == broker_id)


async def test_a_group_is_evaluated_by_its_coordinator(tmp_path: Path, postgres_url: str) -> None:
    clock = MovedClock()
    cluster = Cluster(tmp_path, postgres_url)
    cluster.clocks = {1: clock, 2: clock}
    cluster.settings = {"admin.listener": "127.0.0.1:0", "broker.session.timeout.ms": 30_000}
    async with cluster.running(1, 2):
        one, two = cluster.brokers[1], cluster.brokers[2]
        await one.control.create_topic(
            name=TOPIC, topic_id=TOPIC_ID, partitions=[[1], [2]], configs={}
        )
        scene, other = Scene(one, clock), Scene(two, clock)
        mine, theirs = group_of(one, 1), group_of(one, 2)
        for partition in (0, 1):
            await scene.produce(100, partition=partition)
        for index in range(10):
            await scene.commit(mine, 10, partition=0, step_ms=0)
            await scene.commit(mine, 10 + index, partition=1)
            await one.assembly.lag.sample()
        await other.commit(theirs, 100)
        found = await scene.lag(mine)
        assert [
            (row["partition"], row["state"], row["lag_records"]) for row in found["partitions"]
        ] == [(0, "STALL", 90), (1, "OK", 81)]
        assert all(90 < row["seconds_behind"] < 200 for row in found["partitions"])
        status, answer = await scene.get(f"/v1/groups/{theirs}")
        assert (status, answer["error"]) == (421, "not_coordinator")
        cluster_id = one.cluster.image.cluster_id
        status, _ = await scene.get(f"/v3/kafka/{cluster_id}/consumer/{theirs}/status")
        assert status == 421
        for asked, expected in ((scene, [mine]), (other, [theirs])):
            _, answer = await asked.get("/v1/lag")
            assert [row["group_id"] for row in answer["groups"]] == expected
            _, answer = await asked.get(f"/v3/kafka/{cluster_id}/consumer")
            assert answer["consumers"] == expected
        await _the_command_asks_both(scene, {mine: "STALL", theirs: "OK"})
        await _exports_are_disjoint(scene, other)
        await _records_deleted_elsewhere_are_an_error(scene, mine)
        await scene.close()
        await other.close()


async def _the_command_asks_both(scene: Scene, states: dict[str, str]) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "penstock", "-b", scene.bootstrap, "group", "watch", "--once",
        "--output", "json", stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, _ = await process.communicate()
    assert {row["group_id"]: row["state"] for row in json.loads(out)} == states


async def _exports_are_disjoint(scene: Scene, other: Scene) -> None:
    """Check that each partition is exported by exactly one broker."""
    _, first = await scene.get("/metrics/kafka_exporter")
    _, second = await other.get("/metrics/kafka_exporter")
    name = "kafka_topic_partition_current_offset{"
    both = [line for text in (first, second) for line in text.splitlines() if name in line]
    assert sorted(both) == [
        f'{name}partition="{partition}",topic="{TOPIC}"}} 100.0' for partition in (0, 1)
    ]
    assert (first + second).count("kafka_topic_partitions{") == 1


async def _records_deleted_elsewhere_are_an_error(scene: Scene, group: str) -> None:
    for future in scene.admin.delete_records([Where(TOPIC, 1, 60)]).values():
        await asyncio.to_thread(future.result)
    found = await scene.lag(group)
    assert [row["state"] for row in found["partitions"]] == ["STALL", "ERR"]
    assert found["partitions"][1]["explanation"] == (
        "Retention deleted 41 records before the group read them."
    )
    unread = await scene.server.assembly.lag.logs.unread(TopicPartition(TOPIC, 1), 60)
    assert (unread.start, unread.empty) == (60, False)
    assert abs(unread.timestamp_ms - scene.server.clock.now_ms()) < 1_000 * SECOND
