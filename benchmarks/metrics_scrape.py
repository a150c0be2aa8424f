"""`/metrics` of a broker with 10,000 partitions, idle and beside a producer at full speed.

Each scrape is a request on a new connection, as Prometheus may send it. The reference is the limit
of 50 ms. The broker runs in a process of its own, the producer in another.

Prediction: 20,000 samples of partitions cost 1 µs each to collect and 1 µs each to write, so 40 ms;
beside a loaded event loop twice that in the worst percent.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.harness import Row
from penstock.testing import Broker

TOPICS = 100
PARTITIONS = 100
LOADED_TOPIC = "topic-0"
LIMIT_MS = 50.0
OPENMETRICS = {"accept": "application/openmetrics-text; version=1.0.0"}
PRODUCER = """
import sys
import pyarrow as pa
from penstock.client import Client
table = pa.table({"value": [b"x" * 100] * 100})
with Client(sys.argv[1]) as client:
    print("ready", flush=True)
    while True:
        client.write_arrow(sys.argv[2], table)
"""


def scrape_ms(url: str) -> float:
    request = urllib.request.Request(f"{url}/metrics", headers=OPENMETRICS)
    before = time.perf_counter()
    with urllib.request.urlopen(request, timeout=30) as answer:
        body = answer.read()
    spent = (time.perf_counter() - before) * 1000
    assert body.count(b"\nkafka_topic_partition_current_offset{") == TOPICS * PARTITIONS
    return spent


@contextmanager
def producer(bootstrap: str) -> Iterator[None]:
    """Write to `LOADED_TOPIC` at full speed, from a process of its own."""
    command = [sys.executable, "-c", PRODUCER, bootstrap, LOADED_TOPIC]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield
        finally:
            process.terminate()


def rows(name: str, times: list[float]) -> list[Row]:
    found = sorted(times)
    p99 = found[min(len(found) - 1, int(len(found) * 0.99))]
    return [
        Row(
            name=f"scrape, {TOPICS * PARTITIONS:,} partitions, {name}, {words}",
            value=value,
            unit="ms",
            prediction=prediction,
            reference=LIMIT_MS,
            reference_name="the limit",
            lower_is_better=True,
        )
        for words, value, prediction in (
            ("median", statistics.median(times), 40.0), ("p99", p99, 80.0),
        )
    ]  # fmt: skip


def measure(quick: bool) -> list[Row]:
    """Run everything; milliseconds."""
    count = 20 if quick else 200
    with Broker({"max.connections": 1000}, process=True) as broker:
        for number in range(TOPICS):
            broker.create_topic(f"topic-{number}", partitions=PARTITIONS)
        scrape_ms(broker.admin_url)
        idle = [scrape_ms(broker.admin_url) for _ in range(count)]
        with producer(broker.bootstrap):
            loaded = [scrape_ms(broker.admin_url) for _ in range(count)]
    return [*rows("idle", idle), *rows("loaded", loaded)]
