"""Produce to diskless topics: beside local topics, and against a model of what latency is made of.

Latency: 200 requests a second of ten records of 1 KiB at random moments, on 16 connections. On the
directory of the broker they go to a diskless and to a local topic in turn; then to an S3 store that
takes 50 and 200 ms longer per request. Throughput: the same client as beside other brokers.

The model (`modelled_latency_ms`): an object gathers for an interval from its first request on, then
it is written, then committed. Its inputs are measured in the same run: a PUT by a client of its own
beside the load, over the same network, of an object as large as those of the load; a commit by the
broker. Medians are added; that a PUT is sometimes slower is not in the model, so the 99th
percentile on a directory, where the interval is as short as a sync, may lie above it.

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
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from compat.servers import PenstockProcess

from benchmarks.diskless_bed import broker, metrics, percentile, port_of, remote_store
from benchmarks.harness import Row
from benchmarks.peers.load import Load, Shape, create_topic, produce
from benchmarks.peers.paced_load import paced
from penstock.objects import ObjectStore, open_store

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
    """What the model adds up, in milliseconds, and how many requests come in an interval."""

    interval_ms: float
    put_ms: float
    commit_ms: float
    arrivals: float

    def latency_ms(self, quantile: float) -> float:
        """See `modelled_latency_ms`."""
        return modelled_latency_ms(
            quantile,
            interval_ms=self.interval_ms,
            put_ms=self.put_ms,
            commit_ms=self.commit_ms,
            arrivals_per_interval=self.arrivals,
        )

    def __str__(self) -> str:
        return (
            f"interval {self.interval_ms:g}, PUT {self.put_ms:.1f}, commit {self.commit_ms:.1f} ms,"
            f" {self.arrivals:.3g} requests an interval"
        )


def modelled_latency_ms(
    quantile: float,
    *,
    interval_ms: float,
    put_ms: float,
    commit_ms: float,
    arrivals_per_interval: float,
) -> float:
    """The latency that this share of produce requests does not exceed, in milliseconds.

    An object closes `interval_ms` after its first request. That one waits for all of it; those that
    come meanwhile, `arrivals_per_interval` in the mean and at random moments, wait for what is
    left, between nothing and all of it. So of many requests the median waits half the interval, and
    with few requests most wait for the whole. Then all wait for the PUT and the commit.
    """
    later = arrivals_per_interval / (1.0 + arrivals_per_interval)
    share = 1.0 if quantile >= later else quantile / later
    return share * interval_ms + put_ms + commit_ms


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
) -> tuple[list[float], Parts]:
    """Latencies, and what the model needs: PUTs are made at the same time, commits counted."""
    arrivals = interval_ms * REQUESTS_PER_SECOND / 1000
    size_bytes = int((1 + arrivals) * RECORDS * VALUE_BYTES)
    before, over = metrics(process), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        putting = pool.submit(lambda: asyncio.run(_median_put_ms(open_own(), size_bytes, over)))
        try:
            latencies = _latencies(process, topic, seconds)
        finally:
            over.set()
        put_ms = putting.result()
    after = metrics(process)

    def grown(name: str) -> float:
        return after[f"penstock_diskless_{name}"] - before.get(f"penstock_diskless_{name}", 0.0)

    commit_ms = 1000 * grown("commit_seconds_sum") / grown("objects_committed_total")
    parts = Parts(interval_ms=interval_ms, put_ms=put_ms, commit_ms=commit_ms, arrivals=arrivals)
    return latencies, parts


async def _median_put_ms(store: ObjectStore, size_bytes: int, over: threading.Event) -> float:
    """Write objects one after the other; the first opens the connection and does not count."""
    took: list[float] = []
    content = bytes(size_bytes)
    while not over.is_set() or len(took) < PUTS_MIN:
        begun = time.perf_counter()
        await store.put(f"probe/{time.time_ns()}", [content])
        took.append(1000 * (time.perf_counter() - begun))
        await asyncio.sleep(BETWEEN_PUTS_SECONDS)
    await store.close()
    return statistics.median(took[1:])


def _on_directory(
    process: PenstockProcess, directory: Path, effort: Effort
) -> tuple[list[Row], dict[str, Load]]:
    for kind, enabled in KINDS.items():
        create_topic(process.bootstrap, kind, PARTITIONS, {"diskless.enable": enabled})
    found: dict[str, list[list[float]]] = defaultdict(list)
    own = partial(open_store, (directory / "probe").as_uri())
    all_parts: list[Parts] = []
    for _ in range(effort.runs):
        found["local"].append(_latencies(process, "local", effort.seconds))
        latencies, parts = _beside_puts(process, "diskless", effort.seconds, own, LOCAL_INTERVAL_MS)
        found["diskless"].append(latencies)
        all_parts.append(parts)
    parts = replace(
        all_parts[0],
        put_ms=statistics.median(each.put_ms for each in all_parts),
        commit_ms=statistics.median(each.commit_ms for each in all_parts),
    )
    rows = []
    for name, quantile in QUANTILES.items():
        values = {
            kind: statistics.median(percentile(run, quantile) for run in runs)
            for kind, runs in found.items()
        }
        predicted, predicted_local = DIRECTORY_PREDICTIONS[name]
        rows += [
            Row(
                name=f"produce {name}, directory",
                value=values["diskless"],
                unit="ms",
                prediction=predicted,
                reference=values["local"],
                reference_name="local topic, same broker",
                lower_is_better=True,
                note=f"for the local topic predicted {predicted_local:g} ms",
            ),
            _against_model(f"produce {name}, directory", values["diskless"], quantile, parts),
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
    found, parts = _beside_puts(
        process, "diskless", effort.remote_seconds, open_own, REMOTE_INTERVAL_MS
    )
    store = f"S3 and {latency_ms} ms"
    rows = [
        _against_model(
            f"produce {name}, {store}",
            percentile(found, quantile),
            quantile,
            parts,
            REMOTE_PREDICTIONS[latency_ms][name],
        )
        for name, quantile in QUANTILES.items()
    ]
    load = _throughput(process, ("diskless",), effort)["diskless"]
    return [*rows, *_throughput_rows(store, load, local["local"], (100, 10.0))]


def _against_model(
    name: str, value: float, quantile: float, parts: Parts, prediction: float | None = None
) -> Row:
    model = parts.latency_ms(quantile)
    verdict = "within" if 1 / WITHIN <= value / model <= WITHIN else "not within"
    return Row(
        name=f"{name}, against the model",
        value=value,
        unit="ms",
        prediction=prediction,
        reference=model,
        reference_name="model of this run",
        lower_is_better=True,
        note=f"{verdict} 20 % of the model; {parts}",
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
