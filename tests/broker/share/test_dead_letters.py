"""Dead letters of share groups on a real broker: written, delayed and resumed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

import pytest

from penstock.broker.server import BrokerServer
from penstock.broker.share.shares import share_key
from penstock.broker.share.values import Acknowledge, Cause
from penstock.records import columnar
from tests.broker.conftest import StartBroker
from tests.broker.share.conftest import Connect, Join, Member, changed, set_group
from tests.broker.wire_client import WireClient, batch

ACCEPT, RELEASE, REJECT = Acknowledge.ACCEPT, Acknowledge.RELEASE, Acknowledge.REJECT
TOPIC = "dlq.g"
ENABLE = "errors.deadletterqueue.group.enable"
ALLOWED = {ENABLE: "true"}
CONFIGS = {"errors_deadletterqueue_topic_name": TOPIC}
Place = tuple[UUID, int]


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not true():
            await asyncio.sleep(0.01)


async def create(
    client: WireClient, topic: str, configs: Mapping[str, str] = {}, partitions: int = 1
) -> None:
    wanted = {
        "name": topic, "num_partitions": partitions, "replication_factor": 1, "assignments": [],
        "configs": [{"name": name, "value": value} for name, value in configs.items()],
    }  # fmt: skip
    answer = await client.call("CreateTopics", 7, {"topics": [wanted], "timeout": 5000})
    assert not answer.topics[0].error_code, answer


async def dead_letters(client: WireClient, count: int, partition: int = 0) -> list[dict[str, Any]]:
    """Wait for so many dead letters of a partition and return them."""
    async with asyncio.timeout(60):
        while True:
            answer = await client.fetch(TOPIC, partition=partition)
            found: list[dict[str, Any]] = columnar.decode_batches(
                bytes(answer.records or b"")
            ).to_pylist()
            if len(found) >= count:
                return found
            await asyncio.sleep(0.01)


def headers(letter: dict[str, Any]) -> dict[str, str]:
    return {
        header["key"].removeprefix("__dlq.errors."): header["value"].decode()
        for header in letter["headers"]
    }


@pytest.fixture
async def place(client: WireClient) -> Place:
    """Make a partition of two batches: offsets 0 to 2, and 3 to 4."""
    await client.create("t", 2)
    await client.produce("t", batch(b"a", b"b", b"c"), partition=1)
    await client.produce("t", batch(b"d", b"e"), partition=1)
    return await Member(client, "g", "m").topic("t"), 1


async def test_rejected_records_are_copied_and_then_resolved(
    broker: BrokerServer, client: WireClient, place: Place, join: Join
) -> None:
    await create(client, TOPIC, ALLOWED, 3)
    one = await join("one", **CONFIGS)
    assert await one.acquire(place) == [(0, 4, 1)]
    assert await one.say(place, 0, 4, ACCEPT, REJECT, RELEASE, REJECT, ACCEPT) == 0
    found = await dead_letters(client, 2, partition=1)
    assert [letter["value"] for letter in found] == [b"b", b"d"]
    told = headers(found[0])
    assert told.pop("timestamp").isdigit()
    assert told == {
        "topic": "t", "partition": "1", "offset": "1", "group": "g", "delivery.count": "1",
        "message": "Offset rejected by client.",
    }  # fmt: skip
    assert await one.acquire(place) == [(2, 2, 2)]
    assert await one.say(place, 2, 2, ACCEPT) == 0
    [state] = (await broker.share.offsets.of_group("g")).values()
    assert (state.start, state.runs) == (5, ())
    assert broker.share.dead_letters.written == {Cause.REJECTED: 2, Cause.DELIVERIES: 0}
    assert not broker.share.dead_letters.waiting


async def test_what_is_delivered_too_often_is_copied(
    client: WireClient, place: Place, join: Join
) -> None:
    await create(client, TOPIC, ALLOWED)
    one = await join("one", share_delivery_count_limit=2, **CONFIGS)
    assert await one.acquire(place, max_records=1, share_acquire_mode=1) == [(0, 0, 1)]
    assert await one.say(place, 0, 0, RELEASE) == 0
    assert await one.acquire(place, max_records=1, share_acquire_mode=1) == [(0, 0, 2)]
    assert await one.say(place, 0, 0, RELEASE) == 0
    [letter] = await dead_letters(client, 1)
    told = headers(letter)
    assert told["message"] == "Offset delivery count exceeded the threshold."
    assert (letter["value"], told["delivery.count"]) == (b"a", "2")


@pytest.mark.parametrize("missing", [True, False], ids=["missing", "not allowed"])
async def test_records_that_cannot_be_copied_wait_and_are_reported(
    broker: BrokerServer, client: WireClient, place: Place, join: Join, missing: bool
) -> None:
    if not missing:
        await create(client, TOPIC)
    one = await join("one", share_partition_max_record_locks=100, **CONFIGS)
    await one.acquire(place)
    assert await one.say(place, 0, 4, REJECT) == 0
    writer = broker.share.dead_letters
    await until(lambda: bool(writer.troubles))
    [trouble] = writer.troubles.values()
    assert (trouble.group, trouble.topic, trouble.partition) == ("g", "t", 1)
    assert ENABLE + "=true" in trouble.reason
    assert TOPIC in trouble.reason
    [state] = (await broker.share.offsets.of_group("g")).values()
    assert state.start == 0, "nothing is resolved"
    if missing:
        await create(client, TOPIC, ALLOWED)
    else:
        change = {"name": ENABLE, "config_operation": 0, "value": "true"}
        resource = {"resource_type": 2, "resource_name": TOPIC, "configs": [change]}
        body = {"resources": [resource], "validate_only": False}
        answer = await client.call("IncrementalAlterConfigs", 1, body)
        assert not answer.responses[0].error_code
    assert [letter["value"] for letter in await dead_letters(client, 5)] == [
        b"a",
        b"b",
        b"c",
        b"d",
        b"e",
    ]
    await until(lambda: not writer.waiting)
    assert not writer.troubles
    [state] = (await broker.share.offsets.of_group("g")).values()
    assert state.start == 5


async def test_a_group_that_wants_none_any_more_is_not_held_up(
    broker: BrokerServer, client: WireClient, place: Place, join: Join
) -> None:
    one = await join("one", **CONFIGS)
    await one.acquire(place)
    assert await one.say(place, 0, 4, REJECT) == 0
    await until(lambda: bool(broker.share.dead_letters.troubles))
    await set_group(client, "g", errors_deadletterqueue_topic_name="")
    await until(lambda: not broker.share.dead_letters.waiting)
    assert broker.share.dead_letters.unwanted == 5


async def test_records_of_the_dead_letter_topic_are_not_copied_into_it(
    broker: BrokerServer, client: WireClient, place: Place, join: Join
) -> None:
    await create(client, TOPIC, ALLOWED)
    await client.produce(TOPIC, batch(b"x"))
    one = await join("one", **CONFIGS)
    letter_place = (await one.topic(TOPIC), 0)
    assert await one.acquire(letter_place) == [(0, 0, 1)]
    assert await one.say(letter_place, 0, 0, REJECT) == 0
    await until(lambda: broker.share.dead_letters.unwanted == 1)
    assert len(await dead_letters(client, 1)) == 1


async def test_the_topic_is_created_where_that_is_allowed(
    start_broker: StartBroker, connect: Connect
) -> None:
    broker = await start_broker({"errors.deadletterqueue.auto.create.topics.enable": "true"})
    client = await connect(broker)
    await client.create("t")
    await client.produce("t", batch(b"a"))
    await set_group(client, "g", share_auto_offset_reset="earliest", **CONFIGS)
    one = Member(await connect(broker), "g", "one")
    place = await one.topic("t"), 0
    await one.acquire(place)
    assert await one.say(place, 0, 0, REJECT) == 0
    assert [letter["value"] for letter in await dead_letters(client, 1)] == [b"a"]


async def test_waiting_dead_letters_are_written_without_further_fetches(
    broker: BrokerServer, client: WireClient, place: Place, join: Join
) -> None:
    one = await join("one", **CONFIGS)
    await one.acquire(place)
    assert await one.say(place, 0, 0, REJECT) == 0
    await until(lambda: bool(broker.share.dead_letters.troubles))
    broker.share.shares.forget([share_key("g", *place)])
    await create(client, TOPIC, ALLOWED)
    await until(lambda: not broker.share.dead_letters.waiting)
    assert not len(broker.share.shares), "as after a start"
    await broker.share.resume()
    assert [letter["value"] for letter in await dead_letters(client, 1)] == [b"a"]


async def test_records_that_are_deleted_meanwhile_are_counted(
    broker: BrokerServer, client: WireClient, place: Place, join: Join
) -> None:
    one = await join("one", **CONFIGS)
    await one.acquire(place)
    assert await one.say(place, 0, 4, REJECT) == 0
    await until(lambda: bool(broker.share.dead_letters.troubles))
    topics = [{"name": "t", "partitions": [{"partition_index": 1, "offset": 3}]}]
    await client.call("DeleteRecords", 2, {"topics": topics, "timeout": 5000})
    await create(client, TOPIC, ALLOWED)
    assert [letter["value"] for letter in await dead_letters(client, 2)] == [b"d", b"e"]
    assert broker.share.shares.deleted == 3
    text = {sample.metric.name: sample.value for sample in broker.share.samples()}
    assert text["penstock_share_dead_letters_waiting_partitions"] in (0, 1)


async def test_names_are_checked_when_they_are_set(client: WireClient) -> None:
    name = "errors_deadletterqueue_topic_name"
    assert "dlq." in await changed(client, "g", **{name: "orders"})
    assert "ASCII" in await changed(client, "g", **{name: "dlq.a b"})
    assert not await changed(client, "g", **{name: TOPIC})
