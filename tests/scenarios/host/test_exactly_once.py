"""Exactly once in the log, by the identity that frames carry, while agents are killed.

No process in between keeps state: the producers keep what has not been accepted and send it
again with the same numbers, agents are killed and forget all they had, and the log's producer
state alone distinguishes a record that is there already from one that is not.
"""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
import threading
from collections.abc import Iterator
from functools import partial

import numpy as np
import pyarrow as pa
import pytest
import uvloop

from penstock.host import AsyncHostClient, HostClient
from penstock.testing import Broker
from tests.host.client.agents import ProcessAgent
from tests.scenarios.host.test_kill import PATIENCE_SECONDS, SIGKILLED, zygote

KILLS = 8
PARTITIONS = 4
CHUNKS = 25
ROWS = 400


@pytest.fixture
def path() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="ps-") as directory:
        yield f"{directory}/host.sock"


class Load:
    """Producers of all kinds, each with values that say who made them and as the how-manieth."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.stop = threading.Event()
        self.counts: dict[str, dict[int, int]] = {}
        """Per producer and partition, or key, how many values were handed in."""
        self.frames = 0
        self.errors: list[BaseException] = []
        self.resent = 0

    def run(self) -> list[threading.Thread]:
        threads = [threading.Thread(target=self._guard, args=(self._blocking,))]
        threads += [threading.Thread(target=self._guard, args=(lambda: uvloop.run(self._aio()),))]
        for thread in threads:
            thread.start()
        return threads

    def _guard(self, work: object) -> None:
        assert callable(work)
        try:
            work()
        except BaseException as error:
            self.errors.append(error)

    def _values(self, who: str, partition: int, count: int) -> list[bytes]:
        done = self.counts.setdefault(who, dict.fromkeys(range(PARTITIONS), 0))
        first = done[partition]
        done[partition] += count
        return [b"%s|%d|%d" % (who.encode(), partition, first + n) for n in range(count)]

    def _table(self, who: str) -> pa.Table:
        """Rows for all partitions, mixed; each lane's are numbered in order."""
        per = ROWS // PARTITIONS
        lanes = [self._values(who, partition, per) for partition in range(PARTITIONS)]
        values = [value for row in zip(*lanes, strict=True) for value in row]
        partitions = np.tile(np.arange(PARTITIONS, dtype=np.int32), per)
        return pa.table({"value": pa.array(values, pa.binary()), "at": pa.array(partitions)})

    def _blocking(self) -> None:
        """Run one client with three threads: tables, batches, single chunks."""
        with HostClient(self.path, topics=["events"], client_name="blocking") as client:
            works = (self._tables, self._batches, self._singles)
            threads = [
                threading.Thread(target=self._guard, args=(partial(work, client),))
                for work in works
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(110)
            client.flush(60)
            self.resent += client._core.resent

    def _tables(self, client: HostClient) -> None:
        while not self.stop.is_set():
            futures = client.publish_records("events", self._table("table"), partition="at")
            futures[-1].result(60)
            self.frames += len(futures)

    def _batches(self, client: HostClient) -> None:
        while not self.stop.is_set():
            for partition in range(PARTITIONS):
                values = self._values("batch", partition, CHUNKS)
                future = client.publish_batch(values, topic="events", partition=partition)
            future.result(60)
            self.frames += PARTITIONS

    def _singles(self, client: HostClient) -> None:
        while not self.stop.is_set():
            (value,) = self._values("single", 1, 1)
            client.send(value, topic="events", partition=1, timeout=60)
            self.frames += 1

    async def _aio(self) -> None:
        async with AsyncHostClient(self.path, topics=["events"], client_name="aio") as client:

            async def lane(partition: int) -> None:
                while not self.stop.is_set():
                    # Five at once: order must hold without waiting for each.
                    futures = [
                        client.publish_batch_nowait(
                            self._values("aio", partition, CHUNKS),
                            topic="events",
                            partition=partition,
                        )
                        for _ in range(5)
                    ]
                    await asyncio.gather(*futures)
                    self.frames += 5

            async def tables() -> None:
                while not self.stop.is_set():
                    table = self._table("aio-table")
                    await client.publish_records("events", table, partition="at")
                    self.frames += PARTITIONS

            await asyncio.gather(tables(), *(lane(partition) for partition in range(PARTITIONS)))
            self.resent += client._core.resent


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_agents_killed_under_load_neither_lose_nor_repeat_nor_reorder(path: str) -> None:
    with Broker() as broker:
        broker.create_topic("events", partitions=PARTITIONS)
        async with zygote() as mother:
            place = {"path": path, "bootstrap": broker.bootstrap}
            agent = await mother.fork("log agent", **place)
            load = Load(path)
            threads = load.run()
            try:
                for _ in range(KILLS):
                    before = load.frames
                    async with asyncio.timeout(PATIENCE_SECONDS):
                        while load.frames <= before + 60 and not load.errors:
                            await asyncio.sleep(0.005)
                    assert not load.errors
                    os.kill(agent, signal.SIGKILL)
                    assert await mother.gone(agent) == SIGKILLED
                    agent = await mother.fork("log agent", **place)
            finally:
                load.stop.set()
                for thread in threads:
                    await asyncio.to_thread(thread.join, 60)
        assert not load.errors
        assert load.resent > KILLS, "the kills hit nothing that was under way"
        with broker.client() as client:
            table = client.read_arrow("events")
    check(load, table)
    print(f"{table.num_rows} records, {load.frames} frames, {load.resent} sent again")


def check(load: Load, table: pa.Table) -> None:
    seen: dict[str, dict[int, list[int]]] = {}
    places = table.column("partition").to_pylist()
    for place, value in zip(places, table.column("value").to_pylist(), strict=True):
        who, partition, number = value.decode().split("|")
        assert int(partition) == place
        seen.setdefault(who, {}).setdefault(place, []).append(int(number))
    assert set(seen) == {"table", "batch", "single", "aio", "aio-table"}
    for who, lanes in load.counts.items():
        for partition, count in lanes.items():
            assert seen[who].get(partition, []) == list(range(count)), (who, partition)


def test_a_table_keeps_its_rows_and_finds_kafkas_partitions(path: str) -> None:
    rows = 20_000
    table = pa.table(
        {
            "key": pa.array([f"key-{n % 101}" if n % 7 else None for n in range(rows)]),
            "value": pa.array([b"%d" % n for n in range(rows)], pa.binary()),
            "timestamp": pa.array(range(1_700_000_000_000, 1_700_000_000_000 + rows)),
        }
    )
    with Broker() as broker, ProcessAgent(path, "log", BOOTSTRAP=broker.bootstrap):
        for topic in ("through-the-agent", "straight"):
            broker.create_topic(topic, partitions=3)
        with (
            HostClient(path, topics=["through-the-agent"], ring_bytes=16 << 20) as producer,
            broker.client() as client,
        ):
            futures = producer.publish_records("through-the-agent", table, codec="zstd")
            producer.flush(60)
            assert [future.exception(0) for future in futures] == [None] * len(futures)
            client.write_arrow("straight", table)
            columns = ["partition", "key", "value", "timestamp"]
            got, want = (
                client.read_arrow(topic, columns=columns)
                for topic in ("through-the-agent", "straight")
            )

    def keyed(read: pa.Table) -> dict[int, list[tuple[object, ...]]]:
        rows = read.select(columns[1:]).to_pylist()
        places = read.column("partition").to_pylist()
        lanes: dict[int, list[tuple[object, ...]]] = {}
        for place, row in zip(places, rows, strict=True):
            if row["key"] is not None:
                lanes.setdefault(place, []).append(tuple(row.values()))
        return lanes

    assert got.num_rows == want.num_rows == rows
    assert keyed(got) == keyed(want)
    assert sorted(got.column("value").to_pylist()) == sorted(want.column("value").to_pylist())
