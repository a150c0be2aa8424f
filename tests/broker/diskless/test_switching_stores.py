"""A topic becomes diskless on PostgreSQL and S3, while both fail and the broker is killed.

librdkafka's producer and consumer run throughout. In the end every acknowledged record is there
once, at its offset and with its time, in either state of the topic.
"""

from __future__ import annotations

import asyncio
import re
from asyncio import to_thread
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any, Literal, TypeVar

import pytest

from tests.broker.diskless.dying import STEPS
from tests.broker.diskless.live import Consuming, Producing
from tests.broker.diskless.serving import Serving, Stores, become_diskless, stores_of, until
from tests.broker.diskless.test_configs import altered
from tests.broker.wire_client import WireClient, batch
from tests.control.postgres_proxy import Cut
from tests.postgres import PostgresServer
from tests.proxy import THROUGH, Fault, Request, share, through
from tests.s3 import S3Server
from tests.storage.batches import batch as numbered

T = TypeVar("T", Producing, Consuming)
Live = Callable[[T], T]
Serve = Callable[..., Awaitable[Serving]]
Stage = Literal["copy", "tail"]
NOT_LEADER = 6
OUT_OF_ORDER = 45
LOCAL_STEPS = ("begun", "copied", "fenced", "tail copied")
CHANGED = b'"diskless.enable": "true"'
SEGMENT = re.compile(r"/archive/[^/]+/(\d+)/(\d{20})-")


@pytest.fixture
async def stores(
    postgres_url: str, postgres: PostgresServer, s3: S3Server
) -> AsyncIterator[Stores]:
    async with stores_of(postgres_url, postgres, s3) as stores:
        yield stores


@pytest.fixture
async def serve(stores: Stores, tmp_path: Path) -> AsyncIterator[Serve]:
    """Start a broker, and create the topic `t` on it."""
    async with AsyncExitStack() as stack:

        async def serve(partitions: int = 2, *, dies_at: str = "", **settings: str) -> Serving:
            named = {name.replace("_", "."): value for name, value in settings.items()}
            broker = Serving(tmp_path, {**stores.settings, **named})
            await broker.start(dies_at=dies_at)
            stack.push_async_callback(broker.kill)
            client = await broker.connect()
            assert (await client.create("t", partitions)).topics[0].error_code == 0
            await client.close()
            return broker

        yield serve


@pytest.fixture
def live() -> Iterator[Live[Any]]:
    """Start a client's thread, and end it after the test."""
    with ExitStack() as stack:

        def live(client: T) -> T:
            client.start()
            stack.callback(client.end)
            return client

        yield live


async def whole(broker: Serving, stores: Stores, producing: Producing) -> None:
    """Check that the topic is diskless, with every record once and no unneeded objects."""
    await everything(broker, producing)
    assert await stores.is_diskless()
    assert not list(broker.directory.glob("log/t-?"))
    await stores.swept()
    await stores.verify()
    assert "Traceback" not in broker.said()
    await broker.stop()


async def finished(producing: Producing) -> Producing:
    """Return a producer after its last record, and some that it produced later."""
    await to_thread(producing.wait_for, 50)
    await to_thread(producing.finish)
    return producing


async def everything(
    broker: Serving, producing: Producing, *, partitions: int = 2, size_bytes: int = 0
) -> None:
    """Check that a read from the start returns what was written."""
    reading = Consuming(broker.bootstrap, partitions=partitions, size_bytes=size_bytes)
    reading.start()
    await to_thread(reading.finish, producing.count)
    assert reading.seen == producing.written()


async def produced_to(client: WireClient) -> int:
    """Return the outcome of a producer that is not idempotent; here always a refusal."""
    answer = await client.produce("t", batch(b"never"))
    return int(answer.error_code)


# -- as it should be -------------------------------------------------------------------------------


