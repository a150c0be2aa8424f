"""Agents to try clients against: one in a thread, one in a process, and one played by the test."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import uvloop

from penstock.base.settings import load
from penstock.host.port import (
    ACCEPTED,
    PENDING,
    Chunks,
    ChunkSink,
    Completion,
    FinalVerdict,
    Verdict,
)
from penstock.host.server.agent import HostAgent
from penstock.host.server.settings import HostSettings
from penstock.host.sinks.memory import MemorySink, StoredFrame
from penstock.wire.frames import DATA, DATA_BATCH, HELLO, HELLO_ACK, Frame, Header, decode, encode

PATIENCE_SECONDS = 20.0
CONNECT_MS = 60_000
"""For clients of agents that the test plays: it may be held up before it answers HELLO."""
MAIN = Path(__file__).with_name("agent_main.py")


def wait_for(condition: Callable[[], bool], seconds: float = PATIENCE_SECONDS) -> None:
    """Wait for a condition that another thread or process makes true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.002)


class GateSink(MemorySink):
    """A memory sink whose verdicts wait while the gate is closed."""

    def __init__(self, *, open_: bool = True) -> None:
        super().__init__(bytes_max=1 << 30)
        self.open = open_
        self.partitions = 4
        self.answer: FinalVerdict | None = None
        """Instead of what the memory sink says, once."""
        self._waiting: list[tuple[Completion, Verdict]] = []

    async def introduce(self, producer_id: int, topics: Any) -> Any:
        from penstock.host.port import Introduction

        known = await super().introduce(producer_id, topics)
        return Introduction(
            producer_id=known.producer_id, partitions=dict.fromkeys(topics, self.partitions)
        )

    def accept(self, chunks: Chunks, complete: Completion) -> Verdict:
        if self.answer is not None:
            answer, self.answer = self.answer, None
            return answer
        verdict = super().accept(chunks, complete)
        if self.open or verdict is not ACCEPTED:
            return verdict
        self._waiting.append((complete, ACCEPTED))
        return PENDING

    def release(self) -> None:
        self.open = True
        waiting, self._waiting = self._waiting, []
        for complete, _ in waiting:
            complete(ACCEPTED)

    async def stop(self, deadline_seconds: float) -> None:
        self.release()


class ThreadAgent:
    """An agent on a loop in a thread of the test's own process."""

    def __init__(self, path: str, sink: ChunkSink | None = None, **settings: object) -> None:
        self.sink = sink or MemorySink(bytes_max=1 << 30, frames_max=1 << 20)
        values = {name.replace("_", "."): value for name, value in settings.items()}
        self.agent = HostAgent(load(HostSettings, {"host.socket.path": path, **values}), self.sink)
        self._path = path
        self._ending: Future[None] | None = None
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def start(self) -> ThreadAgent:
        self._thread.start()
        self.run(self.agent.start())
        return self

    def run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_SECONDS)

    def call(self, function: Callable[[], Any]) -> Any:
        """Call a function on the agent's loop."""

        async def work() -> Any:
            return function()

        return self.run(work())

    def frames(self) -> list[StoredFrame]:
        """Take all chunks out of the memory sink."""
        assert isinstance(self.sink, MemorySink)
        return list(self.call(self.sink.drain))

    def cut(self) -> None:
        """End every connection, as a crash would, and stay."""

        def abort() -> None:
            for connection in self.agent.connections:
                connection.abort("cut")

        self.call(abort)

    def begin_stop(self) -> None:
        """Let the agent shut down, and do not wait: no producer can connect to it any more."""
        if self._ending is None:
            self._ending = asyncio.run_coroutine_threadsafe(self.agent.stop(), self._loop)
            wait_for(lambda: self.agent.connections.draining and not os.path.lexists(self._path))

    def stop(self) -> None:
        if self._thread.is_alive():
            self.begin_stop()
            assert self._ending is not None
            self._ending.result(PATIENCE_SECONDS)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(PATIENCE_SECONDS)
            self._loop.close()

    def __enter__(self) -> ThreadAgent:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


class ProcessAgent:
    """An agent as a process, which can be killed and started again."""

    def __init__(self, path: str, sink: str, *settings: str, **environment: str) -> None:
        self._arguments = [sys.executable, str(MAIN), sink, path, *settings]
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> ProcessAgent:
        self._process = subprocess.Popen(
            self._arguments, stdout=subprocess.PIPE, env={**os.environ, **self._environment}
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n"
        return self

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def _end(self, number: int) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(number)
            with process:
                process.wait(PATIENCE_SECONDS)

    def __enter__(self) -> ProcessAgent:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


class PlayedAgent:
    """A listening socket; the test itself says what the agent does."""

    def __init__(self, path: str) -> None:
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        self.listener.listen(64)
        self.listener.settimeout(PATIENCE_SECONDS)
        self._peer: socket.socket | None = None
        self._data = b""

    def accept(self) -> None:
        self.hang_up()
        self._peer, _ = self.listener.accept()
        self._peer.settimeout(PATIENCE_SECONDS)

    def hang_up(self) -> None:
        if self._peer is not None:
            self._peer.close()
            self._peer = None
        self._data = b""

    @property
    def peer(self) -> socket.socket:
        assert self._peer is not None
        return self._peer

    def receive(self) -> Frame | None:
        """The next frame, or None at the end of the connection."""
        while True:
            frame, size = decode(self._data, 0, 64 << 20)
            if frame is not None:
                self._data = self._data[size:]
                return frame
            more = self.peer.recv(1 << 20)
            if not more:
                return None
            self._data += more

    def receive_data(self) -> Header:
        frame = self.receive()
        assert frame is not None
        assert frame.header.type in (DATA, DATA_BATCH)
        return frame.header

    def send(self, **fields: Any) -> None:
        self.peer.sendall(encode(Header(**fields)))

    def welcome(self, **fields: Any) -> Header:
        """Accept a connection and answer its HELLO."""
        self.accept()
        frame = self.receive()
        assert frame is not None
        assert frame.header.type == HELLO
        self.send(
            **{
                "type": HELLO_ACK,
                "accepted": True,
                "version": 1,
                "producer_id": 7,
                "chunk_slots": 1000,
                "raw_events": 100_000,
                "payload_bytes": 64 << 20,
                "frame_bytes_max": 8 << 20,
                "idle_timeout_ms": 30_000,
                **fields,
            }
        )
        return frame.header

    def close(self) -> None:
        self.hang_up()
        self.listener.close()

    def __enter__(self) -> PlayedAgent:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self.close()
