"""Requests of transaction tests, and a coordinator with scripted responses."""

from __future__ import annotations

import asyncio
import struct
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError
from confluent_kafka import TopicPartition as TopicPartitionOfClient

from penstock.base.errors import PenstockError
from penstock.base.ids import TopicPartition
from penstock.base.system import SYSTEM_CLOCK
from penstock.partitions import Partition
from penstock.records import seal
from penstock.records.appends import AppendResult, Outcome
from penstock.records.header import TRANSACTIONAL_FLAG
from penstock.records.transactions import Marker
from tests.broker.wire_client import WireClient, batch, produce_request

SECONDS = 60.0


class Verifier:
    """Verifier that accepts everything unless scripted otherwise, and records its calls."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int, int, list[str], bool]] = []
        self.answers: list[PenstockError | None] = []
        self.meanwhile: Callable[[], Awaitable[None]] | None = None

    async def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        *,
        add: bool,
    ) -> Sequence[PenstockError | None]:
        answers = self._answer(transactional_id, producer_id, producer_epoch, partitions, add)
        if self.meanwhile is not None:
            await self.meanwhile()
        return answers

    def verify_now(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
    ) -> Sequence[PenstockError | None] | None:
        if self.meanwhile is not None:
            return None
        return self._answer(transactional_id, producer_id, producer_epoch, partitions, False)

    def _answer(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        add: bool,
    ) -> Sequence[PenstockError | None]:
        names = [str(partition) for partition in partitions]
        self.asked.append((transactional_id, producer_id, producer_epoch, names, add))
        return [self.answers.pop(0) if self.answers else None for _ in partitions]


def sent(
    *values: bytes,
    producer_id: int = 7,
    epoch: int = 0,
    sequence: int = 0,
    attributes: int = TRANSACTIONAL_FLAG,
) -> bytes:
    """A batch of a transactional producer."""
    data = bytearray(batch(*values, attributes=attributes))
    struct.pack_into(">qhi", data, 43, producer_id, epoch, sequence)
    seal(data)
    return bytes(data)


def plain(*values: bytes, **of: int) -> bytes:
    """A batch of an idempotent producer."""
    return sent(*values, attributes=0, **of)


async def produce(
    client: WireClient,
    *batches: bytes,
    version: int = 11,
    transactional_id: str | None = "tx",
    topic: str = "t",
    partition: int = 0,
) -> Any:
    """Produce one partition; its part of the answer."""
    request = produce_request(topic, *batches, partition=partition)
    request |= {"transactional_id": transactional_id}
    answer = await client.call("Produce", version, request)
    return answer.responses[0].partition_responses[0]


async def end(
    partition: Partition, *, commit: bool, producer_id: int = 7, epoch: int = 0, **more: int
) -> AppendResult:
    """Write a marker and wait for it."""
    outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
    coordinator_epoch = more.pop("coordinator_epoch", 0)
    marker = Marker(producer_id, epoch, coordinator_epoch, commit, **more)
    partition.write_marker(marker, now_ms=SYSTEM_CLOCK.now_ms(), done=outcome.set_result)
    found = await asyncio.wait_for(outcome, SECONDS)
    if isinstance(found, PenstockError):
        raise found
    return found


async def fetch_committed(client: WireClient, offset: int = 0, **changes: Any) -> Any:
    return await client.fetch("t", offset, isolation_level=1, **changes)


def aborted(row: Any) -> list[tuple[int, int]] | None:
    """The aborted transactions of a partition's part of an answer."""
    if row.aborted_transactions is None:
        return None
    return [
        (aborted_transaction.producer_id, aborted_transaction.first_offset)
        for aborted_transaction in row.aborted_transactions
    ]


def committed_values(bootstrap: str, topic: str, partitions: int, expected: int = 0) -> list[bytes]:
    """Return the values of committed records up to the ends, in log order.

    It waits until there are as many as expected.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": uuid.uuid4().hex,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartitionOfClient(topic, index, 0) for index in range(partitions)])
    values: list[bytes] = []
    ended: set[int] = set()
    deadline = time.monotonic() + SECONDS
    while (len(ended) < partitions or len(values) < expected) and time.monotonic() < deadline:
        message = consumer.poll(1.0)
        if message is None:
            continue
        error = message.error()
        if error is None:
            ended.discard(message.partition())
            values.append(message.value())
        else:
            assert error.code() == KafkaError._PARTITION_EOF, error
            ended.add(message.partition())
    consumer.close()
    return sorted(values)
