"""The log alone: append, commit, recover, read; against raw writes of the same bytes.

The references write and sync the same payload in the same run: `recycled` overwrites a file that
was already written, which is what the journal does; `appended` grows a new one, which is what a
log without a journal does.

Predictions (2 cores, virtio disk): a sync of a recycled file costs 80 µs and of a growing one
130; an append of a small batch 6 µs of Python, its share of the commit 2; one call for many
partitions 1 µs for each, and as much to commit; large payloads cost a
checksum of the batch (26 GiB/s), a copy into the page cache (17 GB/s) and the device, once: they
are synced in their segments, and the journal's small entry costs one sync more for each group.
"""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import pyarrow as pa

from benchmarks.harness import Row
from penstock.apps.loads.figures import interleaved
from penstock.apps.process.daemon import COLLECT_AFTER_OBJECTS
from penstock.base.crc import crc32c
from penstock.base.ids import TopicPartition
from penstock.base.system import SYSTEM_CLOCK
from penstock.records.columnar import encode_batches
from penstock.records.header import CHECKED_FROM
from penstock.storage import LogConfig, LogStore, PartitionLog, StorageError, StorageSettings

CONFIG = LogConfig(retention_ms=-1, max_message_bytes=2 << 20)
SMALL_BYTES = 100
LARGE_BYTES = 1 << 20
LARGE_COUNT = 8
TURN_GROUPS = 12
PARTITIONS = 1000
CONNECTIONS = 64
WIDE_AIM_US = 1500.0
CONCURRENT_AIM = 60_000.0
WIDE_LIMIT = (
    "The least in Python takes {bare:.1f} ms, {write:.1f} of them for the write. In profiles the"
    " log also checks headers and records (0.2 ms), encodes the journal's table (0.1 ms), and reads"
    " and sets the ends of each partition (0.9 ms): Python sets attributes of 1,000 objects one by"
    " one."
)
READING_LIMIT = (
    "Every batch is verified before it is returned. Reading and checksums alone, without a log,"
    " reach {share:.2f} of the plain read, which copies {gigabytes:.0f} GB/s from memory to a cache"
    " of the processor."
)


def batch(size_bytes: int) -> bytes:
    """Return a batch of one record, whose value has `size_bytes` random bytes."""
    table = pa.table({"value": pa.array([os.urandom(size_bytes)], pa.binary())})
    (encoded,) = encode_batches(table, now_ms=1000, max_batch_bytes=CONFIG.max_message_bytes)
    return bytes(encoded.data)


PAYLOAD = batch(LARGE_BYTES)


def open_store(directory: Path) -> LogStore:
    return LogStore.open(
        directory, StorageSettings(), clock=SYSTEM_CLOCK, config_of=lambda topic: CONFIG
    )


@contextmanager
def scratch() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="log-append-"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


