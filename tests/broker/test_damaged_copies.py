"""Damaged records are repaired from another replica, and consumers get no wrong data meanwhile."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from penstock.records import split_batches
from penstock.storage.files.values import QUARANTINED
from tests.broker.test_lost_copies import follower, is_whole
from tests.broker.test_replicated import Cluster, everything, has, until
from tests.broker.wire_client import WireClient

pytestmark = pytest.mark.timeout(300)
VALUE = b"%d;" + b"x%%y" * 700
RECORDS = 60


@pytest.fixture
async def cluster(tmp_path: Path, postgres_url: str) -> AsyncIterator[Cluster]:
    made = Cluster(tmp_path, postgres_url)
    async with made.running(1, 2, 3):
        yield made


async def filled(cluster: Cluster) -> bytes:
    """Create a topic whose records are stored in files; return all its batches."""
    await cluster.create()
    for number in range(RECORDS):
        await cluster.produce(VALUE % number)
    for node_id in cluster.brokers:
        await until(partial(has, cluster.log(node_id), RECORDS))
        store_of(cluster, node_id).checkpoint()
        await until(partial(in_files_alone, cluster, node_id))
    return everything(cluster.log(cluster.leader()))


def store_of(cluster: Cluster, node_id: int):  # type: ignore[no-untyped-def]
    return cluster.brokers[node_id].store


def in_files_alone(cluster: Cluster, node_id: int) -> bool:
    """Whether all is written; then memory is emptied."""
    log = cluster.log(node_id).log
    if log.state.tail.written < len(log.state.tail):
        return False
    while len(log.state.tail):
        log.state.parts.tails.drop(log.state.tail.pop_oldest())
    return True


def segment(cluster: Cluster, node_id: int) -> Path:
    found = cluster.root / str(node_id) / "t-0" / f"{0:020d}.log"
    assert found.exists()
    return found


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x55
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data[at : at + 1])


async def read_through(client: WireClient, *, replica: bool = False) -> tuple[bytes, set[str]]:
    """Return all records of a consumer that retries, and the errors that it got."""
    found, offset, told = b"", 0, set[str]()
    async with asyncio.timeout(20):
        while offset < RECORDS:
            row = await client.fetch("t", offset)
            told.add(row.error_code.name)
            if row.error_code.name != "none":
                assert row.error_code.name == "kafka_storage_error", row
                await asyncio.sleep(0.01)
                continue
            found += bytes(row.records)
            offset = split_batches(row.records)[-1].next_offset
    return found, told


async def test_a_leader_is_mended_while_it_is_read(cluster: Cluster) -> None:
    whole = await filled(cluster)
    leader = cluster.leader()
    path = segment(cluster, leader)
    good = path.read_bytes()
    dice = random.Random(4)
    for at in (0, 16, 20, 30, 70, *[dice.randrange(len(good)) for _ in range(8)]):
        flip(path, at)
        found, told = await read_through(cluster.clients[leader])
        assert found == whole
        assert told == {"none", "kafka_storage_error"}
        assert path.read_bytes() == good
    set_aside = [entry for entry in path.parent.iterdir() if entry.name.endswith(QUARANTINED)]
    assert set_aside
    counters = cluster.log(leader).log.state.parts.counters
    assert counters.damaged_ranges >= 10
    assert counters.mended_bytes > 0


async def test_a_leader_s_cut_and_zeroed_segment_comes_back(cluster: Cluster) -> None:
    whole = await filled(cluster)
    leader = cluster.leader()
    path = segment(cluster, leader)
    good = path.read_bytes()
    with path.open("r+b") as file:
        file.truncate(len(good) // 2)
    assert (await read_through(cluster.clients[leader]))[0] == whole
    assert path.read_bytes() == good
    with path.open("r+b") as file:
        file.seek(1_000)
        file.write(bytes(30_000))
    assert (await read_through(cluster.clients[leader]))[0] == whole
    assert path.read_bytes() == good


async def test_a_follower_that_lost_the_end_of_its_log_gets_it_again(cluster: Cluster) -> None:
    whole = await filled(cluster)
    hurt = follower(cluster)
    path = segment(cluster, hurt)
    await cluster.stop(hurt)
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.truncate(size * 2 // 3)
    await cluster.start(hurt)
    await until(partial(is_whole, cluster, hurt, RECORDS))
    assert everything(cluster.log(hurt)) == whole
    # It counts again: the leader may go.
    await cluster.stop(cluster.leader())
    assert await cluster.led()
    assert await cluster.produce(b"after") == RECORDS
    read = await cluster.values(cluster.leader())
    assert read.startswith(whole)


async def test_what_rots_on_a_follower_is_mended_when_it_leads(cluster: Cluster) -> None:
    whole = await filled(cluster)
    hurt = follower(cluster)
    path = segment(cluster, hurt)
    good = path.read_bytes()
    flip(path, len(good) // 2)
    await cluster.stop(cluster.leader())
    await cluster.led()
    if cluster.leader() != hurt:
        leader = cluster.log(cluster.leader())
        leader._service.hand_over(leader, hurt)
        leader._service.stir(leader)
        await cluster.led(by=hurt)
    found, _ = await read_through(cluster.clients[hurt])
    assert found == whole
    assert path.read_bytes() == good


async def test_without_another_replica_the_range_alone_is_refused(cluster: Cluster) -> None:
    await cluster.create_single("alone")
    leader = next(
        broker_id for broker_id, server in cluster.brokers.items()
        if (cluster.root / str(broker_id) / "alone-0").exists()
    )  # fmt: skip
    for number in range(9):
        await cluster.produce(VALUE % number, "alone")
    store_of(cluster, leader).checkpoint()
    log = next(
        log for where, log in store_of(cluster, leader).partitions.items() if where.topic == "alone"
    )
    await until(lambda: log.state.tail.written == len(log.state.tail))
    while len(log.state.tail):
        log.state.parts.tails.drop(log.state.tail.pop_oldest())
    path = cluster.root / str(leader) / "alone-0" / f"{0:020d}.log"
    flip(path, path.stat().st_size // 2)
    client, told = cluster.clients[leader], {}
    for offset in range(9):
        row = await client.fetch("alone", offset)
        told[offset] = row.error_code.name
        if told[offset] == "none":
            assert split_batches(row.records)[0].base_offset == offset
    assert told == {offset: "none" if offset != 4 else "corrupt_message" for offset in range(9)}
    assert await cluster.produce(b"goes on", "alone") == 9
