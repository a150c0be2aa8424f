"""Fetch sessions: the core's rules, then a session over a real socket."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.fetch.sessions import FETCH_SESSION_IDLE_SECONDS, LOOK_SECONDS, FetchSessions
from penstock.broker.server import BrokerServer
from penstock.security import Principal
from penstock.wire.kafka.fetch import FetchRequest
from tests.broker.conftest import StartBroker
from tests.broker.wire_client import WireClient, batch, fetch_request


def request(
    session_id: int = 0,
    epoch: int = -1,
    partitions: tuple[tuple[bytes, int, int], ...] = (),
    forgotten: tuple[tuple[bytes, int], ...] = (),
) -> FetchRequest:
    made = FetchRequest()
    made.session_id, made.session_epoch = session_id, epoch
    made.topics = [(key, [(index, -1, offset, -1, 100)]) for key, index, offset in partitions]
    made.forgotten = [(key, (index,)) for key, index in forgotten]
    return made


def sessions(slots: int = 2) -> FetchSessions:
    numbers = iter(range(100))
    return FetchSessions(slots, lambda: next(numbers), {})


def places(plan: Any) -> list[tuple[bytes, int, int]]:
    return [(item.key, item.index, item.offset) for item in plan.partitions]


ALICE, MALLORY = Principal("User", "alice"), Principal("User", "mallory")
BY_ALICE: Any = {"owner": ALICE, "by_id": False}
T0, T1, T2 = (b"t", 0, 0), (b"t", 1, 0), (b"t", 2, 0)


def test_a_request_without_a_session_is_complete() -> None:
    plan = sessions().plan(request(partitions=(T0, T1)), **BY_ALICE, now=0)
    assert (places(plan), plan.session_id, plan.incremental) == ([T0, T1], 0, False)


def test_a_session_remembers_changes_and_forgets() -> None:
    cache = sessions()
    opened = cache.plan(request(0, 0, (T0, T1)), **BY_ALICE, now=0)
    assert opened.session_id == 1
    assert not opened.incremental
    plan = cache.plan(request(1, 1, (T2, (b"t", 0, 9)), ((b"t", 1),)), **BY_ALICE, now=0)
    assert plan.incremental
    assert places(plan) == [(b"t", 0, 9), T2]
    plan = cache.plan(request(1, 2), **BY_ALICE, now=0)
    assert places(plan) == [(b"t", 0, 9), T2]


def test_partitions_that_gave_records_are_asked_last() -> None:
    cache = sessions()
    plan = cache.plan(request(0, 0, (T0, T1)), **BY_ALICE, now=0)
    assert plan.session is not None
    plan.session.move_to_end(next(iter(plan.partitions)))
    assert [partition.index for partition in plan.session.active] == [1, 0]


def test_epochs_follow_each_other_and_wrap() -> None:
    cache = sessions()
    plan = cache.plan(request(0, 0, (T0,)), **BY_ALICE, now=0)
    assert cache.plan(request(1, 2), **BY_ALICE, now=0).error == "invalid_fetch_session_epoch"
    assert plan.session is not None
    plan.session.epoch = 2**31 - 1
    assert not cache.plan(request(1, 2**31 - 1), **BY_ALICE, now=0).error
    assert plan.session.epoch == 1


def test_unknown_sessions_and_mixed_names() -> None:
    cache = sessions()
    assert cache.plan(request(77, 1), **BY_ALICE, now=0).error == "fetch_session_id_not_found"
    cache.plan(request(0, 0, (T0,)), owner=ALICE, by_id=True, now=0)
    assert cache.plan(request(1, 1), **BY_ALICE, now=0).error == "fetch_session_topic_id_error"


@pytest.mark.parametrize("epoch", [-1, 0])
def test_a_complete_request_ends_its_session(epoch: int) -> None:
    cache = sessions()
    cache.plan(request(0, 0, (T0,)), **BY_ALICE, now=0)
    cache.plan(request(1, epoch, (T0,)), **BY_ALICE, now=0)
    assert cache.plan(request(1, 1), **BY_ALICE, now=0).error == "fetch_session_id_not_found"
    assert len(cache) == (1 if epoch == 0 else 0)


def test_the_number_of_sessions_is_bounded() -> None:
    cache = sessions(2)
    ids = [
        cache.plan(request(0, 0, (T0,)), **BY_ALICE, now=float(now)).session_id for now in range(3)
    ]
    assert ids == [1, 2, 0]
    cache.plan(request(1, 1), **BY_ALICE, now=50)
    later = FETCH_SESSION_IDLE_SECONDS + 10
    assert cache.plan(request(0, 0, (T0,)), **BY_ALICE, now=later).session_id == 3
    assert not cache.plan(request(1, 2), **BY_ALICE, now=later).error
    assert cache.plan(request(2, 1), **BY_ALICE, now=later).error


@pytest.mark.parametrize("epoch", [-1, 0, 1, 7])
def test_a_session_is_unknown_to_other_principals(epoch: int) -> None:
    cache = sessions(slots=9)
    opened = cache.plan(request(0, 0, (T0,)), **BY_ALICE, now=0)
    taken = cache.plan(request(1, epoch, (T1,), ((b"t", 0),)), owner=MALLORY, by_id=False, now=0)
    if epoch > 0:
        assert (taken.error, places(taken)) == ("fetch_session_id_not_found", [])
    else:
        assert (taken.error, places(taken)) == ("", [T1])
        assert taken.session_id != opened.session_id
    own = cache.plan(request(1, 1), **BY_ALICE, now=0)
    assert (own.error, places(own)) == ("", [T0])


@given(
    steps=st.lists(
        st.tuples(st.sampled_from([ALICE, MALLORY]), st.integers(-1, 4), st.integers(0, 3)),
        max_size=30,
    )
)
def test_what_others_send_changes_nothing_for_an_owner(
    steps: list[tuple[Principal, int, int]],
) -> None:
    """Alice gets of a cache that Mallory uses too what she gets of one of her own."""
    shared, own = sessions(slots=99), sessions(slots=99)
    ids: dict[int, tuple[int, int]] = {}
    for owner, epoch, number in steps:
        hers, same = ids.get(number, (0, 0))
        if owner is MALLORY:
            shared.plan(request(hers, epoch, (T2,)), owner=MALLORY, by_id=False, now=0)
            continue
        one = shared.plan(request(hers, epoch, (T0,)), **BY_ALICE, now=0)
        other = own.plan(request(same, epoch, (T0,)), **BY_ALICE, now=0)
        assert (one.error, places(one)) == (other.error, places(other))
        assert (one.session is None) == (other.session is None)
        if epoch == 0:
            ids[number] = (one.session_id, other.session_id)


def test_no_slots_means_no_sessions() -> None:
    assert sessions(0).plan(request(0, 0, (T0,)), **BY_ALICE, now=0).session_id == 0


async def test_a_session_over_the_wire(client: WireClient) -> None:
    """The first answer names everything, later ones only what changed."""
    await client.create("t", partitions=3)
    both = fetch_request({("t", 0): 0, ("t", 1): 0}, session_id=0, session_epoch=0)
    first = await client.call("Fetch", 12, both)
    assert first.session_id != 0
    assert len(first.responses[0].partitions) == 2

    def next_request(epoch: int, offsets: dict[tuple[str, int], int] | None = None) -> Any:
        return fetch_request(offsets or {}, session_id=first.session_id, session_epoch=epoch)

    quiet = await client.call("Fetch", 12, next_request(1))
    assert quiet.responses == ()
    await client.produce("t", batch(b"x"), partition=1)
    grown = await client.call("Fetch", 12, next_request(2))
    (row,) = grown.responses[0].partitions
    assert (row.partition_index, row.high_watermark) == (1, 1)
    assert row.records
    moved = await client.call("Fetch", 12, next_request(3, {("t", 1): 1, ("t", 2): 0}))
    assert [item.partition_index for item in moved.responses[0].partitions] == [2]
    wrong = await client.call("Fetch", 12, next_request(9))
    assert wrong.error_code.name == "invalid_fetch_session_epoch"


async def test_sessions_by_id_outlive_a_topic_of_the_same_name(client: WireClient) -> None:
    await client.create("t")
    described = await client.call("Metadata", 12, {"topics": [{"name": "t"}]})
    old_id = described.topics[0].topic_id
    opening = fetch_request({("t", 0): 0}, session_epoch=0, session_id=0)
    opening["topics"][0]["topic_id"] = old_id
    session_id = (await client.call("Fetch", 13, opening)).session_id
    await client.call("DeleteTopics", 6, {"topics": [{"topic_id": old_id}], "timeout": 1000})
    await client.create("t")
    await client.produce("t", batch(b"new"))
    again = fetch_request({}, session_id=session_id, session_epoch=1)
    answer = await client.call("Fetch", 13, again)
    assert answer.responses[0].topic_id == old_id
    assert answer.responses[0].partitions[0].error_code.name == "unknown_topic_id"


def test_watches_of_sessions_end_with_them() -> None:
    """A source is watched once for each resting partition of an open session."""
    watched: Any = {}
    numbers = iter(range(1, 100))
    cache = FetchSessions(2, lambda: next(numbers), watched)

    def opened(now: float) -> Any:
        session = cache.plan(request(0, 0, (T0, T1, T2)), **BY_ALICE, now=now).session
        assert session is not None
        sources: Any = "abc"
        for source, partition in zip(sources, list(session.active), strict=True):
            partition.source = source
            session.rest(partition, source)
        return session

    first, second = opened(0), opened(0)
    assert {source: list(sessions) for source, sessions in watched.items()} == {
        source: [first, second] for source in "abc"
    }
    cache.plan(request(1, 1, ((b"t", 0, 7),), ((b"t", 1),)), **BY_ALICE, now=1)
    assert [partition.index for partition in first.active] == [0]
    assert [list(watched[source]) for source in "abc"] == [[second], [second], [first, second]]
    assert first.topics == {b"t": 2}
    for session in watched.pop("c"):
        session.wake("c")
    assert [partition.index for partition in first.active] == [0, 2]
    cache.plan(request(1, -1), **BY_ALICE, now=1)
    assert list(map(list, watched.values())) == [[second], [second]]
    opened(1)
    opened(FETCH_SESSION_IDLE_SECONDS + 1)
    assert second not in [session for sessions in watched.values() for session in sessions]


async def test_idle_partitions_rest_until_they_get_records(start_broker: StartBroker) -> None:
    """Requests read only active partitions; records, requests and time wake the others."""
    server = await start_broker()
    client = await WireClient.connect(server.kafka_address)
    other_client = await WireClient.connect(server.kafka_address)
    await client.create("t", partitions=40)
    opening = fetch_request({("t", part): 0 for part in range(40)}, session_id=0, session_epoch=0)
    session_id = (await client.call("Fetch", 12, opening)).session_id
    (session,) = server.fetch_sessions._sessions.values()
    epochs = iter(range(1, 100))

    async def fetched(offsets: dict[tuple[str, int], int] | None = None, wait: int = 0) -> Any:
        wanted = fetch_request(offsets or {}, session_id=session_id, session_epoch=next(epochs))
        answer = await client.call("Fetch", 12, {**wanted, "max_wait": wait})
        return [row.partition_index for topic in answer.responses for row in topic.partitions]

    assert await fetched() == []
    assert (len(session.active), len(session.resting)) == (0, 40)
    assert sys.getsizeof(session.active) < 500  # without the slots of 40 partitions
    waiting = asyncio.ensure_future(fetched(wait=20_000))
    while not session.waiting:
        await asyncio.sleep(0)
    await other_client.produce("t", batch(b"x"), partition=17)
    assert await waiting == [17]
    assert [partition.index for partition in session.active] == [17]
    assert await fetched() == [17]  # still at offset 0
    assert await fetched({("t", 17): 1}) == []
    assert len(session.resting) == 40
    await other_client.produce("t", batch(b"y"), partition=3)
    assert await fetched() == [3]
    assert await fetched({("t", 3): 1, ("t", 5): 9}) == [5]  # out of range
    assert [partition.index for partition in session.active] == [5]
    await client.create("u")  # the metadata changes
    assert await fetched({("t", 5): 0}) == [5]
    assert await fetched() == []
    assert session.read_as == (server.partitions.generation, False)
    assert len(session.resting) == 40
    session.looked -= LOOK_SECONDS
    moved: Any = server.partitions.topics["t"].partitions[9]
    moved.log_start_offset = -7
    assert await fetched() == [9]
    await asyncio.gather(client.close(), other_client.close())


class Session:
    """Session of a client over a topic "t", whose partitions rest after `open`."""

    def __init__(self, server: BrokerServer, client: WireClient) -> None:
        self.server, self.client = server, client
        self.epoch, self.id = 0, 0
        self.state: Any = None

    async def open(self, partitions: int, **changes: Any) -> None:
        await self.client.create("t", partitions=partitions)
        await self.fetched({("t", part): 0 for part in range(partitions)}, **changes)
        await self.fetched(**changes)
        (self.state,) = self.server.fetch_sessions._sessions.values()
        assert len(self.state.resting) == partitions

    async def fetched(
        self, offsets: dict[tuple[str, int], int] | None = None, **changes: Any
    ) -> dict[int, int]:
        """Return the bytes of the partitions in the response, by their indexes."""
        sent = {"session_id": self.id, "session_epoch": self.epoch, **changes}
        answer = await self.client.call("Fetch", 12, fetch_request(offsets or {}, **sent))
        self.id, self.epoch = answer.session_id, self.epoch + 1
        rows = [row for topic in answer.responses for row in topic.partitions]
        return {row.partition_index: len(row.records or b"") for row in rows}

    async def waits(self, **changes: Any) -> asyncio.Task[dict[int, int]]:
        """Start a request that waits for records."""
        waiting = asyncio.ensure_future(self.fetched(max_wait=20_000, **changes))
        while not self.state.waiting:
            await asyncio.sleep(0)
        return waiting


async def test_a_waiting_request_gets_all_later_records_of_a_woken_partition(
    broker: BrokerServer, client: WireClient
) -> None:
    """A partition that was woken, but had too few bytes, wakes the request again."""
    session, size = Session(broker, client), len(batch(b"x"))
    await session.open(3)
    waiting = await session.waits(min_bytes=2 * size)
    producer = await WireClient.connect(broker.kafka_address)
    await producer.produce("t", batch(b"x"), partition=1)
    await asyncio.sleep(0)
    (source,) = [item.source for item in session.state.active]
    assert source in list(broker.fetch_hub.awaited())
    assert not waiting.done()
    await producer.produce("t", batch(b"y"), partition=1)
    async with asyncio.timeout(5):
        assert await waiting == {1: 2 * size}
    assert not list(broker.fetch_hub.awaited())
    await producer.close()


async def test_a_closed_session_whose_request_waits_leaves_no_watch(
    broker: BrokerServer, client: WireClient
) -> None:
    session = Session(broker, client)
    await session.open(3)
    waiting = await session.waits()
    other = await WireClient.connect(broker.kafka_address)
    closing = fetch_request({}, session_id=session.id, session_epoch=-1)
    await other.call("Fetch", 12, closing)
    assert not broker.fetch_hub.watched
    broker.fetch_hub.finish_all()
    await waiting
    assert not broker.fetch_hub.watched
    await other.close()


async def test_two_waiting_requests_of_a_session_are_both_woken(
    broker: BrokerServer, client: WireClient
) -> None:
    session, second = Session(broker, client), Session(broker, client)
    await session.open(3)
    first = await session.waits()
    second.client = await WireClient.connect(broker.kafka_address)
    second.id, second.epoch, second.state = session.id, session.epoch + 1, session.state
    other = asyncio.ensure_future(second.fetched(max_wait=20_000))
    while len(broker.fetch_hub) < 2:
        await asyncio.sleep(0)
    producer = await WireClient.connect(broker.kafka_address)
    await producer.produce("t", batch(b"x"), partition=1)
    async with asyncio.timeout(5):
        assert 1 in await first
        assert 1 in await other
    await asyncio.gather(second.client.close(), producer.close())


async def test_a_request_of_another_isolation_level_reads_resting_partitions(
    broker: BrokerServer, client: WireClient
) -> None:
    session = Session(broker, client)
    await session.open(3, isolation_level=1)
    partition: Any = broker.partitions.topics["t"].partitions[1]
    await client.produce("t", batch(b"x"), partition=1)
    await session.fetched(isolation_level=1)
    partition.last_stable_offset = 0  # as during a transaction
    await session.fetched(isolation_level=1)
    assert not session.state.active
    assert await session.fetched(isolation_level=0) == {1: len(batch(b"x"))}


async def test_a_batch_above_the_rest_of_the_budget_ends_the_response(
    broker: BrokerServer, client: WireClient
) -> None:
    """Later partitions are not read; all are returned in turn by the next requests."""
    await client.create("t", partitions=4)
    small, large = batch(b"x"), batch(b"y" * 10_000)
    for part in range(4):
        await client.produce("t", large if part == 1 else small, partition=part)
    session = Session(broker, client)
    limits = {"max_bytes": 2000, "min_bytes": 1000, "max_wait": 60_000}
    partition: Any = broker.partitions.topics["t"].partitions[0]
    counters = partition.log.state.parts.counters
    reads = counters.tail_reads
    async with asyncio.timeout(30):
        first = await session.fetched({("t", part): 0 for part in range(4)}, **limits)
        assert first == {0: len(small), 1: 0, 2: 0, 3: 0}
        assert counters.tail_reads == reads + 2
        assert await session.fetched({("t", 0): 1}, **limits) == {1: len(large)}
        last = await session.fetched({("t", 1): 1}, **{**limits, "min_bytes": 1})
        assert last == {2: len(small), 3: len(small)}
