"""Tasks that read a diskless topic: by the store's credentials, by signed URLs, by a broker.

A topic of 4 partitions in write-ahead objects of some 2 MiB, in an S3 server of this machine, is
read by what a Spark task runs, without Spark: bytes from the store, checks, columns of keys and
values of 1,000 B, more than brokers keep ready. One task at a time in one process; S3 server,
network, broker and reader share two cores. Then again with 20 ms more a request, as to a store
elsewhere. By credentials all that one object has is one request; by URLs it is one for each
partition, at the same time.

At last what a broker pays: signing 1,000 URLs, which is an answer, beside making JSON of as many
extents of 32 batches, which it does anyway. It holds up its loop.

Predicted, before the first run:

- A GET of 8 MiB costs the server 8 ms and obstore 6, checks and copies 5, columns 6: 25 ms where
  nothing overlaps, 330 MB/s. Four GETs of 2 MiB by `http.client` cost as much in all, on four
  threads that hold the interpreter only between reads of the socket: × 1.0.
- 20 ms later a window of 16 MiB is two requests at a time by credentials, 9 by URLs, and either
  waits once: 70 ms for 16 MiB, 240 MB/s, × 1.0.
- By the broker bytes cross loopback twice, are checked twice, and come in turns of 4 MiB: × 0.5.
- A signature is two hashes of some 500 bytes and a quoted key, 8 µs; JSON of an extent is 4 µs.

That was thought of objects of 8 MiB; the producer's requests in flight make them 2 MiB.

Found: URLs bring 0.6 to 0.7 of what credentials do, where one request became four of 0.5 MiB; and
1.5 to 1.8 times what the broker does. What of that is the client's own cost was not taken apart.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from struct import pack

from compat.servers import PenstockProcess

from benchmarks.diskless_bed import (
    HISTORY_BATCH_RECORDS,
    RemoteStore,
    broker,
    port_of,
    remote_store,
    write_history,
)
from benchmarks.harness import Row, seconds
from benchmarks.peers.load import create_topic
from penstock.apps.loads.figures import interleaved
from penstock.archive.planning import extent_to_json
from penstock.base.ids import TopicPartition
from penstock.objects import signer_of
from penstock.records.extents import Extent
from penstock.spark.reads.chunks import Task
from penstock.spark.reads.extents import HttpExtents
from penstock.spark.reads.planning import plan
from penstock.spark.reads.reading import TaskReader

TOPIC = "history"
PARTITIONS = 4
LATENCY_MS = 20
OWN, URLS, BROKER = "credentials", "signed URLs", "the broker"
COLUMNS = ("key", "value")
COMMON = {
    "log.diskless.enable": "true",
    "diskless.commit.interval.ms": "100",
    "diskless.consolidation.interval.ms": "0",
}
ACLS = {"authorizer.class.name": "acls", "super.users": "User:ANONYMOUS"}
EXTENTS = 1_000
ANSWERS = 20


def measure(*, quick: bool) -> Sequence[Row]:
    """All ways in turn, near and far."""
    batches, runs = (768, 3) if quick else (1_536, 5)
    scratch = tempfile.TemporaryDirectory(prefix="penstock-bench-")
    with remote_store(keep_alive=True) as store, scratch as name:
        directory, rows = Path(name), []
        with broker(directory, COMMON | store.configs_of(store.near)) as process:
            create_topic(process.bootstrap, TOPIC, PARTITIONS)
            write_history(port_of(process), TOPIC, partitions=PARTITIONS, batches=batches)
            own = _tasks(process, batches)
        store.slow(LATENCY_MS)
        for place, options, predicted in (("near", store.near, 330), ("far", store.options, 240)):
            with broker(directory, COMMON | ACLS | store.configs_of(options)) as process:
                found = _reads(process, own, options, batches, runs)
            for way, share in ((URLS, 1.0), (BROKER, 0.5)):
                rows.append(
                    Row(
                        name=f"a {place} store, by {way}",
                        value=found[way],
                        unit="MB/s",
                        prediction=share * predicted,
                        reference=found[OWN],
                        reference_name=f"by {OWN}",
                    )
                )
        return [*rows, _signing(store)]


def _reads(
    process: PenstockProcess,
    own: Sequence[Task],
    options: Mapping[str, str],
    batches: int,
    runs: int,
) -> dict[str, float]:
    """Megabytes a second by each way."""
    signed, plain = _tasks(process, batches), _plan(None, batches)
    if not all(item.signed for task in signed for item in task.slices):
        raise RuntimeError("the broker signs no URLs")
    return interleaved(
        {
            OWN: lambda: _rate(process, own, options),
            URLS: lambda: _rate(process, signed, {}),
            BROKER: lambda: _rate(process, plain, {}),
        },
        runs=runs,
    )


def _tasks(process: PenstockProcess, batches: int) -> list[Task]:
    with closing(HttpExtents(process.admin_url)) as source:
        return _plan(source, batches)


def _plan(source: HttpExtents | None, batches: int) -> list[Task]:
    end = batches * HISTORY_BATCH_RECORDS
    ranges = {TopicPartition(TOPIC, index): (0, end) for index in range(PARTITIONS)}
    return plan(ranges, source, parallelism=1)


def _rate(process: PenstockProcess, tasks: Sequence[Task], options: Mapping[str, str]) -> float:
    """Megabytes of values a second."""
    reader = TaskReader(
        COLUMNS, bootstrap=process.bootstrap, fail_on_data_loss=True, store_options=options
    )
    begun, size_bytes = time.perf_counter(), 0
    for task in tasks:
        for batch in reader.read(task):
            size_bytes += batch.nbytes
    return size_bytes / (time.perf_counter() - begun) / 1e6


def _signing(store: RemoteStore) -> Row:
    """Of as many URLs as one answer has."""
    layout = pack("<ii", 64 << 10, 64) * 32
    extents = [
        Extent(number, f"wal/07/{number:032}", "wal", 24, 2 << 20, 0, 2_048, 1, -1, layout)
        for number in range(EXTENTS)
    ]
    signing = signer_of(store.url, store.options, {}).signing(now_ms=1, lifetime_ms=60_000)
    found = interleaved(
        {
            "URLs": lambda: seconds(
                lambda: [
                    signing.url(extent.key, extent.byte_offset, extent.size_bytes)
                    for extent in extents
                ]
            ),
            "JSON": lambda: seconds(
                lambda: json.dumps([extent_to_json(extent) for extent in extents])
            ),
        },
        runs=ANSWERS,
    )
    return Row(
        name="signing 1,000 URLs",
        value=found["URLs"] * 1000,
        unit="ms",
        prediction=8,
        reference=found["JSON"] * 1000,
        reference_name="JSON of their extents",
        lower_is_better=True,
    )
