"""Reads of tiered topics beside plain ones of the same bytes, and who is in whose way.

A topic of one partition in segments of 32 MiB, of which the archive has all but the last ones, on
an S3 server of this machine. A client that does nothing but count reads it from the start, 8 MiB a
fetch. Beside it, in the same run, the same objects are read by plain GETs of 8 MiB, one after the
other, with the client library that the broker has. Then both again, with 30 ms more a request, as
to a store elsewhere. Segments on the broker's disk are read as well, against `pread` of the files,
both after the kernel was told to drop them. Server, broker and client share two cores.

At last the store gets slow, 200 ms a request, and four consumers in a process of their own read the
archive over and over from four places, while one record is produced and read at the end of another
log every 5 ms. Beside it runs the bare program: the same process reads the same objects with GETs,
past the broker, at the rate of the storm. No broker can avoid its effect on other clients.

Predicted, before the first run, but for the second figure, of which the first run was one of chunks
read ahead one by one:

- A GET of 8 MiB costs the S3 server, in Go, 8 ms and its client 6: 600 MB/s. The broker's own reads
  cost the same, and beside it a check of the batches (2 ms), and 8 MiB to its client over loopback
  (5 ms, and 3 to receive); the next chunk is read ahead meanwhile, so with two cores: × 0.7.
- With 30 ms a request, GETs one by one make 8 MiB in 38 ms, 220 MB/s. The broker has two chunks
  under way while it sends a third: × 1.8.
- A segment from the disk: the disk, some 300 MB/s here, is slower than all else: × 0.95.
- Calm: 1.5 ms to produce in the median and 4 at the 99th, 0.3 and 1.5 to read. In the storm four
  consumers have twelve loads of 8 MiB under way, 200 ms each: 480 MB/s, a core in pieces of 2 ms,
  most of it on threads, and as much of the others': both 99th percentiles rise three-fold. With
  remote.log.manager.fetch.max.bytes.per.second at 100 MB/s a fifth of that: by half.

Found, on a machine that did other work, so that latencies are the disk's: reads at the end of a log
are as fast in the median while others storm the archive, and half slower at the 99th; to produce
takes the processor that a storm without a bound has, and with one it is as it was. A near store is
read at 0.3 to 0.6 of what GETs make: checks and a second way over loopback cost 0.5 s of a core for
a GB, and there are two cores for the S3 server, the broker and its client. With 30 ms a request, as
of a store elsewhere, a consumer gets 1.8 times as much as GETs that wait for each other.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.diskless_bed import RemoteStore, broker, port_of, remote_store
from benchmarks.harness import Row
from benchmarks.peers.bare_client import (
    BatchTemplate,
    Link,
    batches,
    fetch_request,
    fetched,
    produced,
)
from benchmarks.peers.load import create_topic
from benchmarks.peers.process import PeerProcess
from benchmarks.peers.steady_requests import Phase, steady_requests
from penstock.objects import open_store
from penstock.objects.rate_limit import TokenBucket

TOPIC, LOCAL, STEADY = "tiered", "local", "steady"
SEGMENT_BYTES = 32 << 20
FETCHED_BYTES = 8 << 20
NEAR_AIM = 0.8
"""Least share of the rate of GETs, for a tiered topic near its store."""
STORM_FACTOR = 1.5
"""Most that a storm may multiply the 99th percentiles of others with."""
BARE = "bare program: GETs past the broker"
BATCH = (64, 1000)
IN_FLIGHT = 8
STORM, GETS = 4, 12
KEPT = 3
"""Files that local retention leaves: the open one, and one or two closed."""
FAR_MS, SLOW_MS = 30, 200
RATE_LIMIT, BOUND_BYTES = "remote.log.manager.fetch.max.bytes.per.second", 100_000_000
MEGABYTE = 1e6
SECONDS = 120.0
CONFIGS = {
    "remote.log.storage.system.enable": "true",
    "remote.log.manager.task.interval.ms": "100",
    "log.retention.check.interval.ms": "500",
    "log.checkpoint.interval.ms": "1000",
    "socket.request.max.bytes": str(64 << 20),
}
SEGMENTS = {"segment.bytes": str(SEGMENT_BYTES), "retention.ms": "-1"}
TIERED = {
    **SEGMENTS,
    "remote.storage.enable": "true",
    "local.retention.bytes": str(SEGMENT_BYTES),
    "file.delete.delay.ms": "0",
}


class Effort(NamedTuple):
    """How much is read, and how often."""

    size_bytes: int
    seconds: float
    runs: int


class Rates(NamedTuple):
    """MB/s of one run."""

    tiered: float
    gets: float
    forwarded: float
    local: float
    raw: float


def measure(*, quick: bool) -> list[Row]:
    """Rates of reads, and latencies at the end of a log while others read the archive."""
    effort = Effort(192 << 20, 3.0, 1) if quick else Effort(512 << 20, 8.0, 2)
    phases: dict[str, list[Phase]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name, remote_store() as store:
        near = {**CONFIGS, **store.configs_of(store.near)}
        with broker(Path(name), near) as process:
            port = port_of(process)
            create_topic(process.bootstrap, TOPIC, 1, TIERED)
            create_topic(process.bootstrap, LOCAL, 1, SEGMENTS)
            create_topic(process.bootstrap, STEADY, 1)
            for topic in (TOPIC, LOCAL):
                asyncio.run(_fill(port, topic, effort.size_bytes))
            end = _archived(Path(name))
            rates = [_rates(Path(name), store, port, end) for _ in range(effort.runs)]
        with broker(Path(name), {**CONFIGS, **store.configs}) as process:
            port = port_of(process)
            store.slow(FAR_MS)
            far = [_far_rates(store, port, end) for _ in range(effort.runs)]
            store.slow(SLOW_MS)
            _storms("storm", port, end, effort, phases, store)
        bounded = {**CONFIGS, **store.configs, RATE_LIMIT: str(BOUND_BYTES)}
        with broker(Path(name), bounded) as process:
            _storms(f"storm of {BOUND_BYTES // 10**6} MB/s", port_of(process), end, effort, phases)
    return [*_read_rows(rates, far), *_phase_rows(phases)]


async def _fill(port: int, topic: str, size_bytes: int) -> None:
    link, template = await Link.open(port), BatchTemplate(*BATCH)
    requests = size_bytes // len(template.request(topic, 0))
    for number in range(requests + IN_FLIGHT):
        if number < requests:
            await link.send(template.request(topic, 0))
        if number >= IN_FLIGHT:
            produced(await link.receive())
    link.close()


def _archived(directory: Path) -> int:
    """Where the log on the disk begins, once its files are in the archive and most are gone."""
    logs = directory / "data" / "log" / f"{TOPIC}-0"
    deadline = time.monotonic() + SECONDS
    while len(files := sorted(logs.glob("*.log"))) > KEPT or len(list(logs.glob("*.deleted"))):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{len(files)} files are left of {TOPIC}")
        time.sleep(0.2)
    return int(files[0].stem)


def _rates(directory: Path, store: RemoteStore, port: int, end: int) -> Rates:
    logs = directory / "data" / "log"
    objects = asyncio.run(_plain(store, store.near))
    local = sorted((logs / f"{LOCAL}-0").glob("*.log"))[:-1]
    _forgotten(local)
    raw = _raw(local)
    _forgotten(local)
    return Rates(
        tiered=asyncio.run(_read(port, TOPIC, 0, end)),
        gets=objects,
        forwarded=asyncio.run(_forwarded(store)),
        local=asyncio.run(_read(port, LOCAL, 0, int(local[-1].stem))),
        raw=raw,
    )


def _far_rates(store: RemoteStore, port: int, end: int) -> tuple[float, float]:
    """MB/s of a consumer and of GETs, over the network."""
    return asyncio.run(_read(port, TOPIC, 0, end)), asyncio.run(_plain(store, store.options))


async def _read(port: int, topic: str, start: int, end: int, seconds: float | None = None) -> float:
    """MB/s of a client that reads [start, end), or on from 0, for so long."""
    link, size, offset = await Link.open(port), 0, start
    begun = time.perf_counter()
    while offset < end if seconds is None else time.perf_counter() < begun + seconds:
        offset = offset if offset < end else 0
        request = fetch_request(topic, {0: offset}, max_wait_ms=500, partition_bytes=FETCHED_BYTES)
        await link.send(request)
        for row in fetched(await link.receive()):
            if row.error:
                raise RuntimeError(f"{topic} at offset {offset}: error code {row.error}")
            size += len(row.records)
            offset = max((after for _, after in batches(row.records)), default=offset)
    link.close()
    return size / (time.perf_counter() - begun) / MEGABYTE


async def _plain(store: RemoteStore, options: Mapping[str, str]) -> float:
    """MB/s of GETs of the segments' ranges, one after the other."""
    opened, size = open_store(store.url, options=options), 0
    logs = [info async for info in opened.list("archive/") if info.key.endswith(".log")]
    begun = time.perf_counter()
    for info in logs:
        for start in range(0, info.size_bytes, FETCHED_BYTES):
            count = min(FETCHED_BYTES, info.size_bytes - start)
            size += len(await opened.get(info.key, start, count))
    seconds = time.perf_counter() - begun
    await opened.close()
    return size / seconds / MEGABYTE


