"""`penstock cluster status` and `penstock doctor` on brokers that come and go."""

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
    async with made.running(1, 2, 3):
        yield made


async def asked(cluster: Cluster, *words: str, status: int = 0) -> str:
    host, port = next(iter(cluster.brokers.values())).kafka_address
    command = [sys.executable, "-m", "penstock", *words, "-b", f"{host}:{port}"]
    ran = await asyncio.to_thread(subprocess.run, command, capture_output=True, env=os.environ)
    assert ran.returncode == status, ran.stdout.decode() + ran.stderr.decode()
    return ran.stdout.decode()


async def facts(cluster: Cluster) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        await asked(cluster, "cluster", "status", "--output", "json")
    )
    return found


async def diagnosis(cluster: Cluster, *, status: int = 0) -> dict[str, str]:
    """Return the doctor's finding about partitions."""
    said = await asked(cluster, "doctor", "--output", "json", status=status)
    (finding,) = [load for load in json.loads(said) if load["check"] == "partitions"]
    return dict(finding)


@pytest.mark.long
async def test_what_is_behind_and_what_refuses_is_shown(trio: Cluster) -> None:
    leader = await trio.create(minimum=2)
    found = await facts(trio)
    assert found["partitions"] == []
    assert {row["broker"]: row["leads"] for row in found["brokers"]} == {
        broker_id: int(broker_id == leader) for broker_id in (1, 2, 3)
    }
    healthy = await diagnosis(trio)
    assert (healthy["status"], healthy["cause"]) == (
        "ok",
        "1 partition; all have leaders, and all replicas are in sync",
    )
    first, second = [broker_id for broker_id in (1, 2, 3) if broker_id != leader]
    await trio.stop(first)
    (row,) = (await facts(trio))["brokers"][first - 1 : first]
    assert (row["address"], row["copies"]) == ("gone", 1)
    image = trio.brokers[leader].cluster
    await until(lambda: first not in image.image.topics["t"].partitions[0].isr)
    (lacking,) = (await facts(trio))["partitions"]
    assert (lacking["state"], lacking["needed"], lacking["leader"]) == ("behind", 2, leader)
    behind = await diagnosis(trio)
    assert behind["status"] == "warn"
    assert behind["cause"].endswith(f"not fully replicated; broker {first} not registered")
    await trio.stop(second)
    await until(lambda: image.image.topics["t"].partitions[0].isr == (leader,))
    (lacking,) = (await facts(trio))["partitions"]
    assert lacking["state"] == "refusing"
    refusing = await diagnosis(trio, status=1)
    assert refusing["cause"].startswith(
        "t-0: fewer replicas in sync than the 2 that must acknowledge"
    )
    assert f"start brokers {first}, {second}," in refusing["fix"]
    shown = await asked(trio, "cluster", "status")
    assert "refusing" in shown
    assert "gone" in shown
    await trio.start(first)
    silent = await trio.fall_silent(leader)
    await until(lambda: knows(trio.brokers[first], 1))
    (lacking,) = (await facts(trio))["partitions"]
    assert lacking["state"] == "stopped"
    assert "t-0: no leader; " in (await diagnosis(trio, status=1))["cause"]
    await silent.stop()


async def test_copies_of_a_broker_that_does_not_run_are_not_called_current(
    tmp_path: Path, postgres_url: str
) -> None:
    made = Cluster(tmp_path, postgres_url)
    made.settings["broker.session.timeout.ms"] = 60_000
    async with made.running(1, 2, 3):
        leader = await made.create()
        killed = next(broker_id for broker_id in (1, 2, 3) if broker_id != leader)
        silent = await made.fall_silent(killed)
        for server in silent._servers:
            server.close()
        found = json.loads(await asked(made, "cluster", "status", "--output", "json", status=1))
        rows = {row["broker"]: (row["state"], row["behind"]) for row in found["brokers"]}
        assert rows[killed] == ("not running", None)
        assert rows[leader] == ("ready", 0)
        shown = await asked(made, "cluster", "status", status=1)
        assert "3 brokers, 2 ready" in shown
        assert "unknown" in shown
        image = made.brokers[leader].cluster
        await until(lambda: killed not in image.image.topics["t"].partitions[0].isr)
        finding = await diagnosis(made, status=1)
        assert finding["cause"] == (f"t-0: not fully replicated; broker {killed} not responding")
        assert finding["fix"].startswith(f"start broker {killed}, ")
        await silent.stop()
