"""Bare program between an object store and a consumer: GETs ahead, and a socket.

    python -m benchmarks.peers.range_forwarder URL OPTIONS PREFIX RANGE_BYTES

It reads the ranges of all segments below a prefix with the broker's client library, and as many
ahead as the broker does. A consumer requests the next range by one byte. It does not use the Kafka
protocol, checks no batches, and caches nothing.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections import deque

import uvloop

from penstock.objects import open_store
from penstock.partitions.tiers.part import CHUNKS_AHEAD


async def serve(url: str, options: str, prefix: str, range_bytes: int) -> None:
    """Serve one connection after another."""
    loop = asyncio.get_running_loop()
    store = open_store(url, options=json.loads(options))
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    print("ready", listener.getsockname()[1], flush=True)
    while True:
        connection, _ = await loop.sock_accept(listener)
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        logs = [info async for info in store.list(prefix) if info.key.endswith(".log")]
        ranges = deque(
            (info.key, start, min(range_bytes, info.size_bytes - start))
            for info in logs
            for start in range(0, info.size_bytes, range_bytes)
        )
        ahead: deque[asyncio.Task[memoryview]] = deque()
        while await loop.sock_recv(connection, 1):
            while ranges and len(ahead) <= CHUNKS_AHEAD:
                ahead.append(loop.create_task(store.get(*ranges.popleft())))
            content = await ahead.popleft() if ahead else memoryview(b"")
            await loop.sock_sendall(connection, len(content).to_bytes(4, "big"))
            await loop.sock_sendall(connection, content)
        connection.close()


if __name__ == "__main__":
    url, options, prefix, size = sys.argv[1:]
    uvloop.run(serve(url, options, prefix, int(size)))
