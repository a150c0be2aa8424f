"""Quotas: what they cost a request, and what a hot tenant does to others.

A quiet tenant produces a record every few milliseconds and waits for its answer; a hot one, in a
process of its own, sends requests of 256 KiB without pause over four connections. Segments are
measured in turn: the quiet tenant alone, and beside the hot one under a quota of 4 MB a second,
after that one has used what its windows hold; what counts is the median of the segments' p99. One
without a quota comes last, as the disk is busy with what it wrote long after.

The cost is processor time of the broker's process over small requests of one connection, without
any quota, with one of somebody else, and with one of the client itself that it does not reach.

Prediction: without a quota a request asks for one attribute (50 ns); a quota of anybody costs the
look-up of what bounds the client, twice, some 2 µs of 60; that of the client itself a sum over
eleven windows, twice, some 5. Under a quota the hot tenant is 16 requests a second, so the quiet
one's p99 is as if it were alone. By default a tenant that was quiet may use ten seconds' worth at
once, and again when these are out of the windows: that is felt for as long as it takes.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import statistics
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.synchronize import Event

from benchmarks.harness import Row
from benchmarks.log_append import batch
from penstock.apps.loads.figures import cpu_seconds, percentile
from penstock.client import Client
from penstock.testing import Broker
from penstock.wire.kafka.encoder import encoder
from penstock.wire.kafka.framing import request_frame

QUIET, HOT = "quiet", "hot"
HOT_BYTES = 256 << 10
HOT_CONNECTIONS = 4
IN_FLIGHT = 5
QUOTA = 4_000_000
PACE_SECONDS = 0.004
WINDOWS = {"quota.window.num": 2}
"""A second's worth of a quota at once, not ten as by default: p99 is of every second."""
BATCH_OF_REQUESTS = 2_000


def frame(client_id: str, topic: str, size_bytes: int) -> bytes:
    """A whole Produce request of one record."""
    partition = {"index": 0, "records": batch(size_bytes)}
    request = {
        "acks": -1,
        "timeout": 30_000,
        "topic_data": [{"name": topic, "partition_data": [partition]}],
    }
    body = encoder("Produce", 9, "request")(request)
    return request_frame(0, 9, 1, client_id.encode(), body)


class Connection:
    """A blocking socket that sends one frame again and again."""

    def __init__(self, address: tuple[str, int], data: bytes) -> None:
        self._socket = socket.create_connection(address)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self._socket.makefile("rb")
        self._data = data

    def send(self) -> None:
        self._socket.sendall(self._data)

    def receive(self) -> None:
        (length,) = struct.unpack(">i", self._file.read(4))
        self._file.read(length)

    def call(self) -> float:
        began = time.perf_counter()
        self.send()
        self.receive()
        return time.perf_counter() - began

    def close(self) -> None:
        self._file.close()
        self._socket.close()


def flood(address: tuple[str, int], running: Event, ended: Event) -> None:
    """The hot tenant, while `running` is set."""
    data = frame(HOT, "hot", HOT_BYTES)
    while not ended.is_set():
        if not running.wait(0.1):
            continue
        connections = [Connection(address, data) for _ in range(HOT_CONNECTIONS)]
        for connection in connections:
            for _ in range(IN_FLIGHT - 1):
                connection.send()
        while running.is_set():
            for connection in connections:
                connection.call()
        for connection in connections:
            connection.close()


@contextmanager
def hot_tenant(address: tuple[str, int]) -> Iterator[Event]:
    context = multiprocessing.get_context("spawn")
    running, ended = context.Event(), context.Event()
    process = context.Process(target=flood, args=(address, running, ended), daemon=True)
    process.start()
    try:
        yield running
    finally:
        ended.set()
        running.clear()
        process.join(5)
        process.kill()


def quiet_latencies(connection: Connection, seconds: float) -> list[float]:
    """Of a record at a steady pace; one that comes late is measured from when it was due."""
    latencies, due = [], time.perf_counter()
    end = due + seconds
    while due < end:
        wait = due - time.perf_counter()
        if wait > 0:
            time.sleep(wait)
        connection.call()
        latencies.append(time.perf_counter() - due)
        due += PACE_SECONDS
    return latencies


