"""Agents that append to a real broker are killed under load, again and again.

The log has everything once and in order: the producer sends what it has no answer to again, with
its identity, and the broker's producer state drops what is there already.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import tempfile
from pathlib import Path

import pytest

from penstock.host import AsyncHostClient
from penstock.testing import Broker
from tests.scenarios.host.test_kill import PATIENCE_SECONDS, SIGKILLED, zygote

KILLS = 40
PARTITIONS = 3
TOPIC = "readings"
BACKLOG = 300


class Publisher:
    """Publishes to all partitions, each value once, with `BACKLOG` frames without an answer.

    An agent that is killed a moment after its start accepts less than could be published meanwhile.
    Without a bound the oldest frames would wait for longer with each kill: on a slow machine for
    longer than the delivery timeout of two minutes.
    """

    def __init__(self, client: AsyncHostClient) -> None:
        self._client = client
        self.sent: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        self.accepted = 0
        self.errors: list[BaseException] = []

    async def run(self, stop: asyncio.Event) -> None:
        number = 0
        while not stop.is_set():
            if number - self.accepted - len(self.errors) >= BACKLOG:
                await asyncio.sleep(0.005)
                continue
            partition = number % PARTITIONS
            values = [b"%d/%d" % (number, index) for index in range(1 + number % 4)]
            future = self._client.publish_batch_nowait(values, topic=TOPIC, partition=partition)
            future.add_done_callback(self._ended)
            self.sent[partition] += values
            number += 1
            await asyncio.sleep(0.005)

    def _ended(self, future: asyncio.Future[None]) -> None:
        error = future.exception()
        if error is None:
            self.accepted += 1
        else:
            self.errors.append(error)


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_everything_is_in_the_log_once_through_kills_under_load() -> None:
    dice = random.Random(11)
    with (
        Broker(admin=False) as broker,
        broker.client() as log,
        tempfile.TemporaryDirectory(prefix="ps-") as name,
    ):
        log.create_topic(TOPIC, PARTITIONS)
        path = str(Path(name) / "host.sock")
        async with zygote() as mother:
            agent = await mother.fork("log agent", path=path, bootstrap=broker.bootstrap)
            async with AsyncHostClient(path, topics=[TOPIC]) as client:
                publisher, stop = Publisher(client), asyncio.Event()
                publishing = asyncio.create_task(publisher.run(stop))
                for _ in range(KILLS):
                    before = publisher.accepted
                    async with asyncio.timeout(PATIENCE_SECONDS):
                        while publisher.accepted == before:
                            assert not publishing.done(), publishing
                            await asyncio.sleep(0.002)
                    await asyncio.sleep(dice.random() * 0.1)
                    os.kill(agent, signal.SIGKILL)
                    assert await mother.gone(agent) == SIGKILLED
                    agent = await mother.fork("log agent", path=path, bootstrap=broker.bootstrap)
                stop.set()
                await publishing
            assert publisher.errors == []
            os.kill(agent, signal.SIGTERM)
            assert await mother.gone(agent) == 0
            assert mother.statuses[SIGKILLED] == KILLS
        for partition in range(PARTITIONS):
            read = log.read_arrow(TOPIC, partitions=[partition])
            assert read.column("value").to_pylist() == publisher.sent[partition]
