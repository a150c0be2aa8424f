"""A network before a server on loopback: every byte towards the server comes some time later.

    python -m benchmarks.peers.slow_network TARGET_PORT

A request thus takes its latency more, however large it is, and connections are kept, as over a
real network; opening one costs nothing more. Requests are noticed by the verb that a piece begins
with, so that they are counted where they are sent and not by who sends them.

It says `ready PORT`, then answers lines: `latency MS`, `forget` (what was counted so far), and
`requests`: a JSON list of [monotonic seconds, verb].
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from typing import Any, cast

import uvloop

from benchmarks.peers.orders import serve_orders

VERBS = {b"GET ": "GET", b"PUT ": "PUT", b"HEAD": "HEAD", b"POST": "POST", b"DELE": "DELETE"}


class Network:
    """What all connections share: the latency, and the requests seen so far."""

    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        self.latency_seconds = 0.0
        self.requests: list[tuple[float, str]] = []

    def order(self, line: str) -> str:
        """Do as a line says, and answer it."""
        word, _, rest = line.partition(" ")
        if word == "latency":
            self.latency_seconds = float(rest) / 1000
        elif word == "forget":
            self.requests.clear()
        elif word == "requests":
            return json.dumps(self.requests)
        else:
            raise ValueError(f"what is {line!r}?")
        return "done"


class Towards(asyncio.Protocol):
    """The client's side: what it sends is passed on later."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._loop = asyncio.get_running_loop()
        self._waiting: list[bytes] = []
        self._server: asyncio.Transport | None = None
        self._opening: asyncio.Task[Any] | None = None
        self._due = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._client = cast("asyncio.Transport", transport)
        self._opening = self._loop.create_task(self._open())

    async def _open(self) -> None:
        port = self._network.target_port
        back = Back(self._client)
        self._server, _ = await self._loop.create_connection(lambda: back, "127.0.0.1", port)
        waiting, self._waiting = self._waiting, []
        self._server.writelines(waiting)

    def data_received(self, data: bytes) -> None:
        verb = VERBS.get(data[:4])
        if verb is not None:
            self._network.requests.append((time.monotonic(), verb))
        self._later(lambda: self._pass_on(data))

    def _later(self, action: Callable[[], None]) -> None:
        """In order, even when the latency falls."""
        self._due = max(self._due, self._loop.time() + self._network.latency_seconds)
        self._loop.call_at(self._due, action)

    def _pass_on(self, data: bytes) -> None:
        if self._server is None:
            self._waiting.append(data)
        elif not self._server.is_closing():
            self._server.write(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._later(self._close)

    def _close(self) -> None:
        if self._server is not None:
            self._server.close()


class Back(asyncio.Protocol):
    """The server's side: its answers are passed on at once, no faster than they are taken."""

    def __init__(self, client: asyncio.Transport) -> None:
        self._client = client

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._server = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        # a client that has gone, as one that gives a request up, gets nothing more
        if not self._client.is_closing():
            self._client.write(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._client.close()


async def main() -> None:
    network = Network(int(sys.argv[1]))
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Towards(network), "127.0.0.1", 0)
    await serve_orders(str(server.sockets[0].getsockname()[1]), network.order)


if __name__ == "__main__":
    uvloop.run(main())
