"""`penstock topic reassign|elect|replicas` and `penstock broker drain|remove`, on four brokers."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.apps.client.session import counted
from tests.broker.test_replicated import Cluster, knows, until
from tests.broker.test_replicated_moves import check, four, holds, moved, row

pytestmark = pytest.mark.timeout(300)
__all__ = ["four"]


async def ran(cluster: Cluster, *words: str, status: int = 0) -> tuple[str, str]:
    host, port = next(iter(cluster.brokers.values())).kafka_address
    command = [sys.executable, "-m", "penstock", *words, "-b", f"{host}:{port}"]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, env=os.environ)
    assert done.returncode == status, done.stderr.decode()
    return done.stdout.decode(), done.stderr.decode()


async def facts(cluster: Cluster, *words: str) -> Any:
    return json.loads((await ran(cluster, *words, "--output", "json"))[0])


async def test_a_broker_is_drained_and_removed(four: Cluster) -> None:
    leader = await four.create()
    await four.create("two", factor=2)
    await four.create_single("one")
    for number in range(5):
        await four.produce(b"value %d" % number)
    count = sum(
        leader in topic.partitions[0].replicas
        for topic in four.brokers[1].cluster.image.topics.values()
    )
    _, refused = await ran(four, "broker", "remove", str(leader), status=1)
    assert f"broker {leader} is registered and may be running: stop it first" in refused
    planned = await facts(four, "broker", "drain", str(leader), "--dry-run")
    assert len(planned) == count
    assert row(four).move == 0
    said, told = await ran(four, "broker", "drain", str(leader))
    assert said == f"{counted(count, 'replica')} of broker {leader} moved away\n"
    assert f"of {counted(count, 'partition')} moved" in told
    await four.create("later")
    others = {1, 2, 3, 4} - {leader}
    assert set(row(four, "later").replicas) == others, "it gets nothing new"
    await ran(four, "broker", "drain", str(leader), "--undo")
    cluster = four.brokers[leader].cluster
    await until(lambda: cluster.image.broker_configs[""]["placement.excluded.brokers"] == "")
    for move in planned:
        await moved(four, tuple(move["replicas"]), move["topic"])
    await check(four, row(four).replicas, 5)
    assert await facts(four, "broker", "drain", str(leader)) == {
        "broker": leader,
        "partitions": 0,
    }
    await four.stop(leader)
    assert await facts(four, "broker", "remove", str(leader)) == {"broker": leader}
    last = min(others)
    _, refused = await ran(four, "broker", "drain", str(last), status=1)
    assert "cannot be moved: " in refused
    assert "later-0 cannot have 3 replicas: only 2 brokers are eligible" in refused
    image = four.brokers[last].cluster.image
    assert image.broker_configs[""]["placement.excluded.brokers"] == "", "nothing was changed"
    _, unknown = await ran(four, "broker", "remove", "9", status=1)
    assert "broker 9 was never registered" in unknown


@pytest.mark.long
async def test_a_stopped_broker_can_be_drained(four: Cluster) -> None:
    leader = await four.create()
    await four.produce(b"value")
    await four.stop(leader)
    await until(lambda: all(knows(broker, 3) for broker in four.brokers.values()))
    _, refused = await ran(four, "broker", "remove", str(leader), status=1)
    assert f"broker {leader} holds replicas of 1 partition(s), for example of t-0" in refused
    await ran(four, "broker", "drain", str(leader))
    await until(lambda: leader not in row(four).replicas)
    await check(four, row(four).replicas, 1)
    await ran(four, "broker", "remove", str(leader))


@pytest.mark.long
async def test_a_topic_is_reassigned_and_gets_a_new_leader(four: Cluster) -> None:
    await four.create()
    before = row(four).replicas
    last = before[2]
    target = ",".join(map(str, (last, *before[:2])))
    said, _ = await ran(four, "topic", "reassign", "t", "--replicas", target)
    assert said == "1 partition of t moved\n"
    await until(lambda: last in row(four).isr)
    (elected,) = await facts(four, "topic", "elect", "t", "-p", "0")
    assert elected == {"topic": "t", "partition": 0, "preferred": last, "outcome": "elected"}
    images = [broker.cluster for broker in four.brokers.values()]
    await until(
        lambda: all(cluster.image.topics["t"].partitions[0].leader == last for cluster in images)
    )
    (again,) = await facts(four, "topic", "elect", "t")
    assert again["outcome"] == "leads already"
    await facts(four, "topic", "reassign", "t", "--factor", "2")
    assert await moved(four, (last, before[0])) == last
    assert not holds(four, before[1])
    (shown,) = await facts(four, "topic", "replicas", "t")
    assert (shown["replicas"], shown["adding"], shown["removing"]) == ([last, before[0]], [], [])
    for words, message in (
        (["--factor", "9"], "t-0 cannot have 9 replicas: only 4 brokers are eligible"),
        (["--replicas", "1,9"], "broker 9 is not registered"),
        (["--replicas", "1"], "min.insync.replicas = 2"),
    ):
        assert message in (await ran(four, "topic", "reassign", "t", *words, status=1))[1]
    for words, message in (
        ([], "give --file, or a topic and one of --replicas, --factor, --cancel"),
        (["--replicas", "a"], "must be ids of brokers"),
        (["--factor", "2", "-p", "1"], "t has partitions 0 to 0"),
    ):
        assert message in (await ran(four, "topic", "reassign", "t", *words, status=2))[1]
    assert await facts(four, "topic", "reassign", "t", "--cancel") == {
        "topic": "t",
        "partitions": 0,
    }


@pytest.mark.long
async def test_advice_is_carried_out_as_it_is(four: Cluster, tmp_path: Path) -> None:
    await four.create(factor=2)
    before = row(four).replicas
    going = before[0]
    assert (await facts(four, "cluster", "advise"))["moves"] == []
    for number in range(5):
        await four.produce(b"value %d" % number)
    client = next(iter(four.clients.values()))
    changed = {"name": "placement.excluded.brokers", "config_operation": 0, "value": str(going)}
    resource = {"resource_type": 4, "resource_name": "", "configs": [changed]}
    body = {"resources": [resource], "validate_only": False}
    answer = await client.call("IncrementalAlterConfigs", 1, body)
    assert answer.responses[0].error_code.name == "none"
    plan = tmp_path / "moves.json"
    said = await facts(four, "cluster", "advise", "--rate", "0.001", "--write", str(plan))
    (move,) = said["moves"]
    size = move["copied_bytes"]
    assert size > 300, "the bytes of five batches, copied once"
    assert (move["why"], move["seconds"], said["seconds"]) == (
        "broker is to go",
        round(size / 1000, 1),
        round(size / 1000, 1),
    )
    (old,) = [row for row in said["brokers"] if row["broker"] == going]
    assert (old["bytes"], old["bytes_after"], old["to_go"]) == (size, 0, True)
    shown, _ = await ran(four, "cluster", "advise")
    assert f"estimate: 1 move, {size} bytes copied" in shown
    assert (await ran(four, "topic", "reassign", "--file", str(plan)))[0] == "1 partition moved\n"
    await moved(four, tuple(move["to"]))
    assert going not in row(four).replicas
    await check(four, row(four).replicas, 5)
    plan.write_text('{"partitions": 3}')
    _, refused = await ran(four, "topic", "reassign", "--file", str(plan), status=2)
    assert "moves.json: must be JSON of at most 64 MiB" in refused
