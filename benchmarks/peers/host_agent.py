"""An agent with a null sink around the server's connections, and nothing else.

    python -m benchmarks.peers.host_agent PATH

It answers `stats` on its standard input with the bytes that went in and out so far.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import time
from collections.abc import Sequence

import uvloop

from benchmarks.peers.unix_socket import enlarge, listen
from penstock.base.buffers import ReceivePool
from penstock.host.credits import Credit
from penstock.host.port import ChunkSink, Introduction
from penstock.host.server.connection import HostConnection
from penstock.host.server.door import Introduced
from penstock.host.server_machine import ServerTerms
from penstock.host.sinks.null import NullSink

MEBIBYTE = 1 << 20
TERMS = ServerTerms(
    credit=Credit(65_536, 1 << 30, 64 * MEBIBYTE),
    frame_bytes_max=16 * MEBIBYTE,
    idle_timeout_ms=60_000,
    ping_interval_ms=20_000,
    retry_after_ms=50,
    ring_bytes_max=256 * MEBIBYTE,
)
SCRATCH_BYTES = MEBIBYTE


class Door:
    """What connections need of their agent."""

    def __init__(self) -> None:
        self.sink: ChunkSink = NullSink()
        self.pool = ReceivePool(256 * MEBIBYTE)
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        self.draining = False
        self.bytes_in = 0
        self.bytes_out = 0

    def now_ms(self) -> float:
        """Monotonic milliseconds."""
        return time.monotonic() * 1000

    def terms(self) -> ServerTerms:
        """The same for all."""
        return TERMS

    def opened(self, connection: HostConnection) -> bool:
        """Everybody is let in."""
        return True

    def closed(self, connection: HostConnection, lost_frames: int, reason: str) -> None:
        """Nothing is kept of a connection."""

    def rejected(self, connection: HostConnection, error: Exception) -> None:
        """Say it; the benchmark fails at the other end."""
        print(f"rejected: {error}", file=sys.stderr)

    def introduce(
        self, connection: HostConnection, producer_id: int, topics: Sequence[str], done: Introduced
    ) -> None:
        """Answer at once."""
        done(Introduction(producer_id=1 if producer_id < 0 else producer_id))


async def serve(listener: socket.socket) -> None:
    """Accept for ever."""
    loop = asyncio.get_running_loop()
    door = Door()
    listener.setblocking(False)

    def answer() -> None:
        if sys.stdin.readline():
            figures = {"bytes_in": door.bytes_in, "bytes_out": door.bytes_out}
            print(json.dumps(figures), flush=True)
        else:
            loop.remove_reader(sys.stdin.fileno())

    loop.add_reader(sys.stdin.fileno(), answer)
    print("ready", flush=True)
    while True:
        accepted, _ = await loop.sock_accept(listener)
        enlarge(accepted)
        HostConnection(accepted, door, loop).start()


if __name__ == "__main__":
    uvloop.run(serve(listen(sys.argv[1])))
