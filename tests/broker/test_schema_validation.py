"""Produced records must have ids of registered schemas, where the topic demands it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.requests.opening import OPENED_NEARBY_BYTES_MAX
from penstock.broker.server import BrokerServer
from penstock.control.values.errors import ControlUnavailable
from penstock.records import Codec
from penstock.records.columnar.validation import REFUSED_RECORDS_NAMED_MAX
from penstock.records.header import WALKED_BYTES_MAX
from penstock.storage.log.validation import OPENED_NOW_BYTES_MAX
from tests.broker.conftest import StartBroker
from tests.broker.registered import GUID, Registered, framed, give
from tests.broker.test_opening import held
from tests.broker.test_record_validation import alter, described, end_offset
from tests.broker.test_replicated import Cluster
from tests.broker.transactions import Verifier, plain, produce, sent
from tests.broker.wire_client import WireClient, batch, produce_request
from tests.records.reference import Batch, Record, encode

Connect = Callable[[BrokerServer], Awaitable[WireClient]]
INVALID_CONFIG = 40
INVALID_RECORD = 87
NOT_ENOUGH_REPLICAS = 19
UNKNOWN = 99


def batch_of(*values: bytes | None, codec: int = 0) -> bytes:
    return encode(Batch(0, tuple(record(n, value) for n, value in enumerate(values)), codec=codec))


def record(
    number: int, value: bytes | None, key: bytes | None = b"key", **headers: bytes
) -> Record:
    return Record(number, 1_700_000_000_000, key, value, tuple(headers.items()))


class Place:
    """A topic `t` that demands schema ids in values, at a broker that has some."""

    def __init__(self, broker: BrokerServer, client: WireClient) -> None:
        self.broker = broker
        self.client = client
        self.registered = Registered(5, GUID)
        give(broker, self.registered)

    async def refused(self, data: bytes) -> tuple[str, list[int]]:
        """Produce a batch that is refused; the message, and the indexes of its wrong records."""
        row = await self.client.produce("t", data)
        assert (row.error_code, row.base_offset) == (INVALID_RECORD, -1)
        assert all(
            error.batch_index_error_message == row.error_message for error in row.record_errors
        )
        return row.error_message, [error.batch_index for error in row.record_errors]


@pytest.fixture
async def place(start_broker: StartBroker, connect: Connect) -> Place:
    broker = await start_broker()
    found = Place(broker, await connect(broker))
    await found.client.create("t", partitions=2)
    await alter(found.client, "t", "schema.validation.value", "true")
    return found


async def create(client: WireClient, topic: str, **configs: str) -> Any:
    """Create a topic; its part of the answer."""
    given = [{"name": name.replace("_", "."), "value": value} for name, value in configs.items()]
    spec = {
        "name": topic, "num_partitions": 1, "replication_factor": 1, "assignments": [],
        "configs": given,
    }  # fmt: skip
    return (await client.call("CreateTopics", 7, {"topics": [spec], "timeout": 5000})).topics[0]


@pytest.mark.parametrize("codec", list(Codec))
async def test_records_with_registered_ids_are_stored_as_sent(place: Place, codec: Codec) -> None:
    by_header = record(3, b"payload", __value_schema_id=framed(GUID, b""))
    other = record(4, b"payload", __value_schema_id=framed(5, b"\0"))
    values = [framed(5), framed(GUID), None]
    rows = [*(record(n, value) for n, value in enumerate(values)), by_header, other]
    data = encode(Batch(0, tuple(rows), codec=codec))
    for round_ in range(2):
        row = await place.client.produce("t", data)
        assert (row.error_code, row.base_offset) == (0, 5 * round_)
    stored = bytes((await place.client.fetch("t")).records)
    assert stored[61 : len(data)] == data[61:]
    assert place.registered.refreshes == 0


@pytest.mark.parametrize("codec", list(Codec))
async def test_records_without_an_id_are_named(place: Place, codec: Codec) -> None:
    good, bad = framed(5), b"plain"
    message, records = await place.refused(
        batch_of(good, bad, None, framed(UNKNOWN), b"", codec=codec)
    )
    assert records == [1, 4]
    assert "topic 't': record 1 of 5 has no schema id in its value; 2 of the batch's" in message
    assert "demands a serializer" in message
    _, records = await place.refused(batch_of(good, *[bad] * 300, codec=codec))
    assert records == list(range(1, 1 + REFUSED_RECORDS_NAMED_MAX))
    wrong = record(0, framed(5), __value_schema_id=b"\2")
    _, records = await place.refused(encode(Batch(0, (wrong,), codec=codec)))
    assert records == [0]
    assert await end_offset(place.client) == 0
    assert place.registered.refreshes == 0


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
async def test_records_with_unknown_ids_are_named(place: Place, codec: Codec) -> None:
    values = [framed(5), framed(UNKNOWN), framed(GUID), *[framed(UNKNOWN)] * 300]
    message, records = await place.refused(batch_of(*values, codec=codec))
    assert records == [1, *range(3, 2 + REFUSED_RECORDS_NAMED_MAX)]
    assert "topic 't': record 1 of 303: the schema id of its value is not registered." in message
    assert message.endswith("Unknown ids of the batch: 99")
    values = [framed(number) for number in range(10, 16)]
    message, records = await place.refused(batch_of(*values, codec=codec))
    assert message.endswith("Unknown ids of the batch: 10, 11, 12 and 3 more")
    assert records == list(range(6))
    assert await end_offset(place.client) == 0
    assert place.registered.refreshes == 2


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
async def test_an_id_that_another_broker_registered_just_now_is_found(
    place: Place, codec: Codec
) -> None:
    place.registered.later = {UNKNOWN}
    sent_batches = [batch_of(framed(number), codec=codec) for number in (UNKNOWN, 5, UNKNOWN)]
    client = place.client
    for data in sent_batches:
        client.writer.write(client.frame("Produce", 9, produce_request("t", data)))
    for offset in range(3):
        answer = (await client.response("Produce", 9)).responses[0].partition_responses[0]
        assert (answer.error_code, answer.base_offset) == (0, offset)
    assert place.registered.refreshes == 1


async def test_a_request_reads_the_registry_once(place: Place) -> None:
    place.registered.later = {UNKNOWN}
    rows = [
        {"index": 0, "records": batch_of(framed(UNKNOWN))},
        {"index": 1, "records": batch_of(framed(7), codec=Codec.ZSTD)},
    ]
    request = produce_request("t") | {"topic_data": [{"name": "t", "partition_data": rows}]}
    answer = await place.client.call("Produce", 9, request)
    codes = [row.error_code for row in answer.responses[0].partition_responses]
    assert codes == [0, INVALID_RECORD]
    assert place.registered.refreshes == 1


async def test_unknown_ids_are_retried_while_the_registry_cannot_be_read(place: Place) -> None:
    place.registered.fails = ControlUnavailable("the database is away")
    row = await place.client.produce("t", batch_of(framed(UNKNOWN)))
    assert row.error_code == NOT_ENOUGH_REPLICAS
    assert "the newest schemas could not be read: the database is away" in row.error_message
    assert (await place.client.produce("t", batch_of(framed(5)))).error_code == 0


async def test_keys_are_checked_by_their_own_setting(place: Place) -> None:
    client = place.client
    await alter(client, "t", "schema.validation.value", "false")
    await alter(client, "t", "schema.validation.key", "true")
    keys = [framed(5), None, b"plain", framed(UNKNOWN)]
    for key, accepted in zip(keys, (True, True, False, False), strict=True):
        data = encode(Batch(0, (record(0, b"plain", key),)))
        if accepted:
            assert (await client.produce("t", data)).error_code == 0
        else:
            message, records = await place.refused(data)
            assert "its key" in message
            assert records == [0]
    by_header = record(0, b"plain", __key_schema_id=framed(GUID, b""))
    assert (await client.produce("t", encode(Batch(0, (by_header,))))).error_code == 0
    await alter(client, "t", "schema.validation.value", "true")
    both = encode(Batch(0, (record(0, framed(5), framed(GUID)), record(1, b"plain", framed(5)))))
    assert (await place.refused(both))[1] == [1]
    place.registered.asked.clear()
    good = encode(Batch(0, (record(0, framed(5), framed(GUID)),)))
    assert (await client.produce("t", good)).error_code == 0
    assert place.registered.asked == [((GUID,), None), ((5,), None)]


async def test_a_topic_can_demand_schemas_of_its_own_subjects(place: Place) -> None:
    client = place.client
    for part in ("key", "value"):
        await alter(client, "t", f"schema.validation.{part}", "true")
    await alter(client, "t", "schema.validation.subject.strategy", "topic")
    good = encode(Batch(0, (record(0, framed(5), framed(GUID)),)))
    assert (await client.produce("t", good)).error_code == 0
    assert place.registered.asked == [((GUID,), "t-key"), ((5,), "t-value")]
    message, _ = await place.refused(encode(Batch(0, (record(0, framed(UNKNOWN), framed(5)),))))
    assert "is not a version of subject 't-value', which schema.validation.subject" in message


async def test_settings_are_shown_and_changed(place: Place) -> None:
    client = place.client
    assert await described(client, "t", "schema.validation.value") == ("true", 1)
    assert await described(client, "t", "schema.validation.key") == ("false", 5)
    assert await described(client, "t", "schema.validation.subject.strategy") == ("any", 5)
    await place.refused(batch(b"plain"))
    await alter(client, "t", "schema.validation.value", "false")
    assert (await client.produce("t", batch(b"plain"))).error_code == 0
    assert (await create(client, "k", schema_validation_key="true")).error_code == 0
    assert (await client.produce("k", batch(b"plain"))).error_code == 0, "it has a null key"


async def test_a_broker_without_a_registry_refuses_the_setting_and_such_records(
    place: Place,
) -> None:
    client, broker = place.client, place.broker
    assert (await create(client, "later")).error_code == 0
    give(broker, None)
    row = await create(client, "new", schema_validation_value="true")
    assert row.error_code == INVALID_CONFIG
    assert "topic 'new': schema.validation.value = true needs registry.enable = true" in (
        row.error_message
    )
    for name, error in (("schema.validation.key", INVALID_CONFIG), ("retention.ms", 0)):
        for topic in ("later", "t"):
            change = {"name": name, "config_operation": 0, "value": "true" if error else "5000"}
            resource = {"resource_type": 2, "resource_name": topic, "configs": [change]}
            answer = await client.call(
                "IncrementalAlterConfigs", 1, {"resources": [resource], "validate_only": False}
            )
            assert answer.responses[0].error_code == error
    for codec in (Codec.NONE, Codec.GZIP):
        row = await client.produce("t", batch_of(framed(5), codec=codec))
        assert row.error_code == INVALID_CONFIG
        assert (
            "topic 't': schema.validation.value = true needs registry.enable" in row.error_message
        )
    assert (await client.produce("later", batch(b"plain"))).error_code == 0


@pytest.mark.parametrize("size", [OPENED_NOW_BYTES_MAX, WALKED_BYTES_MAX, OPENED_NEARBY_BYTES_MAX])
async def test_large_batches_are_read_in_another_thread_or_process(place: Place, size: int) -> None:
    await alter(place.client, "t", "max.message.bytes", str(4 * size))
    for codec in (Codec.NONE, Codec.LZ4):
        assert (
            await place.client.produce("t", batch_of(framed(5, bytes(size)), codec=codec))
        ).error_code == 0
        bad = batch_of(framed(5, bytes(size)), framed(UNKNOWN), codec=codec)
        assert (await place.refused(bad))[1] == [1]


async def test_other_requests_are_served_while_a_batch_is_decompressed(place: Place) -> None:
    client = place.client
    gate, task = await held(place.broker.opener)
    packed = batch_of(framed(5, bytes(OPENED_NOW_BYTES_MAX)), codec=Codec.GZIP)
    plain_ = batch_of(framed(5))
    client.writer.write(client.frame("Produce", 9, produce_request("t", packed)))
    other = await WireClient.connect(place.broker.kafka_address)
    assert (await other.produce("t", plain_)).base_offset == 0
    await other.close()
    gate.may_end.set()
    await task
    answer = (await client.response("Produce", 9)).responses[0].partition_responses[0]
    assert (answer.error_code, answer.base_offset) == (0, 1)


async def test_other_rules_of_the_topic_still_apply(place: Place) -> None:
    client = place.client
    spoiled = bytearray(batch_of(framed(5)))
    spoiled[-3] ^= 1
    assert (await client.produce("t", bytes(spoiled))).error_code.name == "corrupt_message"
    await alter(client, "t", "cleanup.policy", "compact")
    for codec in (Codec.NONE, Codec.ZSTD):
        keyless = encode(Batch(0, (record(0, framed(5)), record(1, framed(5), None)), codec=codec))
        message, records = await place.refused(keyless)
        assert "a compacted topic rejects records without a key" in message
        assert records == [1]
        assert (await client.produce("t", batch_of(framed(5), codec=codec))).error_code == 0
        assert (await place.refused(batch_of(b"plain", codec=codec)))[1] == [0]
    await alter(client, "t", "compression.type", "gzip")
    assert (await client.produce("t", batch_of(framed(5)))).base_offset == 2
    assert (await place.refused(batch_of(b"plain")))[1] == [0]
    await alter(client, "t", "record.validation", "headers")
    assert (await place.refused(batch_of(b"plain")))[1] == [0]


async def test_batches_of_transactions_and_idempotent_producers(place: Place) -> None:
    verifier = Verifier()
    place.broker.assembly.verifier = verifier
    client = place.client
    assert (await produce(client, sent(framed(5)))).error_code == 0
    assert (await produce(client, sent(b"plain", sequence=1))).error_code == INVALID_RECORD
    row = await produce(client, sent(framed(GUID), sequence=1))
    assert (row.error_code, row.base_offset) == (0, 1)
    place.registered.later = {UNKNOWN}
    row = await produce(client, sent(framed(UNKNOWN), sequence=2))
    assert (row.error_code, row.base_offset) == (0, 2)
    for _ in range(2):
        row = await produce(
            client, plain(framed(5), producer_id=8), transactional_id=None, partition=1
        )
        assert (row.error_code, row.base_offset) == (0, 0)


async def test_with_acks_0_the_connection_is_closed(place: Place) -> None:
    client = place.client
    request = produce_request("t", batch(b"plain"), acks=0)
    client.writer.write(client.frame("Produce", 9, request))
    assert await client.closed_by_server()


async def test_a_batch_is_not_appended_after_its_timeout(place: Place) -> None:
    waits = asyncio.Event()

    async def refresh() -> None:
        await waits.wait()
        place.registered.ids.add(UNKNOWN)

    place.registered.refresh = refresh  # type: ignore[method-assign]
    request = produce_request("t", batch_of(framed(UNKNOWN))) | {"timeout": 1}
    answer = await place.client.call("Produce", 9, request)
    row = answer.responses[0].partition_responses[0]
    assert row.error_code.name == "request_timed_out"
    assert "the batch's validation took longer" in row.error_message
    waits.set()
    assert (await place.client.produce("t", batch_of(framed(5)))).base_offset == 0


@pytest.fixture
async def cluster(tmp_path: Path, postgres_url: str) -> AsyncIterator[Cluster]:
    made = Cluster(tmp_path, postgres_url)
    async with made.running(1, 2, 3):
        yield made


@pytest.mark.timeout(300)
async def test_a_replicated_topic_checks_at_its_leader(cluster: Cluster) -> None:
    for broker in cluster.brokers.values():
        give(broker, Registered(5))
    leader = await cluster.create(more={"schema.validation.value": "true"})
    client = cluster.clients[leader]
    assert (await client.produce("t", batch_of(framed(5)))).base_offset == 0
    for data in (batch(b"plain"), batch_of(framed(UNKNOWN), codec=Codec.ZSTD)):
        assert (await client.produce("t", data)).error_code == INVALID_RECORD
    assert (await client.produce("t", batch_of(framed(5), codec=Codec.ZSTD))).base_offset == 1
