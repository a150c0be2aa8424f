"""HTTP over loopback: the same payloads, posted one after another over one connection.

    python -m benchmarks.peers.http_ingest

The server is uvicorn with Starlette and does nothing but read the body; it says its port.
"""

from __future__ import annotations

import asyncio
import http.client
import socket
import time

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

KEEP_ALIVE_SECONDS = 3600
"""The one connection is idle while the other contenders have their turn."""


class Producer:
    """A client that posts payloads over one kept connection."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port)
        self._connection.connect()
        self._connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def post(self, payload: bytes, count: int) -> float:
        """Megabytes a second, each payload answered before the next one leaves."""
        begun = time.perf_counter()
        for _ in range(count):
            self.send(payload)
        return len(payload) * count / (time.perf_counter() - begun) / 1e6

    def send(self, payload: bytes) -> None:
        """One there, an answer back."""
        self._connection.request("POST", "/v1/ingest", payload)
        response = self._connection.getresponse()
        response.read()
        if response.status != 204:
            raise RuntimeError(f"the server answered {response.status}")


async def _ingest(request: Request) -> Response:
    await request.body()
    return Response(status_code=204)


async def _serve() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    app = Starlette(routes=[Route("/v1/ingest", _ingest, methods=["POST"])])
    server = uvicorn.Server(
        uvicorn.Config(
            app, log_level="warning", loop="uvloop", timeout_keep_alive=KEEP_ALIVE_SECONDS
        )
    )
    print(f"ready {listener.getsockname()[1]}", flush=True)
    await server.serve(sockets=[listener])


if __name__ == "__main__":
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve())
