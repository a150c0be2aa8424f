"""Transactions on diskless topics: two brokers write to a partition, and either ends them."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any, NamedTuple

import pytest
from confluent_kafka import KafkaException, Producer

from penstock.broker.server import BrokerServer
from penstock.control.values.diskless import CommitAnswer, ObjectCommit
from penstock.diskless.topics.partition import DisklessPartition
from penstock.records import HEADER_BYTES, split_batches
from penstock.records.errors import InvalidProducerEpoch, TransactionCoordinatorFenced
from tests.broker.diskless.conftest import Cluster
from tests.broker.diskless.test_consolidation import CONSOLIDATING, kinds
from tests.broker.diskless.test_records import _creation
from tests.broker.share.conftest import Member, set_group
from tests.broker.test_transactional_logs import (
    Transactions,
    by_confluent,
    by_python,
    coordinator_error,
    list_offset,
)
from tests.broker.transactions import (
    Verifier,
    aborted,
    committed_values,
    end,
    fetch_committed,
    plain,
    produce,
    sent,
)
from tests.broker.wire_client import WireClient, batch

SECONDS = 60.0


class Place(NamedTuple):
    """A broker, and another one over the same topic."""

    broker: BrokerServer
    client: WireClient
    verifier: Verifier
    other: BrokerServer
    beside: WireClient

    @property
    def partition(self) -> DisklessPartition:
        return partition_at(self.broker)

    @property
    def elsewhere(self) -> DisklessPartition:
        return partition_at(self.other)


def creation(partitions: int) -> dict[str, Any]:
    request = _creation("t")
    request["topics"][0]["num_partitions"] = partitions
    return request


def partition_at(broker: BrokerServer) -> DisklessPartition:
    found = broker.partitions.partition("t", 0)
    assert isinstance(found, DisklessPartition)
    return found


@pytest.fixture
async def place(cluster: Cluster) -> Place:
    broker, other = [await cluster.start() for _ in range(2)]
    verifier = broker.assembly.verifier = other.assembly.verifier = Verifier()
    client, beside = [await cluster.connect(started) for started in (broker, other)]
    await client.call("CreateTopics", 7, creation(2))
    await other.cluster.refresh()
    return Place(broker, client, verifier, other, beside)


async def stable(broker: BrokerServer) -> int:
    partition = partition_at(broker)
    await partition.look_up([partition])
    return partition.last_stable_offset


async def test_every_batch_of_a_transaction_is_verified(place: Place) -> None:
    for sequence in range(3):
        row = await produce(place.client, sent(b"v", sequence=sequence))
        assert (row.error_code.name, row.base_offset) == ("none", sequence)
    assert place.verifier.asked == [("tx", 7, 0, ["t-0"], False)] * 3
    assert (await produce(place.client, sent(b"v", sequence=2))).base_offset == 2
    await produce(place.client, sent(b"v", producer_id=8), version=12)
    assert place.verifier.asked[-1] == ("tx", 8, 0, ["t-0"], True)


@pytest.mark.parametrize("far", [False, True])
async def test_readers_of_what_is_committed_see_decisions_only(place: Place, far: bool) -> None:
    """At the deciding broker, and at the other one, which is notified."""
    client, ending = place.client, place.elsewhere if far else place.partition
    await client.produce("t", batch(b"before"))
    await produce(client, sent(b"one", b"two"))
    await produce(place.beside, sent(b"other", producer_id=8))
    await place.beside.produce("t", batch(b"behind"))
    assert await stable(place.broker) == 1
    row = await fetch_committed(client, max_wait=60_000)
    assert (row.high_watermark, row.last_stable_offset, aborted(row)) == (5, 1, [])
    assert [header.next_offset for header in split_batches(bytes(row.records))] == [1]
    assert [await list_offset(client, -1, level) for level in (0, 1)] == [5, 1]
    waiting = asyncio.create_task(fetch_committed(client, 1, max_wait=60_000))
    await place.beside.produce("t", batch(b"more"))
    assert not waiting.done()
    assert (await end(ending, commit=False)).base_offset == 6
    row = await asyncio.wait_for(waiting, SECONDS)
    assert aborted(row) == [(7, 1)]
    assert [header.base_offset for header in split_batches(bytes(row.records))] == [1]
    await end(ending, commit=True, producer_id=8)
    assert await stable(place.broker) == 8
    row = await fetch_committed(client, 1, max_wait=60_000)
    assert (row.last_stable_offset, aborted(row)) == (8, [(7, 1)])
    found, offset = [], 1
    while offset < 8:
        row = await fetch_committed(client, offset, max_wait=60_000)
        batches = split_batches(bytes(row.records))
        found += [header.base_offset for header in batches]
        offset = batches[-1].next_offset
    assert found == [1, 3, 4, 5, 6, 7]
    assert aborted(await client.fetch("t", 1)) is None
    assert aborted(await fetch_committed(client, 7)) == []
    assert [await list_offset(client, -1, level) for level in (0, 1)] == [8, 8]


@pytest.mark.parametrize("version", [1, 2])
async def test_a_batch_in_another_brokers_object_does_not_land_behind_its_marker(
    place: Place, version: int
) -> None:
    """The other broker has written the object; its commit waits until the marker is there."""
    await produce(place.client, sent(b"first"), version=10 + version)
    plane, go_on, waits = place.broker.control, asyncio.Event(), asyncio.Event()
    original = plane.commit_object

    async def held(commit: ObjectCommit) -> CommitAnswer:
        if all(entry.marker is None for entry in commit.entries):
            waits.set()
            await go_on.wait()
        return await original(commit)

    plane.commit_object = held  # type: ignore[method-assign]
    late = asyncio.create_task(
        produce(place.beside, sent(b"late", sequence=1), version=10 + version)
    )
    await asyncio.wait_for(waits.wait(), SECONDS)
    await end(place.partition, commit=False, epoch=version - 1, transaction_version=version)
    go_on.set()
    row = await asyncio.wait_for(late, SECONDS)
    expected = {1: "not_enough_replicas", 2: "invalid_producer_epoch"}
    assert (row.error_code.name, row.base_offset) == (expected[version], -1)
    assert await stable(place.other) == place.elsewhere.high_watermark == 2
    following = sent(b"new", sequence=1) if version == 1 else sent(b"new", epoch=1)
    assert (await produce(place.beside, following, version=10 + version)).base_offset == 2


async def test_what_a_verification_was_for_may_be_over(place: Place) -> None:
    async def abort() -> None:
        await end(place.elsewhere, commit=False, epoch=0)

    place.verifier.meanwhile = abort
    row = await produce(place.client, sent(b"late"))
    assert (row.error_code.name, row.base_offset) == ("not_enough_replicas", -1)
    assert await stable(place.broker) == place.partition.high_watermark == 1
    place.verifier.meanwhile = None
    assert (await produce(place.client, sent(b"again"))).error_code.name == "none"


async def test_what_was_refused_is_not_left_out(place: Place) -> None:
    place.verifier.answers = [coordinator_error("not_coordinator")]
    row = await produce(place.client, sent(b"one"))
    assert row.error_code.name == "not_enough_replicas"
    row = await produce(place.client, sent(b"two", sequence=1))
    assert row.error_code.name == "out_of_order_sequence_number"
    for sequence in range(2):
        row = await produce(place.client, sent(b"again", sequence=sequence))
        assert (row.error_code.name, row.base_offset) == ("none", sequence)


async def test_where_the_end_is_not_known_nothing_is_verified(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unknown(keys: Any) -> Any:
        raise coordinator_error("unknown_server_error")

    monkeypatch.setattr(place.broker.control, "watermarks", unknown)
    row = await produce(place.client, sent(b"v"))
    assert row.error_code.name == "not_enough_replicas"
    assert "end offset could not be looked up" in row.error_message
    assert place.verifier.asked == []


async def test_bit_and_id_must_agree(place: Place) -> None:
    row = await produce(place.client, sent(b"v"), transactional_id=None)
    assert row.error_code.name == "transactional_id_authorization_failed"
    assert (await produce(place.client, plain(b"v"))).error_code.name == "invalid_txn_state"
    await produce(place.client, sent(b"v"))
    row = await produce(place.beside, plain(b"v", sequence=1), transactional_id=None)
    assert row.error_code.name == "invalid_txn_state"
    await end(place.partition, commit=True)
    row = await produce(place.beside, plain(b"v", sequence=1), transactional_id=None)
    assert row.error_code.name == "none"


async def test_markers_are_fenced_wherever_they_come_from(place: Place) -> None:
    await produce(place.client, sent(b"v"), version=12)
    first = await end(
        place.partition, commit=True, epoch=1, transaction_version=2, coordinator_epoch=3
    )
    assert first.base_offset == 1
    again = await end(
        place.elsewhere, commit=True, epoch=1, transaction_version=2, coordinator_epoch=3
    )
    assert again.duplicate
    with pytest.raises(InvalidProducerEpoch):
        await end(place.elsewhere, commit=True, epoch=0, coordinator_epoch=3)
    with pytest.raises(TransactionCoordinatorFenced):
        await end(place.elsewhere, commit=True, epoch=2, coordinator_epoch=2)
    request = {"topics": [{"name": "t", "partition_indexes": [0]}]}
    answer = await place.beside.call("DescribeProducers", 0, request)
    [found] = answer.topics[0].partitions[0].active_producers
    assert (found.producer_epoch, found.coordinator_epoch) == (1, 3)
    assert (found.current_txn_start_offset, found.last_sequence) == (-1, -1)


async def test_a_marker_is_as_kafka_writes_it(place: Place) -> None:
    await produce(place.client, sent(b"v"))
    await end(place.partition, commit=True, coordinator_epoch=9)
    row = await place.client.fetch("t", 1, max_wait=60_000)
    [header] = split_batches(bytes(row.records))
    assert (header.is_control, header.is_transactional, header.base_sequence) == (True, True, -1)
    assert (header.base_offset, header.record_count, header.producer_id) == (1, 1, 7)
    record = bytes(row.records)[HEADER_BYTES:]
    assert record == bytes.fromhex("20 00 00 00 08 0000 0001 0c 0000 00000009 00")


async def test_deleted_records_are_not_waited_for(place: Place) -> None:
    await produce(place.client, sent(b"one", b"two"))
    await place.client.produce("t", batch(b"behind"))
    assert place.partition.last_stable_offset == 0
    await place.partition.delete_records(2)
    assert place.partition.last_stable_offset == 2
    await produce(place.client, sent(b"three", sequence=2))
    await end(place.partition, commit=False)
    row = await fetch_committed(place.client, 2, max_wait=60_000)
    assert (row.last_stable_offset, aborted(row)) == (5, [(7, 0)])


async def test_positions_by_time_see_records_below_the_last_stable_offset(place: Place) -> None:
    await place.client.produce("t", batch(b"a", timestamp_ms=1_000))
    await produce(place.client, sent(b"open"))
    assert [await list_offset(place.client, -3, level) for level in (0, 1)] == [1, -1]
    await end(place.partition, commit=True)
    assert [await list_offset(place.client, -3, level) for level in (0, 1)] == [1, 1]
    assert await list_offset(place.client, 0, 1) == 0


async def test_real_consumers_skip_what_was_aborted(place: Place, cluster: Cluster) -> None:
    """From the write-ahead objects, and from the segment that replaces them."""
    await Transactions.write(place)  # type: ignore[arg-type]
    visible = Transactions.VISIBLE
    for consolidated in (False, True):
        if consolidated:
            await consolidate(cluster)
        for broker in (place.broker, place.other):
            host, port = broker.kafka_address
            servers = f"{host}:{port}"
            assert await asyncio.to_thread(by_confluent, servers, len(visible)) == visible
        assert await asyncio.to_thread(by_python, servers, len(visible)) == visible


async def consolidate(cluster: Cluster) -> None:
    """Have a broker make a segment of the present log."""
    await cluster.start(**CONSOLIDATING, diskless_consolidation_min_age_ms=0)
    async with asyncio.timeout(SECONDS):
        while "segment" not in await kinds(cluster):
            await asyncio.sleep(0.01)


def producer(bootstrap: str, name: str) -> Producer:
    made = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": name,
            "transaction.timeout.ms": 60_000,
            "log_level": 0,
        }
    )
    made.init_transactions(SECONDS)
    return made


@pytest.mark.timeout(180)
async def test_librdkafka_commits_aborts_and_is_fenced(cluster: Cluster) -> None:
    """Coordinator and writer are the same broker or two, depending on ids."""
    brokers = [await cluster.start() for _ in range(2)]
    client = await cluster.connect(brokers[0])
    await client.call("CreateTopics", 7, creation(3))
    await brokers[1].cluster.refresh()
    host, port = brokers[0].kafka_address
    servers = f"{host}:{port}"

    def run(name: str) -> list[bytes]:
        made = producer(servers, name)
        expected: list[bytes] = []
        for number in range(4):
            made.begin_transaction()
            values = [f"{name} {number} {index}".encode() for index in range(6)]
            for index, value in enumerate(values):
                made.produce("t", value, partition=index % 3)
            if number % 2:
                made.abort_transaction(SECONDS)
            else:
                made.commit_transaction(SECONDS)
                expected += values
        made.begin_transaction()
        made.produce("t", b"zombie", partition=0)
        made.flush(SECONDS)
        successor = producer(servers, name)
        with pytest.raises(KafkaException):
            made.commit_transaction(SECONDS)
        successor.begin_transaction()
        successor.produce("t", name.encode(), partition=1)
        successor.commit_transaction(SECONDS)
        return [*expected, name.encode()]

    names = [f"tx-{uuid.uuid4().hex[:6]}" for _ in range(3)]
    written = await asyncio.gather(*[asyncio.to_thread(run, name) for name in names])
    expected = sorted(value for values in written for value in values)
    found = await asyncio.to_thread(committed_values, servers, "t", 3, len(expected))
    assert found == expected


async def test_share_groups_acquire_what_is_committed(place: Place) -> None:
    """Open transactions delay the acquisition; aborted records are never acquired."""
    await produce(place.client, sent(b"one", b"two"))
    await produce(place.client, sent(b"other", producer_id=8))
    await place.client.produce("t", batch(b"behind"))
    configs = {"share_auto_offset_reset": "earliest", "share_isolation_level": "read_committed"}
    await set_group(place.beside, "g", **configs)
    member = Member(place.beside, "g", "m")
    at = (await member.topic("t"), 0)
    assert await stable(place.other) == 0
    assert await member.acquire(at) == []
    await end(place.partition, commit=False)
    await end(place.partition, commit=True, producer_id=8)
    assert await stable(place.other) == 6
    assert await member.acquire(at, max_wait=60_000) == [(2, 3, 1)]