async def _forwarded(store: RemoteStore) -> float:
    """MB/s of the same ranges through a process that only reads them ahead and sends them on."""
    options = json.dumps(dict(store.near))
    module = "benchmarks.peers.range_forwarder"
    with PeerProcess(module, store.url, options, "archive/", str(FETCHED_BYTES)) as peer:
        link = await Link.open(int(peer.said))
        size, count = 0, 1
        begun = time.perf_counter()
        while count:
            await link.send(b"+")
            count = len(await link.receive())
            size += count
        seconds = time.perf_counter() - begun
        link.close()
    return size / seconds / MEGABYTE


def _forgotten(paths: Sequence[Path]) -> None:
    """Have the kernel drop what it has of files, which are synced by then."""
    for path in paths:
        file = os.open(path, os.O_RDONLY)
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


def _raw(paths: Sequence[Path]) -> float:
    """MB/s of reading files in pieces of the same size."""
    size, begun = 0, time.perf_counter()
    for path in paths:
        file, at = os.open(path, os.O_RDONLY), 0
        while data := os.pread(file, FETCHED_BYTES, at):
            at += len(data)
        os.close(file)
        size += at
    return size / (time.perf_counter() - begun) / MEGABYTE


def _storms(
    name: str,
    port: int,
    end: int,
    effort: Effort,
    phases: dict[str, list[Phase]],
    store: RemoteStore | None = None,
) -> None:
    """Calm and storm in turn, and with a store the bare storm."""
    consumers = ProcessPoolExecutor(1, mp_context=get_context("spawn"))
    with consumers, steady_requests(port, STEADY) as steady:
        consumers.submit(time.sleep, 0.0).result()
        for _ in range(effort.runs):
            phases["calm"].append(steady.phase(time.monotonic(), effort.seconds))
            begun = time.monotonic()
            rate = consumers.submit(_run, _storm, port, end, effort.seconds).result()
            phases[name].append(steady.phase(begun, 0.0))
            NOTES[name] = f"{STORM} consumers read {rate:.0f} MB/s at {SLOW_MS} ms a request"
            if store is not None:
                begun, work = time.monotonic(), (_paced_gets, store.url, dict(store.options))
                rate = consumers.submit(_run, *work, rate, effort.seconds).result()
                phases[BARE].append(steady.phase(begun, 0.0))
                NOTES[BARE] = f"the consumers' process makes GETs of {rate:.0f} MB/s by itself"


