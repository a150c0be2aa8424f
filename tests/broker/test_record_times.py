"""Record times of any sign: both clients read what librdkafka sends.

ListOffsets finds the same as a plain search over all records.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.client import Client
from penstock.testing import Broker
from tests.records.framings import EXAMPLES

EARLIEST = -(2**63) + 2_000_000_000_000
"""About the earliest time that `message.timestamp.before.max.ms` allows, as with Apache Kafka."""
NOW = 1_700_000_000_000
TIMES = st.one_of(
    st.integers(-5, 5),
    st.integers(-NOW, NOW),
    st.integers(EARLIEST, -1),
    st.sampled_from([-1, -2, -3, -4, -5, -6, EARLIEST, -62_135_596_800_000, 1, NOW]),
).filter(bool)  # librdkafka takes 0 for now
SECONDS = 30.0
CONFIGS = {
    "retention.ms": "-1",
    "internal.segment.bytes": "3000",
    "index.interval.bytes": "200",
}


class Clients(NamedTuple):
    """Clients of one broker, by codec where they have one."""

    topic: str
    producers: dict[str, Producer]
    consumer: Consumer
    admin: AdminClient
    ours: Client


@pytest.fixture(scope="module", params=["local", "diskless"])
def clients(request: pytest.FixtureRequest) -> Iterator[Clients]:
    with Broker(admin=False) as broker:
        bootstrap = {"bootstrap.servers": broker.bootstrap}
        admin = AdminClient(bootstrap)
        configs = CONFIGS | {"diskless.enable": "true" if request.param == "diskless" else "false"}
        admin.create_topics([NewTopic("t", 1, 1, config=configs)])["t"].result(SECONDS)
        producers = {
            codec: Producer({**bootstrap, "compression.type": codec, "linger.ms": 0.5})
            for codec in ("none", "gzip", "snappy", "lz4", "zstd")
        }
        consumer = Consumer({**bootstrap, "group.id": "g", "enable.auto.commit": False})
        with Client(broker.bootstrap) as ours:
            yield Clients("t", producers, consumer, admin, ours)
        consumer.close()


def sent(clients: Clients, times: list[int], codec: str) -> int:
    """Produce a record of each time; returns the first one's offset."""
    producer, offsets = clients.producers[codec], []
    for time in times:
        producer.produce(
            clients.topic,
            b"%d" % time,
            timestamp=time,
            on_delivery=lambda error, message: offsets.append(-1 if error else message.offset()),
        )
    producer.flush(SECONDS)
    assert len(offsets) == len(times)
    assert min(offsets) >= 0
    return min(offsets)


def consumed(clients: Clients, count: int) -> list[int]:
    """The times that librdkafka reads from the start."""
    clients.consumer.assign([TopicPartition(clients.topic, 0, 0)])
    found: list[int] = []
    while len(found) < count:
        messages = clients.consumer.consume(count - len(found), SECONDS)
        assert messages
        for message in messages:
            assert message.error() is None
            assert message.value() == b"%d" % message.timestamp()[1]
            found.append(message.timestamp()[1])
    return found


def offset_at(clients: Clients, spec: OffsetSpec) -> int:
    where = TopicPartition(clients.topic, 0)
    found = clients.admin.list_offsets({where: spec})[where].result(SECONDS)
    return int(found.offset)


def test_times_come_back_and_are_found(clients: Clients) -> None:
    known: list[int] = []

    @settings(max_examples=EXAMPLES)
    @given(
        st.lists(TIMES, min_size=1, max_size=40),
        st.sampled_from(sorted(clients.producers)),
        st.integers(0, NOW) | st.integers(0, 6),
    )
    def times_are_found(times: list[int], codec: str, asked: int) -> None:
        assert sent(clients, times, codec) == len(known)
        known.extend(times)
        first = next((offset for offset, at in enumerate(known) if at >= asked), -1)
        assert offset_at(clients, OffsetSpec.for_timestamp(asked)) == first
        if max(known) >= 0:
            newest = known.index(max(known))
            assert offset_at(clients, OffsetSpec.max_timestamp()) == newest

    times_are_found()
    assert consumed(clients, len(known)) == known
    ours = clients.ours.read_arrow(clients.topic)
    assert ours.column("timestamp").cast(pa.int64()).to_pylist() == known
