"""Appender with a real broker, cut connections and brokers that answer nonsense."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
import uvloop
from msgspec.structs import replace

from penstock.base.errors import PenstockError
from penstock.client import BrokersUnreachable, Client, UnknownTopic
from penstock.client.appender import Appender
from penstock.client.errors import (
    RETRY,
    ClientClosed,
    InvalidArgument,
    MessageTooLarge,
    TimedOut,
    UnsupportedByBroker,
)
from penstock.client.producer_partitions import Pieces, ProducerPartition
from penstock.records.columnar import encode_batches
from penstock.testing import Broker
from tests.client.half_broker import HalfBroker
from tests.client.test_failures import behind

WAIT_SECONDS = 60
Topic = Callable[..., str]


def pieces(
    values: list[bytes], *, producer_id: int = -1, epoch: int = -1, sequence: int = -1
) -> list[Pieces]:
    table = pa.table({"value": values})
    encoded = encode_batches(
        table,
        now_ms=1_700_000_000_000,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
    )
    return [Pieces(item.data, item.record_count) for item in encoded]


@asynccontextmanager
async def running(bootstrap: str, **options: Any) -> AsyncIterator[Appender]:
    appender = Appender(bootstrap, **options)
    await appender.start()
    try:
        yield appender
    finally:
        await appender.stop(10)


def put(
    appender: Appender, producer_partition: ProducerPartition, values: list[bytes], sequence: int
) -> asyncio.Future[PenstockError | None]:
    """Append one batch; the future has its result, and fails on a second result."""
    future: asyncio.Future[PenstockError | None] = asyncio.get_running_loop().create_future()
    batch = pieces(
        values,
        producer_id=producer_partition.producer_id if producer_partition.idempotent else -1,
        epoch=producer_partition.producer_epoch if producer_partition.idempotent else -1,
        sequence=sequence,
    )
    refused = appender.append(producer_partition, batch, sequence, future.set_result)
    if refused is not None:
        future.set_result(refused)
    return future


async def results(
    futures: list[asyncio.Future[PenstockError | None]],
) -> list[PenstockError | None]:
    return await asyncio.wait_for(asyncio.gather(*futures), WAIT_SECONDS)


def stored(bootstrap: str, topic: str, partition: int = 0) -> list[bytes]:
    with Client(bootstrap) as client:
        table = client.read_arrow(topic, partitions=[partition], columns=("value",))
    found: list[bytes] = table["value"].to_pylist()
    return found


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_many_producers_append_to_many_partitions_in_order(
    run: Callable[[Coroutine[Any, Any, None]], None], bootstrap: str, topic: Topic
) -> None:
    name, producers, partitions, rounds = topic(3), 40, 3, 8

    async def write() -> None:
        async with running(bootstrap) as appender:
            assert await appender.partitions(name) == partitions
            ids = [await appender.producer_id() for _ in range(producers)]
            assert len(set(ids)) == producers
            futures = []
            for turn in range(rounds):
                for who, producer_id in enumerate(ids):
                    for partition in range(partitions):
                        producer_partition = ProducerPartition(
                            producer_id, 0, name, partition, True
                        )
                        values = [b"%d:%d" % (who, turn * 5 + index) for index in range(5)]
                        futures.append(put(appender, producer_partition, values, turn * 5))
            assert set(await results(futures)) == {None}
            assert appender.pending_appends == 0

    run(write())
    for partition in range(partitions):
        found = stored(bootstrap, name, partition)
        assert len(found) == producers * rounds * 5
        by_producer: dict[bytes, list[int]] = {}
        for value in found:
            who, _, number = value.partition(b":")
            by_producer.setdefault(who, []).append(int(number))
        assert all(numbers == list(range(rounds * 5)) for numbers in by_producer.values())


async def test_a_batch_may_come_in_two_parts(bootstrap: str, topic: Topic) -> None:
    name = topic()
    (whole,) = pieces([b"one", b"two"])
    data = memoryview(whole.data)
    future: asyncio.Future[PenstockError | None] = asyncio.get_running_loop().create_future()
    async with running(bootstrap) as appender:
        parts = [Pieces(bytes(data[:61]), 2, data[61:])]
        producer_partition = ProducerPartition(-1, -1, name, 0, False)
        assert appender.append(producer_partition, parts, -1, future.set_result) is None
        assert await results([future]) == [None]
    assert stored(bootstrap, name) == [b"one", b"two"]


async def test_an_unknown_topic_and_partition_fail_and_the_topic_may_appear_later(
    bootstrap: str, client: Client, topic: Topic
) -> None:
    name, missing = topic(2), f"missing-{uuid4().hex[:8]}"
    async with running(bootstrap) as appender:
        producer_id = await appender.producer_id()
        wrong = [
            put(appender, ProducerPartition(producer_id, 0, missing, 0, True), [b"x"], 0),
            put(appender, ProducerPartition(producer_id, 0, name, 2, True), [b"x"], 0),
        ]
        errors = await results(wrong)
        assert [type(error) for error in errors] == [UnknownTopic, UnknownTopic]
        assert "has partitions 0 to 1" in str(errors[1])
        with pytest.raises(UnknownTopic):
            await appender.partitions(missing)
        await asyncio.to_thread(client.create_topic, missing, 1)
        late = put(appender, ProducerPartition(producer_id, 0, missing, 0, True), [b"x"], 0)
        assert await results([late]) == [None]


async def test_a_refused_batch_fails_alone_in_its_lane(bootstrap: str, topic: Topic) -> None:
    name = topic(2, max_message_bytes="2000")
    async with running(bootstrap) as appender:
        producer_id = await appender.producer_id()
        first, second = (ProducerPartition(producer_id, 0, name, index, True) for index in (0, 1))
        futures = [
            put(appender, first, [b"small"], 0),
            put(appender, first, [b"x" * 4000], 1),
            put(appender, first, [b"after"], 2),
            put(appender, second, [b"other"], 0),
        ]
        ok, large, after, other = await results(futures)
        assert (ok, other) == (None, None)
        assert isinstance(large, MessageTooLarge)
        assert after is not None
        assert after.code == "out_of_order_sequence_number"
        # The producer puts something smaller in its place.
        again = [put(appender, first, [b"fits"], 1), put(appender, first, [b"after"], 2)]
        assert await results(again) == [None, None]
    assert stored(bootstrap, name) == [b"small", b"fits", b"after"]
    assert stored(bootstrap, name, 1) == [b"other"]


async def test_a_failed_append_is_not_overtaken_by_later_ones(bootstrap: str, topic: Topic) -> None:
    # The broker does not know the producer yet and would take sequence 5 for its first.
    name = topic(1, max_message_bytes="2000")
    async with running(bootstrap) as appender:
        producer_partition = ProducerPartition(await appender.producer_id(), 0, name, 0, True)
        (failed,) = await results([put(appender, producer_partition, [b"x" * 4000] * 5, 0)])
        assert isinstance(failed, MessageTooLarge)
        (early,) = await results([put(appender, producer_partition, [b"later"], 5)])
        assert early is not None
        assert early.code == "out_of_order_sequence_number"
        assert stored(bootstrap, name) == []


@pytest.mark.parametrize("cut_answers", [False, True], ids=["requests cut", "answers cut"])
async def test_every_record_is_stored_once_though_connections_break(cut_answers: bool) -> None:
    sizes: list[int | None] = []
    sizes += range(500, 2500, 110) if cut_answers else range(4_000, 40_000, 2_000)
    with behind(sizes, cut_answers=cut_answers) as proxy:
        with Client(proxy.address) as client:
            await asyncio.to_thread(client.create_topic, "orders", 2, exist_ok=True)
        async with running(proxy.address) as appender:
            producer_partitions = [
                ProducerPartition(await appender.producer_id(), 0, "orders", at % 2, True)
                for at in (0, 1)
            ]
            futures = [
                put(
                    appender,
                    producer_partition,
                    [b"%05d" % (turn * 50 + index) for index in range(50)],
                    turn * 50,
                )
                for turn in range(80)
                for producer_partition in producer_partitions
            ]
            assert set(await results(futures)) == {None}
            assert appender.retries > 0
        assert proxy.cuts > 3
        for partition in (0, 1):
            found = await asyncio.to_thread(stored, proxy.address, "orders", partition)
            assert found == [b"%05d" % number for number in range(4000)]


async def test_without_a_broker_it_does_not_start() -> None:
    appender = Appender("127.0.0.1:1", api_timeout_ms=300)
    with pytest.raises(BrokersUnreachable):
        await appender.start()
    with pytest.raises(ClientClosed):
        await appender.producer_id()


async def test_appends_time_out_while_the_broker_is_down_and_continue_afterwards() -> None:
    retry = replace(RETRY, timeout_ms=400)
    with Broker(admin=False) as broker:
        await asyncio.to_thread(broker.create_topic, "orders", 1)
        async with running(broker.bootstrap, retry=retry) as appender:
            producer_partition = ProducerPartition(
                await appender.producer_id(), 0, "orders", 0, True
            )
            assert await results([put(appender, producer_partition, [b"one"], 0)]) == [None]
            await asyncio.to_thread(broker.stop)
            lost = [
                put(appender, producer_partition, [b"two"], 1),
                put(appender, producer_partition, [b"three"], 2),
            ]
            error, after = await results(lost)
            assert isinstance(error, TimedOut)
            assert "orders-0" in str(error)
            assert after is not None
            assert after.code == "out_of_order_sequence_number"
            await asyncio.to_thread(broker.start)
            again = [
                put(appender, producer_partition, [b"two"], 1),
                put(appender, producer_partition, [b"three"], 2),
            ]
            assert await results(again) == [None, None]
        assert await asyncio.to_thread(stored, broker.bootstrap, "orders") == [
            b"one",
            b"two",
            b"three",
        ]


async def test_stopping_waits_for_what_is_queued(bootstrap: str, topic: Topic) -> None:
    name = topic()
    appender = Appender(bootstrap)
    await appender.start()
    producer_partition = ProducerPartition(await appender.producer_id(), 0, name, 0, True)
    futures = [put(appender, producer_partition, [b"%d" % turn], turn) for turn in range(30)]
    await appender.stop(30)
    assert set(await results(futures)) == {None}
    (late,) = await results([put(appender, producer_partition, [b"late"], 30)])
    assert isinstance(late, ClientClosed)


async def test_stopping_fails_what_does_not_end_in_time() -> None:
    with silent_broker() as bootstrap:
        appender = Appender(bootstrap, api_timeout_ms=20_000)
        await appender.start()
        futures = [
            put(appender, ProducerPartition(5, 0, "orders", index, True), [b"x"], 0)
            for index in range(3)
        ]
        await appender.stop(0.3)
        assert [type(error) for error in await results(futures)] == [ClientClosed] * 3


async def test_a_broker_that_does_not_answer_costs_its_connection() -> None:
    with silent_broker() as bootstrap:
        retry = replace(RETRY, timeout_ms=500)
        async with running(bootstrap, request_timeout_ms=1_000, retry=retry) as appender:
            (error,) = await results(
                [put(appender, ProducerPartition(5, 0, "orders", 0, True), [b"x"], 0)]
            )
            assert isinstance(error, TimedOut)
            assert "did not answer Produce within 1000 ms" in str(error)


async def test_an_append_without_batches_is_refused(bootstrap: str) -> None:
    async with running(bootstrap) as appender:
        ended: list[PenstockError | None] = []
        refused = appender.append(ProducerPartition(5, 0, "orders", 0, True), [], 0, ended.append)
        assert isinstance(refused, InvalidArgument)
    assert ended == []


NONSENSE = {
    "too long": struct.pack(">i", 1 << 30),
    "negative": struct.pack(">i", -5),
    "another call's answer": struct.pack(">ii", 4, 77),
    "cut body": struct.pack(">iib", 5, 1, 0) + b"\0",
    "nothing": b"",
}


@pytest.mark.parametrize("answer", NONSENSE.values(), ids=NONSENSE.keys())
async def test_nonsense_costs_the_connection_and_the_batch_is_tried_again(answer: bytes) -> None:
    with silent_broker(answer) as bootstrap:
        async with running(bootstrap) as appender:
            future = put(appender, ProducerPartition(5, 0, "orders", 0, True), [b"x"], 0)
            async with asyncio.timeout(WAIT_SECONDS):
                while appender.retries < 2:
                    await asyncio.sleep(0.005)
            assert not future.done()
            await appender.stop(0)
            assert [type(error) for error in await results([future])] == [ClientClosed]


async def test_an_append_waits_for_a_leader_and_then_fails() -> None:
    with silent_broker(leader=-1) as bootstrap:
        retry = replace(RETRY, timeout_ms=300)
        async with running(bootstrap, retry=retry) as appender:
            (error,) = await results(
                [put(appender, ProducerPartition(5, 0, "orders", 0, True), [b"x"], 0)]
            )
            assert isinstance(error, TimedOut)
            assert "has had no leader" in str(error)


async def test_a_broker_that_is_too_old_is_refused_permanently() -> None:
    with silent_broker(produce_version=8) as bootstrap:
        async with running(bootstrap) as appender:
            (error,) = await results(
                [put(appender, ProducerPartition(5, 0, "orders", 0, True), [b"x"], 0)]
            )
            assert isinstance(error, UnsupportedByBroker)
            assert "supports Produce in versions 0 to 8" in str(error)


async def test_idle_lanes_are_forgotten_and_none_that_is_in_use(
    bootstrap: str, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.client.appender.PRODUCER_PARTITIONS_MAX", 4)
    name, producers = topic(), 12
    async with running(bootstrap) as appender:
        ids = [await appender.producer_id() for _ in range(producers)]
        producer_partitions = [ProducerPartition(who, 0, name, 0, True) for who in ids]
        futures = [
            put(appender, producer_partition, [b"0"], 0)
            for producer_partition in producer_partitions
        ]
        assert appender.producer_partitions == producers  # more than allowed, but all are in use
        assert set(await results(futures)) == {None}
        for turn in (1, 2):
            for producer_partition in producer_partitions:
                assert await results([put(appender, producer_partition, [b"%d" % turn], turn)]) == [
                    None
                ]
            other = ProducerPartition(await appender.producer_id(), 0, name, 0, True)
            assert await results([put(appender, other, [b"other"], 0)]) == [None]
            assert appender.producer_partitions <= 5
    found = stored(bootstrap, name)
    assert sorted(found) == sorted([b"0", b"1", b"2"] * producers + [b"other"] * 2)


@contextmanager
def silent_broker(produce_answer: bytes | None = None, **options: int) -> Iterator[str]:
    """Broker that answers versions and metadata, and Produce with these bytes or not at all."""
    with HalfBroker("orders", partitions=3, produce_answer=produce_answer, **options) as broker:
        yield broker.address
