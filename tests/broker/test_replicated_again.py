"""A diskless topic becomes local with three replicas, despite failures of any broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from penstock.broker.migration.participant import FillingParticipant
from penstock.control.values.diskless import Watermarks
from penstock.records import split_batches
from tests.broker.diskless.test_transactions import producer
from tests.broker.test_replicated import SECONDS, everything, has, until
from tests.broker.test_replicated_switch import StoreCluster, before_commit
from tests.broker.transactions import committed_values
from tests.broker.wire_client import WireClient, batch
from tests.storage.batches import batch as numbered

pytestmark = pytest.mark.timeout(300)


class AgainCluster(StoreCluster):
    """Topics that begin diskless, and are copied to brokers."""

    async def create_diskless(self, *, factor: int = 3, minimum: int = 2) -> None:
        configs = {"diskless.enable": "true", "min.insync.replicas": str(minimum)}
        spec = {
            "name": "t",
            "num_partitions": 1,
            "replication_factor": factor,
            "assignments": [],
            "configs": [{"name": name, "value": value} for name, value in configs.items()],
        }
        answer = await self.clients[1].call("CreateTopics", 7, {"topics": [spec], "timeout": 5000})
        assert answer.topics[0].error_code.name == "none", answer.topics[0].error_message
        brokers = self.brokers.values()
        await until(lambda: all("t" in broker.cluster.image.topics for broker in brokers))

    async def again(self, node_id: int) -> None:
        """Copied to brokers, and led."""
        await self.becomes(node_id, diskless=False)
        await self.led()

    async def becomes(self, node_id: int, *, diskless: bool) -> None:
        """Switch, and do so again as clients do where the database was too slow to say whether."""
        async with asyncio.timeout(SECONDS):
            while (answer := await self.switch(node_id, diskless=diskless)).error_code.retriable:
                await asyncio.sleep(0.1)
        assert (answer.error_code, answer.error_message) == (0, None)
        await until(lambda: self.known_as(diskless=diskless))

    async def is_read(self, end: int) -> None:
        """Check that all replicas are complete and equal, and readable from the leader."""
        for node_id in self.brokers:
            await until(partial(self._has, node_id, end))
        logs = {everything(self.log(broker_id)) for broker_id in self.brokers}
        assert len(logs) == 1
        assert await self.offsets(self.leader(), end) == list(range(end))

    def _has(self, node_id: int, end: int) -> bool:
        try:
            return has(self.log(node_id), end)
        except (KeyError, IndexError):
            return False

    async def delete(self, node_id: int, before: int) -> None:
        """Delete all records below an offset."""
        partitions = [{"partition_index": 0, "offset": before}]
        request = {"topics": [{"name": "t", "partitions": partitions}], "timeout": 5_000}
        answer = await self.clients[node_id].call("DeleteRecords", 2, request)
        assert answer.topics[0].partitions[0].error_code.name == "none"

    def filled(self) -> list[int]:
        """Brokers that have a log of the topic."""
        return [node_id for node_id, broker in self.brokers.items() if broker.store.partitions]


@pytest.fixture
async def cluster(tmp_path: Path, postgres_url: str) -> AsyncIterator[AgainCluster]:
    made = AgainCluster(tmp_path, postgres_url)
    async with made.running(1, 2, 3):
        yield made


@pytest.mark.parametrize("asked", [1, 2, 3])
async def test_all_that_is_acknowledged_is_in_all_copies(cluster: AgainCluster, asked: int) -> None:
    await cluster.create_diskless()
    for number in range(20):
        assert await cluster.produce(b"value %d" % number) == number
    await cluster.again(asked)
    assert await cluster.produce(b"replicated") == 20
    await cluster.is_read(21)
    partition = cluster.brokers[cluster.leader()].partitions.with_log("t", 0)
    assert partition.log.state.epochs.entries[0] == (1, 0)
    assert partition.end_offset_for_epoch(0) == (0, 20), "consumers read it as of epoch 0"
    assert all(
        [everything(cluster.log(1)).count(b"value %d\0" % number) == 1 for number in range(20)]
    )
    key = cluster.brokers[1].cluster.image.topics["t"].topic_id, 0
    assert await cluster.brokers[1].control.watermarks([key]) == [Watermarks(0, 0, 0)]


async def test_idempotent_producers_are_known_on_the_other_side(cluster: AgainCluster) -> None:
    await cluster.create_diskless()
    first, again, third = [
        bytes(numbered(1, producer_id=7, epoch=0, sequence=sequence)) for sequence in (0, 0, 1)
    ]
    assert (await cluster.clients[1].produce("t", first, acks=-1)).base_offset == 0
    await cluster.again(1)
    client = cluster.clients[cluster.leader()]
    done = await client.produce("t", again, acks=-1)
    assert (done.error_code, done.base_offset) == (0, 0)
    assert (await client.produce("t", third, acks=-1)).base_offset == 1
    await cluster.is_read(2)


async def test_what_was_deleted_stays_so_and_its_producers_are_known(cluster: AgainCluster) -> None:
    await cluster.create_diskless()
    old = bytes(numbered(1, producer_id=7, epoch=0, sequence=0))
    assert (await cluster.clients[1].produce("t", bytes(old), acks=-1)).base_offset == 0
    for number in range(1, 6):
        await cluster.produce(b"value %d" % number)
    await cluster.delete(1, 4)
    await cluster.again(2)
    leader = cluster.clients[cluster.leader()]
    assert (await leader.fetch("t", 3)).error_code.name == "offset_out_of_range"
    for node_id in cluster.brokers:
        await until(partial(cluster._has, node_id, 6))
        assert cluster.log(node_id).log.log_start_offset == 4
    done = await leader.produce("t", bytes(old), acks=-1)
    assert (done.error_code, done.base_offset) == (0, 0)
    assert await cluster.produce(b"goes on") == 6


async def test_a_topic_without_records_continues_at_its_end_offset(cluster: AgainCluster) -> None:
    await cluster.create_diskless()
    for number in range(3):
        await cluster.produce(b"value %d" % number)
    await cluster.delete(1, 3)
    await cluster.again(1)
    assert await cluster.produce(b"goes on") == 3
    for node_id in cluster.brokers:
        await until(partial(cluster._has, node_id, 4))
        assert cluster.log(node_id).log.log_start_offset == 3


async def test_there_and_back_and_there_again(cluster: AgainCluster) -> None:
    leader = await cluster.create()
    offset = 0
    for turn in range(3):
        for kind in (True, False):
            for number in range(5):
                assert await cluster.produce(b"turn %d value %d" % (turn, number)) == offset
                offset += 1
            if kind:
                await cluster.becomes(leader, diskless=True)
            else:
                await cluster.again(leader)
    assert await cluster.produce(b"last") == offset
    await cluster.is_read(offset + 1)


async def test_all_that_is_acknowledged_meanwhile_is_there_once(cluster: AgainCluster) -> None:
    """Idempotent producers continue through it."""
    await cluster.create_diskless()
    stopped = asyncio.Event()
    sent = [0, 0, 0]

    async def produce(name: int) -> None:
        clients = [
            await WireClient.connect(broker.kafka_address) for broker in cluster.brokers.values()
        ]
        while not stopped.is_set():
            sequence = sent[name]
            for client in clients:
                data = bytes(numbered(1, producer_id=name, epoch=0, sequence=sequence))
                row = await client.produce("t", data, acks=-1)
                if row.error_code.name == "none":
                    sent[name] += 1
                    break
                assert row.error_code.retriable, row
        for client in clients:
            await client.close()

    producers = [asyncio.ensure_future(produce(name)) for name in range(3)]
    await until(lambda: min(sent) > 20)
    await cluster.again(2)
    count = min(sent)
    await until(lambda: min(sent) > count + 20)
    stopped.set()
    await asyncio.gather(*producers)
    await cluster.is_read(sum(sent))
    headers = split_batches(everything(cluster.log(1)))
    for name in range(3):
        sequences = [header.base_sequence for header in headers if header.producer_id == name]
        assert sequences == list(range(sent[name]))


def at_commit(monkeypatch: pytest.MonkeyPatch, step: Callable[[], Any], *, after: bool) -> None:
    """Do something before the logs of all are committed, or after it."""
    commit = FillingParticipant.commit

    async def stepping(self: FillingParticipant, *arguments: Any) -> None:
        if not after:
            await step()
        await commit(self, *arguments)
        if after:
            await step()

    monkeypatch.setattr(FillingParticipant, "commit", stepping)


async def test_a_replica_that_dies_before_the_commit_leaves_it_diskless(
    cluster: AgainCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.create_diskless()
    for number in range(5):
        await cluster.produce(b"value %d" % number)

    async def dies() -> None:
        await cluster.stop(3)

    before_commit(monkeypatch, dies)
    answer = await cluster.switch(1, diskless=False)
    assert answer.error_code != 0
    assert "brokers [3] of" in answer.error_message
    assert cluster.known_as(diskless=True)
    assert await cluster.produce(b"goes on") == 5
    await until(lambda: not cluster.filled())
    refused = await cluster.switch(1, diskless=False)
    assert refused.error_code.name == "invalid_replication_factor"
    assert "3 replicas, but only brokers [1, 2] can hold them" in refused.error_message
    monkeypatch.undo()
    await cluster.start(3)
    await until(
        lambda: all(len(broker.cluster.image.brokers) == 3 for broker in cluster.brokers.values())
    )
    assert await cluster.offsets(3, 6) == list(range(6))
    await cluster.again(3)
    assert await cluster.produce(b"replicated") == 6
    await cluster.is_read(7)


async def left_before_commit(
    cluster: AgainCluster, monkeypatch: pytest.MonkeyPatch
) -> asyncio.Future[Any]:
    """Broker 1 is asked, has it all fenced and filled, and stands still then."""
    reached = asyncio.Event()

    async def hangs() -> None:
        reached.set()
        await asyncio.Event().wait()

    before_commit(monkeypatch, hangs)
    asked = asyncio.ensure_future(cluster.switch(1, diskless=False))
    await reached.wait()
    return asked


async def test_the_topic_continues_if_a_participant_dies_before_the_commit(
    cluster: AgainCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.create_diskless()
    for number in range(5):
        await cluster.produce(b"value %d" % number)
    asked = await left_before_commit(cluster, monkeypatch)
    assert sorted(cluster.filled()) == [1, 2, 3]
    silent = await cluster.fall_silent(1)
    await silent.migrations.stop()
    assert await cluster.produce(b"goes on") == 5
    await until(lambda: not cluster.filled())
    assert cluster.known_as(diskless=True)
    for broker in cluster.brokers:
        assert await cluster.offsets(broker, 6) == list(range(6))
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    await silent.stop()


async def test_the_designated_leader_dies_after_the_commit(
    cluster: AgainCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.create_diskless()
    for number in range(5):
        await cluster.produce(b"value %d" % number)
    first = cluster.brokers[1].cluster.image.topics["t"].partitions[0].replicas[0]
    asked = first % 3 + 1
    silent = []

    async def dies() -> None:
        silent.append(await cluster.fall_silent(first))

    at_commit(monkeypatch, dies, after=True)
    answer = await cluster.switch(asked, diskless=False)
    assert (answer.error_code, answer.error_message) == (0, None)
    await until(lambda: cluster.known_as(diskless=False))
    assert await cluster.produce(b"replicated") == 5
    await cluster.is_read(6)
    await silent[0].stop()
    await cluster.start(first)
    await cluster.is_read(6)


async def test_a_broker_absent_meanwhile_catches_up(cluster: AgainCluster) -> None:
    """Its old log has an earlier leader epoch, and does not become a replica."""
    leader = await cluster.create()
    away = leader % 3 + 1
    for number in range(5):
        await cluster.produce(b"value %d" % number)
    await until(partial(has, cluster.log(away), 5))
    await cluster.stop(away)
    await cluster.produce(b"not seen by who is away")
    await cluster.becomes(cluster.leader() or leader, diskless=True)
    await cluster.delete(leader, 2)
    assert await cluster.produce(b"diskless") == 6
    await cluster.start(4)
    everyone = cluster.brokers.values()
    await until(lambda: all(len(broker.cluster.image.brokers) == 3 for broker in everyone))
    await cluster.again(leader)
    assert await cluster.produce(b"replicated") == 7
    topic = cluster.brokers[leader].cluster.image.topics["t"]
    assert away not in topic.partitions[0].replicas
    await cluster.start(away)
    assert not cluster.brokers[away].store.partitions


async def test_a_disk_without_room_is_named(
    cluster: AgainCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.create_diskless()
    await cluster.produce(b"a value")
    room = cluster.brokers[2].store.directory

    class Usage:
        free = 10

    monkeypatch.setattr(
        "penstock.broker.migration.participant.shutil.disk_usage",
        lambda directory: Usage() if directory == room else type("", (), {"free": 1 << 40})(),
    )
    answer = await cluster.switch(1, diskless=False)
    assert answer.error_code != 0
    assert "broker 2: topic 't': its 1 partitions on this broker need" in answer.error_message
    assert f"{room} has 10 bytes free" in answer.error_message
    assert await cluster.produce(b"goes on") == 1
    await until(lambda: not cluster.filled())


async def test_a_quorum_that_there_cannot_be_is_refused_before(cluster: AgainCluster) -> None:
    await cluster.create_diskless(factor=1)
    answer = await cluster.switch(1, diskless=False)
    assert answer.error_code != 0
    assert "min.insync.replicas = 2 is above the replication factor 1" in answer.error_message
    assert await cluster.produce(b"goes on") == 0


async def test_a_fence_ends_with_the_process_that_had_it(
    tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if there is no other broker to see that."""
    cluster = AgainCluster(tmp_path, postgres_url)
    async with cluster.running(1):
        await cluster.create_diskless(factor=1, minimum=1)
        await cluster.produce(b"a value")
        asked = await left_before_commit(cluster, monkeypatch)
        row = await cluster.clients[1].produce("t", batch(b"refused"), acks=-1)
        assert row.error_code.name == "not_leader_or_follower"
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        await cluster.stop(1)
        monkeypatch.undo()
        await cluster.start(1)
        assert not cluster.filled()
        assert await cluster.produce(b"goes on") == 1
        await cluster.again(1)
        assert await cluster.produce(b"replicated") == 2
        await cluster.is_read(3)


