"""The client reads compacted topics, local and diskless, and consumes them as queues."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest

from penstock.client import Client
from penstock.client.arguments import Isolation
from penstock.testing import Broker
from tests.client.test_queue import EARLIEST
from tests.compacted_topics import (
    COUNT,
    HOLE,
    KINDS,
    LEFT,
    RANGES,
    TIME_MS,
    compacting,
    fill,
    value,
)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with compacting() as broker, broker.client() as client:
        for kind, configs in KINDS.items():
            client.create_topic(kind, 1, configs)
            fill(client, kind)
        yield broker


@pytest.fixture
def client(broker: Broker) -> Iterator[Client]:
    with Client(broker.bootstrap) as client:
        yield client


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("topic", KINDS)
def test_ranges_that_begin_and_end_in_holes(
    client: Client, topic: str, isolation: Isolation
) -> None:
    columns = ("offset", "timestamp", "value")
    for start, end in RANGES:
        found = client.read_arrow(
            topic, start={0: start}, end={0: end}, columns=columns, isolation=isolation
        )
        expected = [at for at in LEFT if start <= at < end]
        assert found["offset"].to_pylist() == expected, (start, end)
        assert found["value"].to_pylist() == [value(at) for at in expected]
        assert found["timestamp"].cast("int64").to_pylist() == [TIME_MS + at for at in expected]


@pytest.mark.parametrize("topic", KINDS)
def test_small_fetches_come_to_the_end(client: Client, topic: str) -> None:
    """Every fetch brings one batch, of which some have no records."""
    found = client.iter_arrow(topic, columns=("offset",), max_bytes=1)
    assert [at for batch in found for at in batch["offset"].to_pylist()] == LEFT
    offset, batches = 0, 0
    while offset < COUNT:
        fetched = client.fetch_raw(topic, 0, offset, max_bytes=4_000)
        assert fetched.next_offset > offset
        offset, batches = fetched.next_offset, batches + 1
    assert offset == COUNT
    assert batches > 1


@pytest.mark.parametrize("topic", KINDS)
def test_a_time_leads_to_the_next_record_that_is_left(client: Client, topic: str) -> None:
    for at in (1, HOLE, 385):
        there = client.list_offsets(topic, TIME_MS + at)
        assert there == {0: next(left for left in LEFT if left >= at)}


@pytest.mark.parametrize("topic", KINDS)
def test_a_subscription_continues_from_within_a_gap(client: Client, topic: str) -> None:
    start = HOLE
    found = client.subscribe(topic, start={0: start}, columns=("offset",), idle_timeout_ms=500)
    offsets = [at for batch in found for at in batch["offset"].to_pylist()]
    assert offsets == [at for at in LEFT if at >= start]
    assert found.positions[0].offset == COUNT


@pytest.mark.parametrize("most", [7, 1_000])
@pytest.mark.parametrize("topic", KINDS)
def test_a_queue_passes_over_holes(client: Client, topic: str, most: int) -> None:
    """Records are acquired once; released ones come again, and records after holes are not lost."""
    group = f"queue-{uuid4().hex[:8]}"
    client.alter_configs("group", group, EARLIEST)
    seen: list[int] = []
    with client.queue(group, topic) as queue:
        while len(seen) < len(LEFT):
            taken = queue.take(max_records=most)
            offsets = taken.table["offset"].to_pylist()
            assert taken.table["value"].to_pylist() == [value(at) for at in offsets]
            again = [at % 5 == 1 and one < 2 for at, one in zip(
                offsets, taken.table["deliveries"].to_pylist(), strict=True
            )]  # fmt: skip
            taken.release(again)
            taken.ack([not repeated for repeated in again])
            seen += [at for at, one in zip(offsets, again, strict=True) if not one]
        assert sorted(seen) == LEFT
        assert not len(queue.take(wait_ms=0))
    with client.queue(group, topic) as queue:
        assert not len(queue.take(wait_ms=500)), "all is acknowledged"
