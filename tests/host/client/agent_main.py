"""An agent as a process of its own: `python agent_main.py SINK SOCKET [SETTING=VALUE …]`.

Says "ready" on its output when it listens; ends in good order on SIGTERM. The sink `slow` accepts
after the seconds in SLOW; `log` takes its bootstrap address from BOOTSTRAP.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from functools import partial

import uvloop

from penstock.base.settings import load
from penstock.host.port import (
    ACCEPTED,
    PENDING,
    Chunks,
    ChunkSink,
    Completion,
    Introduction,
    Verdict,
)
from penstock.host.server.agent import HostAgent
from penstock.host.server.settings import HostSettings
from penstock.host.sinks.log import LogSink, LogSinkOptions
from penstock.host.sinks.memory import MemorySink, NullSink


class SlowSink(NullSink):
    """Accepts everything, later, and says that every topic has four partitions."""

    async def introduce(self, producer_id: int, topics: Sequence[str]) -> Introduction:
        known = await super().introduce(producer_id, topics)
        return Introduction(producer_id=known.producer_id, partitions=dict.fromkeys(topics, 4))

    def accept(self, chunks: Chunks, complete: Completion) -> Verdict:
        delay = float(os.environ.get("SLOW", "0"))
        asyncio.get_running_loop().call_later(delay, partial(complete, ACCEPTED))
        return PENDING


def make_sink(name: str) -> ChunkSink:
    if name == "log":
        return LogSink(LogSinkOptions(bootstrap=os.environ["BOOTSTRAP"]))
    sinks: dict[str, ChunkSink] = {"null": NullSink(), "memory": MemorySink(), "slow": SlowSink()}
    return sinks[name]


async def main(sink: str, path: str, *settings: str) -> None:
    values = dict(item.split("=", 1) for item in settings)
    agent = HostAgent(load(HostSettings, {"host.socket.path": path, **values}), make_sink(sink))
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await agent.start()
    print("ready", flush=True)
    await stop.wait()
    await agent.stop()


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
