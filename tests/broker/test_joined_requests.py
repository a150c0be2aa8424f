"""Produce requests of one turn of the event loop that share an append."""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from penstock.broker.handlers.produce import Produce
from penstock.broker.requests import joining
from penstock.broker.server import BrokerServer
from penstock.records.header import HEADER_BYTES
from penstock.storage import LogStore, PartitionLog, StorageFailed
from penstock.storage.files.journal import Journal
from tests.broker.conftest import StartBroker
from tests.broker.test_quotas import limit
from tests.broker.test_replicated import until
from tests.broker.wire_client import WireClient, batch, produce_request
from tests.kernels.joins import join_batches
from tests.storage.batches import batch as stored_batch

Connect = Callable[[BrokerServer], Awaitable[WireClient]]
COUNT = 8


@pytest.fixture(autouse=True)
def joined(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the number of batches of each joined append."""
    counts: list[int] = []
    append = PartitionLog.append_joined

    def counted(self: PartitionLog, batches: Any, headers: Any, **rest: Any) -> int | None:
        start = append(self, batches, headers, **rest)
        if start is not None:
            counts.append(len(headers))
        return start

    monkeypatch.setattr(PartitionLog, "append_joined", counted)
    if joining._native("join_batches") is None:  # the kernels are compiled by Numba
        monkeypatch.setattr(joining, "_native", {"join_batches": join_batches}.get)
    return counts


def numbered(*sequences: int) -> list[bytes]:
    """Return batches of one idempotent producer."""
    return [bytes(stored_batch(producer_id=7, epoch=0, sequence=at)) for at in sequences]


async def burst(
    client: WireClient,
    batches: Sequence[bytes],
    *,
    version: int = 9,
    topic_id: bytes = b"",
    partition: int = 0,
) -> list[Any]:
    """Send requests at once; return the results, which are in the order of the requests."""
    frames = []
    for records in batches:
        request = produce_request("t", records, partition=partition)
        if topic_id:
            (topic,) = request["topic_data"]
            topic["topic_id"] = topic_id
        frames.append(client.frame("Produce", version, request))
    first = client._correlation_id - len(frames) + 1
    client.writer.write(b"".join(frames))
    found = []
    for place in range(len(frames)):
        answer = await client.response("Produce", version)
        assert client.last_correlation_id == first + place
        found.append(answer.responses[0].partition_responses[0])
    return found


async def crowd(client: WireClient, **options: Any) -> int:
    """Send bursts until requests are joined; return how many records they had."""
    for _ in range(3):
        await burst(client, [batch(b"before")] * COUNT, **options)
    return 3 * COUNT


async def alter(client: WireClient, name: str, value: str) -> None:
    """Set a configuration of the topic t."""
    changes = [{"name": name, "config_operation": 0, "value": value}]
    resources = [{"resource_type": 2, "resource_name": "t", "configs": changes}]
    answer = await client.call(
        "IncrementalAlterConfigs", 1, {"resources": resources, "validate_only": False}
    )
    assert answer.responses[0].error_code.name == "none"


def forbid_writes(broker: BrokerServer, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Return a set of topics: no client may write to those that are added."""
    forbidden: set[str] = set()

    class Rights:
        def allows(self, operation: str, kind: str, name: str) -> bool:
            return (operation, kind) != ("write", "topic") or name not in forbidden

    class Authoriser:
        refuses = True

        def rights(self, principal: Any, host: str) -> Rights:
            return Rights()

    authoriser = Authoriser()
    monkeypatch.setattr(broker._dispatcher, "_asks", True)
    monkeypatch.setattr(broker._dispatcher, "_rights", authoriser.rights)
    joins = broker._dispatcher._table.produce.joining
    monkeypatch.setattr(joins, "_authoriser", authoriser)
    return forbidden


def errors(results: Sequence[Any]) -> list[str]:
    return [result.error_code.name for result in results]


@pytest.mark.parametrize("version", [3, 7, 8, 9, 12, 13])
async def test_requests_of_a_turn_share_an_append(
    client: WireClient, broker: BrokerServer, joined: list[int], version: int
) -> None:
    await client.create("t", partitions=2)
    topic = broker.partitions.topics["t"].topic
    options: dict[str, Any] = {"version": version}
    if version >= 13:
        options["topic_id"] = topic.topic_id.bytes
    count = await crowd(client, **options)
    del joined[:]
    before = sum(broker.metrics.latency["Produce"].counts)
    values = [b"%d" % number * (number + 1) for number in range(COUNT)]
    found = await burst(client, [batch(value, value) for value in values], **options)
    assert joined == [COUNT]
    assert errors(found) == ["none"] * COUNT
    assert [row.base_offset for row in found] == list(range(count, count + 2 * COUNT, 2))
    assert {row.log_append_time.total_seconds() for row in found if row.log_append_time} <= {-0.001}
    assert sum(broker.metrics.latency["Produce"].counts) == before + COUNT
    records = bytes((await client.fetch("t", count)).records)
    epoch = broker.partitions.partition("t", 0).leader_epoch
    expected = b""
    for place, value in enumerate(values):
        data = bytearray(batch(value, value))
        struct.pack_into(">q", data, 0, count + 2 * place)
        struct.pack_into(">i", data, 12, epoch)
        expected += data
    assert records == expected


async def test_requests_of_several_connections_and_partitions_share_appends(
    broker: BrokerServer, connect: Connect, joined: list[int]
) -> None:
    clients = [await connect(broker) for _ in range(4)]
    await clients[0].create("t", partitions=2)
    for _ in range(4):
        for client in clients:
            for number in range(COUNT):
                request = produce_request("t", batch(b"%d" % number), partition=number % 2)
                client.writer.write(client.frame("Produce", 9, request))
        for client in clients:
            found = [await client.response("Produce", 9) for _ in range(COUNT)]
            rows = [answer.responses[0].partition_responses[0] for answer in found]
            assert [row.index for row in rows] == [0, 1] * (COUNT // 2)
            assert errors(rows) == ["none"] * COUNT
            for index in (0, 1):
                offsets = [row.base_offset for row in rows if row.index == index]
                assert offsets == sorted(offsets)
    assert max(joined) >= COUNT // 2
    for index in (0, 1):
        assert (await clients[0].fetch("t", partition=index)).high_watermark == 16 * COUNT // 2


@pytest.mark.parametrize(("bad", "error"), [
    (batch(b"one")[:-1] + b"\xff", "corrupt_message"),
    (batch(b"one", attributes=0x20), "invalid_record"),
    (batch(b"one") * 2, "invalid_record"),
    (batch(b"one")[: HEADER_BYTES - 1], "invalid_record"),
    (batch(b"one", timestamp_ms=-5), "none"),
    (batch(b"x" * joining.JOINED_FRAME_BYTES_MAX), "none"),
    (b"", "invalid_record"),
], ids=["checksum", "control", "two", "cut", "negative", "large", "empty"])  # fmt: skip
async def test_a_request_that_cannot_be_joined_is_handled_alone(
    client: WireClient, joined: list[int], bad: bytes, error: str
) -> None:
    await client.create("t")
    count = await crowd(client)
    del joined[:]
    sent = [batch(b"a")] * 3 + [bad] + [batch(b"b")] * 3
    found = await burst(client, sent)
    assert errors(found) == ["none"] * 3 + [error] + ["none"] * 3
    offsets = [row.base_offset for row in found if row.error_code.name == "none"]
    assert offsets == list(range(count, count + len(offsets)))
    assert joined[0] == 3
    assert (await client.fetch("t", count)).high_watermark == count + len(offsets)


async def test_batches_of_a_producer_keep_their_order(
    client: WireClient, joined: list[int]
) -> None:
    """A large request between joined ones, and a topic that begins to demand another codec."""
    await client.create("t")
    count = await crowd(client)
    del joined[:]
    large = bytes(stored_batch(size=4000, producer_id=7, epoch=0, sequence=2))
    sent = [*numbered(0, 1), large, *numbered(3, 4, 5)]
    assert errors(await burst(client, sent)) == ["none"] * 6
    assert joined == [2, 3]
    again = await burst(client, sent[3:])
    assert [row.base_offset for row in again] == [count + 3, count + 4, count + 5]
    await alter(client, "compression.type", "zstd")
    del joined[:]
    found = await burst(client, numbered(*range(6, 14)))
    assert errors(found) == ["none"] * 8
    assert [row.base_offset for row in found] == list(range(count + 6, count + 14))
    assert not joined
    assert (await client.fetch("t", count)).high_watermark == count + 14


async def test_requests_to_a_topic_that_was_replaced(
    client: WireClient, broker: BrokerServer, joined: list[int]
) -> None:
    await client.create("t")
    await crowd(client)
    await client.call("DeleteTopics", 5, {"topic_names": ["t"], "timeout": 5000})
    del joined[:]
    assert errors(await burst(client, [batch(b"x")] * 3)) == ["unknown_topic_or_partition"] * 3
    await client.create("t")
    found = await burst(client, [batch(b"x")] * 3)
    assert [row.base_offset for row in found] == [0, 1, 2]
    assert not joined


async def test_joined_requests_that_time_out_are_answered_once(
    client: WireClient, broker: BrokerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.create("t")
    count = await crowd(client)
    with monkeypatch.context() as held:
        held.setattr(LogStore, "commit_pending", lambda self: None)
        frame = client.frame("Produce", 9, produce_request("t", batch(b"x")))
        client.writer.write(frame * 3)
        await until(lambda: bool(broker.produce_waiting))
        (pending,) = broker.produce_waiting
        assert isinstance(pending, joining.Joined)
        pending.expire()
        for _ in range(3):
            answer = await client.response("Produce", 9)
            (row,) = answer.responses[0].partition_responses
            assert row.error_code.name == "request_timed_out"
            assert row.error_message == "the sync took longer than the timeout"
    broker.store.commit_pending()
    assert not broker.produce_waiting
    await client.call("ApiVersions", 0, {})  # the next response is that of the next request
    await until(lambda: broker.partitions.partition("t", 0).high_watermark == count + 3)


async def test_joined_requests_whose_sync_failed_are_not_acknowledged(
    client: WireClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.create("t")
    count = await crowd(client)

    def fail(self: Journal) -> None:
        raise StorageFailed("the journal cannot be synced")

    monkeypatch.setattr(Journal, "sync", fail)
    found = await burst(client, [batch(b"x")] * 3)
    assert errors(found) == ["kafka_storage_error"] * 3
    assert {row.error_message for row in found} == {"the journal cannot be synced"}
    assert (await client.fetch("t")).high_watermark == count


async def test_a_fault_of_joining_closes_the_connections(
    client: WireClient, broker: BrokerServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.create("t")
    count = await crowd(client)
    other = await connect(broker)

    def fail(self: joining.Joining, target: Any, requests: Any) -> int:
        raise RuntimeError("planted")

    monkeypatch.setattr(joining.Joining, "_joined", fail)
    frame = client.frame("Produce", 9, produce_request("t", batch(b"x")))
    client.writer.write(frame * 3)
    assert await client.closed_by_server()
    assert (await other.produce("t", batch(b"y"))).base_offset == count


async def test_requests_under_quotas_are_not_joined(
    start_broker: StartBroker, connect: Connect, joined: list[int]
) -> None:
    broker = await start_broker()
    client = await connect(broker)
    await client.create("t")
    await crowd(client)
    await limit(client, "producer_byte_rate", 1e9)
    del joined[:]
    assert errors(await burst(client, [batch(b"x")] * COUNT)) == ["none"] * COUNT
    assert not joined


async def test_requests_that_the_owner_of_a_connection_checks_are_not_joined(
    client: WireClient, broker: BrokerServer, joined: list[int]
) -> None:
    broker.checks_requests = True
    await client.create("t")
    await crowd(client)
    assert not joined


async def test_a_right_that_is_taken_away_applies_to_the_next_request(
    client: WireClient, broker: BrokerServer, joined: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.create("t")
    forbidden = forbid_writes(broker, monkeypatch)
    await crowd(client)
    assert joined
    del joined[:]
    forbidden.add("t")
    refused = await burst(client, [batch(b"x")] * COUNT)
    assert errors(refused) == ["topic_authorization_failed"] * COUNT
    assert not joined


async def test_the_memory_of_a_connection_is_bounded(
    client: WireClient, broker: BrokerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joining, "REPEATS_MAX", 3)
    monkeypatch.setattr(joining, "TARGETS_MAX", 4)
    await client.create("t", partitions=9)
    for partition in range(9):
        await crowd(client, partition=partition)
    (connection,) = broker._connections
    repeats = connection.repeats
    assert isinstance(repeats, joining.Repeats)
    assert 1 <= len(repeats.known) <= 3
    assert len(repeats.joining._targets) <= 4


async def test_topics_with_names_of_different_lengths_take_turns(
    client: WireClient, joined: list[int]
) -> None:
    topics = ["t" * size for size in range(1, joining.SIZES_MAX + 1)]
    for topic in topics:
        await client.create(topic)
    for _ in range(4):
        requests = [produce_request(topic, batch(b"x")) for topic in topics * 3]
        frames = [client.frame("Produce", 9, request) for request in requests]
        client.writer.write(b"".join(frames))
        answers = [await client.response("Produce", 9) for _ in frames]
        assert [answer.responses[0].name for answer in answers] == topics * 3
    assert joined[-4:] == [3] * 4
    for topic in topics:
        assert (await client.fetch(topic)).high_watermark == 12


async def test_requests_to_different_partitions_are_not_kept(
    client: WireClient, broker: BrokerServer, joined: list[int]
) -> None:
    await client.create("t", partitions=COUNT)
    for _ in range(4):
        requests = [produce_request("t", batch(b"x"), partition=index) for index in range(COUNT)]
        frames = [client.frame("Produce", 9, request) for request in requests]
        client.writer.write(b"".join(frames))
        for _ in requests:
            await client.response("Produce", 9)
    (connection,) = broker._connections
    assert connection.repeats is None
    assert not joined


async def test_partitions_that_were_replaced_are_released(
    client: WireClient, broker: BrokerServer, joined: list[int]
) -> None:
    await client.create("t")
    await crowd(client)
    (connection,) = broker._connections
    repeats = connection.repeats
    assert isinstance(repeats, joining.Repeats)
    (repeat,) = repeats.known.values()
    assert repeat.target.partition is broker.partitions.partition("t", 0)
    await client.create("other")
    del joined[:]
    await burst(client, [batch(b"x")] * COUNT)
    assert repeat.target.partition is None
    await burst(client, [batch(b"x")] * COUNT)
    assert joined[-1] == COUNT


async def test_single_requests_are_not_joined(
    client: WireClient, joined: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    short = Produce._append_single
    taken: list[bool] = []

    def noted(self: Produce, *rest: Any) -> bool:
        taken.append(short(self, *rest))
        return taken[-1]

    monkeypatch.setattr(Produce, "_append_single", noted)
    await client.create("t")
    for number in range(5):
        assert (await client.produce("t", batch(b"x"))).base_offset == number
    assert taken == [True] * 5
    assert not joined