async def test_producer_and_group_continue(serve: Serve, live: Live[Any], stores: Stores) -> None:
    """Some 30 MiB in three partitions, copied in several passes."""
    like: dict[str, Any] = {"partitions": 3, "size_bytes": 8_000}
    broker = await serve(3, diskless_switch_bytes_per_second=str(20 << 20))
    producing = live(Producing(broker.bootstrap, burst=3_500, pause_seconds=0.003, **like))
    consuming = live(Consuming(broker.bootstrap, group="g", **like))
    await to_thread(producing.wait_for, 3_600)
    before = producing.total()
    assert await to_thread(become_diskless, broker.bootstrap) is None
    assert producing.total() > before
    await to_thread(consuming.finish, producing.total())
    await to_thread(producing.wait_for, 100)
    following = live(Consuming(broker.bootstrap, group="g", **like))
    await to_thread(producing.wait_for, 100)
    await to_thread(producing.finish)
    await to_thread(following.finish, producing.count - consuming.total())
    assert consuming.committed == [len(part) for part in consuming.seen]
    assert following.committed == [len(part) for part in producing.delivered]
    seen = [a + b for a, b in zip(consuming.seen, following.seen, strict=True)]
    assert seen == producing.written()
    await everything(broker, producing, **like)
    assert not list(broker.directory.glob("log/t-?"))
    await stores.verify()
    assert await stores.only_committed()
    await broker.stop()


async def test_retry_across_the_switch_is_a_duplicate(serve: Serve, stores: Stores) -> None:
    broker = await serve(1)
    client = await broker.connect()
    batches = [
        bytes(numbered(count, producer_id=7, epoch=0, sequence=sequence))
        for count, sequence in ((3, 0), (2, 3), (1, 5), (1, 9))
    ]
    for produced in batches[:2]:
        assert (await client.produce("t", produced)).error_code == 0
    assert await to_thread(become_diskless, broker.bootstrap) is None
    answers = [await client.produce("t", batches[index]) for index in (1, 0, 2)]
    assert [(answer.error_code, answer.base_offset) for answer in answers] == [
        (0, 3),
        (0, 0),
        (0, 5),
    ]
    assert (await client.produce("t", batches[3])).error_code == OUT_OF_ORDER
    assert (await client.fetch("t")).high_watermark == 6
    await client.close()
    await stores.verify()


# -- a store that fails ----------------------------------------------------------------------------


class Trouble:
    """Plan by which sealed objects of a stage meet a number of faults.

    The first ones are held until `go_on`, so that more records follow.
    """

    def __init__(self, stage: Stage, fault: Fault, count: int) -> None:
        self.met = 0
        self.go_on = asyncio.Event()
        self._stage = stage
        self._fault = fault
        self._count = count

    def plan(self, request: Request) -> Fault:
        found = SEGMENT.search(request.path)
        if request.method != "PUT" or found is None:
            return THROUGH
        stage = "tail" if int(found[2]) else "copy"
        if stage == self._stage and self.met < self._count:
            self.met += 1
            return self._fault
        return Fault(hold=self.go_on) if stage == "copy" else THROUGH


async def begin(
    broker: Serving, stores: Stores, live: Live[Any], trouble: Trouble
) -> tuple[Producing, asyncio.Task[Any]]:
    """Produce records and start a switch that meets faults during its first pass."""
    producing = live(Producing(broker.bootstrap))
    await to_thread(producing.wait_for, 200)
    stores.objects.plan = trouble.plan
    migration = asyncio.create_task(to_thread(become_diskless, broker.bootstrap))
    await until(lambda: stores.objects.count("PUT", containing="/archive/") > 0)
    await to_thread(producing.wait_for, 100)
    trouble.go_on.set()
    return producing, migration


LOST = Fault(drop_answer=True)
REFUSED = Fault(status=503)
RESET = Fault(reset=True)
SLOW = Fault(latency_seconds=0.5)
long = pytest.mark.long


@pytest.mark.long
@pytest.mark.parametrize(
    ("stage", "fault"),
    [
        pytest.param("copy", RESET, id="copy-reset", marks=long),
        pytest.param("tail", LOST, id="tail-lost"),
        pytest.param("tail", SLOW, id="tail-slow", marks=long),
    ],
)
async def test_store_that_fails_for_a_while(
    serve: Serve, live: Live[Any], stores: Stores, stage: Stage, fault: Fault
) -> None:
    broker = await serve()
    trouble = Trouble(stage, fault, 2)
    producing, migration = await begin(broker, stores, live, trouble)
    assert await migration is None
    assert trouble.met == 2
    stores.objects.plan = share(0.3, Fault(truncate_bytes=100))
    await everything(broker, await finished(producing))
    stores.objects.plan = through
    await whole(broker, stores, producing)