async def test_transactions_go_there_and_back(cluster: AgainCluster) -> None:
    """Aborted transactions stay aborted, open ones end after the switch."""
    await cluster.create_diskless()
    host, port = cluster.brokers[1].kafka_address
    servers = f"{host}:{port}"
    expected: list[bytes] = []

    def write(name: str, *, commit: bool) -> None:
        made = producer(servers, name)
        made.begin_transaction()
        made.produce("t", name.encode())
        if commit:
            made.commit_transaction(SECONDS)
            expected.append(name.encode())
        else:
            made.abort_transaction(SECONDS)

    def begin(name: str) -> Producer:
        made = producer(servers, name)
        made.begin_transaction()
        made.produce("t", name.encode())
        assert made.flush(SECONDS) == 0
        return made

    for side, diskless in ((b"diskless", False), (b"replicated", True)):
        name = side.decode()
        await asyncio.to_thread(write, f"{name} aborted", commit=False)
        await asyncio.to_thread(write, f"{name} committed", commit=True)
        left, kept = [await asyncio.to_thread(begin, f"{name} {what}") for what in ("left", "kept")]
        await asyncio.to_thread(write, f"{name} behind", commit=True)
        await cluster.becomes(1, diskless=diskless)
        if not diskless:
            await cluster.led()
        await asyncio.to_thread(kept.commit_transaction, SECONDS)
        expected.append(f"{name} kept".encode())
        await asyncio.to_thread(left.abort_transaction, SECONDS)
        found = await asyncio.to_thread(committed_values, servers, "t", 1, len(expected))
        assert found == sorted(expected)
