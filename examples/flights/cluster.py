"""Three brokers for the demo, killed one after the other, and what that did to acks and deliveries.

Every topic has a copy on each broker; a record is acknowledged when two have synced it. They share
a PostgreSQL server, that of the machine or of Debian's packages, which are fetched and unpacked.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest
from compat.servers import COPIES, PenstockProcess, bootstrap_of, running_brokers
from confluent_kafka import Consumer, TopicPartition
from rich.console import Console
from tests.postgres import postgres_server

from examples.flights import data
from examples.flights.processes import AgentProcess
from examples.flights.producer import PARTITIONS, Producer
from examples.flights.proof import Claim
from examples.flights.watch import Watch

DIE_AT: Final = (0.15, 0.4, 0.65)
AWAY_SECONDS: Final = 5.0
APART_SECONDS: Final = 3.0
END_SECONDS: Final = 180.0
POLL_SECONDS: Final = 0.05
BIN_SECONDS: Final = 0.5
Counts = list[tuple[float, int]]
"""When so many were counted, in seconds of the monotonic clock."""


@contextmanager
def three_brokers(folder: Path) -> Iterator[ThreeBrokers]:
    """Running brokers with their data below the output folder."""
    try:
        with (
            postgres_server() as postgres,
            running_brokers(postgres, folder / "log", 3, COPIES) as brokers,
        ):
            yield ThreeBrokers(brokers)
    except pytest.skip.Exception as error:
        raise SystemExit(str(error)) from None


class ThreeBrokers:
    """Running brokers; the addresses are those of all of them."""

    rate = 7_000  # so that they arrive while all brokers die and come back

    def __init__(self, brokers: Sequence[PenstockProcess]) -> None:
        self.brokers = brokers

    @property
    def bootstrap(self) -> str:
        return bootstrap_of(self.brokers)

    @property
    def admin_url(self) -> str:
        return ",".join(broker.admin_url for broker in self.brokers)

    def crashes(self, agent: AgentProcess, producer: Producer, watch: Watch) -> BrokerCrashes:
        """The brokers, one after the other."""
        return BrokerCrashes(self, producer, watch)


class BrokerCrashes(threading.Thread):
    """Kills one broker after the other as flights go on, and starts it again."""

    driver_due = False

    def __init__(self, scene: ThreeBrokers, producer: Producer, watch: Watch) -> None:
        super().__init__(daemon=True)
        self._scene = scene
        self._producer = producer
        self._watch = watch
        self._stopped = threading.Event()
        self._deliveries = Deliveries(scene.bootstrap)
        self._away: list[tuple[int, float, float]] = []
        self.start()

    @property
    def ready(self) -> bool:
        """Once Spark is at work: it has read the weather."""
        return bool(self._watch.read)

    @property
    def pending(self) -> bool:
        return self.is_alive()

    def look(self) -> None:
        """There is nothing to be done: it has its own thread."""

    def end(self) -> None:
        self._stopped.set()
        self.join(END_SECONDS)
        self._deliveries.end(0)

    def run(self) -> None:
        brokers, producer = self._scene.brokers, self._producer
        for number, (broker, share) in enumerate(zip(brokers, DIE_AT, strict=True), 1):
            while producer.sent < producer.total * share:
                if self._stopped.wait(POLL_SECONDS):
                    return
            pid, begin = broker.pid, time.monotonic()
            broker.kill()
            self._watch.say(
                f"[bold red]kill -9 {pid}[/bold red]: broker {number} died with"
                f" {producer.sent:,} flights acknowledged. The two others go on."
            )
            self._stopped.wait(AWAY_SECONDS)
            broker.start()
            self._away.append((number, begin, time.monotonic()))
            self._watch.say(f"Broker {number} is back, and gets what it missed.")
            self._stopped.wait(APART_SECONDS)

    def claims(self) -> list[Claim]:
        total, deliveries = self._producer.total, self._deliveries
        deliveries.end(total)
        return [
            Claim(
                text=f"{deliveries.count:,} flights were delivered to a consumer meanwhile, each"
                " offset once",
                holds=deliveries.count == total and not deliveries.out_of_order,
            )
        ]

    def plots(self, folder: Path, console: Console) -> list[Path]:
        acks, deliveries = self._producer.counts, self._deliveries.counts
        console.print(
            f"Longest pause: {_longest_pause(acks):.1f} s without an ack,"
            f" {_longest_pause(deliveries):.1f} s without a delivery; all three brokers died.\n"
        )
        lines = {"acknowledged": acks, "delivered to a consumer": deliveries}
        tables = [table for table in self._watch.read if table[0] >= acks[0][0]]
        return [_draw(folder / "cluster.png", lines, tables, self._away)]


class Deliveries(threading.Thread):
    """A consumer of the flights, in its own thread: how many came by when."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(daemon=True)
        self.counts: Counts = []
        self.out_of_order = 0
        """Records that did not follow the one before in their partition."""
        self._addresses = bootstrap
        self._stopped = threading.Event()
        self.start()

    @property
    def count(self) -> int:
        """How many have come."""
        return self.counts[-1][1] if self.counts else 0

    def end(self, total: int) -> None:
        """When so many have come, or it takes too long."""
        deadline = time.monotonic() + END_SECONDS
        while self.count < total and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        self._stopped.set()
        self.join(END_SECONDS)

    def run(self) -> None:
        due = [0] * PARTITIONS[data.FLIGHTS]
        settings = {"bootstrap.servers": self._addresses, "group.id": "watch", "log_level": 0}
        with Consumer(settings) as consumer:
            consumer.assign(
                [TopicPartition(data.FLIGHTS, partition, 0) for partition in range(len(due))]
            )
            while not self._stopped.is_set():
                came = [
                    message
                    for message in consumer.consume(5_000, POLL_SECONDS)
                    if not message.error()
                ]
                for message in came:
                    partition, offset = message.partition(), message.offset()
                    self.out_of_order += offset != due[partition]
                    due[partition] = offset + 1
                if came:
                    self.counts.append((time.monotonic(), self.count + len(came)))


