"""Brokers that lose their disk get their replicas back whole, and never as an empty log."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock.control.postgres import PostgresControlPlane
from penstock.control.values.errors import ControlUnavailable
from penstock.replication.service import ReplicatedLog
from tests.broker.test_replicated import Cluster, everything, until

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
async def cluster(tmp_path: Path, postgres_url: str) -> AsyncIterator[Cluster]:
    made = Cluster(tmp_path, postgres_url)
    async with made.running(1, 2, 3):
        yield made


async def wipe(cluster: Cluster, node_id: int) -> None:
    """The broker stops, and its disk is replaced by an empty one."""
    await cluster.stop(node_id)
    shutil.rmtree(cluster.root / str(node_id))


@asynccontextmanager
async def producing(cluster: Cluster) -> AsyncIterator[list[bytes]]:
    """Produce in the background; yield the acknowledged records."""
    acknowledged: list[bytes] = []
    over = asyncio.Event()

    async def produce() -> None:
        number = 0
        while not over.is_set():
            value = b"value %d;" % number
            try:
                await cluster.produce(value)
            except (OSError, EOFError):  # a broker has stopped, and whether it took it is unknown
                continue
            acknowledged.append(value)
            number += 1

    task = asyncio.create_task(produce())
    await until(lambda: len(acknowledged) > 10)
    yield acknowledged
    over.set()
    await task


def is_whole(cluster: Cluster, node_id: int, atleast: int = 0) -> bool:
    """Whether a copy has what its leader's log has, and lacks nothing that counts."""
    leader = cluster.leader()
    if not leader:
        return False
    log, led = cluster.log(node_id), cluster.log(leader)
    return (
        log.copy.core.limbo < log.copy.core.epoch
        and log.log.log_start_offset == led.log.log_start_offset
        and log.log.durable_offset >= max(atleast, led.copy.core.mark)
    )


def follower(cluster: Cluster, *other: int) -> int:
    leader = cluster.leader()
    return next(broker_id for broker_id in cluster.brokers if broker_id not in (leader, *other))


def has_grown(acknowledged: list[bytes], count: int) -> bool:
    return len(acknowledged) > count


def without_leader(log: ReplicatedLog) -> bool:
    return log.leading is None or not log.leading.leads


async def test_a_wiped_broker_catches_up_while_producers_continue(cluster: Cluster) -> None:
    await cluster.create()
    async with producing(cluster) as acknowledged:
        first = follower(cluster)
        for wiped in (first, follower(cluster, first)):
            await wipe(cluster, wiped)
            known = len(acknowledged)
            await until(partial(has_grown, acknowledged, known + 5))
            await cluster.start(wiped)
            await until(partial(is_whole, cluster, wiped, len(acknowledged)))
        # Now another one dies, which had all of it from the beginning.
        dead = cluster.leader()
        await cluster.stop(dead)
        assert await cluster.led() != dead
    read = await cluster.values(cluster.leader())
    assert all(value in read for value in acknowledged)
    await cluster.start(dead)
    assert await cluster.led()
    for node_id in (1, 2, 3):
        await until(partial(is_whole, cluster, node_id, len(acknowledged)))
    assert everything(cluster.log(1)) == everything(cluster.log(2)) == everything(cluster.log(3))


async def test_the_leaders_own_disk_is_lost(cluster: Cluster) -> None:
    leader = await cluster.create()
    values = [b"value %d;" % number for number in range(10)]
    for value in values:
        await cluster.produce(value)
    await wipe(cluster, leader)
    await cluster.start(leader)
    await cluster.led()
    assert await cluster.produce(b"after") == 10
    read = await cluster.values(cluster.leader())
    assert all(value in read for value in values)
    await until(partial(is_whole, cluster, leader, 11))
    assert everything(cluster.log(leader)) == read


async def test_two_empty_disks_of_three_do_not_make_an_empty_topic(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    leader = await cluster.create()
    await cluster.produce(b"acknowledged")
    wiped = [broker_id for broker_id in (1, 2, 3) if broker_id != leader]
    await cluster.stop(leader)
    for node_id in wiped:
        await wipe(cluster, node_id)
    with caplog.at_level(logging.WARNING):
        for node_id in wiped:
            await cluster.start(node_id)
        told = f"brokers {wiped[0]}, {wiped[1]} may have lost acknowledged records"
        await until(lambda: told in caplog.text)
    for node_id in wiped:
        assert cluster.log(node_id).copy.core.limbo > 0
        assert without_leader(cluster.log(node_id))
    # With a majority of the disks lost, what the third one has is not known to be all.
    with caplog.at_level(logging.WARNING):
        await cluster.start(leader)
        await until(lambda: "brokers none do not answer" in caplog.text)
    assert cluster.leader() == 0
    assert all(without_leader(cluster.log(node_id)) for node_id in (1, 2, 3))


async def test_an_empty_copy_does_not_help_to_forget_what_it_had(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    leader = await cluster.create()
    await cluster.produce(b"on all")
    wiped = follower(cluster)
    absent = follower(cluster, wiped)
    await cluster.stop(absent)
    assert await cluster.produce(b"on two") == 1
    await cluster.stop(leader)
    await wipe(cluster, wiped)
    # A majority is up, and one of them has answered for "on two", but its disk is another one.
    with caplog.at_level(logging.WARNING):
        await cluster.start(absent)
        await cluster.start(wiped)
        await until(lambda: f"brokers {wiped} may have lost acknowledged" in caplog.text)
    assert f"brokers {leader} do not answer" in caplog.text
    assert cluster.leader() == 0
    await cluster.start(leader)
    following = await cluster.led()
    assert await cluster.produce(b"after") == 2
    assert b"on two" in await cluster.values(following)
    for node_id in (1, 2, 3):
        await until(partial(is_whole, cluster, node_id, 3))
    assert everything(cluster.log(1)) == everything(cluster.log(2)) == everything(cluster.log(3))


async def test_an_empty_copy_is_silent_while_the_control_plane_cannot_be_asked(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.create()
    await cluster.produce(b"before")
    wiped = follower(cluster)
    await wipe(cluster, wiped)
    asked, there = asyncio.Event(), asyncio.Event()
    ask = PostgresControlPlane.highest_reserved

    async def ask_in_vain(self: PostgresControlPlane, keys: Any) -> Any:
        asked.set()
        if not there.is_set():
            raise ControlUnavailable("it is away")
        return await ask(self, keys)

    monkeypatch.setattr(PostgresControlPlane, "highest_reserved", ask_in_vain)
    await cluster.start(wiped)
    await asked.wait()
    assert await cluster.produce(b"with the two others") == 1
    copy = cluster.log(wiped).copy
    assert (copy.silent, copy.core.promised, copy.core.authority) == (True, 0, 0)
    there.set()
    await until(partial(is_whole, cluster, wiped, 2))
