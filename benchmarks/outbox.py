"""The outbox against the plain file calls of the same run, and against the same bytes in the log.

The reference is what a careful programmer would write by hand with no library and no tree: a
temporary file in one flat directory, `write`, `fdatasync`, `rename`, `fsync` of the directory. The
outbox does more for each payload: a directory of its own (an inode, about 90 µs on ext4), so a
second directory to sync (one more flush, 100 to 150 µs), a checksum (10 GB/s), a hop to a thread
and back (about 100 µs), and some 15 calls decided by a table (40 µs).

Prediction, of one call's time on a disk behind a hypervisor: a commit with its flushes takes about
1.3 ms whatever the size, the disk takes 2.9 GB/s, the copy into the page cache 5 GB/s, the checksum
10 GB/s. So durable: 1.35 ms for 64 KiB, 1.95 ms for 1 MiB, 12 ms for 16 MiB; not durable: 0.37,
0.66 and 5.4 ms. Eight at a time share their commits but not the two cores: 2.5, 1.6 and 1.2 times
as much durable; not durable, where the interpreter is the limit, 1.2 times. Against plain calls
that is 0.7 for 64 KiB, 0.8 for 1 MiB and 0.85 for 16 MiB when durable.

A pointer has about 240 bytes.

The bare program shows what the layout costs any writer: it creates, fills and syncs a directory for
each file by calls relative to an open directory, on a thread that an event loop awaits. It has no
checks, checksums, limits or retries, and replaces existing files.

Nothing is deleted between runs, because deletions slow down later runs: without a journal, ext4
reuses the inode of a deleted file only after up to six minutes, and until then every creation
searches past it. After some thousand deletions a creation took 0.8 ms instead of 10 µs. So files
are only truncated, and the folder is removed at the end.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa
import uvloop

from benchmarks.columnar_client import scratch
from benchmarks.harness import Row, seconds
from penstock.apps.loads.figures import interleaved, write_plainly
from penstock.client import Client
from penstock.client.errors import BATCH_BYTES
from penstock.outbox.pointer import encode_pointer
from penstock.outbox.settings import OutboxSettings
from penstock.outbox.writer.writer import OutboxWriter
from penstock.testing import Broker

MEGABYTE = 1e6
LOG_RECORD_BYTES_MAX = 20 << 20
CONCURRENT = 8
AIM = 0.8
"""Least share of the rate of plain files, for 64 KiB and 1 MiB."""
SETTLE_SECONDS = 1.5
"""Pause after a run through the log: the broker still writes its segments and removes them, which
would count against whoever comes next."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """A payload's size, how many of them are a run, and what is predicted of it in MB/s."""

    name: str
    size_bytes: int
    count: int
    durable: float
    durable_many: float
    lazy: float
    lazy_many: float
    aim: float | None = AIM


SIZES = [
    Size(name="64 KiB", size_bytes=64 << 10, count=160,
         durable=48, durable_many=120, lazy=177, lazy_many=210),
    Size(name="1 MiB", size_bytes=1 << 20, count=64,
         durable=535, durable_many=850, lazy=1590, lazy_many=1900),
    Size(name="16 MiB", size_bytes=16 << 20, count=8,
         durable=1390, durable_many=1700, lazy=3100, lazy_many=3700, aim=None),
]  # fmt: skip


class Runs:
    """The contenders of one size; each run writes `count` payloads and truncates them after it."""

    def __init__(self, folder: Path, size: Size, loop: asyncio.AbstractEventLoop) -> None:
        self._folder = folder
        self._size = size
        self._loop = loop
        self._payload = os.urandom(size.size_bytes)
        self._numbers = itertools.count()
        self.pointer_bytes = 0

    def rate(self, took: float) -> float:
        return self._size.size_bytes * self._size.count / took / MEGABYTE

    def plain(self, durable: bool, concurrent: int) -> float:
        directory = self._fresh()
        with ThreadPoolExecutor(concurrent) as pool:
            work = partial(write_plainly, directory, payload=self._payload, durable=durable)
            names = [str(number) for number in range(self._size.count)]
            took = seconds(lambda: list(pool.map(work, names)))
        _truncate(directory)
        return self.rate(took)

    def bare(self, durable: bool, concurrent: int) -> float:
        directory = self._fresh()
        took = self._loop.run_until_complete(self._bare(directory, durable, concurrent))
        _truncate(directory)
        return self.rate(took)

    async def _bare(self, directory: Path, durable: bool, concurrent: int) -> float:
        names = iter(range(self._size.count))
        above = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        with ThreadPoolExecutor(concurrent) as pool:

            async def work() -> None:
                for number in names:
                    await self._loop.run_in_executor(
                        pool, write_in_directory, above, f"{number}", self._payload, durable
                    )

            started = self._loop.time()
            await asyncio.gather(*[work() for _ in range(concurrent)])
            took = self._loop.time() - started
        os.close(above)
        return took

    def outbox(self, durable: bool, concurrent: int) -> float:
        directory = self._fresh()
        took = self._loop.run_until_complete(self._outbox(directory, durable, concurrent))
        _truncate(directory)
        return self.rate(took)

    async def _outbox(self, directory: Path, durable: bool, concurrent: int) -> float:
        settings = OutboxSettings(
            root=str(directory), durable=durable, io_threads=concurrent, in_flight_bytes=1 << 30
        )
        async with OutboxWriter(settings) as writer:
            first = await writer.write(b"opens the hour's directory", partition_id="bench")
            names = iter(range(self._size.count))

            async def work() -> None:
                for number in names:
                    await writer.write(
                        self._payload,
                        partition_id="bench",
                        batch_id=f"{number}",
                        at_ms=first.identity.at_ms,
                    )

            started = self._loop.time()
            await asyncio.gather(*[work() for _ in range(concurrent)])
            took = self._loop.time() - started
            last = await writer.write(self._payload, partition_id="bench")
            self.pointer_bytes = len(encode_pointer(last.pointer))
        return took

    def log(self, client: Client) -> float:
        topic = f"bench-{next(self._numbers)}-{self._size.size_bytes}"
        client.create_topic(topic, configs={"max.message.bytes": str(LOG_RECORD_BYTES_MAX)})
        table = pa.table({"value": pa.array([self._payload] * self._size.count, pa.binary())})
        batch_bytes = max(BATCH_BYTES, self._size.size_bytes + 4096)
        took = seconds(lambda: client.write_arrow(topic, table, batch_bytes=batch_bytes))
        client.delete_topic(topic)
        os.sync()
        time.sleep(SETTLE_SECONDS)
        return self.rate(took)

    def _fresh(self) -> Path:
        directory = self._folder / f"run-{next(self._numbers)}"
        directory.mkdir()
        os.sync()
        return directory


