"""Produce to diskless topics: beside local topics, and against a model of what latency is made of.

Latency: 200 requests a second of ten records of 1 KiB at random moments, on 16 connections. On the
directory of the broker they go to a diskless and to a local topic in turn; then to an S3 store that
takes 50 and 200 ms longer per request. Throughput: the same client as beside other brokers.

The model is the planner's (`penstock.planner.capacity.inputs`): an object gathers for an interval
from its first request on, then it is written, then it is committed when those before it are. Its
inputs are distributions that are measured in the same run: PUTs by a client of its own beside the
load, over the same network, of an object as large as those of the load; commits by the broker; and
requests that the broker answers at once, made beside the load too. What a slow moment of the disk
does to PUTs and commits at once is not in it: parts count as independent.

Predicted, before the first run:

- Directory: interval 5 ms, one request in the mean joins the first: the median waits all 5 ms. The
  PUT writes a file, syncs it and its directory: 1 ms; SQLite commits with a sync: 1 ms. 7 ms in the
  median, 10 at the 99th. A local topic syncs its journal once per group: 0.5 and 1.5 ms, so a
  diskless topic takes 14 times as long.
- S3 with 50 ms: 125 + 55 + 2 = 182 ms and 250 + 57 = 305; with 200 ms: 332 and 455 ms.
- Throughput: local 450 MB/s, which the client limits. Diskless on the directory 300: the bytes are
  copied once more, the file is written afresh for each object and not over a recycled one. On S3
  the gateway copies and hashes (SHA-256) on the same two cores, and the client of the store signs
  each body: 100 MB/s with 50 ms. With 200 ms eight objects of 8 MiB in flight still allow 300 MB/s:
  the same 100.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

from compat.servers import PenstockProcess

from benchmarks.diskless_bed import broker, metrics, port_of, remote_store
from benchmarks.harness import Row
from benchmarks.peers.load import Load, Shape, create_topic, produce
from benchmarks.peers.paced_load import paced, paced_echo
from penstock.apps.loads.figures import percentile
from penstock.diskless.writing.accumulator import WRITE_BOUNDS_SECONDS
from penstock.objects import ObjectStore, open_store
from penstock.planner.capacity.inputs import DisklessLatency, Distribution, diskless_latency

PARTITIONS = 4
RECORDS = 10
VALUE_BYTES = 1024
REQUESTS_PER_SECOND = 200.0
LATENCIES_MS = (50, 200)
LOCAL_INTERVAL_MS, REMOTE_INTERVAL_MS = 5.0, 250.0
KINDS = {"local": "false", "diskless": "true"}
QUANTILES = {"p50": 0.5, "p99": 0.99}
WITHIN = 1.2
PUTS_MIN = 5
BETWEEN_PUTS_SECONDS = 0.02
ECHOES_PER_SECOND = 50.0
DIRECTORY_PREDICTIONS = {"p50": (7.0, 0.5), "p99": (10.0, 1.5)}
REMOTE_PREDICTIONS = {50: {"p50": 182.0, "p99": 305.0}, 200: {"p50": 332.0, "p99": 455.0}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much, and how often."""

    seconds: float
    remote_seconds: float
    records: int
    runs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What was measured for the model, and what it says."""

    latency: DisklessLatency
    request: Distribution
    put: Distribution
    commit: Distribution

    def __str__(self) -> str:
        parts = {
            "request": self.request,
            "PUT": self.put,
            "commit": self.commit,
            "closed to committed": self.latency.write,
        }
        shown = [
            f"{name} {part.quantile(0.5):.2g} and {part.quantile(0.99):.2g}"
            for name, part in parts.items()
        ]
        return f"p50 and p99 in ms: {', '.join(shown)}; interval {self.latency.interval_ms:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Latencies of one run in milliseconds, and its model."""

    found: Sequence[float]
    parts: Parts


