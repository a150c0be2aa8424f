"""Foreign clients read a log that was compacted: records gone from batches, and whole batches."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.records.reference import Record as Stored
from tests.storage.compacted import compact, thinned

from compat.conftest import missing
from compat.drivers import DRIVERS, Driver, Record
from compat.parts import PartMissing
from compat.scenes import plain_records
from compat.servers import PenstockProcess
from penstock.base.ids import TopicPartition
from penstock.records import BatchHeader

COUNT = 400
START_MS = 1_700_000_000_000
COMPACTED_SECONDS = 300


class Compacted(NamedTuple):
    """A broker with a topic, and what is left in it."""

    broker: PenstockProcess
    left: list[Record]


def stays(offset: int) -> bool:
    return (offset % 7 == 3 and not 100 <= offset < 200) or offset in (0, 399)


def rewritten(header: BatchHeader, batch: bytes) -> bytes | None:
    def wanted(record: Stored) -> bool:
        return stays(record.offset)

    return thinned(header, batch, wanted, last=header.next_offset == COUNT)


@pytest.fixture(scope="module")
def compacted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compacted]:
    directory: Path = tmp_path_factory.mktemp("compacted")
    broker = PenstockProcess(directory).start()
    try:
        helper = DRIVERS["confluent-kafka"](broker.bootstrap)
        helper.create_topic("orders", 1, {"retention.ms": "-1"})
        left: list[Record] = []
        for start in range(0, COUNT, 20):
            sent = plain_records(20, start=start, partitions=1, timestamp=START_MS)
            codec = ("none", "lz4", "zstd")[start // 20 % 3]
            offsets = helper.produce("orders", sent, codec=codec, idempotent=True)
            left += [record.at(at) for record, at in zip(sent, offsets, strict=True) if stays(at)]
        helper.close()
        broker.stop()
        compact(next(directory.rglob("orders-0")).parent, TopicPartition("orders", 0), rewritten)
        yield Compacted(broker.start(), left)
    finally:
        broker.kill()


@pytest.mark.long
@pytest.mark.parametrize("name", DRIVERS)
def test_what_is_left_is_read(compacted: Compacted, name: str) -> None:
    broker, left = compacted
    try:
        driver: Driver = DRIVERS[name](broker.bootstrap)
    except PartMissing as error:
        missing(error)
    try:
        at = partial(driver.consume, "orders")
        assert [record.offset for record in at({0: 0}, len(left))] == [
            record.offset for record in left
        ]
        there = at({0: 130}, 20)[:20]
        assert [(record.offset, record.value) for record in there] == [
            (record.offset, record.value) for record in left if record.offset >= 130
        ][:20]
        if "offsets_at" in driver.able:
            since_ms = START_MS + 140
            first = next(record for record in left if record.timestamp >= since_ms)
            assert driver.offsets_at("orders", since_ms, [0])[0] == first.offset
    finally:
        driver.close()


def offsets_of(driver: Driver, count: int) -> list[int]:
    return [record.offset for record in driver.consume("orders", {0: 0}, count)]


@pytest.fixture(scope="module")
def diskless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compacted]:
    """The same of a diskless topic, which the broker has compacted itself."""
    configs = {
        "diskless.compaction.interval.ms": "100",
        "diskless.consolidation.min.age.ms": "0",
    }
    broker = PenstockProcess(tmp_path_factory.mktemp("diskless"), configs=configs).start()
    try:
        helper = DRIVERS["confluent-kafka"](broker.bootstrap)
        topic = {
            "diskless.enable": "true",
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": "0",
        }
        helper.create_topic("orders", 1, topic)
        newest: dict[bytes | None, Record] = {}
        for start in range(0, COUNT, 20):
            sent = plain_records(20, start=start, partitions=1, timestamp=START_MS)
            offsets = helper.produce("orders", sent, codec="zstd" if start % 40 else "none")
            newest |= {record.key: record.at(at) for record, at in zip(sent, offsets, strict=True)}
        left = sorted(newest.values(), key=lambda record: record.offset)
        # A broker serves the objects that it has read for some 40 s after their compaction.
        deadline = time.monotonic() + COMPACTED_SECONDS
        while (there := offsets_of(helper, len(left))) != [record.offset for record in left]:
            assert time.monotonic() < deadline, f"not compacted: offsets {there}"
        helper.close()
        yield Compacted(broker, left)
    finally:
        broker.kill()


@pytest.mark.long
@pytest.mark.parametrize("name", DRIVERS)
def test_the_newest_records_of_a_diskless_topic_are_read(diskless: Compacted, name: str) -> None:
    broker, left = diskless
    try:
        driver: Driver = DRIVERS[name](broker.bootstrap)
    except PartMissing as error:
        missing(error)
    try:
        for start in (0, 123):
            there = driver.consume("orders", {0: start}, len(left))
            assert [(record.offset, record.key, record.value) for record in there] == [
                (record.offset, record.key, record.value) for record in left
            ]
    finally:
        driver.close()
