"""Quotas on the wire: set, described, and what clients above them are answered.

Rates are over one second here (`quota.window.num` = 2), so that a client waits for as long as what
it used above its quota takes at the quota.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from penstock.base.system import SYSTEM_CLOCK
from penstock.broker.server import BrokerServer
from tests.broker.conftest import StartBroker
from tests.broker.wire_client import WireClient, batch, fetch_request, produce_request

SHORT = {"quota.window.num": 2, "controller.quota.window.num": 1}
CLIENT = {"client-id": "tests"}
INVALID_REQUEST, UNSUPPORTED_VERSION, THROTTLING_QUOTA_EXCEEDED = 42, 35, 89

Connect = Callable[[BrokerServer], Awaitable[WireClient]]


@pytest.fixture
async def broker(start_broker: StartBroker) -> BrokerServer:
    return await start_broker(SHORT)


def entry(entity: Mapping[str, str | None], quotas: Mapping[str, float | None]) -> dict[str, Any]:
    return {
        "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity.items()],
        "ops": [
            {"key": key, "value": value or 0.0, "remove": value is None}
            for key, value in quotas.items()
        ],
    }


async def alter(
    client: WireClient, *entries: dict[str, Any], validate_only: bool = False, version: int = 1
) -> list[tuple[int, str | None]]:
    answer = await client.call(
        "AlterClientQuotas", version, {"entries": entries, "validate_only": validate_only}
    )
    return [(quota.error_code, quota.error_message) for quota in answer.entries]


async def limit(client: WireClient, quota: str, value: float | None, **entity: str | None) -> None:
    whose = {kind.replace("_", "-"): name for kind, name in entity.items()} or CLIENT
    assert await alter(client, entry(whose, {quota: value})) == [(0, None)]


async def described(
    client: WireClient, *components: tuple[str, int, str | None], strict: bool = False
) -> Any:
    wanted = [
        {"entity_type": kind, "match_type": match, "match": name}
        for kind, match, name in components
    ]
    return await client.call("DescribeClientQuotas", 1, {"components": wanted, "strict": strict})


def quotas_of(answer: Any) -> list[tuple[dict[str, str | None], dict[str, float]]]:
    assert answer.error_code == 0, answer
    return [
        (
            {part.entity_type: part.entity_name for part in quota.entity},
            {value.key: value.value for value in quota.values},
        )
        for quota in answer.entries
    ]


def elapsed() -> Callable[[], float]:
    """Return a function that returns the seconds since this call, to the microsecond."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    return lambda: round(loop.time() - began, 6)  # a difference of floats has an error


# Set and described


async def test_quotas_are_set_described_and_removed(client: WireClient) -> None:
    alice, default = {"user": "alice", "client-id": None}, {"ip": None}
    answers = await alter(
        client,
        entry(alice, {"producer_byte_rate": 1024.0, "request_percentage": 0.5}),
        entry(default, {"connection_creation_rate": 10}),
    )
    assert answers == [(0, None), (0, None)]
    assert quotas_of(await described(client, ("ip", 1, None))) == [
        (default, {"connection_creation_rate": 10.0})
    ]
    assert quotas_of(await described(client, ("user", 0, "alice"))) == [
        (alice, {"producer_byte_rate": 1024.0, "request_percentage": 0.5})
    ]
    assert quotas_of(await described(client, ("user", 0, "alice"), strict=True)) == []
    gone = {"producer_byte_rate": None, "request_percentage": None, "consumer_byte_rate": None}
    assert await alter(client, entry(alice, gone), version=0) == [(0, None)]
    assert quotas_of(await described(client)) == [(default, {"connection_creation_rate": 10.0})]


async def test_each_entry_has_its_own_error_and_the_others_are_stored(client: WireClient) -> None:
    good, bad = {"user": "alice"}, {"user": "bob"}
    answers = await alter(
        client,
        entry(good, {"producer_byte_rate": 5}),
        entry(bad, {"producer_byte_rate": 5, "consumer_byte_rate": 0, "x": 1}),
        entry({"host": "h"}, {"producer_byte_rate": 5}),
        entry({"client-id": "c"}, {"producer_byte_rate": 5}),
        entry({"client-id": "c"}, {"producer_byte_rate": 6}),
    )
    assert [number for number, _ in answers] == [0, *[INVALID_REQUEST] * 4]
    assert "consumer_byte_rate = 0 must be above 0" in (answers[1][1] or "")
    assert "x: unknown quota" in (answers[1][1] or "")
    assert "more than once" in (answers[3][1] or "")
    assert quotas_of(await described(client)) == [(good, {"producer_byte_rate": 5.0})]