def measure(*, quick: bool) -> list[Row]:
    """On the directory beside a local topic, then on the slow store."""
    effort = Effort(seconds=10, remote_seconds=20, records=200_000, runs=3)
    if quick:
        effort = Effort(seconds=2, remote_seconds=4, records=30_000, runs=1)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        directory = Path(name)
        with broker(directory / "directory", {}) as process:
            rows, local = _on_directory(process, directory, effort)
        for latency_ms in LATENCIES_MS:
            # a store of its own for each: one belongs to one cluster
            with remote_store() as store:
                store.slow(latency_ms)
                with broker(directory / f"remote-{latency_ms}", store.configs) as process:
                    own = partial(open_store, store.url, options=store.options)
                    rows += _on_remote(process, own, effort, latency_ms, local)
    return rows


def _latencies(process: PenstockProcess, topic: str, seconds: float) -> list[float]:
    found = paced(
        port_of(process),
        topic,
        partitions=PARTITIONS,
        records=RECORDS,
        value_bytes=VALUE_BYTES,
        per_second=REQUESTS_PER_SECOND,
        seconds=seconds,
    )
    return [1000 * latency for latency in found]


def _beside_puts(
    process: PenstockProcess,
    topic: str,
    seconds: float,
    open_own: Callable[[], ObjectStore],
    interval_ms: float,
) -> Run:
    """A run with what the model needs: PUTs are made at the same time, commits counted."""
    per_interval = interval_ms * REQUESTS_PER_SECOND / 1000
    size_bytes = int((1 + per_interval) * RECORDS * VALUE_BYTES)
    before, over = metrics(process), threading.Event()
    with ThreadPoolExecutor(2) as pool:
        putting = pool.submit(lambda: asyncio.run(_put_ms(open_own(), size_bytes, over)))
        echoing = pool.submit(
            paced_echo, port_of(process), per_second=ECHOES_PER_SECOND, seconds=seconds
        )
        try:
            latencies = _latencies(process, topic, seconds)
        finally:
            over.set()
        put = Distribution.samples(putting.result())
    request = Distribution.samples([1000 * echo for echo in echoing.result()])
    commit = _commits(before, metrics(process))
    latency = diskless_latency(
        interval_ms=interval_ms,
        requests_per_second=REQUESTS_PER_SECOND,
        put=put,
        commit=commit,
        request=request,
    )
    parts = Parts(latency=latency, request=request, put=put, commit=commit)
    return Run(found=latencies, parts=parts)


def _commits(before: Mapping[str, float], after: Mapping[str, float]) -> Distribution:
    """How long the broker's commits took between two looks at its metrics."""
    stem = "penstock_diskless_commit_seconds_bucket"
    bounds = WRITE_BOUNDS_SECONDS
    names = [*(f'{stem}{{le="{bound!r}"}}' for bound in bounds), f'{stem}{{le="+Inf"}}']
    below = [0.0, *(after[name] - before.get(name, 0.0) for name in names)]
    counts = [here - there for there, here in pairwise(below)]
    return Distribution.histogram([1000 * bound for bound in bounds], counts)


async def _put_ms(store: ObjectStore, size_bytes: int, over: threading.Event) -> list[float]:
    """Write objects one after the other; the first opens the connection and does not count."""
    took: list[float] = []
    content = bytes(size_bytes)
    while not over.is_set() or len(took) < PUTS_MIN:
        begun = time.perf_counter()
        await store.put(f"probe/{time.time_ns()}", [content])
        took.append(1000 * (time.perf_counter() - begun))
        await asyncio.sleep(BETWEEN_PUTS_SECONDS)
    await store.close()
    return took[1:]


