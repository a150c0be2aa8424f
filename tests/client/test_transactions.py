"""Transactions by columns are atomic for readers of committed records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

from penstock.base.errors import PenstockError
from penstock.client import Client, TransactionalProducer
from penstock.client.errors import InvalidArgument
from penstock.client.groups import Committed

Topic = Callable[..., str]


class Interrupted(Exception):
    """Failure of the caller within a transaction."""


def table(*values: int) -> pa.Table:
    return pa.table({"value": [b"%d" % value for value in values]})


def values(client: Client, topic: str, **options: Any) -> list[int]:
    options = {"isolation": "read_committed"} | options
    found = client.read_arrow(topic, columns=("value",), **options)
    return sorted(int(value) for value in found["value"].to_pylist())


@pytest.fixture
def producer(client: Client) -> TransactionalProducer:
    return client.transactional(f"tx-{uuid4().hex[:8]}")


def test_what_is_committed_counts_together(
    client: Client, producer: TransactionalProducer, topic: Topic
) -> None:
    one, other = topic(3), topic()
    with producer.transaction():
        report = producer.write_arrow(one, table(*range(3_000)), partition=1)
        producer.write_arrow(other, table(7))
        assert values(client, one) == values(client, other) == []
        assert values(client, other, isolation="read_uncommitted") == [7]
    assert report.records == 3_000
    assert values(client, one) == list(range(3_000))
    assert values(client, other) == [7]


def test_what_is_aborted_does_not_count(
    client: Client, producer: TransactionalProducer, topic: Topic
) -> None:
    name = topic()
    client.write_arrow(name, table(1))
    for number in range(2, 9):
        producer.begin()
        producer.write_arrow(name, table(number))
        producer.write_arrow(name, table(10 * number))
        if number % 3:
            producer.abort()
        else:
            producer.commit()
    client.write_arrow(name, table(99))
    assert values(client, name) == [1, 3, 6, 30, 60, 99]
    everything = values(client, name, isolation="read_uncommitted")
    assert everything == sorted([1, *range(2, 9), *range(20, 90, 10), 99])
    assert values(client, name, start={0: 2}, end={0: 9}) == [3, 30]


def test_a_block_that_fails_is_aborted(
    client: Client, producer: TransactionalProducer, topic: Topic
) -> None:
    name = topic()

    def fail() -> None:
        with producer.transaction():
            producer.write_arrow(name, table(1))
            raise Interrupted

    with pytest.raises(Interrupted):
        fail()
    with producer.transaction():
        producer.write_arrow(name, table(2))
    assert values(client, name) == [2]


def test_a_transaction_with_a_failed_write_cannot_be_committed(
    client: Client, producer: TransactionalProducer, topic: Topic
) -> None:
    name = topic()
    producer.begin()
    producer.write_arrow(name, table(1))
    with pytest.raises(PenstockError, match="gone"):
        producer.write_arrow("gone", table(1))
    with pytest.raises(InvalidArgument, match="the transaction can only be aborted"):
        producer.commit()
    producer.abort()
    with pytest.raises(InvalidArgument, match="no transaction is open"):
        producer.write_arrow(name, table(2))
    with producer.transaction():
        producer.write_arrow(name, table(3))
        with pytest.raises(InvalidArgument, match="codec"):
            producer.write_arrow(name, table(4), codec="none of them")
    assert values(client, name) == [3]


def test_transactions_with_nothing_in_them(
    client: Client, producer: TransactionalProducer, topic: Topic
) -> None:
    name = topic()
    with producer.transaction():
        pass
    producer.begin()
    with pytest.raises(InvalidArgument, match="a transaction is open"):
        producer.begin()
    producer.abort()
    with producer.transaction():
        producer.write_arrow(name, table(1))
    assert values(client, name) == [1]


def test_the_next_producer_fences_the_one_before(
    client: Client, producer: TransactionalProducer, topic: Topic
) -> None:
    name = topic()
    producer.begin()
    producer.write_arrow(name, table(1))
    following = client.transactional(producer._id)
    with following.transaction():
        following.write_arrow(name, table(2))
    with pytest.raises(PenstockError) as caught:
        producer.commit()
    assert caught.value.code in ("producer_fenced", "invalid_producer_epoch")
    with pytest.raises(InvalidArgument, match="another producer now has the transactional id"):
        producer.begin()
    with following.transaction():
        following.write_arrow(name, table(3))
    assert values(client, name) == [2, 3]


def test_offsets_count_with_their_transaction(
    client: Client, producer: TransactionalProducer, topic: Topic
) -> None:
    source, target, group = topic(2), topic(), f"group-{uuid4().hex[:8]}"
    with producer.transaction():
        producer.write_arrow(target, table(1))
        position = Committed(offset=5, leader_epoch=0, metadata="why")
        producer.send_offsets(group, {(source, 0): position, (source, 1): 6})
        assert client.committed(group) == {}
    assert client.committed(group) == {(source, 0): position, (source, 1): Committed(offset=6)}
    producer.begin()
    producer.send_offsets(group, {(source, 0): 9})
    producer.abort()
    assert client.committed(group)[source, 0] == position
    with producer.transaction():
        producer.send_offsets(group, {(source, 1): 8})
    assert client.committed(group)[source, 1].offset == 8


def test_offsets_that_cannot_be_committed_are_refused(
    producer: TransactionalProducer, topic: Topic
) -> None:
    name, group = topic(), f"group-{uuid4().hex[:8]}"
    producer.begin()
    with pytest.raises(InvalidArgument, match="= -1"):
        producer.send_offsets(group, {(name, 0): -1})
    with pytest.raises(PenstockError, match="ILLEGAL_GENERATION"):
        producer.send_offsets(group, {(name, 0): 1}, generation=3, member_id="m")
    producer.abort()
    with pytest.raises(PenstockError, match="UNKNOWN_TOPIC_OR_PARTITION"), producer.transaction():
        producer.send_offsets(group, {("gone", 0): 1})
    with producer.transaction():
        producer.send_offsets(group, {(name, 0): 1})
