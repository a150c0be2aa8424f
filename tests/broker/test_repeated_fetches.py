"""Complete requests that a connection repeats, as librdkafka polls idle partitions."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from penstock.broker.fetch.sessions import (
    LOOK_SECONDS,
    REPEATED_PARTITIONS_MAX,
    REPEATED_PARTITIONS_MIN,
    FetchSessions,
)
from penstock.broker.server import BrokerServer
from penstock.wire.kafka.encoder import encoder
from penstock.wire.kafka.fetch import decode_request
from tests.broker.wire_client import WireClient, batch, fetch_request

VERSION = 12
PARTITIONS = 20


def body(offsets: dict[int, int], **changes: Any) -> memoryview:
    wanted = fetch_request({("t", part): offset for part, offset in offsets.items()}, **changes)
    return memoryview(encoder("Fetch", VERSION, "request")(wanted))


class Core:
    """Sessions without a broker, to which connections send complete requests."""

    def __init__(self) -> None:
        self.watched: Any = {}
        self.cache = FetchSessions(9, itertools.count(1).__next__, self.watched)

    def fetch(self, connection: object, frame: memoryview, now: float = 0) -> Any:
        """Return the session of a repeated request, None for other requests."""
        found = self.cache.repeated(connection, frame, 0, version=VERSION, now=now)
        if found is None:
            self.cache.remember(connection, decode_request(frame, 0, VERSION), frame, 0, VERSION)
            return None
        return found[1].session


IDLE = dict.fromkeys(range(PARTITIONS), 0)


def test_only_the_same_request_of_the_same_connection_is_a_repetition() -> None:
    core = Core()
    assert core.fetch("a", body(IDLE)) is None
    assert core.fetch("b", body(IDLE)) is None
    session = core.fetch("a", body(IDLE))
    assert session.complete
    assert [partition.index for partition in session.active] == list(IDLE)
    rotated = dict.fromkeys([*range(7, PARTITIONS), *range(7)], 0)
    assert core.fetch("a", body(rotated)) is session
    assert core.fetch("a", body({**IDLE, 3: 1})) is None
    assert session.closed
    assert core.fetch("a", body(IDLE)) is None


def test_resting_partitions_are_read_again_after_some_time_and_forgotten_at_the_end() -> None:
    core = Core()
    core.fetch("a", body(IDLE))
    session = core.fetch("a", body(IDLE))
    for partition in list(session.active):
        session.rest(partition, f"source {partition.index}")
    session.response = [b"body"], 4
    assert core.fetch("a", body(IDLE), LOOK_SECONDS - 1) is session
    assert (len(session.active), len(core.watched)) == (0, PARTITIONS)
    assert core.fetch("a", body(IDLE), LOOK_SECONDS) is session
    assert (len(session.active), session.response) == (PARTITIONS, None)
    session.rest(next(iter(session.active)), "source")
    session.response = [b"body"], 4
    del core.watched["source"]
    session.wake("source")
    assert session.response is None
    session.rest(next(iter(session.active)), "source")
    core.cache.forget("a")
    assert not core.watched
    assert session.closed


def test_a_request_that_names_a_partition_twice_is_no_repetition() -> None:
    core = Core()
    frame = bytearray(body(IDLE))
    second = frame.index((1).to_bytes(4, "big") + b"\xff\xff\xff\xff")
    frame[second : second + 4] = bytes(4)  # partition 0 again
    for _ in range(3):
        assert core.fetch("a", memoryview(frame)) is None


def test_small_requests_and_those_of_several_topics_are_not_remembered() -> None:
    core = Core()
    few = dict.fromkeys(range(REPEATED_PARTITIONS_MIN - 1), 0)
    wanted = fetch_request({(topic, part): 0 for topic in ("t", "u") for part in range(20)})
    several = memoryview(encoder("Fetch", VERSION, "request")(wanted))
    for frame in (body(few), several) * 2:
        assert core.fetch("a", frame) is None
    assert core.fetch("a", several) is None


def test_remembered_partitions_are_bounded() -> None:
    core, count = Core(), REPEATED_PARTITIONS_MAX // 20
    frame = body(dict.fromkeys(range(count), 0))
    request = decode_request(frame, 0, VERSION)
    for connection in range(21):
        core.cache.remember(connection, request, frame, 0, VERSION)
    assert core.fetch(20, frame) is None
    assert core.fetch(19, frame) is not None
    core.cache.forget(3)
    assert core.fetch(20, frame) is None
    assert core.fetch(20, frame) is not None


class Poller:
    """Client without a session that repeats a request for all partitions of the topic "t"."""

    def __init__(self, server: BrokerServer, client: WireClient) -> None:
        self.server, self.client = server, client
        self._start = itertools.count()

    @property
    def session(self) -> Any:
        (known,) = self.server.fetch_sessions._repeated.values()
        return known.session

    async def poll(self, **changes: Any) -> dict[int, tuple[int, int, int]]:
        """Return error, high watermark and bytes by partition; each request is rotated by one."""
        start = next(self._start) % PARTITIONS
        turned = {("t", (start + part) % PARTITIONS): 0 for part in range(PARTITIONS)}
        answer = await self.client.call("Fetch", VERSION, fetch_request(turned, **changes))
        assert (answer.session_id, len(answer.responses)) == (0, 1)
        rows = {row.partition_index: row for row in answer.responses[0].partitions}
        assert sorted(rows) == list(range(PARTITIONS))
        return {
            index: (row.error_code.value, row.high_watermark, len(row.records or b""))
            for index, row in rows.items()
        }

    async def settle(self) -> None:
        for _ in range(3):
            assert await self.poll() == NOTHING
        assert (len(self.session.active), len(self.session.resting)) == (0, PARTITIONS)


NOTHING = dict.fromkeys(range(PARTITIONS), (0, 0, 0))


@pytest.fixture
async def poller(broker: BrokerServer, client: WireClient) -> Poller:
    await client.create("t", partitions=PARTITIONS)
    return Poller(broker, client)


async def test_responses_to_repeated_requests_name_all_partitions(
    broker: BrokerServer, poller: Poller
) -> None:
    await poller.settle()
    response = poller.session.response
    assert response is not None
    assert await poller.poll() == NOTHING
    assert poller.session.response is response
    other = await WireClient.connect(broker.kafka_address)
    await other.produce("t", batch(b"x"), partition=17)
    expected = {**NOTHING, 17: (0, 1, len(batch(b"x")))}
    for _ in range(3):
        assert await poller.poll() == expected
    assert [partition.index for partition in poller.session.active] == [17]
    await other.close()


async def test_records_wake_a_repeated_request(broker: BrokerServer, poller: Poller) -> None:
    for number in range(4):
        waiting = asyncio.ensure_future(poller.poll(max_wait=20_000))
        while not len(broker.fetch_hub):
            await asyncio.sleep(0)
        if number < 3:
            broker.fetch_hub.finish_all()  # as after `max_wait`
            assert await waiting == NOTHING
    assert (len(poller.session.waiting), len(poller.session.active)) == (1, 0)
    other = await WireClient.connect(broker.kafka_address)
    await other.produce("t", batch(b"x"), partition=5)
    async with asyncio.timeout(5):
        assert await waiting == {**NOTHING, 5: (0, 1, len(batch(b"x")))}
    await other.close()


async def test_changes_of_metadata_and_of_log_starts_are_reported(
    broker: BrokerServer, poller: Poller, client: WireClient
) -> None:
    await poller.settle()
    moved: Any = broker.partitions.topics["t"].partitions[9]
    moved.high_watermark = moved.last_stable_offset = 7  # without a notice
    assert await poller.poll() == NOTHING
    poller.session.looked -= LOOK_SECONDS
    moved.high_watermark = moved.last_stable_offset = 0
    moved.log_start_offset = -7
    await poller.poll()
    answer = await client.call(
        "Fetch", VERSION, fetch_request({("t", part): 0 for part in range(PARTITIONS)})
    )
    starts = {row.partition_index: row.log_start_offset for row in answer.responses[0].partitions}
    assert starts[9] == -7
    other = await WireClient.connect(broker.kafka_address)
    await other.call("DeleteTopics", 6, {"topics": [{"name": "t"}], "timeout": 1000})
    unknown = {index: (3, -1, 0) for index in range(PARTITIONS)}
    for _ in range(3):
        assert await poller.poll() == unknown
    await other.close()


async def test_the_end_of_a_connection_ends_its_watches(
    broker: BrokerServer, poller: Poller, client: WireClient
) -> None:
    await poller.settle()
    assert len(broker.fetch_hub.watched) == PARTITIONS
    await client.close()
    async with asyncio.timeout(5):
        while broker.fetch_hub.watched:
            await asyncio.sleep(0.01)
    assert not broker.fetch_sessions._repeated
