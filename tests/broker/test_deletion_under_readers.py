"""Readers get correct records or OFFSET_OUT_OF_RANGE while their records are deleted."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from confluent_kafka import Producer

from penstock.client import Client, OffsetOutOfRange
from penstock.records import split_batches, verify_crc
from penstock.testing import Broker

ROUNDS_MAX = 600
SEGMENTS_GONE = 5
READERS = 3


def read_on(bootstrap: str, done: threading.Event) -> tuple[int, int]:
    """Read a partition from its start, over and over; how many batches came, how often it had
    gone."""
    batches = gone = 0
    with Client(bootstrap) as client:
        offset = 0
        while not done.is_set():
            try:
                fetched = client.fetch_raw("t", 0, offset, max_bytes=1 << 20)
            except OffsetOutOfRange:
                gone += 1
                offset = client.list_offsets("t", "earliest")[0]
                continue
            at, following = 0, offset
            for header in split_batches(fetched.data):
                verify_crc(fetched.data, header, at)
                assert header.next_offset > following
                assert header.base_offset <= following
                at, following = at + header.size_bytes, header.next_offset
                batches += 1
            offset = 0 if following == offset else following
    return batches, gone


def test_readers_get_records_or_an_error(tmp_path: Path) -> None:
    done, directory = threading.Event(), tmp_path / "log" / "t-0"
    seen, ends = set[str](), set[str]()
    with (
        Broker({"log.retention.check.interval.ms": 100}, directory=tmp_path, admin=False) as broker,
        ThreadPoolExecutor(READERS) as pool,
        Client(broker.bootstrap) as client,
    ):
        client.create_topic("t", 1, {"segment.bytes": str(1 << 20), "file.delete.delay.ms": "0"})
        readers = [pool.submit(read_on, broker.bootstrap, done) for _ in range(READERS)]
        producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0})
        try:
            for number in range(ROUNDS_MAX):
                for _ in range(8):
                    producer.produce("t", b"%d" % number * 40_000, partition=0)
                assert producer.flush(60) == 0
                if number % 2:
                    end = client.list_offsets("t", "latest")[0]
                    client.delete_records("t", {0: end - 4})
                ends = {path.name for path in directory.glob("*.log")}
                seen |= ends
                if len(seen - ends) >= SEGMENTS_GONE:
                    break
        finally:
            done.set()
        told = [reader.result(60) for reader in readers]
        assert all(batches for batches, _ in told)
        assert sum([gone for _, gone in told]) > 0
        assert len(seen - ends) >= SEGMENTS_GONE
