"""Topics with three replicas: followers far behind, and leaders that differ from the image."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest

from penstock.base.system import SYSTEM_CLOCK
from penstock.broker.partitions.replicas import Replicas
from penstock.control.values.errors import ControlUnavailable
from penstock.partitions import replicated
from penstock.records import split_batches
from penstock.replication.leadership import CHUNK_BYTES
from penstock.replication.links import WINDOW_BYTES, Outgoing
from penstock.replication.peer_format import Row
from penstock.replication.service import ReplicatedLog, Replication
from tests.broker.test_replicated import Cluster, everything, has, knows, until
from tests.broker.test_replicated import cluster as cluster
from tests.broker.wire_client import batch
from tests.faulty_files import FaultyFiles
from tests.storage import batches as storage_batches

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


async def test_appends_continue_while_send_buffers_are_full(cluster: Cluster) -> None:
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


async def delete_records(
    cluster: Cluster, node_id: int, offset: int, *, timeout_ms: int = 30_000
) -> tuple[str, int]:
    asked = {"partition_index": 0, "offset": offset}
    request = {"topics": [{"name": "t", "partitions": [asked]}], "timeout": timeout_ms}
    answer = await cluster.clients[node_id].call("DeleteRecords", 2, request)
    row = answer.topics[0].partitions[0]
    return row.error_code.name, row.low_watermark


def sent(number: int) -> bytes:
    """A batch of an idempotent producer."""
    return bytes(storage_batches.batch(producer_id=77, epoch=0, sequence=number))


async def test_batches_after_a_rejected_one_are_not_out_of_order(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """librdkafka would raise its epoch, and send again what an earlier leader may have stored."""
    leader = await cluster.create(minimum=3)
    client = cluster.clients[leader]

    async def tried(number: int) -> str:
        return str((await client.produce("t", sent(number))).error_code.name)

    assert await tried(0) == "none"
    other, _ = others(leader)
    await cluster.stop(other)
    log = cluster.log(leader)
    await until(lambda: log.leading is not None and log.leading.reachable() == 2)
    assert await tried(1) == "not_enough_replicas"
    await cluster.start(other)
    await until(lambda: log.leading is not None and log.leading.reachable() == 3)
    assert await tried(2) == "not_leader_or_follower"
    assert [await tried(1), await tried(2)] == ["none", "none"]
    monkeypatch.setattr(replicated, "REFUSED_BEFORE_MS", 0)
    assert await tried(4) == "out_of_order_sequence_number"


def lies(log: ReplicatedLog, start: int, end: int) -> bool:
    return log.log.log_start_offset == start and has(log, end)


@pytest.mark.parametrize("wiped", [False, True])
async def test_a_copy_that_ends_below_the_leader_s_log_begins_where_that_does(
    cluster: Cluster, *, wiped: bool
) -> None:
    leader = await cluster.create()
    other, third = others(leader)
    await cluster.produce(b"with all")
    client = cluster.clients[leader]
    await until(lambda: has(cluster.log(other), 1))
    await cluster.stop(other)
    if wiped:
        shutil.rmtree(cluster.root / str(other))
    for number in range(3):
        row = await client.produce("t", sent(number))
        assert row.error_code.name == "none"
    row = await client.produce("t", batch(b"first", b"of one batch", b"last"))
    assert row.base_offset == 4
    assert await delete_records(cluster, third, 4) == ("not_leader_or_follower", -1)
    assert (await delete_records(cluster, leader, 8))[0] == "offset_out_of_range"
    assert await delete_records(cluster, leader, 5) == ("none", 5)
    await until(lambda: lies(cluster.log(third), 5, 7))
    await cluster.start(other)
    await until(lambda: lies(cluster.log(other), 5, 7))
    log = cluster.log(other).log
    assert log.state.epochs.entries == cluster.log(leader).log.state.epochs.entries
    await until(lambda: log.replica.limbo == -1)
    # It counts: with it and one more, all goes on, and producers are known as before.
    await cluster.stop(third)
    await cluster.produce(b"with two again")
    await cluster.stop(leader)
    await cluster.start(third)
    assert await cluster.led() in (other, third)
    for node_id in (other, third):
        log = cluster.log(node_id).log
        again = split_batches(sent(2))[0]
        assert log.producer_states.check(again) is not None, "that was sent before"
    assert await cluster.produce(b"newest") == 8
    read = await cluster.values(cluster.leader(), start=5)
    assert read.count(b"of one batch") == read.count(b"newest") == 1


async def test_deleted_records_stay_deleted_under_any_leader(cluster: Cluster) -> None:
    """The response waits for the replicas of all live brokers."""
    for server in cluster.brokers.values():
        assert server._liveness is not None
        server._liveness._timeout_ms = 60_000  # however slow the machine is
    leader = await cluster.create()
    for number in range(6):
        await cluster.produce(b"value %d" % number)
    other, third = others(leader)
    await until(lambda: has(cluster.log(other), 6))
    replicated = replication(cluster, other)
    hear = replicated.rows_came
    replicated.rows_came = drop_requests  # type: ignore[method-assign]
    refused = await delete_records(cluster, leader, 3, timeout_ms=300)
    assert refused == ("request_timed_out", -1)
    assert cluster.log(third).log.log_start_offset == 3
    assert cluster.log(other).log.log_start_offset == 0
    replicated.rows_came = hear  # type: ignore[method-assign]
    assert await delete_records(cluster, leader, 4) == ("none", 4)
    assert [cluster.log(broker_id).log.log_start_offset for broker_id in (other, third)] == [4, 4]
    await cluster.stop(third)  # who is off is not waited for
    assert await delete_records(cluster, leader, 5) == ("none", 5)


def drop_requests(broker_id: int, rows: Iterable[Row]) -> None:
    """Drop all messages except responses."""
    for _ in rows:
        pass


async def test_a_claimant_begins_where_the_log_that_it_finds_does(cluster: Cluster) -> None:
    leader = await cluster.create()
    other, third = others(leader)
    await cluster.produce(b"with all")
    await until(lambda: has(cluster.log(other), 1))
    await cluster.stop(other)
    for _ in range(4):
        await cluster.produce(b"with two")
    assert await delete_records(cluster, leader, 3) == ("none", 3)
    await until(lambda: lies(cluster.log(third), 3, 5))
    await cluster.stop(third)
    await cluster.stop(leader)
    # The image names another one, and this one is asked by hand, as one that is elected would be.
    server = await cluster.start(other)
    log = cluster.log(other)
    await until(lambda: server.cluster.loaded)
    replication(cluster, other).claim([log.key])
    await cluster.start(third)
    await until(lambda: lies(log, 3, 5))
    assert await cluster.produce(b"after") == 5
    assert everything(log) == everything(cluster.log(cluster.leader()))


async def test_retention_deletes_what_is_committed_and_no_more(cluster: Cluster) -> None:
    leader = await cluster.create(retention_ms=1)
    for _ in range(3):
        await cluster.produce(b"old")
    for node_id in others(leader):
        await until(lambda node_id=node_id: has(cluster.log(node_id), 3))  # type: ignore[misc]
        await cluster.stop(node_id)
    log = cluster.log(leader)
    alone = await cluster.clients[leader].produce("t", batch(b"on one disk"), acks=1)
    assert alone.error_code.name == "none"
    await until(lambda: log.log.durable_offset == 4)
    store = cluster.brokers[leader].store
    hours = iter(range(1, 1000))

    def upkeep() -> int:
        store.housekeeping(SYSTEM_CLOCK.now_ms() + next(hours) * 3_600_000)
        return log.log.log_start_offset

    assert [upkeep() for _ in range(5)] == [0] * 5
    for node_id in others(leader):
        await cluster.start(node_id)
    await until(lambda: has(log, 4))
    await until(lambda: upkeep() == 4)
    for node_id in others(leader):
        await until(lambda node_id=node_id: lies(cluster.log(node_id), 4, 4))  # type: ignore[misc]
    assert await cluster.produce(b"new") == 4


async def test_a_leader_by_image_alone_reports_no_log_end_offset(cluster: Cluster) -> None:
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


@pytest.mark.parametrize(
    ("call", "number"),
    [("write_at", errno.ENOSPC), ("sync_file", errno.EIO)],
)
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
        await until(lambda: any(leads(cluster.log(broker_id)) for broker_id in others(leader)))
        following = next(broker_id for broker_id in others(leader) if leads(cluster.log(broker_id)))
        assert await cluster.produce(b"after") >= 2
        disks[leader].fail = lambda name, path: None
        read = await cluster.values(following)
        assert read.index(b"before") < read.index(b"while it fails") < read.index(b"after")
    finally:
        for node_id in list(cluster.brokers):
            await cluster.stop(node_id)


async def test_a_broker_with_a_failed_disk_passes_on_idle_partitions(
    tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does so even if the first broker misses the message."""
    cluster = Cluster(tmp_path, postgres_url)
    disk = FaultyFiles()
    cluster.files[1] = disk
    for node_id in (1, 2, 3):
        await cluster.start(node_id)
    try:
        for server in cluster.brokers.values():
            await until(lambda server=server: knows(server, 3))  # type: ignore[misc]
        led = {"t0": await cluster.create("t0")}
        while 1 not in led.values() or {*led.values()} == {1}:
            led[f"t{len(led)}"] = await cluster.create(f"t{len(led)}")
        mine = [name for name in led if led[name] == 1]
        lost: list[int] = []
        inherit = Replication.inherit

        def ignore(self: Replication, log: ReplicatedLog, epoch: int) -> None:
            if len(lost) < 2 * len(mine):
                lost.append(epoch)
            else:
                inherit(self, log, epoch)

        monkeypatch.setattr(Replication, "inherit", ignore)
        disk.fail = lambda name, path: errno.EIO if name == "sync_file" else None
        await cluster.produce(b"with all", next(name for name in led if led[name] != 1))
        for name in mine:
            await until(
                lambda name=name: any(leads(cluster.log(broker_id, name)) for broker_id in (2, 3))  # type: ignore[misc]
            )
        assert len(lost) == 2 * len(mine)
        disk.fail = lambda name, path: None
    finally:
        for node_id in list(cluster.brokers):
            await cluster.stop(node_id)


