"""ShareFetch and ShareAcknowledge on a real broker, by raw requests."""

from __future__ import annotations

import asyncio
from uuid import UUID, uuid4

import pytest

from penstock.broker.server import BrokerServer
from penstock.broker.share.values import Acknowledge
from penstock.records.header import split_batches
from penstock.security import AclAuthoriser, Principal
from penstock.wire.kafka.schema import error_codes
from tests.broker.conftest import StartBroker
from tests.broker.share.conftest import Connect, Join, Member, changed, set_group
from tests.broker.wire_client import WireClient, batch
from tests.security.access import allow

ACCEPT, RELEASE, REJECT = Acknowledge.ACCEPT, Acknowledge.RELEASE, Acknowledge.REJECT
HOUR_MS = 3_600_000
Place = tuple[UUID, int]


def error(name: str) -> int:
    return int(error_codes()[name])


@pytest.fixture
async def place(client: WireClient) -> Place:
    """Make a partition of two batches: offsets 0 to 2, and 3 to 4."""
    await client.create("t")
    await client.produce("t", batch(b"a", b"b", b"c"))
    await client.produce("t", batch(b"d", b"e"))
    return await Member(client, "g", "m").topic("t"), 0


async def waits(broker: BrokerServer, task: asyncio.Task[object]) -> None:
    async with asyncio.timeout(60):
        while not task.done() and not len(broker.fetch_hub):
            await asyncio.sleep(0)
    assert not task.done(), task.result()


async def test_batches_are_sent_whole_and_only_those_with_something(
    place: Place, join: Join
) -> None:
    one, two = await join("one"), await join("two")
    answer = await one.fetch(place, max_records=1, share_acquire_mode=1)
    (found,) = answer.responses[0].partitions
    assert [(got.first_offset, got.last_offset) for got in found.acquired_records] == [(0, 0)]
    assert [header.base_offset for header in split_batches(found.records)] == [0]
    answer = await two.fetch(place)
    (found,) = answer.responses[0].partitions
    assert [(got.first_offset, got.last_offset) for got in found.acquired_records] == [(1, 4)]
    assert [header.base_offset for header in split_batches(found.records)] == [0, 3]
    assert answer.acquisition_lock_timeout.total_seconds() == 30


async def test_what_is_accepted_is_not_delivered_again_and_the_rest_is(
    place: Place, join: Join
) -> None:
    one, two = await join("one"), await join("two")
    assert await one.acquire(place) == [(0, 4, 1)]
    assert await two.acquire(place) == []
    said = [(0, 1, [ACCEPT]), (2, 4, [RELEASE, REJECT, RELEASE])]
    answer = await one.fetch(place, said={place: said}, max_records=0, max_bytes=0)
    assert not answer.responses[0].partitions[0].acknowledge_error_code
    assert await two.acquire(place) == [(2, 2, 2), (4, 4, 2)]
    assert await two.say(place, 2, 2, ACCEPT) == 0
    assert await two.say(place, 2, 2, ACCEPT) == 0, "below the start nothing is looked at"
    assert await one.say(place, 4, 4, ACCEPT) == error("invalid_record_state")
    assert await two.say(place, 4, 5, ACCEPT) == error("invalid_record_state")
    assert await two.say(place, 3, 4, ACCEPT) == 0
    assert await one.acquire(place) == []


async def test_acquired_ranges_have_the_size_that_was_asked_for(place: Place, join: Join) -> None:
    one = await join("one")
    assert await one.acquire(place, batch_size=2) == [(0, 1, 1), (2, 3, 1), (4, 4, 1)]


async def test_a_fetch_waits_for_records_and_for_those_that_are_released(
    broker: BrokerServer, client: WireClient, place: Place, join: Join
) -> None:
    one, two = await join("one"), await join("two")
    assert await one.acquire(place) == [(0, 4, 1)]
    waiting = asyncio.create_task(two.acquire(place, max_wait=HOUR_MS))
    await waits(broker, waiting)
    await client.produce("t", batch(b"f"))
    assert await waiting == [(5, 5, 1)]
    waiting = asyncio.create_task(two.acquire(max_wait=HOUR_MS))
    await waits(broker, waiting)
    assert await one.say(place, 0, 4, RELEASE) == 0
    assert await waiting == [(0, 4, 2)]


async def test_min_bytes_are_waited_for(
    broker: BrokerServer, client: WireClient, place: Place, join: Join
) -> None:
    one = await join("one")
    waiting = asyncio.create_task(one.acquire(place, max_wait=HOUR_MS, min_bytes=1000))
    await waits(broker, waiting)
    await client.produce("t", batch(b"f" * 1000))
    assert await waiting == [(0, 5, 1)]
    assert await one.acquire(max_wait=1, min_bytes=1000) == []


@pytest.mark.parametrize("said", [True, False], ids=["says goodbye", "is cut off"])
async def test_what_a_member_has_is_released_when_it_goes(
    broker: BrokerServer, place: Place, join: Join, said: bool
) -> None:
    one, two = await join("one"), await join("two")
    await one.acquire(place)
    waiting = asyncio.create_task(two.acquire(place, max_wait=HOUR_MS))
    await waits(broker, waiting)
    if said:
        await one.fetch(said={place: [(0, 0, [ACCEPT])]}, share_session_epoch=-1)
        assert await waiting == [(1, 4, 1)], "who goes by its word has not looked at the rest"
    else:
        await one.client.close()
        assert await waiting == [(0, 4, 2)]
    assert len(broker.share.sessions) == 1