async def test_validate_only_stores_nothing(client: WireClient) -> None:
    answers = await alter(
        client,
        entry({"user": "a"}, {"producer_byte_rate": 5}),
        entry({"user": "b"}, {"producer_byte_rate": -5}),
        validate_only=True,
    )
    assert [number for number, _ in answers] == [0, INVALID_REQUEST]
    assert quotas_of(await described(client)) == []


async def test_filters_that_cannot_be(client: WireClient) -> None:
    answer = await described(client, ("user", 0, None))
    assert (answer.error_code, answer.entries) == (INVALID_REQUEST, None)
    answer = await described(client, ("group", 2, None))
    assert answer.error_code == UNSUPPORTED_VERSION
    assert "quota entity type 'group' is unknown" in answer.error_message


# Produce


async def test_a_producer_above_its_quota_is_throttled(
    broker: BrokerServer, client: WireClient, connect: Connect
) -> None:
    await client.create("t")
    request = produce_request("t", batch(b"x" * 2000))
    free = await client.call("Produce", 9, request)
    assert free.throttle_time.total_seconds() == 0
    await limit(client, "producer_byte_rate", 500)
    over = elapsed()
    answer = await client.call("Produce", 9, request)
    throttled = answer.throttle_time.total_seconds()
    assert answer.responses[0].partition_responses[0].error_code == 0
    size = len(client.frame("Produce", 9, request)) - 4
    assert (size - 500) / 500 - 2 < throttled <= (size - 500) / 500
    client.writer.write(client.frame("Metadata", 9, {"topics": []}))
    other = await connect(broker)
    assert (await other.find("t")) == 0, "another connection is read"
    assert over() < throttled
    await client.response("Metadata", 9)
    assert over() >= throttled
    counts = {(sample.metric.name, sample.labels): sample.value for sample in broker.samples()}
    assert counts["penstock_quota_throttled_total", ("producer_byte_rate",)] == 1
    seconds = counts["penstock_quota_throttle_seconds_total", ("producer_byte_rate",)]
    assert seconds == pytest.approx((size - 500) / 500, abs=0.002)


@pytest.mark.parametrize("version", [3, 7, 8, 9, 12])
async def test_all_versions_say_how_long_to_wait(client: WireClient, version: int) -> None:
    await client.create("t")
    await limit(client, "producer_byte_rate", 100)
    request = produce_request("t", batch(b"x" * 200))
    answer = await client.call("Produce", version, request)
    assert answer.throttle_time.total_seconds() > 0.5
    assert answer.responses[0].partition_responses[0].base_offset == 0


async def test_a_producer_that_wants_no_answers_is_not_read_either(
    broker: BrokerServer, client: WireClient, connect: Connect
) -> None:
    await client.create("t")
    await limit(client, "producer_byte_rate", 2000)
    over = elapsed()
    for _ in range(3):
        client.writer.write(
            client.frame("Produce", 9, produce_request("t", batch(b"x" * 2000), acks=0))
        )
    client.writer.write(client.frame("Metadata", 9, {"topics": []}))
    await client.response("Metadata", 9)
    assert over() >= 0.1, "three requests of a second's bytes each"
    other = await connect(broker)
    assert (await other.fetch("t", 0)).high_watermark == 3


async def test_the_rate_is_kept_by_a_client_that_does_not_wait(client: WireClient) -> None:
    """Its requests are in the socket's buffer."""
    await client.create("t")
    await limit(client, "producer_byte_rate", 20_000)
    over = elapsed()
    frame = produce_request("t", batch(b"x" * 4000))
    for _ in range(16):
        client.writer.write(client.frame("Produce", 9, frame))
    for _ in range(16):
        answer = await client.response("Produce", 9)
        assert answer.responses[0].partition_responses[0].error_code == 0
    assert 1.0 <= over() < 30, "64 kB at 20 kB a second, of which one second's are free"


async def test_quotas_bound_no_one_any_more_when_they_are_gone(
    broker: BrokerServer, client: WireClient
) -> None:
    await client.create("t")
    await limit(client, "producer_byte_rate", 1000, client_id=None)
    assert broker.quotas.active
    await limit(client, "producer_byte_rate", None, client_id=None)
    assert not broker.quotas.active
    answer = await client.call("Produce", 9, produce_request("t", batch(b"x" * 9000)))
    assert answer.throttle_time.total_seconds() == 0


# Fetch


