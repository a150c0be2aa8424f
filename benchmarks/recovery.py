"""A start after kill -9, by the size of the log and by what was written since the checkpoint.

One partition whose log grows to 1, 5 and 20 GiB, written and closed in good order; on top of it
comes a tail, through the broker, of which nothing is in a checkpoint when it is killed. A start
ends when the broker is ready and has answered a fetch of the last record.

Predicted, before the first run:

- A start with nothing to recover takes 0.7 s, imports above all, whatever the size: the checkpoint
  says up to where the log is synced, and below that the start looks at the sizes of its files.
- The tail is read from the journal and checked (1 GB/s), written to the segments again (1 GB/s, to
  memory), read and checked there (1 GB/s); the first checkpoint, which syncs it, comes later:
  0.05 s for 16 MiB, 0.4 for 128, 1.6 for 512. Twenty times the log adds nothing.

Found, on a machine that did other work: what a start takes beside imports is the tail's, and below
what was predicted. In a calmer run all starts up to 128 MiB took 0.7 to 1.1 s, with 20 GiB as with
one: 1.08 and 1.05 s for nothing, 0.75 and 0.93 s for 128 MiB.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from compat.servers import PenstockProcess

from benchmarks.diskless_bed import metrics
from benchmarks.harness import Row
from benchmarks.peers.bare_client import BatchTemplate, Link, fetch_request, fetched, produced
from benchmarks.peers.load import create_topic
from penstock.base.ids import TopicPartition
from penstock.base.settings import load
from penstock.base.system import SYSTEM_CLOCK
from penstock.storage import LogConfig, LogStore, StorageError, StorageSettings

TOPIC = "big"
CONFIGS = {
    "log.checkpoint.interval.ms": "3600000",
    "log.checkpoint.bytes": str(8 << 30),
    "journal.files.max": "256",
    "socket.request.max.bytes": str(64 << 20),
}
"""No checkpoint comes before the kill; with 16 journal files one begins when eight are full."""
SEGMENTS = {"segment.bytes": str(1 << 30), "retention.ms": "-1", "max.message.bytes": str(4 << 20)}
BATCH = (1_000, 1_000)
IN_FLIGHT = 4
CHECKPOINTS = "penstock_storage_checkpoints_total"
PREDICTED_BASE_SECONDS = 0.7
PREDICTED_SECONDS_PER_BYTE = 3e-9


class Effort(NamedTuple):
    """Sizes in MiB, and how often each start is tried."""

    logs: tuple[int, ...]
    tails: tuple[int, ...]
    runs: int


class Lease:
    """Has appends let go of their bytes once they are written."""

    def retain(self) -> None:
        """Nobody counts."""

    def release(self) -> None:
        """Nobody counts."""


def measure(*, quick: bool) -> list[Row]:
    """Starts by size of log and tail."""
    effort = Effort((256, 1024), (16, 64), 1) if quick else Effort((1024, 5120, 20480), TAILS, 1)
    found: dict[tuple[int, int], list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        process = PenstockProcess(Path(name), configs=CONFIGS).start()
        create_topic(process.bootstrap, TOPIC, 1, SEGMENTS)
        process.stop()
        for size in effort.logs:
            _grow(Path(name) / "data" / "log", size << 20)
            for tail in (0, *effort.tails):
                for _ in range(effort.runs):
                    found[size, tail].append(_killed(process, tail << 20))
    return _rows(found, effort)


TAILS = (16, 128, 512)


def _grow(directory: Path, size_bytes: int) -> None:
    """Append to the log until it has so many bytes, and close it in good order."""
    config = load(LogConfig, SEGMENTS)
    template = BatchTemplate(*BATCH)
    store = LogStore.open(
        directory,
        StorageSettings(log_flush_policy="os"),
        clock=SYSTEM_CLOCK,
        config_of=lambda topic: config,
    )
    log = store.partitions[TopicPartition(TOPIC, 0)]
    batch = memoryview(bytearray(template.batch(timestamp_ms=SYSTEM_CLOCK.now_ms())))
    failures: list[StorageError | None] = []
    while log.size_bytes < size_bytes:
        log.append(batch, now_ms=SYSTEM_CLOCK.now_ms(), lease=Lease())
        store.flush(failures.append)
        store.commit_pending()
        if failures.pop() is not None:
            raise RuntimeError("the log cannot be written")
    store.close()
    os.sync()  # or the starts wait for what they have nothing to do with


def _killed(process: PenstockProcess, tail_bytes: int) -> float:
    """Seconds of a start after so much was written and the process killed; it is stopped then."""
    process.start()
    end = asyncio.run(_write(_port(process), tail_bytes))
    if metrics(process)[CHECKPOINTS]:
        raise RuntimeError("there was a checkpoint: what is measured is not what was to be")
    process.kill()
    begun = time.perf_counter()
    process.start()
    asyncio.run(_answers(_port(process), end))
    seconds = time.perf_counter() - begun
    process.stop()
    return seconds


def _port(process: PenstockProcess) -> int:
    return int(process.bootstrap.rpartition(":")[2])


async def _write(port: int, size_bytes: int) -> int:
    """Produce so many bytes, a batch at least; the offset of the last batch."""
    link, template, last = await Link.open(port), BatchTemplate(*BATCH), -1
    requests = max(1, size_bytes // len(template.request(TOPIC, 0)))
    for number in range(requests + IN_FLIGHT):
        if number < requests:
            await link.send(template.request(TOPIC, 0))
        if IN_FLIGHT <= number < requests + IN_FLIGHT and number - IN_FLIGHT < requests:
            last = produced(await link.receive())
    link.close()
    return last


async def _answers(port: int, offset: int) -> None:
    link = await Link.open(port)
    await link.send(fetch_request(TOPIC, {0: offset}, max_wait_ms=500, partition_bytes=4 << 20))
    for row in fetched(await link.receive()):
        if row.error or not len(row.records):
            raise RuntimeError(f"offset {offset} is not there: error code {row.error}")
    link.close()


def _rows(found: dict[tuple[int, int], list[float]], effort: Effort) -> list[Row]:
    rows = []
    smallest = effort.logs[0]
    for (size, tail), seconds in found.items():
        rows.append(
            Row(
                name=f"recovery, log of {size / 1024:g} GiB, {tail} MiB since checkpoint",
                value=statistics.median(seconds),
                unit="s",
                prediction=PREDICTED_BASE_SECONDS + PREDICTED_SECONDS_PER_BYTE * (tail << 20),
                reference=statistics.median(found[smallest, tail]) if size > smallest else None,
                reference_name=f"log of {smallest / 1024:g} GiB" if size > smallest else "",
                lower_is_better=True,
            )
        )
    return rows