def isolation(quick: bool) -> Iterator[Row]:
    rounds, seconds = (8, 1.5) if quick else (20, 3.0)
    found: dict[str, list[float]] = {"alone": [], "unbounded": [], "bounded": []}
    p99: dict[str, list[float]] = {kind: [] for kind in found}
    rates: dict[str, list[float]] = {kind: [] for kind in found}
    with Broker(WINDOWS, process=True, admin=False) as broker, broker.client() as client:
        client.create_topic(QUIET, 1)
        client.create_topic(HOT, 1)
        address = address_of(broker.bootstrap)
        quiet = Connection(address, frame(QUIET, QUIET, 100))
        with hot_tenant(address) as running:
            quiet_latencies(quiet, 1.0)
            client.alter_quotas({"client-id": HOT}, {"producer_byte_rate": QUOTA})
            for kind in ["alone", "bounded"] * rounds + ["unbounded"]:
                if kind == "unbounded":
                    client.alter_quotas({"client-id": HOT}, remove=["producer_byte_rate"])
                if kind != "alone":
                    running.set()
                    quiet_latencies(quiet, 2.0)
                before = _requests(client)
                latencies = quiet_latencies(quiet, seconds)
                found[kind] += latencies
                p99[kind].append(percentile(latencies, 0.99) * 1e3)
                rates[kind].append((_requests(client) - before) * HOT_BYTES / seconds / 1e6)
                running.clear()
                quiet_latencies(quiet, 0.5)
        quiet.close()
    for kind, name in (
        ("bounded", "p99 of a tenant next to a busy one with a quota"),
        ("unbounded", "p99 of a tenant next to a busy one without a quota"),
    ):
        yield Row(
            name=name,
            value=statistics.median(p99[kind]),
            unit="ms",
            reference=statistics.median(p99["alone"]),
            reference_name="the tenant alone",
            lower_is_better=True,
            note=f"p50 {percentile(found[kind], 0.5) * 1e3:.2f} ms, alone"
            f" {percentile(found['alone'], 0.5) * 1e3:.2f}; the hot one"
            f" {statistics.median(rates[kind]):.1f} MB/s",
        )


def cost(quick: bool) -> Iterator[Row]:
    rounds = 5 if quick else 15
    quotas: dict[str, dict[str, str | None]] = {
        "no quota": {},
        "a quota of another client": {"client-id": "nobody"},
        "a quota that is not reached": {"client-id": QUIET},
    }
    found: dict[str, list[float]] = {kind: [] for kind in quotas}
    with Broker(process=True, admin=False) as broker, broker.client() as client:
        client.create_topic(QUIET, 1)
        connection = Connection(address_of(broker.bootstrap), frame(QUIET, QUIET, 100))
        pid = broker.pid or os.getpid()
        _burst(connection)
        for _ in range(rounds):
            for kind, entity in quotas.items():
                if entity:
                    client.alter_quotas(entity, {"producer_byte_rate": 1e15})
                began = cpu_seconds(pid) or 0.0
                _burst(connection)
                found[kind].append(((cpu_seconds(pid) or 0.0) - began) / BATCH_OF_REQUESTS * 1e6)
                if entity:
                    client.alter_quotas(entity, remove=["producer_byte_rate"])
        connection.close()
    reference = statistics.median(found["no quota"])
    for kind, prediction in (
        ("a quota of another client", 62.0),
        ("a quota that is not reached", 65.0),
    ):
        yield Row(
            name=f"processor time of a small produce request, {kind}",
            value=statistics.median(found[kind]),
            unit="µs",
            prediction=prediction,
            reference=reference,
            reference_name="no quota",
            lower_is_better=True,
        )


def _burst(connection: Connection) -> None:
    """Sixteen requests on their way at a time."""
    for _ in range(16):
        connection.send()
    for _ in range(BATCH_OF_REQUESTS - 16):
        connection.receive()
        connection.send()
    for _ in range(16):
        connection.receive()


def _requests(client: Client) -> int:
    """How many requests of the hot tenant there are in the log."""
    (end,) = client.list_offsets(HOT, "latest").values()
    return end


def address_of(bootstrap: str) -> tuple[str, int]:
    """Host and port."""
    host, _, port = bootstrap.rpartition(":")
    return host, int(port)


def measure(quick: bool = False) -> list[Row]:
    """All rows."""
    return [*cost(quick), *isolation(quick)]