async def test_a_consumer_above_its_quota_gets_nothing_until_it_has_waited(
    broker: BrokerServer, client: WireClient, connect: Connect
) -> None:
    await client.create("t")
    await client.produce("t", batch(b"x" * 3000))
    await limit(client, "consumer_byte_rate", 2000)
    wanted = fetch_request({("t", 0): 0})
    first = await client.call("Fetch", 12, wanted)
    assert len(first.responses[0].partitions[0].records) > 3000, "the first batch is whole"
    assert 0.4 < first.throttle_time.total_seconds() < 0.8
    other = await connect(broker)
    over = elapsed()
    answer = await other.call("Fetch", 12, wanted)
    assert answer.responses == ()
    assert answer.session_id == 0
    assert 0 < answer.throttle_time.total_seconds() <= first.throttle_time.total_seconds()
    again = answer
    while not again.responses:
        again = await other.call("Fetch", 12, wanted)
    assert len(again.responses[0].partitions[0].records) > 3000
    assert over() >= answer.throttle_time.total_seconds()


async def test_an_answer_has_no_more_than_the_windows_of_a_quota(client: WireClient) -> None:
    await client.create("t")
    for _ in range(4):
        await client.produce("t", batch(b"x" * 1000))
    await limit(client, "consumer_byte_rate", 2500)
    partition = await client.fetch("t", 0)
    assert 2000 < len(partition.records) < 2500


async def test_a_session_outlives_an_empty_answer(client: WireClient) -> None:
    await client.create("t")
    await client.produce("t", batch(b"x" * 3000))
    opened = await client.call(
        "Fetch", 12, fetch_request({("t", 0): 0}, session_id=0, session_epoch=0)
    )
    session = opened.session_id
    assert session
    await limit(client, "consumer_byte_rate", 3000)
    first = await client.call(
        "Fetch", 12, fetch_request({("t", 0): 0}, session_id=session, session_epoch=1)
    )
    assert len(first.responses[0].partitions[0].records) > 3000
    await limit(client, "consumer_byte_rate", 1500)
    empty = await client.call("Fetch", 12, fetch_request({}, session_id=session, session_epoch=2))
    assert (empty.error_code, empty.session_id, empty.responses) == (0, session, ())
    assert empty.throttle_time.total_seconds() > 0
    again, epoch = empty, 3
    while not again.responses:
        request = fetch_request({}, session_id=session, session_epoch=epoch)
        again, epoch = await client.call("Fetch", 12, request), epoch + 1
    assert again.session_id == session
    assert len(again.responses[0].partitions[0].records) > 3000


async def test_a_waiting_fetch_is_looked_at_again_before_it_reads(
    broker: BrokerServer, client: WireClient, connect: Connect
) -> None:
    await client.create("t", partitions=2)
    await client.produce("t", batch(b"x" * 5000), partition=1)
    await limit(client, "consumer_byte_rate", 2000)
    waiting = await connect(broker)
    request = fetch_request({("t", 0): 0}, max_wait=30_000)
    waiting.writer.write(waiting.frame("Fetch", 12, request))
    while not len(broker.fetch_hub):
        await asyncio.sleep(0)
    await client.fetch("t", 0, partition=1)
    producer = await connect(broker)
    await producer.produce("t", batch(b"x"))
    answer = await waiting.response("Fetch", 12)
    assert answer.responses == ()
    assert answer.throttle_time.total_seconds() > 1


# Time of requests


async def test_requests_above_their_share_of_time_wait(
    broker: BrokerServer, client: WireClient
) -> None:
    await client.create("t")
    await limit(client, "request_percentage", 0.0001)
    assert broker.request == broker._dispatcher.timed_request
    await client.find("t")
    answer = await client.call("Metadata", 9, {"topics": []})
    assert 0 < answer.throttle_time.total_seconds() <= 1
    answer = await client.call("ListGroups", 3, {})
    assert 0 < answer.throttle_time.total_seconds() <= 1
    await limit(client, "request_percentage", None)
    assert broker.request == broker._dispatcher.request


async def test_brokers_do_not_wait_for_each_other(
    broker: BrokerServer, client: WireClient, connect: Connect
) -> None:
    """Verification requests between brokers are exempt from quotas."""
    await limit(client, "request_percentage", 0.0001)
    assert (await client.find("t")) != 0
    assert (await client.call("Metadata", 9, {"topics": []})).throttle_time.total_seconds() > 0
    peer = await connect(broker)
    for _ in range(3):
        answer = await peer.call("AddPartitionsToTxn", 5, {"transactions": []})
        assert answer.throttle_time.total_seconds() == 0
        await peer.call("WriteTxnMarkers", 1, {"markers": []})
    assert not any(
        connection.muted
        for connection in broker._connections
        if connection.client_port == port(peer)
    )


