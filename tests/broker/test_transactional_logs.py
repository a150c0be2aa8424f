"""Transactional batches are verified first, and seen by readers of committed records."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, ClassVar, NamedTuple

import aiokafka
import pytest
from confluent_kafka import Consumer, TopicPartition

from penstock.base.errors import InvalidError, PenstockError
from penstock.broker.requests.verification import VERIFICATION_TRIES_MAX
from penstock.broker.server import BrokerServer
from penstock.partitions.local import LocalPartition
from penstock.records import split_batches
from penstock.records.errors import InvalidProducerEpoch, TransactionCoordinatorFenced
from tests.broker.conftest import StartBroker
from tests.broker.transactions import Verifier, aborted, end, fetch_committed, plain, produce, sent
from tests.broker.wire_client import WireClient, batch, produce_request

Connect = Callable[[BrokerServer], Awaitable[WireClient]]


class Place(NamedTuple):
    broker: BrokerServer
    client: WireClient
    verifier: Verifier

    @property
    def partition(self) -> LocalPartition:
        return self.broker.partitions.with_log("t", 0)


@pytest.fixture
async def place(start_broker: StartBroker, connect: Connect) -> Place:
    broker = await start_broker()
    verifier = Verifier()
    broker.assembly.verifier = verifier
    client = await connect(broker)
    await client.create("t", partitions=2)
    return Place(broker, client, verifier)


async def list_offset(client: WireClient, timestamp: int, isolation_level: int) -> int:
    partition = {"partition_index": 0, "timestamp": timestamp, "current_leader_epoch": -1}
    request = {
        "replica_id": -1,
        "isolation_level": isolation_level,
        "topics": [{"name": "t", "partitions": [partition]}],
    }
    answer = await client.call("ListOffsets", 7, request)
    return int(answer.topics[0].partitions[0].offset)


async def test_the_first_batch_of_a_transaction_is_verified(place: Place) -> None:
    for sequence in range(3):
        row = await produce(place.client, sent(b"v", sequence=sequence))
        assert (row.error_code.name, row.base_offset) == ("none", sequence)
    assert place.verifier.asked == [("tx", 7, 0, ["t-0"], False)]
    assert (await produce(place.client, sent(b"v", sequence=2))).base_offset == 2
    await end(place.partition, commit=True)
    for version in (9, 12, 12):
        row = await produce(place.client, sent(b"v", sequence=3), version=version, partition=1)
    assert [call[3:] for call in place.verifier.asked[1:]] == [(["t-1"], False)]
    await produce(place.client, sent(b"v", producer_id=8), version=12)
    assert place.verifier.asked[-1] == ("tx", 8, 0, ["t-0"], True)


async def test_readers_of_what_is_committed_see_decisions_only(place: Place) -> None:
    client, partition = place.client, place.partition
    await client.produce("t", batch(b"before"))
    await produce(client, sent(b"one", b"two"))
    await produce(client, sent(b"other", producer_id=8))
    await client.produce("t", batch(b"behind"))
    assert (partition.high_watermark, partition.last_stable_offset) == (5, 1)
    row = await fetch_committed(client)
    assert (row.high_watermark, row.last_stable_offset, aborted(row)) == (5, 1, [])
    assert [batch.next_offset for batch in split_batches(bytes(row.records))] == [1]
    assert [await list_offset(client, -1, level) for level in (0, 1)] == [5, 1]
    waiting = asyncio.create_task(fetch_committed(client, 1, max_wait=60_000))
    other = await WireClient.connect(place.broker.kafka_address)
    await other.produce("t", batch(b"more"))
    assert not waiting.done()
    assert (await end(partition, commit=False)).base_offset == 6
    row = await waiting
    assert aborted(row) == [(7, 1)]
    assert [batch.base_offset for batch in split_batches(bytes(row.records))] == [1]
    await end(partition, commit=True, producer_id=8)
    row = await fetch_committed(client, 1)
    assert (row.last_stable_offset, aborted(row)) == (8, [(7, 1)])
    assert [batch.base_offset for batch in split_batches(bytes(row.records))] == [1, 3, 4, 5, 6, 7]
    row = await client.fetch("t", 1)
    assert aborted(row) is None
    assert aborted(await fetch_committed(client, 7)) == []
    assert [await list_offset(client, -1, level) for level in (0, 1)] == [8, 8]
    await other.close()


async def abort(place: Place) -> None:
    await end(place.partition, commit=False, epoch=0)


async def test_what_a_verification_was_for_may_be_over(place: Place) -> None:
    """A marker comes while the coordinator answers: the batch would hang for ever."""
    place.verifier.meanwhile = partial(abort, place)
    place.verifier.answers = [None, coordinator_error("transaction_abortable")]
    row = await produce(place.client, sent(b"late"))
    assert (row.error_code.name, row.base_offset) == ("transaction_abortable", -1)
    end_offset = place.partition.log_end_offset
    assert place.partition.last_stable_offset == place.partition.high_watermark == end_offset
    place.verifier.meanwhile = None
    assert (await produce(place.client, sent(b"again"))).error_code.name == "none"


@pytest.mark.parametrize("version", [11, 12])
async def test_the_last_transactions_marker_comes_while_the_coordinator_is_asked(
    place: Place, version: int
) -> None:
    async def abort_once() -> None:
        place.verifier.meanwhile = None
        await abort(place)

    place.verifier.meanwhile = abort_once
    row = await produce(place.client, sent(b"next"), version=version)
    assert (row.error_code.name, row.base_offset) == ("none", 1)
    assert len(place.verifier.asked) == 2


async def test_markers_that_come_again_and_again_end_in_another_try_of_the_client(
    place: Place,
) -> None:
    place.verifier.meanwhile = partial(abort, place)
    row = await produce(place.client, sent(b"v"))
    assert (row.error_code.name, row.base_offset) == ("not_enough_replicas", -1)
    assert len(place.verifier.asked) == VERIFICATION_TRIES_MAX


async def test_what_was_refused_is_not_left_out(place: Place) -> None:
    """The batch behind one whose verification failed must not begin the transaction."""
    place.verifier.answers = [coordinator_error("not_coordinator")]
    row = await produce(place.client, sent(b"one"))
    assert row.error_code.name == "not_enough_replicas"
    row = await produce(place.client, sent(b"two", sequence=1))
    assert row.error_code.name == "out_of_order_sequence_number"
    for sequence in range(2):
        row = await produce(place.client, sent(b"again", sequence=sequence))
        assert (row.error_code.name, row.base_offset) == ("none", sequence)


async def test_later_requests_of_a_connection_wait(place: Place) -> None:
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        asked.set()
        await go_on.wait()

    place.verifier.meanwhile = wait
    client = place.client
    for sequence in range(4):
        request = produce_request("t", sent(b"v", sequence=sequence)) | {"transactional_id": "tx"}
        client.writer.write(client.frame("Produce", 11, request))
        await asyncio.wait_for(asked.wait(), 60)
    assert place.partition.log_end_offset == 0
    go_on.set()
    for offset in range(4):
        answer = await client.response("Produce", 11)
        assert answer.responses[0].partition_responses[0].base_offset == offset
    assert len(place.verifier.asked) == 1


def coordinator_error(code: str) -> PenstockError:
    class CoordinatorError(InvalidError):
        """An error of the coordinator."""

    CoordinatorError.code = code
    return CoordinatorError(f"the coordinator said {code}")


TOLD = {
    "not_coordinator": ("not_enough_replicas",) * 3,
    "coordinator_load_in_progress": ("not_enough_replicas",) * 3,
    "coordinator_not_available": ("not_enough_replicas",) * 3,
    "concurrent_transactions": ("not_enough_replicas",) * 2 + ("concurrent_transactions",),
    "transaction_abortable": ("invalid_txn_state",) + ("transaction_abortable",) * 2,
    "invalid_txn_state": ("invalid_txn_state",) * 3,
    "producer_fenced": ("invalid_producer_epoch",) * 3,
    "invalid_producer_epoch": ("invalid_producer_epoch",) * 3,
    "invalid_producer_id_mapping": ("invalid_producer_id_mapping",) * 3,
}


@pytest.mark.parametrize("code", TOLD)
async def test_errors_of_the_producer(place: Place, code: str) -> None:
    for version, expected in zip((10, 11, 12), TOLD[code], strict=True):
        place.verifier.answers = [coordinator_error(code)] * 9
        row = await produce(place.client, sent(b"v"), version=version)
        assert row.error_code.name == expected
        assert f"the coordinator said {code}" in row.error_message
    assert place.partition.log_end_offset == 0


async def test_a_coordinator_that_is_just_ending_the_last_transaction_is_asked_again(
    place: Place,
) -> None:
    place.verifier.answers = [coordinator_error("concurrent_transactions")] * 3
    row = await produce(place.client, sent(b"v"), version=12)
    assert row.error_code.name == "none"
    assert len(place.verifier.asked) == 4


async def test_bit_and_id_must_agree(place: Place) -> None:
    row = await produce(place.client, sent(b"v"), transactional_id=None)
    assert row.error_code.name == "transactional_id_authorization_failed"
    row = await produce(place.client, plain(b"v"))
    assert row.error_code.name == "invalid_txn_state"
    await produce(place.client, sent(b"v"))
    row = await produce(place.client, plain(b"v", sequence=1), transactional_id=None)
    assert row.error_code.name == "invalid_txn_state"
    await end(place.partition, commit=True)
    row = await produce(place.client, plain(b"v", sequence=1), transactional_id=None)
    assert row.error_code.name == "none"


async def test_after_a_marker_of_version_two_older_epochs_are_refused(place: Place) -> None:
    await produce(place.client, sent(b"v"), version=12)
    await end(place.partition, commit=True, epoch=1, transaction_version=2)
    row = await produce(place.client, sent(b"v", sequence=1), version=12)
    assert row.error_code.name == "invalid_producer_epoch"
    row = await produce(place.client, sent(b"v", epoch=1), version=12)
    assert row.error_code.name == "none"
    with pytest.raises(InvalidProducerEpoch):
        await end(place.partition, commit=True, epoch=0)
    again = await end(place.partition, commit=True, epoch=1, transaction_version=2)
    assert again.duplicate
    assert place.partition.last_stable_offset == 2


async def test_verification_can_be_turned_off_for_older_clients(
    start_broker: StartBroker, connect: Connect
) -> None:
    broker = await start_broker({"transaction.partition.verification.enable": "false"})
    broker.assembly.verifier = verifier = Verifier()
    client = await connect(broker)
    await client.create("t")
    assert (await produce(client, sent(b"v"), version=11)).error_code.name == "none"
    assert verifier.asked == []
    await produce(client, sent(b"v", producer_id=8), version=12)
    assert len(verifier.asked) == 1


async def test_describe_producers_reports_open_transactions(place: Place) -> None:
    await place.client.produce("t", batch(b"before"))
    await produce(place.client, sent(b"v"))
    await end(place.partition, commit=True, producer_id=8, epoch=4, coordinator_epoch=3)
    request = {"topics": [{"name": "t", "partition_indexes": [0]}]}
    answer = await place.client.call("DescribeProducers", 0, request)
    found = {
        active_producer.producer_id: active_producer
        for active_producer in answer.topics[0].partitions[0].active_producers
    }
    assert (found[7].current_txn_start_offset, found[7].coordinator_epoch) == (1, -1)
    assert (found[8].current_txn_start_offset, found[8].coordinator_epoch) == (-1, 3)
    assert (found[8].producer_epoch, found[8].last_sequence) == (4, -1)
    with pytest.raises(TransactionCoordinatorFenced):
        await end(place.partition, commit=True, producer_id=8, epoch=4, coordinator_epoch=2)


async def test_deleted_records_are_not_waited_for(place: Place) -> None:
    await produce(place.client, sent(b"one", b"two"))
    await place.client.produce("t", batch(b"behind"))
    assert place.partition.last_stable_offset == 0
    await place.partition.delete_records(2)
    assert place.partition.last_stable_offset == 2
    await produce(place.client, sent(b"three", sequence=2))
    await end(place.partition, commit=False)
    row = await fetch_committed(place.client, 2)
    assert (row.last_stable_offset, aborted(row)) == (5, [(7, 0)])


class Transactions:
    """Some that commit, some that abort, interleaved; and what may be seen of them."""

    VISIBLE: ClassVar = [b"plain 0", b"8 b", b"9 a", b"9 b", b"plain 1", b"7 c"]

    @staticmethod
    async def write(place: Place) -> None:
        client, partition = place.client, place.partition
        await client.produce("t", batch(b"plain 0"))
        await produce(client, sent(b"7 a"))
        await produce(client, sent(b"8 a", producer_id=8))
        await produce(client, sent(b"7 b", sequence=1))
        await end(partition, commit=False, producer_id=8)
        await produce(client, sent(b"8 b", producer_id=8, sequence=1))
        await produce(client, sent(b"9 a", producer_id=9))
        await end(partition, commit=False)
        await produce(client, sent(b"9 b", producer_id=9, sequence=1))
        await end(partition, commit=True, producer_id=9)
        await client.produce("t", batch(b"plain 1"))
        await end(partition, commit=True, producer_id=8)
        await produce(client, sent(b"7 c", sequence=2))
        await end(partition, commit=True)
        await produce(client, sent(b"open", sequence=3))
        await client.produce("t", batch(b"above"))


async def test_real_consumers_skip_what_was_aborted(place: Place) -> None:
    await Transactions.write(place)
    host, port = place.broker.kafka_address
    servers = f"{host}:{port}"
    visible = Transactions.VISIBLE
    asynchronous = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=servers, isolation_level="read_committed", auto_offset_reset="earliest"
    )
    await asynchronous.start()
    asynchronous.assign([aiokafka.TopicPartition("t", 0)])
    found: list[Any] = []
    async with asyncio.timeout(60):
        while len(found) < len(visible):
            found.append((await asynchronous.getone()).value)
    await asynchronous.stop()
    assert found == visible
    assert await asyncio.to_thread(by_confluent, servers, len(visible)) == visible
    assert await asyncio.to_thread(by_python, servers, len(visible)) == visible


def by_confluent(servers: str, count: int) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "g", "log_level": 0,
                         "isolation.level": "read_committed"})  # fmt: skip
    consumer.assign([TopicPartition("t", 0, 0)])
    found: list[bytes] = []
    for _ in range(60):
        found += [
            message.value() for message in consumer.consume(count + 1 - len(found), timeout=1.0)
        ]
        if len(found) >= count:
            break
    consumer.close()
    return found


def by_python(servers: str, count: int) -> list[bytes]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from kafka import KafkaConsumer
        from kafka import TopicPartition as PythonPartition
    consumer = KafkaConsumer(
        bootstrap_servers=servers, isolation_level="read_committed", auto_offset_reset="earliest"
    )
    where = PythonPartition("t", 0)
    consumer.assign([where])
    consumer.seek_to_beginning(where)
    found: list[bytes] = []
    for _ in range(60):
        found += [record.value for rows in consumer.poll(1000).values() for record in rows]
        if len(found) >= count:
            break
    consumer.close()
    return found
