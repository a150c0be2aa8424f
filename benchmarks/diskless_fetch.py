"""Tail consumers while others replay from the start: hot and cold paths, before and after.

The benchmark that the separation of hot and cold fetch paths was made for (Inkless, December 2025).
One broker on an S3 store that takes 30 ms longer per request than a local one. A producer writes
2,000 records/s of 1 KiB; four consumers read half of them as they come, two more come every second
for what has gathered of the other half. After a calm time twelve lagging consumers replay a history
from its start: each one partition, out of objects of 0.75 MiB that mix all twelve, as batching
intervals leave them. The split of the paths is off
(`diskless.fetch.lagging.consumer.thread.pool.size=0`) or on (16, and 200 requests/s), in turn. The
cache has 32 MiB, 15 s of what is produced; nothing is consolidated, so that every run replays the
same objects; all else is as it comes.

Broker, S3 server, network and clients share the two cores, so the storm costs the tail some of them
whichever way it is served: that is in all figures.

Predicted, before the first run:

- Calm: a batch waits half the interval of 250 ms in the median and all of it in one of a hundred,
  then come the PUT (30 + 4 ms), the commit (3 ms) and the delivery (2 ms): 165 and 290 ms from end
  to end. A poll finds its data in the cache: 4 ms in the median, 12 at the 99th. A fetch that waits
  for more takes one interval, 255 ms, and 300 at the 99th.
- Storm, split on: 200 GETs/s to the store, each of the 64 KiB of one partition: 13 MB/s. They take
  about 0.6 of a core in all four processes; the tail's 99th percentile rises by 10 % from end to
  end; the polls' to 15 ms, as the loop is busy for some ms at a time. Nothing is rejected: twelve
  consumers ask for at most 16 ranges each, 1,600 may wait. All blocks of the tail are found in the
  cache.
- Storm, split off: the same ranges as whole blocks, several times over, since the cache cannot hold
  twelve places of the history: 400 GETs/s, as many as two cores manage; 50 MB/s replayed. What the
  polls want is evicted before they come: 150 ms in the median, a GET after a queue; the cache
  answers half. From end to end the tail's 99th percentile rises by a third for want of cores.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.diskless_bed import (
    RemoteStore,
    broker,
    metrics,
    port_of,
    remote_store,
    write_history,
)
from benchmarks.harness import Chart, Report, Row
from benchmarks.peers.load import cpu_seconds, create_topic
from benchmarks.peers.process import PeerProcess
from benchmarks.peers.tail_load import PARTITIONS
from penstock.apps.loads.figures import percentile

LATENCY_MS = 30
LAGGING = 12
HISTORY = "history"
HISTORY_BATCH_BYTES = 64 << 10
RATE_LIMIT = 200
HEDGE_SHARE = 1.05
POOL = "diskless.fetch.lagging.consumer.thread.pool.size"
SPLITS = {"split off": "0", "split on": "16"}
WARM_UP_SECONDS = 2.0
COMMON = {"log.diskless.enable": "true", "diskless.consolidation.interval.ms": "0"}
BIN_SECONDS = 0.5
AIM = 1.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How long and how often."""

    history_batches: int
    calm_seconds: float
    storm_seconds: float
    runs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A part of a run, in monotonic seconds, and the broker's counters at its ends."""

    begin: float
    end: float
    before: Mapping[str, float]
    after: Mapping[str, float]
    cpu_seconds: float

    @property
    def seconds(self) -> float:
        return self.end - self.begin

    def holds(self, at: float) -> bool:
        """Whether a moment is in it."""
        return self.begin <= at < self.end

    def grown(self, name: str) -> float:
        """By how much a counter of `penstock.objects` grew."""
        name = f"penstock_objects_{name}"
        return self.after.get(name, 0.0) - self.before.get(name, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """All that one run of one split saw."""

    calm: Span
    storm: Span
    deliveries: Sequence[tuple[float, float, float]]
    """When it came, how long after it was sent, how long after it was acknowledged."""
    acks: Sequence[tuple[float, float]]
    fetches: Sequence[tuple[float, float]]
    """When it was asked, how long until the answer."""
    polls: Sequence[tuple[float, float]]
    gets: Sequence[float]
    came: Sequence[tuple[float, int]]
    errors: int


def measure(*, quick: bool) -> Report:
    """Both splits in turn, several times over."""
    effort = Effort(history_batches=1024, calm_seconds=15, storm_seconds=20, runs=3)
    if quick:
        effort = Effort(history_batches=448, calm_seconds=4, storm_seconds=5, runs=1)
    found: dict[str, list[Run]] = defaultdict(list)
    with remote_store() as store, tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        directory = Path(name)
        _history(directory, store, effort)
        store.slow(LATENCY_MS)
        for number in range(effort.runs):
            for split in SPLITS:
                found[split].append(_run(directory, store, effort, split, number))
    return Report(rows=_rows(found), charts=_charts({name: runs[-1] for name, runs in
                                                     found.items()}))  # fmt: skip


def _history(directory: Path, store: RemoteStore, effort: Effort) -> None:
    """Objects that hold one batch of each partition, and were written an hour ago."""
    size = str(LAGGING * HISTORY_BATCH_BYTES)
    configs = {**store.configs, **COMMON, "diskless.buffer.max.bytes": size}
    with broker(directory, configs) as process:
        create_topic(process.bootstrap, HISTORY, LAGGING)
        write_history(port_of(process), HISTORY, partitions=LAGGING, batches=effort.history_batches)


def _run(directory: Path, store: RemoteStore, effort: Effort, split: str, number: int) -> Run:
    configs = {
        **store.configs,
        **COMMON,
        POOL: SPLITS[split],
        "diskless.fetch.lagging.consumer.request.rate.limit": str(RATE_LIMIT),
        "diskless.consume.cache.max.bytes": str(32 << 20),
    }
    with broker(directory, configs) as process:
        topics = [f"{kind}-{SPLITS[split]}-{number}" for kind in ("live", "polled")]
        for topic in topics:
            create_topic(process.bootstrap, topic, PARTITIONS)
        port = str(port_of(process))
        with (
            PeerProcess("benchmarks.peers.tail_load", port, *topics) as tail,
            PeerProcess("benchmarks.peers.replay_load", port, HISTORY, str(LAGGING)) as storm,
        ):

            def span(seconds: float) -> Span:
                before, cpu = metrics(process), cpu_seconds(process.pid)
                begin = time.monotonic()
                time.sleep(seconds)
                return Span(
                    begin=begin,
                    end=time.monotonic(),
                    before=before,
                    after=metrics(process),
                    cpu_seconds=cpu_seconds(process.pid) - cpu,
                )

            tail.ask("start")
            time.sleep(WARM_UP_SECONDS)
            store.forget()
            calm = span(effort.calm_seconds)
            storm.ask("start")
            stormy = span(effort.storm_seconds)
            replayed = json.loads(storm.ask("stop"))
            figures = json.loads(tail.ask("stop"))
            return Run(
                calm=calm,
                storm=stormy,
                **figures,
                gets=store.requests("GET"),
                came=replayed["came"],
                errors=sum(replayed["errors"].values()),
            )


# -- rows ------------------------------------------------------------------------------------

END_TO_END: Mapping[str, tuple[float, float, float]] = {
    # quantile: predicted calm, storm with the split off, storm with the split on
    "p50": (165, 200, 170),
    "p99": (290, 390, 320),
}
FETCHES = {"p50": (255, 255, 255), "p99": (300, 400, 330)}
AFTER_ACK = {"p50": (2, 8, 3), "p99": (8, 60, 20)}
POLLS = {"p50": (4, 150, 6), "p99": (12, 400, 15)}
SHARES = {"p50": 0.5, "p99": 0.99}


def _rows(found: Mapping[str, Sequence[Run]]) -> list[Row]:
    def median(split: str, figure: Callable[[Run], float]) -> float:
        return statistics.median(figure(run) for run in found[split])

    rows = []
    for what, predicted, values in (
        ("tail, produced to consumed", END_TO_END, _end_to_end),
        ("tail fetch, request to answer", FETCHES, _fetches),
        ("tail, acknowledged to consumed", AFTER_ACK, _after_ack),
        ("poll of the last seconds", POLLS, _polls),
    ):
        for quantile, share in SHARES.items():
            for place, split in enumerate(SPLITS):
                calm, *storms = predicted[quantile]

                def figure(run: Run, stormy: bool, share: float = share, values: Values = values
                ) -> float:  # fmt: skip
                    return 1000 * percentile(values(run, run.storm if stormy else run.calm), share)

                quiet = median(split, lambda run: figure(run, False))
                rows.append(
                    Row(
                        name=f"{what}, {quantile}, storm, {split}",
                        value=median(split, lambda run: figure(run, True)),
                        unit="ms",
                        prediction=storms[place],
                        reference=quiet,
                        reference_name="the same without the storm",
                        lower_is_better=True,
                        note=f"without the storm predicted {calm:g} ms",
                    )
                )
    return [*rows, *_load_rows(median, found["split on"][0].storm.seconds)]


Values = Callable[[Run, Span], Sequence[float]]


def _end_to_end(run: Run, span: Span) -> Sequence[float]:
    return [whole for at, whole, _ in run.deliveries if span.holds(at)]


def _after_ack(run: Run, span: Span) -> Sequence[float]:
    return [after for at, _, after in run.deliveries if span.holds(at)]


def _fetches(run: Run, span: Span) -> Sequence[float]:
    return [took for at, took in run.fetches if span.holds(at)]


def _polls(run: Run, span: Span) -> Sequence[float]:
    return [took for at, took in run.polls if span.holds(at)]


def _load_rows(
    median: Callable[[str, Callable[[Run], float]], float], storm_seconds: float
) -> list[Row]:
    """What the storm asked of the store, and got."""
    rows = []
    figures: Sequence[tuple[str, str, Callable[[Run], float], tuple[float, float]]] = (
        ("cache hit rate, calm", "%", lambda run: _hit_rate(run.calm), (100, 100)),
        ("cache hit rate, storm", "%", lambda run: _hit_rate(run.storm), (50, 100)),
        ("GETs at the store, storm", "1/s", _gets_per_second, (400, 200)),
        ("replay throughput", "MB/s", _replayed, (50, 13)),
        ("requests rejected, storm", "", _rejected, (0, 0)),
        ("answers that were errors, storm", "", lambda run: run.errors, (0, 0)),
        ("broker CPU, calm", "cores", lambda run: run.calm.cpu_seconds / run.calm.seconds,
         (0.1, 0.1)),
        ("broker CPU, storm", "cores", lambda run: run.storm.cpu_seconds / run.storm.seconds,
         (0.8, 0.4)),
    )  # fmt: skip
    for name, unit, figure, predicted in figures:
        for split, prediction in zip(SPLITS, predicted, strict=True):
            row = Row(
                name=f"{name}, {split}",
                value=median(split, figure),
                unit=unit,
                prediction=prediction,
            )
            if figure is _gets_per_second and split == "split on":
                row = replace(
                    row,
                    reference=_allowed(storm_seconds),
                    reference_name="the rate limit, its burst, 5 % of hedges",
                    lower_is_better=True,
                )
            rows.append(row)
    return rows


def _hit_rate(span: Span) -> float:
    hits = span.grown("cache_hits_total") + span.grown("cache_shared_loads_total")
    asked = hits + span.grown("cache_misses_total")
    return 100 * hits / asked if asked else 0.0


def _gets_per_second(run: Run) -> float:
    return sum(run.storm.holds(at) for at in run.gets) / run.storm.seconds


def _allowed(seconds: float) -> float:
    """Requests per second that the token bucket lets through in so many, from full."""
    return HEDGE_SHARE * (RATE_LIMIT + RATE_LIMIT / seconds)


def _replayed(run: Run) -> float:
    size_bytes = sum(size for at, size in run.came if run.storm.holds(at))
    return size_bytes / run.storm.seconds / 1e6


def _rejected(run: Run) -> float:
    return run.storm.grown("lagging_consumer_rejected_total")


# -- charts ----------------------------------------------------------------------------------


def _charts(runs: Mapping[str, Run]) -> list[Chart]:
    """The last run of each split, in bins of half a second."""
    marks = {"storm": statistics.mean(run.storm.begin - run.calm.begin for run in runs.values())}

    def slowest(points: Sequence[float]) -> float:
        return 1000 * percentile(points, 0.99)

    def chart(
        title: str,
        unit: str,
        points: Callable[[Run], Sequence[tuple[float, float]]],
        of_bin: Callable[[Sequence[float]], float],
        *,
        logarithmic: bool = False,
    ) -> Chart:
        lines = {name: _binned(run, points(run), of_bin) for name, run in runs.items()}
        return Chart(title=title, unit=unit, lines=lines, marks=marks, logarithmic=logarithmic)

    return [
        chart(
            "tail, produced to consumed, 99th percentile of half a second",
            "ms",
            lambda run: [(at, whole) for at, whole, _ in run.deliveries],
            slowest,
        ),
        chart(
            "tail, acknowledged to consumed, 99th percentile",
            "ms",
            lambda run: [(at, after) for at, _, after in run.deliveries],
            slowest,
        ),
        chart(
            "slowest poll",
            "ms",
            lambda run: run.polls,
            lambda found: 1000 * max(found),
            logarithmic=True,
        ),
        chart(
            "GETs at the store",
            "1/s",
            lambda run: [(at, 1.0) for at in run.gets],
            lambda found: len(found) / BIN_SECONDS,
        ),
        chart(
            "replayed", "MB/s", lambda run: run.came, lambda found: sum(found) / BIN_SECONDS / 1e6
        ),
    ]


def _binned(
    run: Run, points: Sequence[tuple[float, float]], of_bin: Callable[[Sequence[float]], float]
) -> list[tuple[float, float]]:
    begin, end = run.calm.begin, run.storm.end
    bins: defaultdict[int, list[float]] = defaultdict(list)
    for at, value in points:
        if begin <= at < end:
            bins[int((at - begin) / BIN_SECONDS)].append(value)
    return [
        (round((number + 0.5) * BIN_SECONDS, 3), round(of_bin(found), 3))
        for number, found in sorted(bins.items())
    ]