def _on_directory(
    process: PenstockProcess, directory: Path, effort: Effort
) -> tuple[list[Row], dict[str, Load]]:
    for kind, enabled in KINDS.items():
        create_topic(process.bootstrap, kind, PARTITIONS, {"diskless.enable": enabled})
    own = partial(open_store, (directory / "probe").as_uri())
    local, runs = [], []
    for _ in range(effort.runs):
        local.append(_latencies(process, "local", effort.seconds))
        runs.append(_beside_puts(process, "diskless", effort.seconds, own, LOCAL_INTERVAL_MS))
    rows = []
    for name, quantile in QUANTILES.items():
        predicted, predicted_local = DIRECTORY_PREDICTIONS[name]
        rows += [
            Row(
                name=f"produce {name}, directory",
                value=statistics.median(percentile(run.found, quantile) for run in runs),
                unit="ms",
                prediction=predicted,
                reference=statistics.median(percentile(run, quantile) for run in local),
                reference_name="local topic, same broker",
                lower_is_better=True,
                note=f"for the local topic predicted {predicted_local:g} ms",
            ),
            _against_model(f"produce {name}, directory", runs, quantile),
        ]
    loads = _throughput(process, KINDS, effort)
    rows += _throughput_rows("directory", loads["diskless"], loads["local"], (300, 5.0))
    return rows, loads


def _on_remote(
    process: PenstockProcess,
    open_own: Callable[[], ObjectStore],
    effort: Effort,
    latency_ms: int,
    local: dict[str, Load],
) -> list[Row]:
    create_topic(process.bootstrap, "diskless", PARTITIONS, {"diskless.enable": "true"})
    run = _beside_puts(process, "diskless", effort.remote_seconds, open_own, REMOTE_INTERVAL_MS)
    store = f"S3 and {latency_ms} ms"
    rows = [
        _against_model(
            f"produce {name}, {store}", [run], quantile, REMOTE_PREDICTIONS[latency_ms][name]
        )
        for name, quantile in QUANTILES.items()
    ]
    load = _throughput(process, ("diskless",), effort)["diskless"]
    return [*rows, *_throughput_rows(store, load, local["local"], (100, 10.0))]


def _against_model(
    name: str, runs: Sequence[Run], quantile: float, prediction: float | None = None
) -> Row:
    """The medians over the runs of a quantile that was measured, and of the same of the model."""
    value = statistics.median(percentile(run.found, quantile) for run in runs)
    model = statistics.median(run.parts.latency.produce.quantile(quantile) for run in runs)
    verdict = "within" if 1 / WITHIN <= value / model <= WITHIN else "not within"
    return Row(
        name=f"{name}, against the model",
        value=value,
        unit="ms",
        prediction=prediction,
        reference=model,
        reference_name="model of this run",
        lower_is_better=True,
        note=f"{verdict} 20 % of the model; {runs[0].parts}",
    )


def _throughput(process: PenstockProcess, topics: Iterable[str], effort: Effort) -> dict[str, Load]:
    shape = Shape(
        records=effort.records, value_bytes=VALUE_BYTES, partitions=PARTITIONS, linger_ms=50
    )
    found: dict[str, list[Load]] = defaultdict(list)
    for _ in range(effort.runs):
        for topic in topics:
            found[topic].append(produce(process.bootstrap, process.pid, topic, shape))
    return {
        topic: Load(
            megabytes_per_second=statistics.median(run.megabytes_per_second for run in runs),
            cpu_seconds_per_gigabyte=statistics.median(
                run.cpu_seconds_per_gigabyte for run in runs
            ),
        )
        for topic, runs in found.items()
    }


def _throughput_rows(
    store: str, load: Load, local: Load, predicted: tuple[float, float]
) -> list[Row]:
    speed, cpu = predicted
    return [
        Row(
            name=f"produce, {store}",
            value=load.megabytes_per_second,
            unit="MB/s",
            prediction=speed,
            reference=local.megabytes_per_second,
            reference_name="local topic on the directory",
        ),
        Row(
            name=f"broker CPU, produce, {store}",
            value=load.cpu_seconds_per_gigabyte,
            unit="s/GB",
            prediction=cpu,
            reference=local.cpu_seconds_per_gigabyte,
            reference_name="local topic on the directory",
            lower_is_better=True,
        ),
    ]
