"""An agent in a process of its own, with the null sink or the log behind it.

    python -m benchmarks.peers.host_agent null PATH
    python -m benchmarks.peers.host_agent HOST:PORT PATH

It answers every line on its standard input with the bytes that went in and out so far.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys

import uvloop

from penstock.host.port import ChunkSink
from penstock.host.server.agent import HostAgent
from penstock.host.server.settings import HostSettings
from penstock.host.sinks.log import LogSink, LogSinkOptions
from penstock.host.sinks.memory import NullSink


def _sink(where: str) -> ChunkSink:
    return NullSink() if where == "null" else LogSink(LogSinkOptions(bootstrap=where))


async def serve(where: str, path: str) -> None:
    """Run until SIGTERM."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    agent = HostAgent(HostSettings(socket_path=path, drain_timeout_ms=1000), _sink(where))

    def answer() -> None:
        if sys.stdin.readline():
            figures = {
                "bytes_in": agent.connections.bytes_in,
                "bytes_out": agent.connections.bytes_out,
            }
            print(json.dumps(figures), flush=True)
        else:
            loop.remove_reader(sys.stdin.fileno())

    loop.add_reader(sys.stdin.fileno(), answer)
    await agent.start()
    print("ready", flush=True)
    await stop.wait()
    await agent.stop()


if __name__ == "__main__":
    uvloop.run(serve(*sys.argv[1:]))