async def test_a_waiting_fetch_of_a_member_that_is_cut_off_acquires_nothing(
    broker: BrokerServer, client: WireClient, place: Place, join: Join
) -> None:
    one, two = await join("one"), await join("two")
    await two.acquire(place)
    waiting = asyncio.create_task(one.acquire(place, max_wait=HOUR_MS))
    await waits(broker, waiting)
    await one.client.close()
    with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
        await waiting
    async with asyncio.timeout(60):
        while len(broker.share.sessions) > 1 or len(broker.fetch_hub):
            await asyncio.sleep(0)
    await client.produce("t", batch(b"f"))
    assert await two.acquire() == [(5, 5, 1)]


async def test_locks_end(start_broker: StartBroker, connect: Connect) -> None:
    broker = await start_broker({"group.share.record.lock.duration.ms": 1000})
    one, two = Member(await connect(broker), "g", "one"), Member(await connect(broker), "g", "two")
    await set_group(one.client, "g", share_auto_offset_reset="earliest")
    assert len(refused := await changed(one.client, "g", share_record_lock_duration_ms=1000))
    assert "group.share.min.record.lock.duration.ms = 15000" in refused
    await one.client.create("t")
    await one.client.produce("t", batch(b"a", b"b"))
    place = await one.topic("t"), 0
    assert await one.acquire(place) == [(0, 1, 1)]
    assert await two.acquire(place, max_wait=HOUR_MS) == [(0, 1, 2)]
    assert await one.say(place, 0, 1, ACCEPT) == error("invalid_record_state")


@pytest.mark.parametrize(
    ("epoch", "name"), [(1, "share_session_not_found"), (-1, "share_session_not_found")]
)
async def test_there_is_no_session(place: Place, join: Join, epoch: int, name: str) -> None:
    one = await join("one")
    answer = await one.fetch(place, share_session_epoch=epoch)
    assert answer.error_code.name == name


async def test_requests_come_in_their_order(place: Place, join: Join) -> None:
    one = await join("one")
    await one.fetch(place)
    answer = await one.fetch(share_session_epoch=2)
    assert answer.error_code.name == "invalid_share_session_epoch"
    answer = await one.fetch(said={place: [(0, 0, [ACCEPT])]}, share_session_epoch=0)
    assert answer.error_code.name == "invalid_request"
    request = {
        "group_id": "g", "member_id": "one", "share_session_epoch": 0, "topics": [],
    }  # fmt: skip
    answer = await one.client.call("ShareAcknowledge", 2, request)
    assert answer.error_code.name == "invalid_share_session_epoch"


async def test_errors_are_returned_per_partition(place: Place, join: Join) -> None:
    one = await join("one")
    gone, missing = (uuid4(), 0), (place[0], 7)
    answer = await one.fetch(gone, missing, place, max_wait=HOUR_MS)
    found = {
        (topic.topic_id, row.partition_index): row.error_code.name
        for topic in answer.responses
        for row in topic.partitions
    }
    assert found[gone] == "unknown_topic_id"
    assert found[missing] == "unknown_topic_or_partition"
    assert found[place] == "none"
    assert await one.say(place, 0, 1, ACCEPT, ACCEPT, ACCEPT) == error("invalid_request")
    assert await one.say(gone, 0, 1, ACCEPT) == error("unknown_topic_id")


async def test_a_group_starts_at_the_end_by_default(
    broker: BrokerServer, client: WireClient, place: Place, join: Join
) -> None:
    one = Member(client, "late", "one")
    assert await one.acquire(place) == []
    await client.produce("t", batch(b"f"))
    assert await one.acquire() == [(5, 5, 1)]
    since = await join("m", "since", share_auto_offset_reset="by_duration:P1D")
    assert await since.acquire(place) == []
    since = await join("m", "long-since", share_auto_offset_reset="by_duration:P9000D")
    assert await since.acquire(place) == [(0, 5, 1)]


async def test_renewals_can_be_forbidden(place: Place, join: Join) -> None:
    one = await join("one", share_renew_acknowledge_enable=True)
    await one.acquire(place)
    assert await one.say(place, 0, 1, Acknowledge.RENEW, is_renew_ack=True) == 0
    await set_group(one.client, "g", share_renew_acknowledge_enable="false")
    refused = await one.say(place, 0, 1, Acknowledge.RENEW, is_renew_ack=True)
    assert refused == error("invalid_request")


async def test_a_session_of_another_principal_is_unknown(
    broker: BrokerServer, place: Place, join: Join
) -> None:
    own, other = await join("m"), await join("m")
    list(broker._connections)[-1].principal = Principal("User", "mallory")
    assert await own.acquire(place, max_records=2, share_acquire_mode=1) == [(0, 1, 1)]
    for epoch in (0, 1, -1):
        answer = await other.fetch(place, share_session_epoch=epoch)
        assert int(answer.error_code) == error("share_session_not_found")
    assert await own.acquire() == [(2, 4, 1)]
    assert await own.say(place, 0, 4, ACCEPT) == 0


async def test_a_fetch_that_waits_loses_the_right_that_is_taken_meanwhile(
    broker: BrokerServer, client: WireClient, place: Place, join: Join
) -> None:
    one = await join("m")
    list(broker._connections)[-1].principal = Principal("User", "a")
    authoriser = AclAuthoriser(super_users=["User:ANONYMOUS"])
    broker._dispatcher._rights, broker._dispatcher._asks = authoriser.rights, True
    group = allow("read", "group", "g", "a")
    authoriser.replace([group, allow("read", "topic", "t", "a")])
    assert await one.acquire(place) == [(0, 4, 1)]
    waiting = asyncio.create_task(one.fetch(max_wait=HOUR_MS))
    await waits(broker, waiting)
    authoriser.replace([group])
    await client.produce("t", batch(b"written later"))
    (found,) = (await waiting).responses[0].partitions
    assert int(found.error_code) == error("topic_authorization_failed")
    assert not found.records
