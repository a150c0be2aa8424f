"""Messages of 12 bytes: into a log's memory, made durable, and through a cluster's listener.

The three figures that the design's source gives for one JVM on a 16-thread laptop: 15 M messages/s
into its ring in memory, 6 M/s persisted, 2.7 M/s through the listener with a quorum of two. Ours
are given for one core: messages by the CPU seconds that everybody together took, the client, the
three brokers and their kernel's part.

Predicted, in CPU nanoseconds a message. A record takes 19 B in a batch, and 45 to write there from
Arrow's columns; appending batches of 1 MB costs next to nothing: 20 M/s. Writing them twice and
syncing: 15 more, 16 M/s. Through the listener: sent and received once more for the leader and
twice for copies, checked three times, written six times: 200, 5 M/s.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
from compat.servers import bootstrap_of

from benchmarks.harness import Row
from benchmarks.log_append import commit, logs_of, open_store, scratch
from benchmarks.peers.cluster import OURS, Broker, cluster
from benchmarks.peers.load import cpu_seconds
from penstock.apps.loads.figures import interleaved
from penstock.client import Client
from penstock.records import columnar

MESSAGE_BYTES = 12
SOURCE = "the design's source, 16 threads"
MEMORY, DISK = "appended in memory", "appended durably"
LISTENER = "through the cluster's listener, two durable replicas"
PREDICTED = {MEMORY: 20.0, DISK: 16.0, LISTENER: 5.0}
SOURCES = {MEMORY: 15.0, DISK: 6.0, LISTENER: 2.7}
TOPIC, PARTITIONS = "messages", 6
CHUNK_ROWS = 50_000


def measure(*, quick: bool) -> list[Row]:
    """Messages per CPU second of the three ways."""
    messages, runs = (1_000_000, 3) if quick else (4_000_000, 5)
    values = pa.array([b"twelve bytes"] * CHUNK_ROWS, pa.binary())
    table = pa.table({"value": pa.chunked_array([values] * (messages // CHUNK_ROWS))})
    found = interleaved(
        {MEMORY: lambda: _log(table, durable=False), DISK: lambda: _log(table, durable=True)},
        runs=runs,
    )
    with cluster(OURS) as brokers, Client(bootstrap_of(brokers)) as client:
        client.create_topic(TOPIC, partitions=PARTITIONS)
        taken: list[float] = []
        found |= interleaved(
            {LISTENER: lambda: _through_listener(client, brokers, table, taken), "wall": taken.pop},
            runs=runs,
        )
    note = f"{messages / found['wall'] / 1e6:.2f} M messages/s by the clock"
    return [
        Row(
            name=f"{MESSAGE_BYTES} B {what}",
            value=messages / found[what] / 1e6,
            unit="M messages/s/core",
            prediction=PREDICTED[what],
            reference=SOURCES[what],
            reference_name=SOURCE,
            note=note if what == LISTENER else "",
        )
        for what in (MEMORY, DISK, LISTENER)
    ]


def _log(table: pa.Table, *, durable: bool) -> float:
    """CPU seconds to encode a table and append it to a log of its own."""
    with scratch() as folder:
        store = open_store(Path(folder))
        (append,) = logs_of(store, 1)
        begin = time.process_time()
        for chunk in table.to_batches():
            for batch in columnar.encode_batches(chunk, now_ms=1000):
                append(memoryview(bytearray(batch.data)), now_ms=2000)
            if durable:
                commit(store)
        spent = time.process_time() - begin
        commit(store)
        store.close()
    return spent


def _through_listener(
    client: Client, brokers: Sequence[Broker], table: pa.Table, taken: list[float]
) -> float:
    """CPU seconds of the client and the brokers to write a table with acks=all."""
    pids = [broker.pid for broker in brokers]
    began, begin = time.perf_counter(), time.process_time() + cpu_seconds(pids)
    client.write_arrow(TOPIC, table)
    taken.append(time.perf_counter() - began)
    return time.process_time() + cpu_seconds(pids) - begin