def port(client: WireClient) -> int:
    found: int = client.writer.get_extra_info("sockname")[1]
    return found


# Topics that are created and deleted


class HeldClock:
    """Quotas count no more time than a test says, whatever its calls take."""

    def __init__(self) -> None:
        self.seconds = SYSTEM_CLOCK.monotonic()

    def monotonic(self) -> float:
        return self.seconds


async def create(client: WireClient, version: int, name: str, partitions: int) -> Any:
    topic = {
        "name": name, "num_partitions": partitions, "replication_factor": 1, "assignments": [],
        "configs": [],
    }  # fmt: skip
    return await client.call("CreateTopics", version, {"topics": [topic], "timeout": 5000})


async def test_new_clients_are_refused_more_partitions_than_they_may_create(
    broker: BrokerServer, client: WireClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = HeldClock()
    monkeypatch.setattr(broker.quotas, "_clock", clock)
    await limit(client, "controller_mutation_rate", 4)
    assert (await create(client, 6, "a", 6)).topics[0].error_code == 0
    over = elapsed()
    refused = await create(client, 6, "b", 1)
    assert refused.topics[0].error_code == THROTTLING_QUOTA_EXCEEDED
    assert "controller_mutation_rate = 4 is exceeded" in refused.topics[0].error_message
    assert refused.throttle_time.total_seconds() == 0.5
    assert "b" not in broker.cluster.image.topics
    clock.seconds += 0.5
    again = await create(client, 6, "b", 1)
    assert over() >= refused.throttle_time.total_seconds()
    assert again.topics[0].error_code == 0
    wanted = {"topics": [{"name": "a", "topic_id": None}], "timeout": 5000}
    deleted = await client.call("DeleteTopics", 6, wanted)
    assert deleted.responses[0].error_code == THROTTLING_QUOTA_EXCEEDED
    assert "a" in broker.cluster.image.topics
    clock.seconds += 0.25
    wanted = {
        "topics": [{"name": "b", "count": 9, "assignments": None}],
        "timeout": 1,
        "validate_only": False,
    }
    grown = await client.call("CreatePartitions", 3, wanted)
    assert grown.results[0].error_code == 0, "the bucket may be overdrawn, once"
    counts = {sample.metric.name: sample.value for sample in broker.samples()}
    assert counts["penstock_quota_refused_total"] == 2


async def test_old_clients_get_their_topics_and_wait_afterwards(client: WireClient) -> None:
    await limit(client, "controller_mutation_rate", 4)
    first = await create(client, 5, "a", 6)
    assert (first.topics[0].error_code, first.throttle_time.total_seconds() > 0.2) == (0, True)
    over = elapsed()
    assert (await create(client, 5, "b", 1)).topics[0].error_code == 0
    assert over() >= 0.2


# Connections


async def test_new_connections_of_an_address_wait_their_turn(
    broker: BrokerServer, client: WireClient, connect: Connect
) -> None:
    await limit(client, "connection_creation_rate", 2, ip="127.0.0.1")
    over = elapsed()
    clients = await asyncio.gather(*(connect(broker) for _ in range(4)))
    await asyncio.gather(*(waiting.find("t") for waiting in clients))
    assert over() >= 0.9, "two at once, and two in the second after"
    assert over() < 25
    counts = {(sample.metric.name, sample.labels): sample.value for sample in broker.samples()}
    assert counts["penstock_quota_throttled_total", ("connection_creation_rate",)] == 2
    assert counts["penstock_kafka_connections_muted", ()] == 0


# The end


async def test_a_broker_that_stops_does_not_wait_for_muted_connections(
    broker: BrokerServer, client: WireClient
) -> None:
    await client.create("t")
    await limit(client, "producer_byte_rate", 1)
    answer = await client.call("Produce", 9, produce_request("t", batch(b"x" * 2000)))
    assert answer.throttle_time.total_seconds() == 600, "the bound"
    client.writer.write(client.frame("Metadata", 9, {"topics": []}))
    over = elapsed()
    await broker.stop()
    assert over() < 60
    assert await client.closed_by_server()


async def test_a_muted_connection_that_is_lost_leaves_nothing(
    broker: BrokerServer, client: WireClient, connect: Connect
) -> None:
    await client.create("t")
    await limit(client, "producer_byte_rate", 2000)
    await client.call("Produce", 9, produce_request("t", batch(b"x" * 2500)))
    await client.close()
    async with asyncio.timeout(20):
        while broker._connections:
            await asyncio.sleep(0)
    other = await connect(broker)
    assert await other.find("t") == 0
