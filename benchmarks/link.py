"""Link between two brokers: megabytes per CPU second of the broker that follows.

A topic of one broker has uncompressed batches of about 1 MB, with records of 1 KiB. A second broker
is linked to it. The processor time is that of the second broker's process, from the creation of the
linked topic until its end equals the source's. It includes the fetch, the check of all CRCs, the
append, and the writes to the segment.

Predicted, before the first run: receiving a megabyte costs 0.4 ms, its CRC-32C 0.1 ms, and writing
it to the page cache 0.5 ms, so 1,000 MB per CPU second. A journal entry has no bytes of these
batches, because an append of more than 256 KiB is written to its segment alone.
"""

from __future__ import annotations

import statistics
import time

import psutil
import pyarrow as pa

from benchmarks.harness import Row
from penstock.client import Client
from penstock.testing import Broker

PREDICTED = 1_000.0
NEEDED = 330.0
RECORD_BYTES = 1_024
BATCH_BYTES = 900_000
_MB = 1_000_000


def measure(*, quick: bool) -> list[Row]:
    """Return the median of three runs, one with `quick`."""
    runs, count = (1, 200_000) if quick else (3, 1_000_000)
    with Broker(process=True) as source, source.client() as client:
        client.create_topic("history", 1)
        part = pa.table({"value": [bytes(RECORD_BYTES)] * 20_000})
        for _ in range(count // part.num_rows):
            client.write_arrow("history", part, batch_bytes=BATCH_BYTES)
        rates = [followed(source, client) for _ in range(runs)]
    rate = statistics.median(rates)
    note = f"needed: {NEEDED:g}"
    return [
        Row(
            name="link, records of 1 KiB",
            value=rate,
            unit="MB/CPU s",
            prediction=PREDICTED,
            note=note,
        )
    ]


def followed(source: Broker, client: Client) -> float:
    """Follow the topic from its start with a new broker; return megabytes per CPU second."""
    end = client.list_offsets("history")
    with Broker(process=True) as broker, broker.client() as target:
        process = psutil.Process(broker.pid)
        before = sum(process.cpu_times()[:2])
        target.create_topic("history", 1, {"link.source": source.bootstrap})
        while target.list_offsets("history") != end:
            time.sleep(0.05)
        used = sum(process.cpu_times()[:2]) - before
    return end[0] * RECORD_BYTES / _MB / used