def _truncate(directory: Path) -> None:
    """Free the space of all files below a directory."""
    for path, _, names in os.walk(directory):
        for name in names:
            os.truncate(os.path.join(path, name), 0)


def write_in_directory(above: int, name: str, payload: bytes, durable: bool) -> None:
    """Write a file in a directory of its own, as the outbox's layout asks for, and no more."""
    os.mkdir(name, 0o700, dir_fd=above)
    directory = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=above)
    file = os.open("tmp", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=directory)
    view = memoryview(payload)
    while view:
        view = view[os.write(file, view) :]
    if durable:
        os.fdatasync(file)
    os.close(file)
    os.rename("tmp", "data.bin", src_dir_fd=directory, dst_dir_fd=directory)
    if durable:
        os.fsync(directory)
        os.fsync(above)
    os.close(directory)


def measure(*, quick: bool = False) -> list[Row]:
    """Rows for each size, durable and not, one and eight at a time; pointers; the log."""
    runs = 3 if quick else 7
    loop = uvloop.new_event_loop()
    rows: list[Row] = []
    try:
        with scratch() as folder, Broker(process=True) as broker, broker.client() as client:
            for size in SIZES:
                rows += _measure(Runs(folder, size, loop), size, client, runs)
    finally:
        loop.close()
    return rows


def _measure(runs: Runs, size: Size, client: Client, rounds: int) -> list[Row]:
    predictions = {
        (True, 1): size.durable,
        (True, CONCURRENT): size.durable_many,
        (False, 1): size.lazy,
        (False, CONCURRENT): size.lazy_many,
    }
    rows = []
    for (durable, concurrent), prediction in predictions.items():
        # Two at a time: a disk that is throttled after bursts treats neighbours alike.
        outbox = partial(runs.outbox, durable, concurrent)
        plain = partial(runs.plain, durable, concurrent)
        bare = partial(runs.bare, durable, concurrent)
        figures = interleaved({"plain": plain, "outbox": outbox, "bare": bare}, runs=rounds)
        files = "plain write + rename" + (" + syncs" if durable else "")
        case = _case(durable, concurrent)
        rows += [
            Row(
                name=f"{size.name}, {case}",
                value=figures["outbox"],
                unit="MB/s",
                prediction=prediction,
                reference=figures["plain"],
                reference_name=files,
                aim_ratio=size.aim,
                limit=_limit(figures, size, case),
                bare=figures["bare"],
            ),
            Row(
                name=f"{size.name}, {case}: bare calls with a directory for each file",
                value=figures["bare"],
                unit="MB/s",
                reference=figures["plain"],
                reference_name=files,
            ),
        ]
    log, outbox = partial(runs.log, client), partial(runs.outbox, True, 1)
    figures = interleaved({"log": log, "outbox": outbox}, runs=rounds)
    rows.append(
        Row(
            name=f"{size.name}, {_case(True, 1)}",
            value=figures["outbox"],
            unit="MB/s",
            reference=figures["log"],
            reference_name="the same bytes through the log",
        )
    )
    rows.append(
        Row(
            name=f"{size.name}: pointer bytes / payload bytes",
            value=100 * runs.pointer_bytes / size.size_bytes,
            unit="%",
            prediction=100 * 240 / size.size_bytes,
            lower_is_better=True,
        )
    )
    return rows


def _limit(figures: dict[str, float], size: Size, case: str) -> str:
    """Return why the aim is out of reach, by the figures of this run."""
    share = figures["bare"] / figures["plain"]
    micros = {name: size.size_bytes / rate for name, rate in figures.items()}
    return (
        f"Each batch has a directory: the bare calls alone, {case}, take {micros['bare']:.0f} µs a"
        f" file, {share:.2f} of plain files ({micros['plain']:.0f} µs). The outbox adds"
        f" {micros['outbox'] - micros['bare']:.0f} µs."
    )


def _case(durable: bool, concurrent: int) -> str:
    return f"{'durable' if durable else 'not synced'}, ×{concurrent}"
