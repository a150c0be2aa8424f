"""Records come back as they were sent: every client, every codec, every shape."""

from __future__ import annotations

from dataclasses import replace

import pytest

from compat.drivers import DRIVERS, Driver
from compat.scenes import clients, in_order, odd_records, plain_records, with_offsets
from compat.servers import Server
from compat.wire import batches

CODEC_CASES = [(name, codec) for name, driver in DRIVERS.items() for codec in driver.codecs]


@pytest.mark.parametrize(("driver", "codec"), CODEC_CASES, indirect=["driver"])
def test_produces_and_consumes_with_a_codec(
    driver: Driver, helper: Driver, server: Server, topic: str, now_ms: int, codec: str
) -> None:
    sent = plain_records(300, timestamp=now_ms)
    offsets = driver.produce(topic, sent, codec=codec)
    assert offsets == [number // 6 for number in range(300)]
    stored = {batch.codec for part in range(6) for batch in batches(server.bootstrap, topic, part)}
    # librdkafka leaves a batch plain that compression would not make smaller
    assert codec in stored <= {codec, "none"}
    expected = in_order(with_offsets(sent, offsets))
    starts = dict.fromkeys(range(6), 0)
    own = in_order(driver.consume(topic, starts, 300))
    others = in_order(helper.consume(topic, starts, 300))
    if not driver.sets_timestamps:
        expected = [
            replace(record, timestamp=there.timestamp)
            for record, there in zip(expected, others, strict=True)
        ]
        assert all(abs(record.timestamp - now_ms) < 60_000 for record in expected)
    assert others == expected
    assert own == expected


@clients()
def test_reads_every_codec_that_others_wrote(
    driver: Driver, helper: Driver, topic: str, now_ms: int
) -> None:
    expected = []
    for number, codec in enumerate((*driver.reads, "none")):
        sent = plain_records(60, start=60 * number, timestamp=now_ms)
        expected += with_offsets(sent, helper.produce(topic, sent, codec=codec))
    read = driver.consume(topic, dict.fromkeys(range(6), 0), len(expected))
    assert in_order(read) == in_order(expected)


@clients()
def test_starts_inside_a_batch(driver: Driver, helper: Driver, topic: str, now_ms: int) -> None:
    sent = plain_records(120, partitions=1, timestamp=now_ms)
    expected = with_offsets(sent, helper.produce(topic, sent, codec="lz4"))
    assert in_order(driver.consume(topic, {0: 47}, 73)) == expected[47:]


@clients()
def test_keeps_every_shape_of_record(
    driver: Driver, helper: Driver, topic: str, now_ms: int
) -> None:
    if not driver.keeps_nulls:
        pytest.skip(f"{driver.name} moves records as text")
    sent = odd_records(now_ms)
    expected = with_offsets(sent, driver.produce(topic, sent))
    assert in_order(helper.consume(topic, {0: 0}, len(sent))) == expected
    assert in_order(driver.consume(topic, {0: 0}, len(sent))) == expected


@clients()
def test_produces_idempotently(
    driver: Driver, helper: Driver, server: Server, topic: str, now_ms: int
) -> None:
    sent = plain_records(600, partitions=2, timestamp=now_ms)
    offsets = driver.produce(topic, sent, idempotent=True)
    assert offsets == [number // 2 for number in range(600)]
    for part in range(2):
        stored = batches(server.bootstrap, topic, part)
        assert {batch.producer_id >= 0 for batch in stored} == {True}
        assert [batch.base_sequence for batch in stored] == [batch.base_offset for batch in stored]
    read = in_order(helper.consume(topic, {0: 0, 1: 0}, 600))
    values = [record.value for record in in_order(with_offsets(sent, offsets))]
    assert [record.value for record in read] == values