class Raw:
    """The reference: one file, `pwritev` and `fdatasync`."""

    def __init__(self, directory: Path, name: str, *, recycled_bytes: int) -> None:
        self._file = os.open(directory / name, os.O_RDWR | os.O_CREAT)
        self._limit = recycled_bytes
        self._position = 0
        for position in range(0, recycled_bytes, LARGE_BYTES):
            os.pwrite(self._file, bytes(LARGE_BYTES), position)
        os.fsync(self._file)

    def write(self, buffers: list[bytes]) -> float:
        size = sum(map(len, buffers))
        if self._limit and self._position + size > self._limit:
            self._position = 0
        start = time.perf_counter()
        position = self._position
        for first in range(0, len(buffers), 1024):
            position += os.pwritev(self._file, buffers[first : first + 1024], position)
        os.fdatasync(self._file)
        self._position = -(-position // 4096) * 4096
        return time.perf_counter() - start

    def close(self) -> None:
        os.close(self._file)


def commit(store: LogStore) -> float:
    """Commit, and return when it was acknowledged."""
    answers: list[tuple[StorageError | None, float]] = []
    store.flush(lambda error: answers.append((error, time.perf_counter())))
    store.commit_pending()
    ((error, acknowledged),) = answers
    if error is not None:
        raise RuntimeError(f"the commit failed: {error}")
    return acknowledged


def created(store: LogStore, count: int) -> list[PartitionLog]:
    return [
        store.create(TopicPartition("bench", number), topic_id=UUID(int=1), leader_epoch=0)
        for number in range(count)
    ]


def logs_of(store: LogStore, count: int) -> list[Callable[..., object]]:
    return [log.append for log in created(store, count)]


class Latencies(NamedTuple):
    """Seconds of one append of each size and a commit, until its acknowledgement."""

    ours: float
    recycled: float
    appended: float
    bare: float
    """Seconds without a log: join, checksums, one write and sync, one loop over the partitions."""
    free: float
    """Seconds until the log can take the next append."""


class Bare:
    """The least that a broker in Python does for a batch to each of many partitions.

    It joins the batches, checks their checksums, writes and syncs them at once, and then sets the
    end of each partition.
    """

    def __init__(self, raw: Raw, count: int) -> None:
        self._raw = raw
        self._ends = [Ends() for _ in range(count)]

    def append(self, payloads: list[bytes]) -> float:
        views = [memoryview(payload) for payload in payloads]
        start = time.perf_counter()
        joined = b"".join(views)
        view, at, sums = memoryview(joined), 0, []
        for size in map(len, views):
            sums.append(crc32c(view[at + CHECKED_FROM : at + size]))
            at += size
        self._raw.write([joined])
        for end, size in zip(self._ends, map(len, views), strict=True):
            end.offset += 1
            end.position += size
        return time.perf_counter() - start


class Ends:
    """Log end offset of a partition, and its position in the file."""

    __slots__ = ("offset", "position")

    def __init__(self) -> None:
        self.offset = self.position = 0


def medians(directory: Path, sizes: list[int], *, rounds: int) -> Latencies:
    """Time appends to as many logs as there are sizes, in one call if there are several."""
    store = open_store(directory / "store")
    logs = created(store, len(sizes))
    for log in logs:
        log.load()
    payloads = [batch(size) for size in sizes]
    recycled = Raw(directory, "recycled", recycled_bytes=64 << 20)
    appended = Raw(directory, "appended", recycled_bytes=0)

    def ours() -> float:
        views = [memoryview(bytearray(payload)) for payload in payloads]
        start = time.perf_counter()
        if len(logs) == 1:
            logs[0].append(views[0], now_ms=2000)
        elif None in store.append_each(logs, views, config=CONFIG, now_ms=2000):
            raise RuntimeError("a batch was not appended")
        acknowledged = commit(store)
        free.append(time.perf_counter() - start)
        return acknowledged - start

    free: list[float] = []
    bare = Bare(recycled, len(sizes))
    for _ in range(max(3, (200 << 20) // sum(map(len, payloads)) if rounds < 40 else 30)):
        ours()
    store.checkpoint()
    found = interleaved(
        {
            "ours": ours,
            "recycled": lambda: recycled.write(payloads),
            "appended": lambda: appended.write(payloads),
            "bare": lambda: bare.append(payloads),
        },
        runs=rounds,
    )
    recycled.close()
    appended.close()
    store.close()
    return Latencies(**found, free=statistics.median(free[-rounds:]))


def concurrent(directory: Path, *, seconds: float) -> float:
    """Acknowledgements per second with `CONNECTIONS` loops that each wait for theirs."""

    async def run() -> float:
        store = open_store(directory / "concurrent")
        loop = asyncio.get_running_loop()
        store.attach(loop.call_soon_threadsafe)
        appends = logs_of(store, CONNECTIONS)
        payload = batch(SMALL_BYTES)
        end = time.perf_counter() + seconds
        acknowledged = 0
        scheduled = False

        def commit_now() -> None:
            nonlocal scheduled
            scheduled = False
            store.commit_pending()

        async def connection(append: Callable[..., object]) -> None:
            nonlocal acknowledged, scheduled
            while time.perf_counter() < end:
                append(memoryview(bytearray(payload)), now_ms=2000)
                future: asyncio.Future[StorageError | None] = loop.create_future()
                store.flush(future.set_result)
                if not scheduled:
                    scheduled = True
                    loop.call_soon(commit_now)
                await future
                acknowledged += 1

        start = time.perf_counter()
        await asyncio.gather(*(connection(append) for append in appends))
        rate = acknowledged / (time.perf_counter() - start)
        store.close()
        return rate

    return asyncio.run(run())


def recovery(directory: Path, *, size_bytes: int) -> tuple[float, float]:
    """Bytes per second: a start-up that replays the journal, and reading the same files raw."""
    store = open_store(directory / "recovery")
    append = logs_of(store, 1)[0]
    payload = batch(64 << 10)
    for _ in range(size_bytes // len(payload)):
        append(memoryview(bytearray(payload)), now_ms=2000)
        commit(store)
    # As kill -9 leaves it: files open, nothing checkpointed, the lock free.
    copy = directory / "crashed"
    shutil.copytree(directory / "recovery", copy)
    store.close()
    start = time.perf_counter()
    total = 0
    for path in (copy / "journal").iterdir():
        total += len(path.read_bytes())
    raw = total / (time.perf_counter() - start)
    start = time.perf_counter()
    again = open_store(copy)
    found = size_bytes / (time.perf_counter() - start)
    again.close()
    return found, raw


class Reading(NamedTuple):
    """Bytes per second of a file that the kernel has in memory."""

    ours: float
    raw: float
    checked: float
    """Read with the checksum of each batch."""


def reading(directory: Path, *, size_bytes: int) -> Reading:
    """Medians of reads of a megabyte each, of the log and of the same file."""
    store = open_store(directory / "reading")
    log = store.create(TopicPartition("bench", 0), topic_id=UUID(int=1), leader_epoch=0)
    payload = batch(16 << 10)
    for _ in range(size_bytes // len(payload)):
        log.append(memoryview(bytearray(payload)), now_ms=2000)
    commit(store)
    store.close()
    store = open_store(directory / "reading")
    log = store.partitions[TopicPartition("bench", 0)]
    log.load()
    path = directory / "reading" / "bench-0" / "00000000000000000000.log"

    def ours() -> float:
        start = time.perf_counter()
        offset = 0
        while offset < log.durable_offset:
            read = log.read(offset, max_bytes=LARGE_BYTES, end_offset=log.durable_offset)
            offset = read.next_offset
        return time.perf_counter() - start

    def raw(batch_bytes: int = 0) -> float:
        start = time.perf_counter()
        with path.open("rb", buffering=0) as file:
            while data := file.read(LARGE_BYTES):
                view = memoryview(data)
                for at in range(0, len(view), batch_bytes) if batch_bytes else ():
                    crc32c(view[at : at + batch_bytes])
        return time.perf_counter() - start

    found = interleaved({"ours": ours, "raw": raw, "checked": lambda: raw(len(payload))}, runs=7)
    store.close()
    return Reading(**{name: size_bytes / seconds for name, seconds in found.items()})


def latency_rows(directory: Path, *, quick: bool) -> Iterator[Row]:
    cases = (
        ("one record", [SMALL_BYTES], 90.0, 50 if quick else 300),
        (f"{PARTITIONS} partitions × {SMALL_BYTES} B", [SMALL_BYTES] * PARTITIONS, 2000.0, 21),
    )
    for name, sizes, prediction, rounds in cases:
        found = medians(directory / name, sizes, rounds=rounds)
        several = len(sizes) > 1
        limit = WIDE_LIMIT.format(bare=found.bare * 1e3, write=found.recycled * 1e3)
        aim: dict[str, Any] = {"aim_value": WIDE_AIM_US, "limit": limit, "bare": found.bare * 1e6}
        for reference, value in (("recycled", found.recycled), ("appended", found.appended)):
            yield Row(
                name=f"append + commit, {name}",
                value=found.ours * 1e6,
                unit="µs",
                prediction=prediction,
                reference=value * 1e6,
                reference_name=f"pwritev + fdatasync, {reference}",
                lower_is_better=True,
                note=f"{found.free * 1e6:.0f} µs until the log can take the next append",
                **(aim if several and reference == "recycled" else {}),
            )
        if several:
            yield Row(
                name=f"append + commit, {name}: the least in Python",
                value=found.bare * 1e6,
                unit="µs",
                reference=found.recycled * 1e6,
                reference_name="pwritev + fdatasync, recycled",
                lower_is_better=True,
                note="join, checksums, one write and sync, and two fields of each partition",
            )


class Held:
    """A lease on a receive buffer: in use until the log lets go of it."""

    def __init__(self) -> None:
        self.users = 0

    def retain(self) -> None:
        self.users += 1

    def release(self) -> None:
        self.users -= 1


async def commit_group(
    store: LogStore, appends: list[Callable[..., object]], buffers: list[bytearray]
) -> None:
    """One request's worth of large appends, until it is durable and its buffers are back."""
    leases = [Held() for _ in appends]
    for append, buffer, lease in zip(appends, buffers, leases, strict=True):
        append(memoryview(buffer), now_ms=2000, lease=lease)
    future: asyncio.Future[StorageError | None] = asyncio.get_running_loop().create_future()
    store.flush(future.set_result)
    store.commit_pending()
    if await future is not None:
        raise RuntimeError("a commit failed")
    while any(lease.users for lease in leases):  # noqa: ASYNC110  (the log has no event)
        await asyncio.sleep(0)


def large(directory: Path, *, groups: int) -> tuple[list[float], list[float]]:
    """Bytes per second of both, in turns of `TURN_GROUPS` groups of eight megabytes: the log, and
    the same bytes written and synced plainly, at the end of one file."""

    async def run() -> tuple[list[float], list[float]]:
        store = open_store(directory / "store")
        store.attach(asyncio.get_running_loop().call_soon_threadsafe)
        appends = logs_of(store, LARGE_COUNT)
        raw = Raw(directory, "plain", recycled_bytes=0)
        payloads = [PAYLOAD] * LARGE_COUNT
        buffers = [bytearray(PAYLOAD) for _ in payloads]
        size_bytes = TURN_GROUPS * LARGE_COUNT * len(PAYLOAD)
        ours, plain = list[float](), list[float]()
        for _ in range(max(3, groups // TURN_GROUPS)):
            begin = time.perf_counter()
            for _ in range(TURN_GROUPS):
                await commit_group(store, appends, buffers)
            ours.append(size_bytes / (time.perf_counter() - begin))
            plain.append(size_bytes / sum([raw.write(payloads) for _ in range(TURN_GROUPS)]))
        begin = time.perf_counter()
        store.close()
        raw.close()
        # What closing has to sync counts for the log.
        closing = time.perf_counter() - begin
        ours.append(len(ours) * size_bytes / (sum([size_bytes / rate for rate in ours]) + closing))
        return ours, plain

    return asyncio.run(run())


def large_rows(directory: Path, *, groups: int) -> Iterator[Row]:
    """What holds for long: segments, checkpoints and the last sync too."""
    *turns, over_all = (found := large(directory, groups=groups))[0]
    plain = statistics.median(found[1])
    yield Row(
        name=f"sustained, {LARGE_COUNT} × 1 MB, median of rounds",
        value=statistics.median(turns) / 1e9,
        unit="GB/s",
        prediction=0.9 * plain / 1e9,
        reference=plain / 1e9,
        reference_name="the same bytes by pwritev + fdatasync, appended to one file",
        note=f"turns of {TURN_GROUPS} groups alternate with turns of the reference",
    )
    yield Row(
        name=f"sustained, {LARGE_COUNT} × 1 MB, in total, with the final sync",
        value=over_all / 1e9,
        unit="GB/s",
        prediction=0.85 * plain / 1e9,
        reference=len(found[1]) / sum([1 / rate for rate in found[1]]) / 1e9,
        reference_name="the same bytes by pwritev + fdatasync, appended to one file",
        note="every byte is written once, to its segment; the journal says where it is",
    )


def reading_rows(found: Reading) -> Iterator[Row]:
    yield Row(
        name="reading from segments, 1 MB at a time",
        value=found.ours / 1e6,
        unit="MB/s",
        prediction=6000,
        reference=found.raw / 1e6,
        reference_name="reading the file, in memory",
        aim_ratio=0.8,
        limit=READING_LIMIT.format(share=found.checked / found.raw, gigabytes=found.raw / 1e9),
        bare=found.checked / 1e6,
    )
    yield Row(
        name="reading from segments, 1 MB at a time: the least with checksums",
        value=found.checked / 1e6,
        unit="MB/s",
        reference=found.raw / 1e6,
        reference_name="reading the file, in memory",
        note="read and the checksum of each batch of 16 KiB, without a log",
    )


def measure(quick: bool) -> list[Row]:
    """Run everything; a minute, or some seconds when `quick`."""
    rows: list[Row] = []
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER_OBJECTS)  # as a broker does
    with scratch() as directory:
        for name in ("one record", f"{PARTITIONS} partitions × {SMALL_BYTES} B", "large"):
            (directory / name).mkdir()
        rows.extend(latency_rows(directory, quick=quick))
        rows.extend(large_rows(directory / "large", groups=60 if quick else 240))
        lone = statistics.median([row.value for row in rows if "one record" in row.name])
        seconds = 1.0 if quick else 3.0
        rows.append(
            Row(
                name=f"{CONNECTIONS} connections, one record in flight each",
                value=concurrent(directory, seconds=seconds),
                unit="acks/s",
                prediction=60_000,
                reference=1e6 / lone,
                reference_name="one after the other",
                aim_value=CONCURRENT_AIM,
            )
        )
        size_bytes = (64 if quick else 200) << 20
        found, raw = recovery(directory, size_bytes=size_bytes)
        rows.append(
            Row(
                name="recovery: replay of the journal",
                value=found / 1e6,
                unit="MB/s",
                prediction=500,
                reference=raw / 1e6,
                reference_name="reading the journal",
            )
        )
        rows += reading_rows(reading(directory, size_bytes=size_bytes))
    return rows
