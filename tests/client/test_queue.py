"""Topic as a queue, on real brokers: records are acquired, acknowledged and released."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pyarrow as pa
import pytest

from penstock.base.errors import PenstockError
from penstock.client import Client, InvalidArgument, LocksLost, Queue, Taken
from penstock.testing import Broker

EARLIEST = {"share.auto.offset.reset": "earliest"}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(admin=False) as broker:
        yield broker


@pytest.fixture
def client(broker: Broker) -> Iterator[Client]:
    with Client(broker.bootstrap) as client:
        yield client


@pytest.fixture
def group(client: Client) -> str:
    """Return a group that begins with the first record; its topic has its name."""
    name = f"queue-{uuid4().hex[:8]}"
    client.create_topic(name, partitions=2)
    client.alter_configs("group", name, EARLIEST)
    return name


def write(client: Client, topic: str, *values: bytes, partition: int = 0) -> None:
    client.write_arrow(topic, pa.table({"value": list(values)}), partition=partition)


def take(queue: Queue, records: int, **options: int) -> Taken:
    """Take the first records; members get their partitions a moment after they join."""
    for _ in range(100):
        taken = queue.take(**options)
        if len(taken):
            assert len(taken) == records, taken.table
            return taken
    raise AssertionError("nothing came")


def test_records_are_taken_and_acknowledged_by_masks(client: Client, group: str) -> None:
    write(client, group, b"a", b"b", b"c")
    write(client, group, b"d", partition=1)
    with client.queue(group, group) as queue:
        taken = take(queue, 4)
        assert queue.partitions == {(group, 0), (group, 1)}
        assert taken.lock_ms == 30_000
        rows = taken.table.select(["partition", "offset", "value", "deliveries"]).to_pylist()
        assert [tuple(row.values()) for row in rows] == [
            (0, 0, b"a", 1), (0, 1, b"b", 1), (0, 2, b"c", 1), (1, 0, b"d", 1)
        ]  # fmt: skip
        values = taken.table["value"].to_pylist()
        taken.release([value == b"b" for value in values])
        taken.reject([value == b"c" for value in values])
        taken.ack()
        again = take(queue, 1)
        assert [(record.value, record.deliveries) for record in again] == [(b"b", 2)]
        for record in again:
            record.renew()
            record.ack()
        assert not len(queue.take(wait_ms=0))


def test_take_never_exceeds_max_records(client: Client, group: str) -> None:
    client.create_topic("one-partition")
    write(client, topic := "one-partition", b"a", b"b", b"c")
    with client.queue(group, topic) as one, client.queue(group, topic) as two:
        first = take(one, 2, max_records=2)
        second = take(two, 1)
        assert second.table["offset"].to_pylist() == [2]
        first.ack()
        second.ack()
        with pytest.raises(InvalidArgument, match="max_records"):
            one.take(max_records=0)


def test_a_leaving_member_releases_unread_records(client: Client, group: str) -> None:
    write(client, group, b"a", b"b")
    with client.queue(group, group) as one:
        take(one, 2).ack([0])
    one.close()
    with pytest.raises(InvalidArgument, match="closed"):
        one.take()
    with client.queue(group, group) as two:
        taken = take(two, 1)
        assert [(row.value, row.deliveries) for row in taken] == [(b"b", 1)]


def test_records_of_another_member_raise_locks_lost(client: Client, group: str) -> None:
    write(client, group, b"a", b"b")
    with client.queue(group, group) as queue:
        taken = take(queue, 2)
        client.delete_records(group, {0: 1})
        taken.ack([0])
        for connection in queue._connections.values():
            connection.shut_down()  # as a network does
        with pytest.raises(LocksLost) as caught:
            taken.ack()
        assert caught.value.rows.tolist() == [False, True]
        again = take(queue, 1)
        assert again.table["deliveries"].to_pylist() == [2]
        again.ack()


def test_a_group_of_another_kind_and_a_topic_that_is_not_there_are_errors(client: Client) -> None:
    with client.queue(f"q-{uuid4().hex[:8]}", "no-such-topic") as queue:
        with pytest.raises(PenstockError) as caught:
            queue.take(wait_ms=0)
        assert caught.value.code == "unknown_topic_or_partition"
    with pytest.raises(InvalidArgument, match="topics"):
        client.queue("g", [])


def test_what_it_has_outlives_a_restart() -> None:
    with Broker(admin=False, process=True) as broker, Client(broker.bootstrap) as client:
        client.create_topic("t")
        client.alter_configs("group", "g", EARLIEST)
        write(client, "t", b"a", b"b")
        with client.queue("g", "t") as queue:
            taken = take(queue, 2, max_records=2)
            broker.kill()
            broker.start()
            taken.ack()
            write(client, "t", b"c")
            assert take(queue, 1).table["value"].to_pylist() == [b"c"]
