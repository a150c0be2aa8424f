"""The schema registry beside Karapace: registrations, look-ups by id, and a restart.

10,000 Avro schemas are registered, four versions for each subject, each of which is compared with
the one before. Then clients look up random ids, first while no response is cached, as it is after
each change of the registry, then from the cache. Rates count the server's CPU seconds, so that the
clients' share of the machine does not matter; the 99th percentile is that of clients that wait for
each response. A restart lasts until the ready line, beside one over an empty directory.

Karapace runs if `PENSTOCK_BENCH_KARAPACE` names its program (`benchmarks/peers/karapace.py`).
Without it, the reference is the aim of the design, and the row's name of the reference says so.

Prediction: a look-up is one request of an HTTP server, 25 µs from the cache, 100 µs otherwise. A
registration parses two schemas, compares them and waits for a transaction that it shares with the
other clients: 500 µs.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import statistics
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from compat.servers import PenstockProcess
from tests.ports import free_port

from benchmarks.harness import Row
from benchmarks.peers.karapace import karapace
from penstock.apps.loads.figures import cpu_seconds

VERSIONS: Final = 4
CLIENTS: Final = 16
LOOKUP_CLIENTS: Final = 8
ABSENT: Final = "aim (Karapace was absent)"
AIMS: Final = {"registrations": 1_000.0, "uncached": 6_000.0, "cached": 6_000.0}
LATE_MS: Final = {"uncached": 3.0, "cached": 3.0}
"""Aims of the design. A registration has none for its percentile."""
_LENGTH: Final = re.compile(rb"\r\ncontent-length: (\d+)", re.IGNORECASE)


class Connection(asyncio.Protocol):
    """HTTP connection that sends one request after the other, each after the last response."""

    def __init__(self, requests: Iterable[bytes]) -> None:
        self._requests = iter(requests)
        self._received = b""
        self._began = 0.0
        self.seconds: list[float] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._send()

    def _send(self) -> None:
        request = next(self._requests, None)
        if request is None:
            self._transport.close()
            self.done.set_result(None)
            return
        self._began = time.perf_counter()
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, end, body = self._received.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        if not end or length is None or len(body) < int(length[1]):
            return
        if b" 200 " not in head[:20]:
            self._transport.close()
            self.done.set_exception(RuntimeError(self._received.decode(errors="replace")))
            return
        self.seconds.append(time.perf_counter() - self._began)
        self._received = b""
        self._send()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(error or ConnectionError("the registry closed a connection"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Result of a load: its rates by wall time and by the server's CPU time, and a percentile."""

    per_second: float
    per_cpu_second: float
    p99_ms: float


def used_by(pid: int) -> float:
    """Return a process's CPU seconds."""
    found = cpu_seconds(pid)
    if found is None:
        raise RuntimeError("CPU time is read from /proc, which this system does not have")
    return found


def run(port: int, pid: int, requests: Sequence[Sequence[bytes]]) -> Load:
    """Send requests, those of each list over a connection of its own."""

    async def send() -> list[float]:
        loop = asyncio.get_running_loop()
        made = []
        for own in requests:
            _, connection = await loop.create_connection(
                lambda own=own: Connection(own),  # type: ignore[misc]
                "127.0.0.1",
                port,
            )
            made.append(connection)
        await asyncio.gather(*[connection.done for connection in made])
        return sorted(second for connection in made for second in connection.seconds)

    cpu, began = used_by(pid), time.perf_counter()
    seconds = asyncio.run(send())
    wall, used = time.perf_counter() - began, used_by(pid) - cpu
    return Load(
        per_second=len(seconds) / wall,
        per_cpu_second=len(seconds) / max(used, 0.01),
        p99_ms=seconds[int(len(seconds) * 0.99)] * 1e3,
    )


def request(method: str, path: str, body: bytes = b"") -> bytes:
    kind = "content-type: application/vnd.schemaregistry.v1+json\r\n" if body else ""
    head = f"{method} {path} HTTP/1.1\r\nhost: registry\r\naccept: */*\r\n{kind}"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


