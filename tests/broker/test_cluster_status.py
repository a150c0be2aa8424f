"""`penstock cluster status` on brokers that come and go."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.broker.test_replicated import Cluster, knows, until

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
async def trio(tmp_path: Path, postgres_url: str) -> AsyncIterator[Cluster]:
    made = Cluster(tmp_path, postgres_url)
    for node_id in (1, 2, 3):
        await made.start(node_id)
    await until(lambda: all(knows(one, 3) for one in made.brokers.values()))
    yield made
    for node_id in list(made.brokers):
        await made.stop(node_id)


async def asked(cluster: Cluster, *words: str) -> str:
    host, port = next(iter(cluster.brokers.values())).kafka_address
    command = [sys.executable, "-m", "penstock", "cluster", "status", "-b", f"{host}:{port}"]
    ran = await asyncio.to_thread(
        subprocess.run, [*command, *words], capture_output=True, check=True, env=os.environ
    )
    return ran.stdout.decode()


async def facts(cluster: Cluster) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(await asked(cluster, "--output", "json"))
    return found


async def test_what_is_behind_and_what_refuses_is_shown(trio: Cluster) -> None:
    leader = await trio.create(minimum=2)
    found = await facts(trio)
    assert found["partitions"] == []
    assert {one["broker"]: one["leads"] for one in found["brokers"]} == {
        one: int(one == leader) for one in (1, 2, 3)
    }
    first, second = [one for one in (1, 2, 3) if one != leader]
    await trio.stop(first)
    (row,) = (await facts(trio))["brokers"][first - 1 : first]
    assert (row["address"], row["copies"]) == ("gone", 1)
    image = trio.brokers[leader].cluster
    await until(lambda: first not in image.image.topics["t"].partitions[0].isr)
    (lacking,) = (await facts(trio))["partitions"]
    assert (lacking["state"], lacking["needed"], lacking["leader"]) == ("behind", 2, leader)
    await trio.stop(second)
    await until(lambda: image.image.topics["t"].partitions[0].isr == (leader,))
    (lacking,) = (await facts(trio))["partitions"]
    assert lacking["state"] == "refusing"
    shown = await asked(trio)
    assert "refusing" in shown
    assert "gone" in shown
    await trio.start(first)
    silent = await trio.fall_silent(leader)
    await until(lambda: knows(trio.brokers[first], 1))
    (lacking,) = (await facts(trio))["partitions"]
    assert lacking["state"] == "stopped"
    await silent.stop()
