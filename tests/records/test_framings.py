"""Odd frames that a broker with `record.validation = full` stores, read by librdkafka.

One topic takes every batch that is drawn. In the end librdkafka reads all that the broker accepted,
in one go: a batch that it cannot open stops it for ever, or ends the process.
"""

from __future__ import annotations

import asyncio
import hashlib
import subprocess
import sys
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.client import Client
from penstock.records import decode_header
from penstock.records.columnar import decode_batches
from penstock.records.columnar.validation import check_chain
from penstock.testing import Broker
from tests.broker.wire_client import WireClient, produce_request
from tests.records.framings import EXAMPLES, framings
from tests.records.nonsense import sealed
from tests.records.reference import Record, encode_record

INVALID_RECORD, TOO_LARGE = 87, 10
TIME_MS = 1_700_000_000_000
CODECS = (1, 2, 3, 4)

# In a process of its own: a batch that unpacks to nothing ends it by an assertion.
CONSUMER = """
import hashlib, sys
from confluent_kafka import Consumer, TopicPartition
bootstrap, count = sys.argv[1], int(sys.argv[2])
consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "enable.auto.commit": False})
consumer.assign([TopicPartition("t", 0, 0)])
found, hashed = 0, hashlib.sha256()
while found < count:
    messages = consumer.consume(10_000, 20)
    if not messages or any(message.error() for message in messages):
        sys.exit(f"after {found} of {count}: {messages and messages[0].error()}")
    for message in messages:
        if message.offset() != found:
            sys.exit(f"offset {message.offset()} after {found} records")
        hashed.update(message.value())
        found += 1
print(hashed.hexdigest())
"""


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker({"log.record.validation": "full", "log.retention.ms": -1}, admin=False) as broker:
        yield broker


@st.composite
def sections(draw: st.DrawFn) -> tuple[int, int]:
    """A number of records, and the bytes of each value."""
    return draw(st.sampled_from([(1, 0), (1, 300), (7, 20), (40, 90), (3, 9_000), (150, 700)]))


def values(count: int, size: int) -> list[bytes]:
    return [(b"%d " % n).ljust(size, b"%d" % (n % 7)) for n in range(count)]


def section(count: int, size: int) -> bytes:
    records = [Record(n, TIME_MS, b"k", value) for n, value in enumerate(values(count, size))]
    return b"".join(encode_record(record, 0, TIME_MS) for record in records)


def test_librdkafka_reads_what_a_broker_stores_with_full(broker: Broker) -> None:
    loop = asyncio.new_event_loop()
    host, _, port = broker.bootstrap.rpartition(":")
    wire = loop.run_until_complete(WireClient.connect((host, int(port))))
    loop.run_until_complete(wire.create("t"))
    stored: list[bytes] = []

    @settings(max_examples=EXAMPLES)
    @given(st.sampled_from(CODECS), sections(), st.data())
    def produce(codec: int, shape: tuple[int, int], draw: st.DataObject) -> None:
        count, size = shape
        packed = draw.draw(framings(codec, section(count, size)))
        batch = sealed(packed, count, attributes=codec)
        request = produce_request("t", batch)
        answer = loop.run_until_complete(wire.call("Produce", 9, request))
        (part,) = answer.responses[0].partition_responses
        assert part.error_code in (0, INVALID_RECORD, TOO_LARGE)
        if part.error_code == 0:
            assert part.base_offset == len(stored)
            check_chain(batch, decode_header(batch))
            read = decode_batches(batch).column("value").to_pylist()
            assert len(read) == count
            stored.extend(read)  # a changed byte may be one of a value

    try:
        produce()
    finally:
        loop.run_until_complete(wire.close())
        loop.close()
    with Client(broker.bootstrap) as client:
        assert client.read_arrow("t").column("value").to_pylist() == stored
    command = [sys.executable, "-c", CONSUMER, broker.bootstrap, str(len(stored))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout.strip() == hashlib.sha256(b"".join(stored)).hexdigest(), done.stderr
