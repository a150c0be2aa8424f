"""What deleting topics and the first sweep of retention cost those who produce meanwhile.

A producer sends one record of 1 KiB every 5 ms to a topic of its own, acks=all, each counted from
when it was due, so that a stall costs all that it delays. Meanwhile another topic is deleted whose
1,000 partitions were written to a moment ago, a checkpoint of all of them under way; and after a
restart retention looks for the first time at a log of 1,000 closed segments, all too old.

Predicted, before the first run, for two cores and a disk that syncs in 0.3 ms:

- Calm: a request takes the sync and 0.3 ms more: 0.7 ms in the median, 3 at the 99th.
- Deletion: the loop pops 1,000 logs, eight in a turn of 1 ms; a thread renames their directories.
  Their bytes go to the disk before, as the checkpoint syncs 1,000 files, some 0.3 s, of which the
  journal's syncs have their part: the 99th percentile rises three-fold.
- Sweep: 64 segments in a second, for each 120 µs on the loop to read the ends of its indexes: one
  turn of 8 ms in a second, which delays the one request in a hundred that comes in it: 8 ms at the
  99th.

Found: the disk's own syncs take 25 ms at the 99th, calm or not, and hide the sweep; a deletion adds
12 ms. Before, the first deletion of 1,000 such partitions held the loop for 3.2 s, as it waited for
the checkpoint, and the first sweep of 2,000 segments for 1.6 s.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from benchmarks.diskless_bed import broker, metrics, port_of
from benchmarks.harness import Row
from benchmarks.peers.bare_client import BatchTemplate, Link, produced
from benchmarks.peers.load import create_topic, delete_topic
from benchmarks.peers.steady_requests import Phase, steady_requests
from penstock.client import Client

STEADY = "steady"
CONFIGS = {
    "log.retention.check.interval.ms": "1000",
    "log.segment.delete.delay.ms": "1000",
    "num.partitions": "1",
}
SMALL = {"internal.segment.bytes": "40000", "retention.ms": "-1", "index.interval.bytes": "4096"}
GONE = "penstock_storage_segments_removed_total"


class Effort(NamedTuple):
    """How much there is, and how often."""

    partitions: int
    segments: int
    seconds: float
    runs: int


def measure(*, quick: bool) -> list[Row]:
    """Latencies of the steady producer: calm, while a topic is deleted, while retention sweeps."""
    effort = Effort(200, 300, 3.0, 1) if quick else Effort(1_000, 1_000, 6.0, 2)
    found: dict[str, list[Phase]] = defaultdict(list)
    for _ in range(effort.runs):
        with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
            _run(Path(name), effort, found)
    return _rows(found)


def _run(directory: Path, effort: Effort, found: dict[str, list[Phase]]) -> None:
    with broker(directory, CONFIGS) as process:
        create_topic(process.bootstrap, STEADY, 1)
        create_topic(process.bootstrap, "old", 1, SMALL)
        create_topic(process.bootstrap, "gone", effort.partitions)
        port = port_of(process)
        asyncio.run(_fill(port, "old", 1, effort.segments, BatchTemplate(38, 1000)))
        with steady_requests(port, STEADY) as steady:
            found["calm"].append(steady.phase(time.monotonic(), effort.seconds))
            asyncio.run(_fill(port, "gone", effort.partitions, 4, BatchTemplate(4, 1000)))
            begun = time.monotonic()
            delete_topic(process.bootstrap, "gone")
            found["a topic is deleted"].append(steady.phase(begun, effort.seconds))
    with (
        broker(directory, CONFIGS) as process,
        steady_requests(port_of(process), STEADY) as steady,
    ):
        time.sleep(2.0)
        begun = time.monotonic()
        with Client(process.bootstrap) as client:
            client.alter_configs("topic", "old", {"retention.ms": "1"})
        while metrics(process).get(GONE, 0.0) < effort.segments - 2:
            if time.monotonic() > begun + 120:
                raise TimeoutError(f"{metrics(process).get(GONE)} of {effort.segments} are gone")
            time.sleep(0.25)
        found["retention's first sweep"].append(steady.phase(begun, 0.0))


async def _fill(
    port: int, topic: str, partitions: int, rounds: int, template: BatchTemplate
) -> None:
    """Send a batch to every partition, so many times."""
    link = await Link.open(port)
    waiting = 0
    for _ in range(rounds):
        for partition in range(partitions):
            await link.send(template.request(topic, partition))
            waiting += 1
            if waiting == 32:
                produced(await link.receive())
                waiting -= 1
    for _ in range(waiting):
        produced(await link.receive())
    link.close()


PREDICTED = {
    "calm": (0.7, 3.0), "a topic is deleted": (0.9, 9.0), "retention's first sweep": (0.7, 8.0)
}  # fmt: skip


def _rows(found: dict[str, list[Phase]]) -> list[Row]:
    rows = []
    calm = found["calm"]
    for name, phases in found.items():
        for place, share in enumerate((0.5, 0.99)):
            figures = [phase.produce_ms(share) for phase in phases]
            rows.append(
                Row(
                    name=f"produce p{share * 100:g}, {name}",
                    value=statistics.median(figures),
                    unit="ms",
                    prediction=PREDICTED[name][place],
                    reference=None
                    if name == "calm"
                    else statistics.median([phase.produce_ms(share) for phase in calm]),
                    reference_name="calm",
                    lower_is_better=True,
                    note=f"longest {max(phase.produce_ms(1.0) for phase in phases):.0f} ms,"
                    f" over {statistics.median([phase.seconds for phase in phases]):.1f} s",
                )
            )
    return rows
