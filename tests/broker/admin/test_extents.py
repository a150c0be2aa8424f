"""Extents of topics and records that are new to this broker: it looks them up first."""

from __future__ import annotations

import asyncio
from collections import Counter
from uuid import UUID

import pytest

from penstock.base.ids import TopicPartition
from penstock.broker.admin import extents
from penstock.broker.admin_server import AdminServer
from penstock.broker.server import BrokerServer
from penstock.records.header import TRANSACTIONAL_FLAG
from penstock.records.transactions import UNGUARDED, Marker
from penstock.spark.reads.extents import HttpExtents
from tests.broker.admin.test_admin import fetch
from tests.broker.handlers.test_topics import create, creation
from tests.storage.batches import batch


async def test_what_another_broker_has_just_made_is_known(
    broker: BrokerServer, admin: AdminServer
) -> None:
    await broker.control.create_topic(
        name="orders", topic_id=UUID(int=5), partitions=[[1]], configs={}
    )
    assert "orders" not in broker.partitions.topics
    status, answer = await fetch(admin, "/v1/topics/orders/partitions/0/extents")
    assert (status, answer["topic_id"]) == (200, str(UUID(int=5)))
    await broker.control.create_partitions(topic_id=UUID(int=5), expected_count=1, new=[[1]])
    status, answer = await fetch(admin, "/v1/topics/orders/partitions/1/extents")
    assert (status, answer["partition"]) == (200, 1)


class Producers:
    """Transactional producers of one partition, each of which appends two records at a time."""

    def __init__(self, broker: BrokerServer) -> None:
        self._log = broker.partitions.partition("orders", 0)
        self._flush = broker.commits.flush
        self._sequences: Counter[int] = Counter()

    def append(self, producer_id: int) -> None:
        data = batch(
            2,
            producer_id=producer_id,
            epoch=0,
            sequence=self._sequences[producer_id],
            attributes=TRANSACTIONAL_FLAG,
        )
        self._sequences[producer_id] += 2
        answers: list[object] = []
        self._log.append(data, now_ms=1, acks=-1, lease=None, done=answers.append, guard=UNGUARDED)
        self._flush()
        assert len(answers) == 1
        assert not isinstance(answers[0], Exception)

    def end(self, producer_id: int, *, commit: bool) -> None:
        answers: list[object] = []
        self._log.write_marker(Marker(producer_id, 0, 1, commit), now_ms=1, done=answers.append)
        self._flush()
        assert len(answers) == 1
        assert not isinstance(answers[0], Exception)


async def test_aborted_transactions(
    broker: BrokerServer, admin: AdminServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages contain all aborted transactions, up to the last stable offset."""
    await create(broker, creation("orders"))
    producers = Producers(broker)
    for number in range(5):  # 0 to 3 are of a round, then 6 to 9, ...
        producers.append(7)
        producers.append(8)
        producers.end(7, commit=number % 2 == 0)
        producers.end(8, commit=False)
    producers.append(9)
    producers.append(7)
    producers.end(7, commit=False)
    aborted = [
        [8, 2, 5],
        [7, 6, 10],
        [8, 8, 11],
        [8, 14, 17],
        [7, 18, 22],
        [8, 20, 23],
        [8, 26, 29],
    ]
    path = "/v1/topics/orders/partitions/0/extents"
    _, answer = await fetch(admin, path + "?isolation=read_committed")
    assert (answer["last_stable_offset"], answer["high_watermark"]) == (30, 35)
    assert (answer["aborted"], answer["next_start"]) == (aborted, None)
    _, answer = await fetch(admin, path + "?isolation=read_committed&start=11&end=18")
    assert answer["aborted"] == [[8, 8, 11], [8, 14, 17]]
    _, answer = await fetch(admin, path + "?isolation=read_committed&start=31")
    assert (answer["aborted"], answer["extents"]) == ([], [])
    _, answer = await fetch(admin, path)
    assert "aborted" not in answer
    status, answer = await fetch(admin, path + "?isolation=serializable")
    assert (status, answer["message"]) == (
        400, "isolation = 'serializable': must be read_uncommitted or read_committed"
    )  # fmt: skip
    monkeypatch.setattr(extents, "ABORTED_PER_PAGE", 2)
    _, answer = await fetch(admin, path + "?isolation=read_committed")
    assert (answer["aborted"], answer["next_start"]) == (aborted[:2], 8)
    host, port = admin.address
    source = HttpExtents(f"http://{host}:{port}", "read_committed")
    at = TopicPartition("orders", 0)
    found = await asyncio.to_thread(source.extents, at, 0, 30)
    await asyncio.to_thread(source.close)
    assert sorted(found.aborted, key=lambda one: one.first_offset) == [*map(tuple, aborted)]