@pytest.mark.parametrize(
    ("stage", "fault", "why"),
    [
        pytest.param("copy", LOST, "archive/", id="copy-lost", marks=long),
        pytest.param("tail", REFUSED, "SlowDown", id="tail-503", marks=long),
        pytest.param(
            "tail", Fault(latency_seconds=60.0), "were not copied within 10", id="tail-late",
            marks=long,
        ),
    ],
)  # fmt: skip
async def test_store_that_fails_for_too_long_leaves_a_local_topic(
    serve: Serve, live: Live[Any], stores: Stores, stage: Stage, fault: Fault, why: str
) -> None:
    broker = await serve(diskless_put_timeout_ms="60000")
    trouble = Trouble(stage, fault, 1_000)
    producing, migration = await begin(broker, stores, live, trouble)
    refused = await migration
    assert refused is not None
    assert why in refused.str()
    assert not await stores.is_diskless()
    await to_thread(producing.wait_for, 100)
    assert list(broker.directory.glob("log/t-?"))
    stores.objects.plan = through
    await stores.swept()
    assert await stores.archive() == []
    assert await to_thread(become_diskless, broker.bootstrap) is None
    await whole(broker, stores, await finished(producing))


# -- a commit of unknown outcome -------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize(
    "cut",
    [
        pytest.param("after", id="committed"),
        pytest.param("before", id="not-committed", marks=long),
        pytest.param("late", id="late", marks=long),
    ],
)
async def test_fence_stays_until_the_outcome_is_known(
    serve: Serve, live: Live[Any], stores: Stores, cut: Cut
) -> None:
    broker = await serve()
    producing = live(Producing(broker.bootstrap))
    await to_thread(producing.wait_for, 200)
    client = await broker.connect()
    stores.database.only = CHANGED
    stores.database.cut = cut
    stores.database.leaves = cut != "late"
    migration = asyncio.create_task(to_thread(become_diskless, broker.bootstrap))
    await stores.was_cut(1)
    assert await produced_to(client) == NOT_LEADER
    if cut != "late":
        await stores.was_missed(4)
        assert await produced_to(client) == NOT_LEADER
    assert await stores.is_diskless() is (cut == "after")
    assert (await client.fetch("t")).error_code == 0
    assert not migration.done()
    stores.database.come_back()
    assert await migration is None
    await client.close()
    await whole(broker, stores, await finished(producing))


@pytest.mark.parametrize(
    "cut",
    [
        pytest.param("after", id="committed"),
        pytest.param("before", id="not-committed", marks=long),
        pytest.param("late", id="late", marks=long),
    ],
)
async def test_killed_while_the_outcome_is_unknown(
    serve: Serve, live: Live[Any], stores: Stores, cut: Cut
) -> None:
    broker = await serve()
    producing = live(Producing(broker.bootstrap))
    await to_thread(producing.wait_for, 200)
    client = await broker.connect()
    stores.database.only = CHANGED
    stores.database.cut = cut
    stores.database.leaves = cut != "late"
    migration = asyncio.create_task(altered(client, "t", diskless_enable="true"))
    await stores.was_cut(1)
    await broker.kill()
    with pytest.raises((OSError, asyncio.IncompleteReadError)):
        await migration
    await client.close()
    stores.database.come_back()
    await broker.start()
    assert await stores.is_diskless() is (cut == "after")
    await to_thread(producing.wait_for, 100)
    assert await to_thread(become_diskless, broker.bootstrap) is None
    await whole(broker, stores, await finished(producing))


