"""Exactly once and in order through crashes of the broker and of the agent."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import Any, Protocol

import pytest
from benchmarks.peers.apache_kafka import ApacheKafka
from compat.conftest import missing
from compat.parts import PartMissing

from penstock.base.buffers import ReceivePool
from penstock.client import Client
from penstock.host.port import ACCEPTED, Accepted, ChunkFormat, Chunks
from penstock.host.sinks.log import LogSink
from penstock.testing import Broker
from tests.host.sinks.conftest import log_sink
from tests.host.sinks.frames import Fate, batch, frame, leased, stored

PRODUCERS = 6
PARTITIONS = 2
FRAMES = 120
RECORDS = 4
UNACKNOWLEDGED_MAX = 5


class Restartable(Protocol):
    """A broker that can be killed and started again over its data."""

    bootstrap: str

    def start(self) -> Any: ...

    def kill(self) -> None: ...


class Lane:
    """A producer's frames for one partition, as a client keeps them: in order, few in flight."""

    pool = ReceivePool(64 << 20)
    """Buffers are used again as soon as they are let go of: too early would be seen."""

    def __init__(self, producer_id: int, partition: int) -> None:
        self.producer_id = producer_id
        self.partition = partition
        self.accepted = 0

    def chunks(self, index: int) -> Chunks:
        sequence = index * RECORDS
        values = [b"%d:%d" % (self.producer_id, sequence + at) for at in range(RECORDS)]
        fields: dict[str, Any] = {
            "producer_id": self.producer_id,
            "partition": self.partition,
            "first_sequence": sequence,
            "log_sequence": sequence,
        }
        if index % 2:
            return frame(values, **fields)
        fields |= {"format": ChunkFormat.RECORD_BATCH, "event_count": RECORDS}
        return leased(self.pool, [batch(values)], **fields)

    def hand_over(self, sink: LogSink, index: int) -> Fate:
        chunks = self.chunks(index)
        fate = Fate(sink, chunks)
        if chunks.lease is not None:
            chunks.lease.release()  # the connection's; the sink has its own
        return fate

    async def send(self, sink: LogSink, upto: int) -> None:
        """Send frames until so many are accepted; what failed is sent again, in order."""
        while self.accepted < upto:
            last = min(upto, self.accepted + UNACKNOWLEDGED_MAX)
            handed = [self.hand_over(sink, at) for at in range(self.accepted, last)]
            for fate in handed:
                verdict = await fate.of()
                if not isinstance(verdict, Accepted):
                    assert verdict.retryable, verdict.reason
                    break
                self.accepted += 1
            for fate in handed:
                await fate.of()  # none is sent again while it is under way


async def crash_and_recover(broker: Restartable, *, kills: int) -> None:
    lanes = [Lane(id_, partition) for id_ in range(PRODUCERS) for partition in range(PARTITIONS)]
    with Client(broker.bootstrap) as client:
        kept = {"retention.ms": "-1"}  # the record batches are said to be of 2023
        await asyncio.to_thread(client.create_topic, "orders", PARTITIONS, kept)

    async def all_send(sink: LogSink, upto: int) -> None:
        await asyncio.gather(*(lane.send(sink, upto) for lane in lanes))

    async with log_sink(broker.bootstrap, stop_seconds=0) as sink:
        await all_send(sink, UNACKNOWLEDGED_MAX)
        for kill in range(1, kills + 1):
            # The broker dies with frames under way; the sink goes on when it is back.
            before = sum(lane.accepted for lane in lanes)
            sending = asyncio.ensure_future(all_send(sink, FRAMES * kill // (kills + 1)))
            while sum(lane.accepted for lane in lanes) == before or not sink.retained_frames:
                await asyncio.wait([sending], timeout=0.0005)
                assert not sending.done()
            broker.kill()
            await asyncio.to_thread(broker.start)
            await sending
        assert (sink.retries > 0) is (kills > 0)
        # Five frames of each lane are under way when the agent dies: nobody hears the verdicts.
        for lane in lanes:
            for index in range(lane.accepted, lane.accepted + UNACKNOWLEDGED_MAX):
                lane.hand_over(sink, index)
        if kills:
            broker.kill()
    if kills:
        await asyncio.to_thread(broker.start)
    async with log_sink(broker.bootstrap) as sink:
        await all_send(sink, FRAMES)
    # And once more by a third agent: the last five are known, and are not written again.
    async with log_sink(broker.bootstrap) as sink:
        again = [
            lane.hand_over(sink, index)
            for index in range(FRAMES - UNACKNOWLEDGED_MAX, FRAMES)
            for lane in lanes
        ]
        assert {await fate.of() for fate in again} == {ACCEPTED}
    assert Lane.pool.received_bytes == 0
    for partition in range(PARTITIONS):
        by_producer: dict[int, list[int]] = {}
        for value in await asyncio.to_thread(stored, broker.bootstrap, "orders", partition):
            who, _, number = value.partition(b":")
            by_producer.setdefault(int(who), []).append(int(number))
        assert by_producer == {id_: list(range(FRAMES * RECORDS)) for id_ in range(PRODUCERS)}


@pytest.mark.long
async def test_every_record_is_on_the_log_once_and_in_order_after_crashes() -> None:
    with Broker(process=True, admin=False) as broker:
        await crash_and_recover(broker, kills=3)


@pytest.mark.interop
@pytest.mark.long
@pytest.mark.filterwarnings("default")
async def test_apache_kafka_knows_what_another_agent_has_written() -> None:
    # It is not killed: after a restart it remembers one batch of a producer, not five.
    with ExitStack() as stack:
        try:
            kafka = stack.enter_context(ApacheKafka())
        except PartMissing as error:
            missing(error)
        await crash_and_recover(kafka, kills=0)