def _longest_pause(counts: Counts) -> float:
    """The longest time between two of them, in seconds."""
    return max((after - before for (before, _), (after, _) in pairwise(counts)), default=0.0)


def _draw(
    path: Path,
    lines: dict[str, Counts],
    tables: Counts,
    away: Sequence[tuple[int, float, float]],
) -> Path:
    """What came per second, and in all, over time; brokers were gone where it is grey."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt
    import numpy as np

    begin = min(counts[0][0] for counts in lines.values() if counts)
    end = max(counts[-1][0] for counts in lines.values() if counts)
    edges = np.arange(0, end - begin + 2 * BIN_SECONDS, BIN_SECONDS)
    figure, (above, below) = plt.subplots(2, 1, figsize=(12, 7), sharex=True, layout="constrained")
    for name, counts in lines.items():
        at, total = _from(begin, counts)
        new = np.diff(total, prepend=0)
        rates = np.histogram(at, bins=edges, weights=new)[0] / BIN_SECONDS
        above.step(edges[:-1], rates, where="post", label=name)
        below.plot(at, total, label=name)
    below.plot(*_from(begin, tables), label="read into tables, weather too", marker=".")
    for number, gone, back in away:
        for axis in (above, below):
            axis.axvspan(gone - begin, back - begin, color="0.85")
        above.text(gone - begin, above.get_ylim()[1], f" broker {number} is gone", va="top")
    above.set(ylabel="flights a second", title="Three brokers, killed one after the other")
    below.set(ylabel="flights in all", xlabel="seconds")
    below.legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path


def _from(begin: float, counts: Counts) -> tuple[list[float], list[int]]:
    """Seconds since the begin, and how many there were then."""
    return [moment - begin for moment, _ in counts], [count for _, count in counts]