async def test_a_leader_with_a_full_disk_leads_again_if_the_successor_does_not(
    tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
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
        log, refused = cluster.log(leader), list[str]()

        def full(name: str, path: str) -> int | None:
            if name != "write_at" or "journal" not in path:
                return None
            refused.append(path)
            return errno.ENOSPC

        monkeypatch.setattr(Replication, "inherit", lambda *told: None)
        disks[leader].fail = full
        await cluster.clients[leader].produce("t", batch(b"while it is full"))
        epoch = replication(cluster, leader).known_epoch(log.key)
        await until(lambda: replication(cluster, leader).known_epoch(log.key) > epoch)
        assert len(refused) < 50, "in three seconds, as what has failed is not tried at once"
        disks[leader].fail = lambda name, path: None
        assert await cluster.produce(b"after") >= 1
        assert leads(log)
    finally:
        for node_id in list(cluster.brokers):
            await cluster.stop(node_id)


async def test_a_copy_that_was_away_for_more_epochs_than_a_claim_knows(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.control.operations.epochs.CHAIN_EPOCHS_MAX", 2)
    leader = await cluster.create()
    other = others(leader)[0]
    await cluster.produce(b"with all")
    await until(lambda: has(cluster.log(other), 1))
    await cluster.stop(other)
    for number in range(5):
        await lead_anew(cluster, await cluster.led())
        assert await cluster.produce(b"with two") == number + 1
    await cluster.start(other)
    await until(lambda: has(cluster.log(other), 6))
    assert everything(cluster.log(other)) == everything(cluster.log(await cluster.led()))
    entries = cluster.log(other).log.state.epochs.entries
    assert len(entries) >= 6
    assert entries == cluster.log(await cluster.led()).log.state.epochs.entries


async def lead_anew(cluster: Cluster, node_id: int) -> None:
    replicated, key = replication(cluster, node_id), cluster.log(node_id).key
    epoch = replicated.known_epoch(key)
    replicated.claim([key])
    await until(lambda: replicated.known_epoch(key) > epoch)


async def test_lives_of_a_copy_have_numbers_of_their_own(cluster: Cluster) -> None:
    await cluster.create("t")
    await cluster.create("u")
    replicated = replication(cluster, 1)
    seen = []
    for _ in range(3):
        for topic in ("t", "u"):
            one = cluster.log(1, topic)
            one.copy.begin_anew()
            one.copy.wake()
            seen.append(one.copy.core.incarnation)
            replicated.forget(one.key)
            again = replicated.open(one.key, one.log, opened=1)
            seen.append(again.copy.core.incarnation)
    assert seen == sorted(set(seen))
    replicated.begin(seen[-1])
    assert replicated.new_life() > seen[-1] << 20


def leads(log: ReplicatedLog) -> bool:
    return log.leading is not None and log.leading.leads


async def test_a_broker_that_cannot_start_stops_in_good_order(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, "postgresql://penstock@127.0.0.1:1/none")
    cluster.settings = {"broker.session.timeout.ms": 500, "broker.heartbeat.interval.ms": 100}
    with pytest.raises(ControlUnavailable):
        await cluster.start(1)
    await cluster.brokers[1].stop()
