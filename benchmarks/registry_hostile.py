"""Large schemas sent to the registry, and what they cost other clients: p99 of their look-ups.

Four clients look up random ids every 2 ms, alone and while another client registers a large schema
again and again, each time over a new connection. That client shares the cores with the others and
with the registry, so each load is measured at the registry of another broker of the machine as well
(`peers.beside`).

Prediction: the event loop receives at most 1 MB, decodes it and passes it to a process of lower
priority, 3 ms of each request; what parses and compares the schemas does not delay look-ups. So
their p99 is at most 1.5 times that beside the same load at another broker, and 2 times that alone.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any, Final

from benchmarks.harness import Row
from benchmarks.peers.beside import ELSEWHERE, HERE, compared_rows, load_makers
from benchmarks.registry import Connection, registration, request, served
from penstock.apps.loads.figures import percentile

CLIENTS, SCHEMAS = 4, 100
PAUSE_SECONDS = 0.002
SETTLE_SECONDS = 0.5
ALONE = "without them"
PREDICTED_TIMES: Final = {ELSEWHERE: 1.5, ALONE: 2.0}
AIM_TIMES = 2.0


def _schema(text: str, kind: str = "AVRO") -> bytes:
    body = json.dumps({"schema": text, "schemaType": kind}).encode()
    return request("POST", "/subjects/hostile-value/versions", body)


def _json(schema: Any) -> bytes:
    return _schema(json.dumps(schema), "JSON")


def _fixed(count: int) -> bytes:
    branches = [{"type": "fixed", "name": f"a{number}", "size": 1} for number in range(count)]
    return _schema(json.dumps(branches))


def _message(fields: int) -> bytes:
    lines = "".join(f"int32 f{number}={number};" for number in range(1, fields + 1))
    return _schema(f'syntax="proto3";message M{{{lines}}}', "PROTOBUF")


def _constants(count: int) -> bytes:
    return _json({"oneOf": [{"const": number} for number in range(count)]})


def _endless() -> bytes:
    head = request("POST", "/subjects/hostile-value/versions", b"x")
    return head.replace(b"content-length: 1\r", b"content-length: 104857600\r") + bytes(8 << 20)


LOADS: Final[dict[str, Callable[[], bytes]]] = {
    "unions of 100,000 names": lambda: _schema(json.dumps([f"a{n}" for n in range(100_000)])),
    "unions of 15,000 fixed types": lambda: _fixed(15_000),
    "100,000 brackets": lambda: _schema("[" * 100_000),
    "Protobuf messages of 7,000 fields": lambda: _message(7_000),
    "Protobuf messages of 20 fields": lambda: _message(20),
    "JSON schemas of 5,000 constants": lambda: _constants(5_000),
    "regular expressions of 1,200 characters": lambda: _json({"pattern": "(a+)+$" * 200}),
    "bodies of 100 MB": _endless,
}  # fmt: skip


@cache
def load_of(name: str) -> bytes:
    """The request of a load, made once a process."""
    return LOADS[name]()


def send(name: str, port: int, seconds: float) -> float:
    """Send a request again and again; return how many were answered."""
    sent, answered, end = load_of(name), 0, time.monotonic() + seconds
    while time.monotonic() < end:
        with socket.create_connection(("127.0.0.1", port), 30) as connection:
            try:
                connection.sendall(sent)
                answered += bool(connection.recv(1))
            except ConnectionError:
                continue  # the registry closes connections whose bodies are too large
    return answered


async def _look_up(port: int, begin: float, seconds: float) -> list[float]:
    """Look up ids over one connection; return the seconds of each that began in the time."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    taken: list[float] = []
    while (now := time.monotonic()) < begin + seconds:
        wanted = random.randint(1, SCHEMAS)
        writer.write(request("GET", f"/schemas/ids/{wanted}?fetchMaxId=false&n={random.random()}"))
        head = await reader.readuntil(b"\r\n\r\n")
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        await reader.readexactly(int(length))
        if now >= begin:
            taken.append(time.monotonic() - now)
        await asyncio.sleep(PAUSE_SECONDS)
    writer.close()
    return taken


def p99_ms(port: int, begin: float, seconds: float) -> float:
    async def run() -> list[list[float]]:
        return await asyncio.gather(*[_look_up(port, begin, seconds) for _ in range(CLIENTS)])

    return percentile([second for own in asyncio.run(run()) for second in own], 0.99) * 1e3


def _register(port: int) -> None:
    async def run() -> None:
        requests = [registration(number, 0) for number in range(SCHEMAS)]
        made = await asyncio.get_running_loop().create_connection(
            lambda: Connection(requests), "127.0.0.1", port
        )
        await made[1].done

    asyncio.run(run())


def measure(*, quick: bool) -> list[Row]:
    """Measure each load; return its rows."""
    rounds, seconds = (1, 2.0) if quick else (3, 4.0)
    p99: dict[tuple[str, str], list[float]] = defaultdict(list)
    answered: dict[str, list[float]] = defaultdict(list)
    with ExitStack() as stack:
        pools = stack.enter_context(load_makers())
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-bench-")))
        ports = []
        for name in ("first", "second"):
            broker, port = served(directory / name)
            stack.enter_context(broker)
            ports.append(port)
        _register(ports[0])
        for name in LOADS:
            pools[HERE].apply(load_of, (name,))
        for _ in range(rounds):
            for name in LOADS:
                time.sleep(SETTLE_SECONDS)
                p99[name, ALONE].append(p99_ms(ports[0], time.monotonic(), seconds))
                for way, port in ((HERE, ports[0]), (ELSEWHERE, ports[1])):
                    running = pools[HERE].apply_async(send, (name, port, seconds + 1))
                    begun = time.monotonic() + SETTLE_SECONDS
                    p99[name, way].append(p99_ms(ports[0], begun, seconds))
                    count = running.get()
                    if way == HERE:
                        answered[name].append(count)
    return [row for name in LOADS for row in _rows(name, p99, answered[name])]


def _rows(name: str, p99: dict[tuple[str, str], list[float]], answered: list[float]) -> list[Row]:
    return compared_rows(
        f"p99 of a look-up beside {name}",
        {way: p99[name, way] for way in (HERE, *PREDICTED_TIMES)},
        PREDICTED_TIMES,
        AIM_TIMES,
        f"{statistics.median(answered):.0f} requests were answered",
    )
