"""A relay between a producer and its agent that kills one of them at a frame's edge.

It passes frames on one by one, in both directions, and knows where each begins and ends. When the
frame of its plan comes, it stops before it, in its middle, or after it, sends SIGKILL to one side,
waits until that process is gone, and only then cuts the connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from penstock.wire.frames import PRELUDE_BYTES

UP, DOWN = "up", "down"
BEFORE, MIDDLE, AFTER = "before", "middle", "after"
AGENT, PRODUCER = "agent", "producer"
RETRY_SECONDS = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Kill `victim` at the `index`-th frame of a direction; both count from 0."""

    direction: str
    index: int
    when: str
    victim: str
    stop_at: int = -1
    """The frame down before which the agent is told to stop; it drains from then on."""


class Cut(Exception):
    """The connection is over."""


class Relay:
    """Listens for one producer on `path` and passes it on to the agent at `target`."""

    def __init__(self, path: str, target: str, gone: Callable[[int], Awaitable[object]]) -> None:
        self._target = target
        self._gone = gone
        self._loop = asyncio.get_running_loop()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.setblocking(False)
        self._listener.bind(path)
        self._listener.listen()
        self._task = self._loop.create_task(self._accept())
        self.plan: Plan | None = None
        self._pids: dict[str, int] = {}
        self._introduced = asyncio.Event()
        self._dying = 0
        self.killed = asyncio.Event()

    def begin(self, plan: Plan | None) -> None:
        """The next producer is another one."""
        self.plan = plan
        self.killed.clear()
        self._introduced.clear()

    def introduce(self, pids: dict[str, int]) -> None:
        """Identify the two ends; nothing is killed before that."""
        self._pids = pids
        self._introduced.set()

    async def close(self) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._listener.close()

    async def _accept(self) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                producer, _ = await self._loop.sock_accept(self._listener)
                group.create_task(self._connect(producer))

    async def _connect(self, producer: socket.socket) -> None:
        producer.setblocking(False)
        with producer, socket.socket(socket.AF_UNIX) as agent:
            agent.setblocking(False)
            while True:
                try:
                    await self._loop.sock_connect(agent, self._target)
                    break
                except (ConnectionRefusedError, FileNotFoundError, BlockingIOError):
                    await asyncio.sleep(RETRY_SECONDS)
            pumps = [
                self._loop.create_task(self._pump(producer, agent, UP)),
                self._loop.create_task(self._pump(agent, producer, DOWN)),
            ]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                results = await asyncio.gather(*pumps, return_exceptions=True)
            if self._dying:
                await self._gone(self._dying)
                self._dying = 0
                self.killed.set()
        for result in results:
            if isinstance(result, Exception) and not isinstance(result, (Cut, OSError)):
                raise result

    async def _pump(self, source: socket.socket, target: socket.socket, direction: str) -> None:
        data = bytearray()
        index = 0
        while True:
            received = await self._loop.sock_recv(source, 1 << 20)
            if not received:
                raise Cut
            data += received
            while len(data) >= PRELUDE_BYTES:
                size = PRELUDE_BYTES + int.from_bytes(data[:4])
                if len(data) < size:
                    break
                frame = bytes(data[:size])
                del data[:size]
                await self._pass(frame, index, target, direction)
                index += 1

    async def _pass(self, frame: bytes, index: int, target: socket.socket, direction: str) -> None:
        plan = self.plan
        if plan is not None and direction == DOWN and index == plan.stop_at:
            await self._stop_agent()
        if plan is None or (plan.direction, plan.index) != (direction, index):
            await self._loop.sock_sendall(target, frame)
            return
        self.plan = None
        sent = {BEFORE: 0, MIDDLE: len(frame) // 2, AFTER: len(frame)}[plan.when]
        await self._loop.sock_sendall(target, frame[:sent])
        await self._introduced.wait()
        self._dying = self._pids[plan.victim]
        os.kill(self._dying, signal.SIGKILL)
        raise Cut

    async def _stop_agent(self) -> None:
        """Have the agent drain, and wait until it has left its path."""
        await self._introduced.wait()
        os.kill(self._pids[AGENT], signal.SIGTERM)
        while os.path.lexists(self._target):
            await asyncio.sleep(RETRY_SECONDS)
