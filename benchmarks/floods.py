"""Floods before authentication, and what they cost others: their p99, and the broker's memory.

A client produces a record every 5 ms over a listener of its own and fetches it back, alone and
while strangers flood the broker's other listeners, from 250 addresses if not said otherwise. The
strangers share the cores with both, so each flood is measured at another broker of the machine too
(`peers.beside`).

Prediction: p99 alone is some 4 ms: a sync, and two requests. A connection that is closed at once
costs the broker's loop 0.1 ms, a handshake of TLS 0.5 ms in two pieces; 32 that are under way at
once may all be served before a request of somebody else. That is 3 ms for connections and what is
closed at the first bytes, 10 ms for handshakes; those of one address wait for their turn, 100 a
second. A thousand that drip are a thousand reads of 30 µs a second, 1 ms. A wrong password costs a
thread of its own 4 ms of hashing, without the interpreter's lock: 2 ms for the core that it takes.
Memory: a handshake of TLS has 40 KiB, so a thousand 40 MiB.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from benchmarks.harness import Row
from benchmarks.peers.beside import ELSEWHERE, HERE, load_makers
from benchmarks.peers.flooding import FLOODS, flood
from benchmarks.peers.load import create_topic, resident_mebibytes
from benchmarks.peers.steady_requests import Phase, SteadyRequests, steady_requests
from benchmarks.quotas import address_of
from benchmarks.tls import Files, files, listeners, texts
from penstock.apps.loads.figures import percentile
from penstock.testing import Broker

AIM_TIMES, AIM_MEBIBYTES = 2.0, 64.0
SETTLE_SECONDS = 0.4
TOPIC = "steady"
PREDICTED = {
    "connections": (7.0, 1.0),
    "TLS handshakes of one address": (6.0, 5.0),
    "TLS handshakes": (14.0, 5.0),
    "TLS handshakes that are left halfway": (14.0, 5.0),
    "halves of TLS records": (7.0, 5.0),
    "1,000 TLS handshakes byte by byte": (5.0, 40.0),
    "wrong passwords by PLAIN": (6.0, 1.0),
    "requests of 2 GiB": (7.0, 1.0),
}
"""Of each flood: p99 in ms, memory in MiB."""


class Field:
    """Two brokers, a client of the first one, strangers, and what was found."""

    def __init__(self, made: Files, stack: ExitStack) -> None:
        self.truststore = made.truststore
        self.pools = stack.enter_context(load_makers())
        self.brokers: list[Broker] = []
        self.ports: list[dict[str, int]] = []
        for _ in range(2):
            addresses = listeners("SASL_PLAINTEXT", "SASL_SSL")
            settings = {
                "listeners": texts(addresses),
                "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
                "sasl.users.file": made.users,
                **made.settings(),
            }
            broker = Broker(settings, process=True, admin=False)
            self.brokers.append(stack.enter_context(broker))
            self.ports.append({name: address_of(address)[1] for name, address in addresses.items()})
        create_topic(self.brokers[0].bootstrap, TOPIC, 1)
        port = address_of(self.brokers[0].bootstrap)[1]
        self.steady: SteadyRequests = stack.enter_context(steady_requests(port, TOPIC))
        self.nets = itertools.count()
        self.p99: dict[tuple[str, str], list[float]] = defaultdict(list)
        self.rates: dict[str, list[float]] = defaultdict(list)
        self.grown: dict[str, list[float]] = defaultdict(list)

    def alone(self, seconds: float) -> None:
        """Nothing but the client."""
        time.sleep(SETTLE_SECONDS)
        self.p99["", ""].append(_p99(self.steady.phase(time.monotonic(), seconds)))

    def flooded(self, number: int, way: str, seconds: float) -> None:
        """The client beside one flood; each comes from a net of its own."""
        name = FLOODS[number].name
        broker = self.brokers[way == ELSEWHERE]
        before = resident_mebibytes(broker.pid or 0)
        job = (number, self.ports[way == ELSEWHERE], self.truststore, next(self.nets))
        lasting = seconds + 2 * SETTLE_SECONDS
        running = self.pools[way].apply_async(flood, (*job, lasting))
        begun = time.monotonic() + SETTLE_SECONDS
        self.p99[name, way].append(_p99(self.steady.phase(begun, seconds)))
        if way == HERE:
            self.grown[name].append(resident_mebibytes(broker.pid or 0) - before)
            self.rates[name].append(running.get() / lasting)
        running.get()
        time.sleep(SETTLE_SECONDS)


def _p99(phase: Phase) -> float:
    """Of a record's produce and fetch, from when it was due, in ms."""
    return percentile([request.produce + request.fetch for request in phase.taken], 0.99) * 1e3


def measure(*, quick: bool) -> list[Row]:
    """All rows."""
    rounds, seconds = (1, 2.0) if quick else (3, 2.4)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory, ExitStack() as stack:
        field = Field(files(Path(directory)), stack)
        field.steady.phase(time.monotonic(), 1.0)
        for _ in range(rounds):
            for number in range(len(FLOODS)):
                field.alone(seconds / 2)
                for way in (HERE, ELSEWHERE):
                    field.flooded(number, way, seconds)
        return [*_rows(field)]


def _rows(field: Field) -> Iterator[Row]:
    p99 = {key: statistics.median(found) for key, found in field.p99.items()}
    for kind in FLOODS:
        latency, memory = PREDICTED[kind.name]
        yield Row(
            name=f"p99 of a record's produce and fetch beside {kind.name}",
            value=p99[kind.name, HERE],
            unit="ms",
            prediction=latency,
            reference=p99["", ""],
            reference_name="without them",
            lower_is_better=True,
            note=f"the aim is {AIM_TIMES:g} times; {statistics.median(field.rates[kind.name]):,.0f}"
            f" a second; the same at another broker: {p99[kind.name, ELSEWHERE]:.1f} ms",
        )
        yield Row(
            name=f"memory of the broker beside {kind.name}",
            value=max(0.0, *field.grown[kind.name]),
            unit="MiB",
            prediction=memory,
            reference=AIM_MEBIBYTES,
            reference_name="the aim",
            lower_is_better=True,
        )
