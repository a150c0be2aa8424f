"""Topics with three replicas where copies are far behind, and leaders not what the image says."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from penstock.broker.replicas import Replicas
from penstock.replication.leadership import CHUNK_BYTES
from penstock.replication.links import WINDOW_BYTES, Outgoing
from penstock.replication.service import ReplicatedLog, Replication
from tests.broker.test_replicated import Cluster, everything, has, knows, until
from tests.broker.test_replicated import cluster as cluster
from tests.broker.wire_client import batch
from tests.faulty_files import FaultyFiles

pytestmark = pytest.mark.timeout(300)
MIB = 1 << 20
AT_MOST_BYTES = CHUNK_BYTES + 64 * 1024
"""In a batch of a test."""


def replication(cluster: Cluster, node_id: int) -> Replication:
    replicas = cluster.brokers[node_id].replicas
    assert isinstance(replicas, Replicas)
    return replicas.replication


def others(leader: int) -> list[int]:
    return [node_id for node_id in (1, 2, 3) if node_id != leader]


async def test_a_copy_far_behind_is_sent_no_more_at_a_time_than_the_window(
    cluster: Cluster,
) -> None:
    leader = await cluster.create()
    other = others(leader)[0]
    await cluster.stop(other)
    for number in range(24):
        await cluster.produce(bytes([number]) * (MIB - 1024))
    at_once: list[int] = []
    links = replication(cluster, leader).links
    send = links.send

    def sent(broker_id: int, rows: list[Outgoing]) -> None:
        room = links.room_bytes(broker_id)
        at_once.append(sum([size for _, _, size in rows]) - room)
        send(broker_id, rows)

    links.send = sent  # type: ignore[method-assign,assignment]
    await cluster.start(other)
    log = cluster.log(leader)
    await until(lambda: has(cluster.log(other), 24))
    assert max(at_once) <= AT_MOST_BYTES, "more than there was room for"
    assert everything(cluster.log(other)) == everything(log)
    assert len(everything(log)) > 2 * WINDOW_BYTES


async def test_appends_go_on_while_there_is_no_room_for_them(cluster: Cluster) -> None:
    leader = await cluster.create()
    log = cluster.log(leader)
    replicated = replication(cluster, leader)
    links, room = replicated.links, replicated.links.room_bytes
    links.room_bytes = lambda broker_id: 0  # type: ignore[method-assign]
    base = log.log.log_end_offset
    client = cluster.clients[leader]
    assert (await client.produce("t", batch(b"waits"), acks=1)).error_code.name == "none"
    assert log.leading is not None
    assert log.leading.reachable() == 3
    assert log.copy.mark == base
    links.room_bytes = room  # type: ignore[method-assign]
    for node_id in others(leader):
        replicated.room_again(node_id)
    for node_id in (1, 2, 3):
        await until(lambda node_id=node_id: has(cluster.log(node_id), base + 1))  # type: ignore[misc]


async def test_a_copy_that_ends_below_the_leader_s_log_is_told_of_and_left_out(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    leader = await cluster.create()
    other = others(leader)[0]
    await cluster.produce(b"with all")
    await until(lambda: has(cluster.log(other), 1))
    await cluster.stop(other)
    for _ in range(4):
        await cluster.produce(b"with two")
    log = cluster.log(leader)
    assert log.leading is not None
    log.log.delete_records(4)
    await cluster.start(other)
    await until(lambda: "takes no part" in caplog.text)
    for _ in range(3):
        await cluster.produce(b"with two again")
    assert caplog.text.count("copy ends at offset 1, and all below 4 is deleted") == 1
    assert log.leading.reachable() == 2
    assert cluster.log(other).log.log_end_offset == 1


async def test_who_leads_by_the_image_only_knows_no_end(cluster: Cluster) -> None:
    leader = await cluster.create()
    for _ in range(3):
        await cluster.produce(b"value")
    for node_id in [*others(leader), leader]:
        await cluster.stop(node_id)
    await cluster.start(leader)
    client = cluster.clients[leader]
    for offset in (0, 3, 7):  # 7 as if others had committed what this one lacks
        row = await client.fetch("t", offset)
        assert row.error_code.name == "none"
        assert not row.records
    asked = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}
    answer = await client.call(
        "ListOffsets",
        5,
        {
            "replica_id": -1,
            "isolation_level": 0,
            "topics": [{"name": "t", "partitions": [asked]}],
        },
    )
    assert answer.topics[0].partitions[0].error_code.name == "not_leader_or_follower"


async def test_a_new_leader_s_epoch_is_known_before_it_appends(cluster: Cluster) -> None:
    leader = await cluster.create()
    await cluster.produce(b"before")
    await cluster.stop(leader)
    following = await cluster.led()
    log = cluster.log(following)
    assert log.leading is not None
    epoch = log.leading.core.epoch
    await until(lambda: log.owner.leader_epoch == epoch)  # type: ignore[union-attr]
    row = await cluster.clients[following].fetch("t", 0, current_leader_epoch=epoch)
    assert row.error_code.name == "none"
    assert b"before" in bytes(row.records)


async def test_a_topic_that_is_deleted_goes_from_all_brokers(cluster: Cluster) -> None:
    leader = await cluster.create()
    await cluster.produce(b"value")
    logs = [cluster.log(node_id) for node_id in (1, 2, 3)]
    request = {"topic_names": ["t"], "timeout": 5000}
    answer = await cluster.clients[leader].call("DeleteTopics", 5, request)
    assert answer.responses[0].error_code.name == "none"
    for node_id in (1, 2, 3):
        await until(lambda node_id=node_id: not replication(cluster, node_id).logs)  # type: ignore[misc]
        store = cluster.brokers[node_id].store
        await until(lambda store=store: not store.partitions)  # type: ignore[misc]
    assert not any(log.claims for log in logs)
    # Another one of that name begins anew.
    await cluster.create()
    assert await cluster.produce(b"value") == 0


@pytest.mark.parametrize(("call", "number"), [("write_at", errno.ENOSPC), ("sync_file", errno.EIO)])
async def test_a_leader_whose_disk_fails_lets_another_lead(
    tmp_path: Path, postgres_url: str, call: str, number: int
) -> None:
    cluster = Cluster(tmp_path, postgres_url)
    disks = {node_id: FaultyFiles() for node_id in (1, 2, 3)}
    for node_id, disk in disks.items():
        cluster.files[node_id] = disk
        await cluster.start(node_id)
    try:
        for server in cluster.brokers.values():
            await until(lambda server=server: knows(server, 3))  # type: ignore[misc]
        leader = await cluster.create()
        await cluster.produce(b"before")
        failed: list[str] = []

        def fail(name: str, path: str) -> int | None:
            if name != call or "journal" not in path:
                return None
            failed.append(path)
            return number

        disks[leader].fail = fail
        await cluster.produce(b"while it fails")
        assert failed
        await until(lambda: any(leads(cluster.log(one)) for one in others(leader)))
        following = next(one for one in others(leader) if leads(cluster.log(one)))
        assert await cluster.produce(b"after") >= 2
        disks[leader].fail = lambda name, path: None
        read = await cluster.values(following)
        assert read.index(b"before") < read.index(b"while it fails") < read.index(b"after")
    finally:
        for node_id in list(cluster.brokers):
            await cluster.stop(node_id)


def leads(log: ReplicatedLog) -> bool:
    return log.leading is not None and log.leading.leads