NOTES: dict[str, str] = {}


def _run(work: Callable[..., Coroutine[Any, Any, float]], *arguments: object) -> float:
    return asyncio.run(work(*arguments))


async def _paced_gets(url: str, options: Mapping[str, str], rate: float, seconds: float) -> float:
    """MB/s of GETs past the broker, at most at a rate."""
    opened, size = open_store(url, options=options), 0
    logs = [info async for info in opened.list("archive/") if info.key.endswith(".log")]
    begun = time.perf_counter()
    limit = TokenBucket(int(rate * MEGABYTE), now=begun, burst_seconds=0.1)

    async def read(first: int) -> None:
        nonlocal size
        for number in itertools.count(first):
            info = logs[number % len(logs)]
            for start in range(0, info.size_bytes, FETCHED_BYTES):
                count = min(FETCHED_BYTES, info.size_bytes - start)
                await asyncio.sleep(limit.take(time.perf_counter(), count))
                if time.perf_counter() > begun + seconds:
                    return
                content = await opened.get(info.key, start, count)
                size += len(content)

    await asyncio.gather(*map(read, range(GETS)))
    await opened.close()
    return size / (time.perf_counter() - begun) / MEGABYTE


async def _storm(port: int, end: int, seconds: float) -> float:
    """MB/s of all consumers that read the archive from its start at once, for so long."""
    starts = [end * number // STORM for number in range(STORM)]
    readers = [_read(port, TOPIC, start, end, seconds) for start in starts]
    return sum(await asyncio.gather(*readers))


def _read_rows(found: Sequence[Rates], far: Sequence[tuple[float, float]]) -> list[Row]:
    def median(name: str) -> float:
        return float(statistics.median([getattr(rates, name) for rates in found]))

    forwarded = median("forwarded")
    limit = (
        "Two cores carry the S3 server, the GETs and a second way over loopback: a program that"
        f" only reads the same ranges ahead and sends them on makes {forwarded:.0f} MB/s,"
        f" {forwarded / median('gets'):.2f} of GETs without that way. The broker also checks every"
        " batch."
    )
    return [
        Row(
            name="read of a tiered topic",
            value=median("tiered"),
            unit="MB/s",
            prediction=420,
            reference=median("gets"),
            reference_name="GETs of the same ranges",
            aim_ratio=NEAR_AIM,
            limit=limit,
            bare=forwarded,
        ),
        Row(
            name="the same ranges read ahead and sent on, without a broker",
            value=forwarded,
            unit="MB/s",
            reference=median("gets"),
            reference_name="GETs of the same ranges",
        ),
        Row(
            name=f"read of a tiered topic, {FAR_MS} ms more a request",
            value=statistics.median([consumer for consumer, _ in far]),
            unit="MB/s",
            prediction=400,
            reference=statistics.median([gets for _, gets in far]),
            reference_name="GETs of the same ranges",
        ),
        Row(
            name="cold read from the broker's disk",
            value=median("local"),
            unit="MB/s",
            prediction=285,
            reference=median("raw"),
            reference_name="pread of the files, cold",
        ),
    ]


PREDICTED = {
    "calm": ((1.5, 4.0), (0.3, 1.5)),
    "storm": ((2.0, 12.0), (0.5, 4.5)),
    BARE: ((2.0, 12.0), (0.5, 4.5)),
    f"storm of {BOUND_BYTES // 10**6} MB/s": ((1.6, 6.0), (0.3, 2.0)),
}
"""Medians and 99th percentiles, to produce and to read."""


def _phase_rows(phases: dict[str, list[Phase]]) -> list[Row]:
    rows = []
    for kind, (title, figures) in enumerate(
        (("produce", Phase.produce_ms), ("read at the end", Phase.fetch_ms))
    ):
        for place, share in enumerate((0.5, 0.99)):
            of = {
                name: statistics.median([figures(phase, share) for phase in found])
                for name, found in phases.items()
            }
            limit = (
                f"GETs at the same rate, past the broker, raise it to {of[BARE]:.1f} ms: the store,"
                " its network, the consumers and the broker share two cores."
            )
            aims: dict[str, Any] = {"aim_ratio": 1 / STORM_FACTOR, "limit": limit, "bare": of[BARE]}
            rows += [
                Row(
                    name=f"{title} p{share * 100:g}, {name}",
                    value=of[name],
                    unit="ms",
                    prediction=PREDICTED[name][kind][place],
                    reference=None if name == "calm" else of["calm"],
                    reference_name="" if name == "calm" else "calm",
                    lower_is_better=True,
                    note=NOTES.get(name, ""),
                    **(aims if name == "storm" and share > 0.9 else {}),
                )
                for name in phases
            ]  # fmt: skip
    return rows
