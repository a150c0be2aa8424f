"""10,000 partitions on one broker: starts, memory, open files, produce, fetch.

Ten topics of 1,000 partitions, each in a log of its own, beside a topic of one. Into every one go
20 records of 100 bytes, four batches of five in rounds, so that after a kill the journal has 40,000
rows about 10,000 logs, of which no segment has been synced. A start, clean or after the kill, ends
when the broker says that it is ready; it has answered then.

Predicted, before the first run, for two cores of which each does a Python function call in 0.1 µs:

- A clean start of one partition takes 0.6 s, most of it imports. With 10,000 it reads one
  checkpoint (0.9 MB), lists the directory, makes 10,000 logs and partitions at 40 µs: 0.6 s more.
  Nothing of a log is opened.
- After a kill the journal is read (40,000 entries of a page or less, where requests came alone: 160
  MB at 1 GB/s, and 15 µs each), which notes its rows and opens no segment: 0.9 s more than clean.
- A log that nobody has touched weighs 3 KiB, its partition 1: 40 MiB over that of one partition.
- Descriptors: those of the journal, sockets, and at most `log.open.files.max`.
- Produce: a request for one partition of 10,000 finds its log in a dictionary: × 0.8 of the rate of
  one, for memory that is in no cache of the processor.
- Fetch: 15 µs a partition of a request for 1,000 without a session, 300 for a log that is loaded.

Found: files are kept open up to `open.files.max`, 4,096, and none is closed before; a partition of
a fetch takes 20 µs, which no session spares that reads all of them. A start after a kill takes
twice as long as a clean one: it reads the journal, and recovers a log when it is first used.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from compat.servers import PenstockProcess

from benchmarks.harness import Row
from benchmarks.peers.bare_client import (
    BatchTemplate,
    Link,
    fetch_request,
    fetched,
    produced,
)
from benchmarks.peers.load import create_topic, proportional_mebibytes
from penstock.apps.loads.figures import percentile

PER_TOPIC = 1_000
RECORDS, ROUNDS, VALUE_BYTES = 5, 4, 100
IN_FLIGHT = 32
FETCHED_BYTES = 1 << 20
CONFIGS = {"log.checkpoint.interval.ms": "3600000", "log.checkpoint.bytes": str(4 << 30)}
"""No checkpoint comes before the kill: the journal has all of it."""
PREDICTED = {"one": 0.6, "clean": 1.2, "killed": 2.1}


class Effort(NamedTuple):
    """How many topics, and how often everything is done."""

    topics: int
    runs: int

    @property
    def names(self) -> list[str]:
        return [f"t{number}" for number in range(self.topics)]

    @property
    def partitions(self) -> int:
        return self.topics * PER_TOPIC


class Figures(NamedTuple):
    """Of one run."""

    starts: dict[str, float]
    mebibytes: dict[str, float]
    descriptors: int
    produced: dict[str, float]
    fetch_ms: dict[str, float]


def measure(*, quick: bool) -> list[Row]:
    """Starts, memory and rates of many partitions beside those of one."""
    effort = Effort(2, 1) if quick else Effort(10, 2)
    found = []
    for _ in range(effort.runs):
        with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
            found.append(_run(Path(name), effort))
    return _rows(found, effort)


def _run(root: Path, effort: Effort) -> Figures:
    starts: dict[str, float] = {}
    mebibytes: dict[str, float] = {}
    few = PenstockProcess(root / "few", configs=CONFIGS).start()
    create_topic(few.bootstrap, "one", 1)
    _restart(few, starts, "one")
    mebibytes["one"] = proportional_mebibytes(few.pid)
    few.stop()
    many = PenstockProcess(root / "many", configs=CONFIGS).start()
    try:
        create_topic(many.bootstrap, "one", 1)
        for name in effort.names:
            create_topic(many.bootstrap, name, PER_TOPIC)
        _restart(many, starts, "clean")
        mebibytes["idle"] = proportional_mebibytes(many.pid)
        rates = asyncio.run(_produce(_port(many), effort))
        mebibytes["written"] = proportional_mebibytes(many.pid)
        descriptors = len(os.listdir(f"/proc/{many.pid}/fd"))
        many.kill()
        many.start()
        starts["killed"] = many.start_seconds
        fetches = asyncio.run(_fetch(_port(many), effort))
        _restart(many, starts, "clean, written")
        return Figures(starts, mebibytes, descriptors, rates, fetches)
    finally:
        many.stop()


def _restart(process: PenstockProcess, starts: dict[str, float], name: str) -> None:
    process.stop()
    process.start()
    starts[name] = process.start_seconds


def _port(process: PenstockProcess) -> int:
    return int(process.bootstrap.rpartition(":")[2])


async def _produce(port: int, effort: Effort) -> dict[str, float]:
    """Requests per second, in rounds over all partitions and as many for one."""
    template = BatchTemplate(RECORDS, VALUE_BYTES)
    link = await Link.open(port)
    rates: dict[str, list[float]] = defaultdict(list)
    every = [(name, index) for name in effort.names for index in range(PER_TOPIC)]
    for _ in range(ROUNDS):
        for kind, places in (("one", [("one", 0)] * len(every)), ("all", every)):
            begun = time.perf_counter()
            await _send(link, template, places)
            rates[kind].append(len(places) / (time.perf_counter() - begun))
    link.close()
    return {kind: statistics.median(values) for kind, values in rates.items()}


async def _send(link: Link, template: BatchTemplate, places: Sequence[tuple[str, int]]) -> None:
    for number, (topic, partition) in enumerate(places):
        await link.send(template.request(topic, partition))
        if number >= IN_FLIGHT:
            produced(await link.receive())
    for _ in range(min(IN_FLIGHT, len(places))):
        produced(await link.receive())


async def _fetch(port: int, effort: Effort) -> dict[str, float]:
    """Milliseconds of fetches after the kill: the first of 1,000 logs, the next, and of one."""
    link = await Link.open(port)
    first = [await _fetched(link, name, range(PER_TOPIC)) for name in effort.names]
    again = [await _fetched(link, name, range(PER_TOPIC)) for name in effort.names]
    single = [await _fetched(link, effort.names[0], [index]) for index in range(PER_TOPIC)]
    link.close()
    return {
        "first": statistics.median(first),
        "again": statistics.median(again),
        "single": percentile(single, 0.5),
    }


async def _fetched(link: Link, topic: str, partitions: Sequence[int]) -> float:
    positions = dict.fromkeys(partitions, 0)
    begun = time.perf_counter()
    await link.send(fetch_request(topic, positions, max_wait_ms=0, partition_bytes=FETCHED_BYTES))
    rows = list(fetched(await link.receive()))
    seconds = time.perf_counter() - begun
    if len(rows) != len(positions) or any(row.error or not len(row.records) for row in rows):
        raise RuntimeError(f"{topic}: some of {len(positions)} partitions were not answered")
    return seconds * 1000


def _rows(found: Sequence[Figures], effort: Effort) -> list[Row]:
    count = effort.partitions
    rows = [*_start_rows(found, effort), *_memory_rows(found, count), *_rate_rows(found, count)]
    files = statistics.median([figures.descriptors for figures in found])
    name = f"open files, {count} partitions written to"
    rows.append(Row(name=name, value=files, unit="", prediction=1_050))
    return rows


def _start_rows(found: Sequence[Figures], effort: Effort) -> Iterator[Row]:
    count, records = effort.partitions, effort.partitions * RECORDS * ROUNDS
    for name, title, prediction in (
        ("clean", f"{count} empty partitions, clean", PREDICTED["clean"]),
        ("clean, written", f"{count} partitions with records, clean", PREDICTED["clean"]),
        ("killed", f"{count} partitions, {records} records, killed", PREDICTED["killed"]),
    ):
        yield Row(
            name=f"start of a broker, {title}",
            value=statistics.median([figures.starts[name] for figures in found]),
            unit="s",
            prediction=prediction,
            reference=statistics.median([figures.starts["one"] for figures in found]),
            reference_name="one partition",
            lower_is_better=True,
        )


def _memory_rows(found: Sequence[Figures], count: int) -> Iterator[Row]:
    for name, title, prediction in (("idle", "idle", 130.0), ("written", "written to", 190.0)):
        yield Row(
            name=f"memory, {count} partitions, {title}",
            value=statistics.median([figures.mebibytes[name] for figures in found]),
            unit="MiB",
            prediction=prediction,
            reference=statistics.median([figures.mebibytes["one"] for figures in found]),
            reference_name="one partition",
            lower_is_better=True,
        )


def _rate_rows(found: Sequence[Figures], count: int) -> Iterator[Row]:
    again = statistics.median([figures.fetch_ms["again"] for figures in found])
    yield Row(
        name=f"produce, {RECORDS} records a request, over {count} partitions",
        value=statistics.median([figures.produced["all"] for figures in found]),
        unit="requests/s",
        prediction=6_000,
        reference=statistics.median([figures.produced["one"] for figures in found]),
        reference_name="to one partition",
    )
    yield Row(
        name=f"fetch of {PER_TOPIC} partitions, first after the kill",
        value=statistics.median([figures.fetch_ms["first"] for figures in found]),
        unit="ms",
        prediction=300.0,
        reference=again,
        reference_name="the next time",
        lower_is_better=True,
    )
    yield Row(
        name=f"fetch of {PER_TOPIC} partitions",
        value=again,
        unit="ms",
        prediction=15.0,
        reference=statistics.median([figures.fetch_ms["single"] for figures in found]) * PER_TOPIC,
        reference_name=f"{PER_TOPIC} fetches of one",
        lower_is_better=True,
    )
