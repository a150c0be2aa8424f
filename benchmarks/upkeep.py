"""What deleting topics and the first sweep of retention cost those who produce meanwhile.

A producer sends one record of 1 KiB every 5 ms to a topic of its own, acks=all, each counted from
when it was due, so that a stall costs all that it delays. Meanwhile another topic is deleted whose
1,000 partitions were written to a moment ago, a checkpoint of all of them under way; and after a
restart retention looks for the first time at a log of 2,000 closed segments, all too old.

Predicted, before the first run, for two cores and a disk that syncs in 0.3 ms:

- Calm: a request takes the sync and 0.3 ms more: 0.7 ms in the median, 3 at the 99th.
- Deletion: the loop pops 1,000 logs, eight in a turn of 1 ms; a thread renames their directories.
  Their bytes go to the disk before, as the checkpoint syncs 1,000 files, some 0.3 s, of which the
  journal's syncs have their part: the 99th percentile rises three-fold.
- Sweep: 64 segments in a second, for each 120 µs on the loop to read the ends of its indexes: one
  turn of 8 ms in a second, which delays the one request in a hundred that comes in it: 8 ms at the
  99th.
"""

from __future__ import annotations

import asyncio
import socket
import statistics
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks.diskless_bed import broker, metrics, port_of
from benchmarks.harness import Row
from benchmarks.peers.bare_client import BatchTemplate, Link, produced
from benchmarks.peers.load import create_topic, delete_topic
from penstock.apps.loads.figures import percentile
from penstock.client import Client

PACE_SECONDS = 0.005
STEADY = "steady"
SECONDS = 30
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


class Phase(NamedTuple):
    """Seconds that requests took in a part of a run, and how long it was."""

    latencies: list[float]
    seconds: float


class Steady:
    """The producer that is not to be delayed; a thread."""

    def __init__(self, port: int) -> None:
        self._request = BatchTemplate(1, 1024).request(STEADY, 0)
        self._connection = socket.create_connection(("127.0.0.1", port), timeout=SECONDS)
        self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._over = threading.Event()
        self.taken: list[tuple[float, float]] = []
        """When each request was due, and how long after that it was answered."""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        due = time.monotonic()
        while not self._over.is_set():
            self._connection.sendall(self._request)
            size = int.from_bytes(self._receive(4), "big")
            produced(memoryview(self._receive(size)))
            self.taken.append((due, time.monotonic() - due))
            due += PACE_SECONDS
            time.sleep(max(0.0, due - time.monotonic()))

    def _receive(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            data += self._connection.recv(size - len(data)) or _closed()
        return data

    def stop(self) -> None:
        self._over.set()
        self._thread.join(SECONDS)
        self._connection.close()


def _closed() -> bytes:
    raise ConnectionError("the broker closed the connection")


def measure(*, quick: bool) -> list[Row]:
    """Latencies of the steady producer: calm, while a topic is deleted, while retention sweeps."""
    effort = Effort(200, 500, 3.0, 1) if quick else Effort(1_000, 2_000, 8.0, 3)
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
        with _steady(port) as steady:
            found["calm"].append(_phase(steady, time.monotonic(), effort.seconds))
            asyncio.run(_fill(port, "gone", effort.partitions, 4, BatchTemplate(4, 1000)))
            begun = time.monotonic()
            delete_topic(process.bootstrap, "gone")
            found["a topic is deleted"].append(_phase(steady, begun, effort.seconds))
    with broker(directory, CONFIGS) as process, _steady(port_of(process)) as steady:
        time.sleep(2.0)
        begun = time.monotonic()
        with Client(process.bootstrap) as client:
            client.alter_configs("topic", "old", {"retention.ms": "1"})
        while metrics(process).get(GONE, 0.0) < effort.segments - 2:
            if time.monotonic() > begun + 120:
                raise TimeoutError(f"{metrics(process).get(GONE)} of {effort.segments} are gone")
            time.sleep(0.25)
        found["retention's first sweep"].append(_phase(steady, begun, 0.0))


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


@contextmanager
def _steady(port: int) -> Iterator[Steady]:
    steady = Steady(port)
    try:
        yield steady
    finally:
        steady.stop()


def _phase(steady: Steady, begun: float, seconds: float) -> Phase:
    """What was due from a moment on, for so long at least."""
    time.sleep(max(0.0, begun + seconds - time.monotonic()))
    ended = time.monotonic()
    latencies = [taken for due, taken in list(steady.taken) if begun <= due < ended]
    return Phase(latencies, ended - begun)


PREDICTED = {
    "calm": (0.7, 3.0), "a topic is deleted": (0.9, 9.0), "retention's first sweep": (0.7, 8.0)
}  # fmt: skip


def _rows(found: dict[str, list[Phase]]) -> list[Row]:
    rows = []
    calm = found["calm"]
    for name, phases in found.items():
        for place, share in enumerate((0.5, 0.99)):
            figures = [_ms(phase, share) for phase in phases]
            rows.append(
                Row(
                    name=f"produce p{share * 100:g}, {name}",
                    value=statistics.median(figures),
                    unit="ms",
                    prediction=PREDICTED[name][place],
                    reference=None
                    if name == "calm"
                    else statistics.median([_ms(phase, share) for phase in calm]),
                    reference_name="calm",
                    lower_is_better=True,
                    note=f"longest {max(max(one.latencies) for one in phases) * 1000:.0f} ms,"
                    f" over {statistics.median([one.seconds for one in phases]):.1f} s",
                )
            )
    return rows


def _ms(phase: Phase, share: float) -> float:
    return percentile(phase.latencies, share) * 1000
