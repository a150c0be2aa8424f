"""Cost of tracing at a broker: processor time of Produce requests with and without an export.

Two brokers in threads of one process, in turns: one without `otlp.endpoint`, one that exports to a
receiver in another process. Two processes would differ by more than the cost, because each has its
own layout of memory. Requests have one record of 200 bytes; every hundredth has a sampled
`traceparent`. Processor time is that of the broker's threads, the exporter's included. Figures are
lower quartiles of short turns, as other processes of the machine only add time.

Prediction: the search for the header costs 0.4 µs of some 50 µs a request, and 1 % of requests have
spans that cost 30 µs: 1.4 %.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
from tests.broker.wire_client import WireClient, produce_request

from benchmarks.harness import Row
from penstock.records.columnar import encode_batches, read_input
from penstock.testing import Broker

RECORD_BYTES = 200
TRACED_EVERY = 100
PIPELINED = 5
BUDGET = 0.01
PARENT = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
RECEIVER = """
import sys, time
from tests.otlp import otlp_receiver
with otlp_receiver() as receiver:
    print(receiver.url, flush=True)
    sys.stdin.read()
"""


@contextmanager
def receiver() -> Iterator[str]:
    command = [sys.executable, "-c", RECEIVER]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.stdin.close()


def threads() -> set[str]:
    """Ids of the threads of this process."""
    return {path.name for path in Path("/proc/self/task").iterdir()}


def encoded(headers: Sequence[tuple[str, bytes]]) -> bytes:
    row = [{"key": name, "value": value} for name, value in headers]
    table = pa.table({"value": [b"x" * RECORD_BYTES], "headers": pa.array([row], HEADERS)})
    [batch] = encode_batches(read_input(table, 0), now_ms=0)
    return bytes(batch.data)


class Side:
    """A broker in threads of this process, and a connection that produces to it."""

    def __init__(self, broker: Broker, threads: set[str]) -> None:
        self.broker = broker
        self._threads = [Path(f"/proc/self/task/{name}/schedstat") for name in threads]

    async def connect(self) -> None:
        host, _, port = self.broker.bootstrap.rpartition(":")
        self.client = await WireClient.connect((host, int(port)))
        plain, traced = (
            self.client.frame("Produce", 9, produce_request("t", encoded(headers)))
            for headers in ([], [("traceparent", PARENT)])
        )
        self._frames = [traced if not number else plain for number in range(TRACED_EVERY)]

    def cpu_seconds(self) -> float:
        """Processor time of the broker's threads, from the kernel's scheduler."""
        return sum(int(thread.read_text().split()[0]) for thread in self._threads) / 1e9

    async def produce(self, count: int) -> float:
        """Send requests; return the broker's processor time of each, in microseconds."""
        before = self.cpu_seconds()
        for start in range(0, count, PIPELINED):
            for number in range(start, start + PIPELINED):
                self.client.writer.write(self._frames[number % TRACED_EVERY])
            for _ in range(PIPELINED):
                await self.client.receive()
        return (self.cpu_seconds() - before) / count * 1e6


async def compared(sides: Sequence[Side], rounds: int, count: int) -> list[list[float]]:
    found: list[list[float]] = [[] for _ in sides]
    for side in sides:
        await side.connect()
        await side.produce(count)
    for number in range(rounds):
        order = list(enumerate(sides))
        for place, side in order if number % 2 else reversed(order):
            found[place].append(await side.produce(count))
    for side in sides:
        await side.client.close()
    return found


def measure(quick: bool) -> list[Row]:
    """Run both; microseconds and shares."""
    rounds, count = (100, 200) if quick else (1_000, 200)
    with receiver() as url:
        export = {"otlp.endpoint": url, "otlp.sample.ratio": 0, "otlp.interval.ms": 3_600_000}
        began = threads()
        with Broker() as plain:
            of_plain = threads() - began
            with Broker(export) as traced:
                of_traced = threads() - began - of_plain
                for broker in (plain, traced):
                    broker.create_topic("t")
                sides = [Side(plain, of_plain), Side(traced, of_traced)]
                without, with_traces = asyncio.run(compared(sides, rounds, count))
    before, after = (statistics.quantiles(times, n=4)[0] for times in (without, with_traces))
    return [
        Row(
            name="processor time of a Produce request, 1 % sampled",
            value=after,
            unit="µs",
            prediction=50.7,
            reference=before,
            reference_name="without tracing",
            lower_is_better=True,
        ),
        Row(
            name="cost of tracing at 1 % sampling",
            value=(after / before - 1) * 100,
            unit="%",
            prediction=1.4,
            reference=BUDGET * 100,
            reference_name="budget",
            lower_is_better=True,
        ),
    ]
