"""A new error is returned immediately; a repeated one does not complete a waiting request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from penstock.broker.server import BrokerServer
from tests.broker.wire_client import WireClient, batch, fetch_request

Connect = Callable[[BrokerServer], Awaitable[WireClient]]
HOUR_MS = 3_600_000
GOOD = ("good", 0)
# what to ask for, its error, and more fields of the partition
ERRORS = {
    "no topic": (("gone", 0), 0, "unknown_topic_or_partition", {}),
    "no partition": (("good", 7), 0, "unknown_topic_or_partition", {}),
    "out of range": (("good", 1), 99, "offset_out_of_range", {}),
    "epoch to come": (("good", 1), 0, "unknown_leader_epoch", {"current_leader_epoch": 900}),
}
every_error = pytest.mark.parametrize("case", ERRORS.values(), ids=ERRORS)
Case = tuple[tuple[str, int], int, str, dict[str, int]]


def asking(case: Case, **changes: Any) -> dict[str, Any]:
    """A fetch of the good partition and the one of the case; without bounds it waits an hour."""
    place, offset, _, fields = case
    request = fetch_request({GOOD: 0}, max_wait=HOUR_MS, **changes)
    request["topics"] += fetch_request({place: offset}, **fields)["topics"]
    return request


def errors_in(answer: Any) -> dict[tuple[str, int], str]:
    return {
        (topic.topic, row.partition_index): row.error_code.name
        for topic in answer.responses
        for row in topic.partitions
    }


class Waiting:
    """A fetch that is sure to wait: it is made when the broker holds it."""

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self.task = task

    @classmethod
    async def begin(cls, broker: BrokerServer, client: WireClient, request: Any) -> Waiting:
        task = asyncio.create_task(client.call("Fetch", 12, request))
        hub = broker.fetch_hub
        async with asyncio.timeout(60):
            while not task.done() and not len(hub):
                await asyncio.sleep(0)
        if task.done():
            raise AssertionError(f"answered at once: {errors_in(task.result())}")
        return cls(task)

    async def answer(self) -> Any:
        async with asyncio.timeout(60):
            return await self.task


@pytest.fixture
async def producer(broker: BrokerServer, client: WireClient, connect: Connect) -> WireClient:
    await client.create("good", partitions=2)
    return await connect(broker)


@every_error
async def test_a_session_gets_an_error_once_and_then_waits(
    broker: BrokerServer, client: WireClient, producer: WireClient, case: Case
) -> None:
    place, _, error, _ = case
    first = await client.call("Fetch", 12, asking(case, session_id=0, session_epoch=0))
    assert errors_in(first) == {GOOD: "none", place: error}
    follow = fetch_request({}, session_id=first.session_id, session_epoch=1, max_wait=HOUR_MS)
    waiting = await Waiting.begin(broker, client, follow)
    await producer.produce("good", batch(b"x"))
    # what is answered for another reason names the error again, as Apache Kafka does
    assert errors_in(await waiting.answer()) == {GOOD: "none", place: error}


@every_error
async def test_complete_requests_of_one_connection_get_an_error_once(
    broker: BrokerServer, client: WireClient, producer: WireClient, connect: Connect, case: Case
) -> None:
    place, _, error, _ = case
    everything = {GOOD: "none", place: error}
    assert errors_in(await client.call("Fetch", 12, asking(case))) == everything
    waiting = await Waiting.begin(broker, client, asking(case))
    other = await connect(broker)
    assert errors_in(await other.call("Fetch", 12, asking(case))) == everything
    await producer.produce("good", batch(b"x"))
    assert errors_in(await waiting.answer()) == everything


async def test_another_position_gets_the_error_at_once(
    broker: BrokerServer, client: WireClient, producer: WireClient
) -> None:
    out = {GOOD: "none", ("good", 1): "offset_out_of_range"}

    def at(offset: int, **changes: Any) -> dict[str, Any]:
        return fetch_request({GOOD: 0, ("good", 1): offset}, max_wait=HOUR_MS, **changes)

    assert errors_in(await client.call("Fetch", 12, at(98))) == out
    assert errors_in(await client.call("Fetch", 12, at(99))) == out
    first = await client.call("Fetch", 12, at(97, session_id=0, session_epoch=0))
    assert errors_in(first) == out
    session = {"session_id": first.session_id, "max_wait": HOUR_MS}
    moved = fetch_request({("good", 1): 96}, session_epoch=1, **session)
    assert errors_in(await client.call("Fetch", 12, moved)) == {("good", 1): "offset_out_of_range"}
    # the same place once more is no news; forgotten and asked for again, it is
    same = fetch_request({("good", 1): 96}, session_epoch=2, **session)
    waiting = await Waiting.begin(broker, client, same)
    await producer.produce("good", batch(b"x"))
    await waiting.answer()
    forgotten = fetch_request(
        {GOOD: 1},
        session_epoch=3,
        forgotten_topics_data=[{"topic": "good", "partitions": [1]}],
        **{**session, "max_wait": 0},
    )
    await client.call("Fetch", 12, forgotten)
    again = fetch_request({("good", 1): 96}, session_epoch=4, **session)
    assert errors_in(await client.call("Fetch", 12, again)) == {("good", 1): "offset_out_of_range"}


async def test_the_end_of_an_error_is_returned_at_once(
    broker: BrokerServer, client: WireClient, producer: WireClient
) -> None:
    opening = fetch_request(
        {GOOD: 0, ("new", 0): 0}, max_wait=HOUR_MS, session_id=0, session_epoch=0
    )
    first = await client.call("Fetch", 12, opening)
    assert errors_in(first)["new", 0] == "unknown_topic_or_partition"
    follow = fetch_request({}, session_id=first.session_id, session_epoch=1, max_wait=HOUR_MS)
    waiting = await Waiting.begin(broker, client, follow)
    await producer.create("new")
    assert errors_in(await waiting.answer()) == {("new", 0): "none"}
    waiting = await Waiting.begin(broker, client, {**follow, "session_epoch": 2})
    await producer.produce("new", batch(b"x"))
    assert errors_in(await waiting.answer()) == {("new", 0): "none"}


async def test_a_log_that_grows_ends_an_error(
    broker: BrokerServer, client: WireClient, producer: WireClient
) -> None:
    ahead = fetch_request({GOOD: 1}, max_wait=HOUR_MS)
    assert errors_in(await client.call("Fetch", 12, ahead)) == {GOOD: "offset_out_of_range"}
    waiting = await Waiting.begin(broker, client, ahead)
    await producer.produce("good", batch(b"x", b"y"))
    answer = await waiting.answer()
    assert errors_in(answer) == {GOOD: "none"}
    assert answer.responses[0].partitions[0].records
