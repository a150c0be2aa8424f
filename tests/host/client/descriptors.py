"""Clients that connect, lose their agent and are closed: no descriptor stays open.

    python -m tests.host.client.descriptors blocking|asyncio SOCKET

It is a process of its own, because it counts all that the process has open.
"""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
from pathlib import Path

import uvloop

from penstock.host import AsyncHostClient, HostClient
from tests.host.client.agents import PATIENCE_SECONDS, ThreadAgent, wait_for

ROUNDS = 5


def returncode(kind: str, path: str) -> int:
    """Return the exit status: 0 when nothing is left open."""
    root = Path(__file__).resolve().parents[3]
    return subprocess.run(
        [sys.executable, "-m", "tests.host.client.descriptors", kind, path],
        cwd=root,
        env={**os.environ, "PYTHONPATH": f"{root}:{root / 'src'}"},
        timeout=100,
        check=False,
    ).returncode


def count() -> int:
    return len(os.listdir("/proc/self/fd"))


def blocking(agent: ThreadAgent, path: str) -> None:
    with HostClient(path, ring_bytes=1 << 20) as client:
        client.send(b"x", timeout=PATIENCE_SECONDS)
        agent.cut()
        client.send(b"x", timeout=PATIENCE_SECONDS)


def in_a_loop(agent: ThreadAgent, path: str) -> None:
    async def use() -> None:
        async with AsyncHostClient(path, ring_bytes=1 << 20) as client:
            await client.publish(b"x")
            await asyncio.to_thread(agent.cut)
            await client.publish(b"x")

    uvloop.run(use())


def main(kind: str, path: str) -> None:
    use = {"blocking": blocking, "asyncio": in_a_loop}[kind]
    with ThreadAgent(path) as agent:
        use(agent, path)  # what is opened once and kept, such as a thread pool's, is open now
        wait_for(lambda: not agent.agent.connections)
        gc.collect()
        before = count()
        for _ in range(ROUNDS):
            use(agent, path)
        wait_for(lambda: not agent.agent.connections)
        assert count() == before, sorted(
            os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