def registration(subject: int, version: int) -> bytes:
    fields: list[dict[str, Any]] = [
        {"name": f"field{number}", "type": ["null", "string"], "default": None}
        for number in range(8 + version)
    ]
    fields.append({"name": f"of{subject}", "type": "long"})
    schema = {"type": "record", "name": f"Record{subject}", "namespace": "b", "fields": fields}
    body = json.dumps({"schema": json.dumps(schema)}).encode()
    return request("POST", f"/subjects/topic{subject}-value/versions", body)


def registrations(schemas: int) -> list[list[bytes]]:
    subjects = range(schemas // VERSIONS)
    return [
        [registration(subject, version) for subject in subjects[client::CLIENTS]
         for version in range(VERSIONS)]
        for client in range(CLIENTS)
    ]  # fmt: skip


def lookups(schemas: int, count: int) -> list[list[bytes]]:
    """Return look-ups of all ids in random order, repeated up to `count`."""
    ids = list(range(1, schemas + 1))
    random.Random(1).shuffle(ids)
    sent = [request("GET", f"/schemas/ids/{ids[n % schemas]}") for n in range(count)]
    return [sent[client::LOOKUP_CLIENTS] for client in range(LOOKUP_CLIENTS)]


def loads(port: int, pid: int, schemas: int, cached: int) -> dict[str, Load]:
    """Register schemas and look them up."""
    return {
        "registrations": run(port, pid, registrations(schemas)),
        "uncached": run(port, pid, lookups(schemas, schemas)),
        "cached": run(port, pid, lookups(schemas, cached)),
    }


def served(directory: Path) -> tuple[PenstockProcess, int]:
    port = free_port()
    configs = {"registry.enable": "true", "registry.listener": f"127.0.0.1:{port}"}
    return PenstockProcess(directory, configs=configs), port


def restarts(brokers: Sequence[PenstockProcess], count: int) -> list[float]:
    """Return the median time of a start of each broker; they start in turn."""
    seconds: list[list[float]] = [[] for _ in brokers]
    for _ in range(count):
        for broker, own in zip(brokers, seconds, strict=True):
            with broker:
                own.append(broker.start_seconds)
    return [statistics.median(own) for own in seconds]


def measure(*, quick: bool) -> list[Row]:
    schemas, cached, starts = (1_000, 5_000, 3) if quick else (10_000, 60_000, 7)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        directory = Path(name)
        broker, port = served(directory / "penstock")
        with broker:
            own = loads(port, broker.pid, schemas, cached)
        restart, empty = restarts([broker, served(directory / "empty")[0]], starts)
        with karapace(directory) as peer:
            other = None if peer is None else loads(peer.port, peer.pid, schemas, schemas)
    return [*_rows(own, other, schemas), _restart_row(restart, empty, schemas)]


def _rows(own: dict[str, Load], other: dict[str, Load] | None, schemas: int) -> list[Row]:
    reference = ABSENT if other is None else "Karapace"

    def rate(name: str, load: str, predicted: float) -> Row:
        return Row(
            name=name,
            value=own[load].per_cpu_second,
            unit="/CPU s",
            prediction=predicted,
            reference=AIMS[load] if other is None else other[load].per_cpu_second,
            reference_name=reference,
            note=f"{own[load].per_second:,.0f}/s by wall time",
        )

    def late(name: str, load: str, predicted: float) -> Row:
        return Row(
            name=name,
            value=own[load].p99_ms,
            unit="ms",
            prediction=predicted,
            reference=LATE_MS.get(load) if other is None else other[load].p99_ms,
            reference_name=reference,
            lower_is_better=True,
        )

    return [
        rate(f"registrations of {schemas:,} schemas, {CLIENTS} clients", "registrations", 2_000),
        late("registration, 99th percentile", "registrations", 20.0),
        rate(f"look-ups by id among {schemas:,} schemas, not cached", "uncached", 10_000),
        late("look-up, not cached, 99th percentile", "uncached", 2.0),
        rate("look-ups by id, cached", "cached", 40_000),
        late("look-up, cached, 99th percentile", "cached", 1.0),
    ]


def _restart_row(restart: float, empty: float, schemas: int) -> Row:
    return Row(
        name=f"start of a broker with {schemas:,} schemas until its ready line",
        value=restart,
        unit="s",
        prediction=empty + schemas * 30e-6,
        reference=empty,
        reference_name="empty registry",
        lower_is_better=True,
    )