# -- a broker that is killed -----------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("step", STEPS)
async def test_killed_broker(serve: Serve, live: Live[Any], stores: Stores, step: str) -> None:
    broker = await serve(dies_at=step)
    producing = live(Producing(broker.bootstrap))
    consuming = live(Consuming(broker.bootstrap, group="g"))
    await to_thread(producing.wait_for, 300)
    client = await broker.connect()
    with pytest.raises((OSError, asyncio.IncompleteReadError)):
        await altered(client, "t", diskless_enable="true")
    await client.close()
    assert await broker.ended() == -9
    local = step in LOCAL_STEPS
    assert await stores.is_diskless() is not local
    assert bool(await stores.archive()) is (step != "begun")
    await broker.start()
    await to_thread(producing.wait_for, 100)
    if local:
        assert list(broker.directory.glob("log/t-?"))
        await stores.swept()
        assert await stores.archive() == []
    assert await to_thread(become_diskless, broker.bootstrap) is None
    await finished(producing)
    await to_thread(consuming.finish, producing.count)
    assert consuming.seen == producing.written()
    await whole(broker, stores, producing)


# -- two leaders -----------------------------------------------------------------------------------

OPENED = b"INSERT INTO diskless_switches"
FENCED = b"\0\0\0\x06fenced"


@pytest.fixture
async def pair(stores: Stores, tmp_path: Path) -> AsyncIterator[list[Serving]]:
    """Start two brokers, which lead partition 0 and 1 of the topic."""
    async with AsyncExitStack() as stack:
        brokers = []
        for node in (1, 2):
            directory = tmp_path / str(node)
            directory.mkdir()
            heartbeat = {"node.id": str(node), "broker.heartbeat.interval.ms": "200"}
            brokers.append(Serving(directory, {**stores.settings, **heartbeat}))
            await brokers[-1].start()
            stack.push_async_callback(brokers[-1].kill)
        client = await brokers[1].connect()
        led = [{"partition_index": index, "broker_ids": [index + 1]} for index in range(2)]
        topic = {
            "name": "t", "num_partitions": -1, "replication_factor": -1, "assignments": led,
            "configs": [],
        }  # fmt: skip
        answer = await client.call("CreateTopics", 7, {"topics": [topic], "timeout": 5000})
        assert answer.topics[0].error_code == 0
        await client.close()
        yield brokers


@pytest.mark.parametrize(
    ("only", "cut"),
    [
        pytest.param(OPENED, "after", id="opened", marks=long),
        pytest.param(OPENED, "before", id="not-opened", marks=long),
        pytest.param(FENCED, "after", id="fenced", marks=long),
        pytest.param(FENCED, "before", id="not-fenced", marks=long),
        pytest.param(CHANGED, "after", id="committed", marks=long),
        pytest.param(CHANGED, "before", id="not-committed", marks=long),
    ],
)
async def test_two_leaders_and_a_commit_of_unknown_outcome(
    pair: list[Serving], live: Live[Any], stores: Stores, only: bytes, cut: Cut
) -> None:
    producing = live(Producing(pair[0].bootstrap))
    await to_thread(producing.wait_for, 200)
    stores.database.only, stores.database.cut = only, cut
    stores.database.leaves = only is CHANGED
    migration = asyncio.create_task(to_thread(become_diskless, pair[0].bootstrap))
    await stores.was_cut(1)
    if only is CHANGED:
        await stores.was_missed(8)
        for index, broker in enumerate(pair):
            client = await broker.connect()
            answer = await client.produce("t", batch(b"never"), partition=index)
            assert answer.error_code == NOT_LEADER
            await client.close()
        assert await stores.is_diskless() is (cut == "after")
        stores.database.come_back()
    refused = await migration
    assert (refused is None) is (only is not OPENED)
    if refused is not None:
        assert "whether the change took effect is not known" in refused.str()
        assert not await stores.is_diskless()
        # The other broker must not find a request that nobody goes on with.
        assert await to_thread(become_diskless, pair[1].bootstrap) is None
    await finished(producing)
    await everything(pair[1], producing)
    await stores.swept()
    await stores.verify()
    for broker in pair:
        assert not list(broker.directory.glob("log/t-?"))
        assert "Traceback" not in broker.said()
        await broker.stop()
