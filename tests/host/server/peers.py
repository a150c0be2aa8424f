"""Counterparts of an agent under test: a raw socket that speaks frames or nonsense, and sinks."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from penstock.base.system import SYSTEM_CLOCK, Clock
from penstock.host.port import (
    ACCEPTED,
    PENDING,
    Chunks,
    Completion,
    FinalVerdict,
    Introduction,
    Verdict,
)
from penstock.host.server.agent import PLAIN_HTTP, HostAgent
from penstock.host.server.settings import HostSettings, HttpSecuritySettings
from penstock.security.audit import NO_AUDIT, Audit
from penstock.wire.frames import DATA, DATA_BATCH, HELLO, Frame, FrameType, Header, decode, encode

PATIENCE_SECONDS = 20.0
FRAME_BYTES_MAX = 64 << 20


class GateSink:
    """Sink that holds every frame until a test sets the verdict, and stores accepted chunks."""

    name = "gate"
    stands_on = "a gate"
    frame_bytes_max = 4 << 20

    def __init__(self, *, open_: bool = True) -> None:
        self.open = open_
        self.verdict: Verdict = ACCEPTED
        self.accepted: list[bytes] = []
        self.pending: list[tuple[Chunks, Completion]] = []
        self.stopped_after: float | None = None
        self.topics: list[tuple[str, ...]] = []
        self.introduction: asyncio.Event | None = None
        self.error: Exception | None = None
        self._next_id = 100

    @property
    def retained_bytes(self) -> int:
        return sum(len(chunks.payload) for chunks, _ in self.pending)

    async def start(self) -> None:
        if self.error is not None:
            raise self.error

    async def stop(self, deadline_seconds: float) -> None:
        self.stopped_after = deadline_seconds
        self.release()

    async def check(self) -> None:
        if self.introduction is not None:
            await self.introduction.wait()
        if self.error is not None:
            raise self.error

    async def introduce(self, producer_id: int, topics: Sequence[str]) -> Introduction:
        self.topics.append(tuple(topics))
        if self.introduction is not None:
            await self.introduction.wait()
        if self.error is not None:
            raise self.error
        if producer_id < 0:
            self._next_id += 1
            producer_id = self._next_id
        return Introduction(producer_id=producer_id, partitions={name: 3 for name in topics})

    def accept(self, chunks: Chunks, complete: Completion) -> Verdict:
        if self.open:
            if self.verdict is ACCEPTED:
                self._keep(chunks)
            return self.verdict
        chunks.keep()
        self.pending.append((chunks, complete))
        return PENDING

    def release(self, verdict: FinalVerdict = ACCEPTED) -> None:
        pending, self.pending = self.pending, []
        for chunks, complete in pending:
            if verdict is ACCEPTED:
                self._keep(chunks)
            chunks.release()
            complete(verdict)

    def _keep(self, chunks: Chunks) -> None:
        for at, size in zip(chunks.offsets.tolist(), chunks.lengths.tolist(), strict=True):
            self.accepted.append(bytes(chunks.payload[at : at + size]))


def hello(**fields: Any) -> bytes:
    fields = {"version_min": 1, "version_max": 1, **fields}
    return encode(Header(type=HELLO, **fields))


def data(sequence: int, payload: bytes = b"payload", **fields: Any) -> bytes:
    fields = {"first_sequence": sequence, "event_count": 1, **fields}
    return encode(Header(type=DATA, **fields), (payload,)) + payload


def batch(sequence: int, payloads: Sequence[bytes], **fields: Any) -> bytes:
    lengths = b"".join(len(payload).to_bytes(4, "little") for payload in payloads)
    header = {
        "first_sequence": sequence,
        "count": len(payloads),
        "event_count": len(payloads),
        "lengths": lengths,
        **fields,
    }
    return encode(Header(type=DATA_BATCH, **header), payloads) + b"".join(payloads)


class Peer:
    """Raw end of a socket to the agent."""

    def __init__(self, path: str) -> None:
        self._loop = asyncio.get_running_loop()
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.setblocking(False)
        self._path = path
        self._received = bytearray()

    async def connect(self) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                try:
                    await self._loop.sock_connect(self.socket, self._path)
                    return
                except BlockingIOError:  # the listener's queue is full
                    await asyncio.sleep(0.01)

    async def send(self, *frames: bytes) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self._loop.sock_sendall(self.socket, b"".join(frames))

    async def frame(self) -> Frame | None:
        """The next frame; None at the end of the stream."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                frame, size = decode(bytes(self._received), 0, FRAME_BYTES_MAX)
                if frame is not None:
                    del self._received[:size]
                    return frame
                try:
                    more = await self._loop.sock_recv(self.socket, 1 << 20)
                except ConnectionResetError:
                    more = b""
                if not more:
                    assert not self._received, "the stream ended within a frame"
                    return None
                self._received += more

    async def header(self) -> Header:
        frame = await self.frame()
        assert frame is not None, "the agent hung up"
        return frame.header

    async def expect(self, kind: FrameType, **fields: Any) -> Header:
        header = await self.header()
        assert header.type == kind, header
        for name, value in fields.items():
            assert getattr(header, name) == value, (name, header)
        return header

    async def ended(self) -> list[Header]:
        """Everything up to the end of the stream."""
        headers = []
        while (frame := await self.frame()) is not None:
            headers.append(frame.header)
        return headers

    async def introduced(self, **fields: Any) -> Header:
        await self.send(hello(**fields))
        return await self.header()

    def close(self) -> None:
        self.socket.close()


@asynccontextmanager
async def serving(
    sink: Any = None,
    *,
    settings: HostSettings | None = None,
    clock: Clock = SYSTEM_CLOCK,
    http_security: HttpSecuritySettings = PLAIN_HTTP,
    audit: Audit = NO_AUDIT,
    **options: Any,
) -> AsyncIterator[HostAgent]:
    """An agent in this loop, on a socket of its own."""
    with tempfile.TemporaryDirectory(prefix="ps-") as directory:
        path = str(Path(directory) / "host.sock")
        options = {"socket_path": path, "drain_timeout_ms": 2_000, **options}
        agent = HostAgent(
            settings or HostSettings(**options),
            sink or GateSink(),
            http_security=http_security,
            clock=clock,
            audit=audit,
        )
        await agent.start()
        try:
            yield agent
        finally:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await agent.stop()


@asynccontextmanager
async def peer(agent: HostAgent, *, introduce: bool = True, **fields: Any) -> AsyncIterator[Peer]:
    """A raw producer of an agent, which has sent HELLO by default."""
    one = Peer(agent.settings.socket_path)
    with contextlib.closing(one):
        await one.connect()
        if introduce:
            answer = await one.introduced(**fields)
            assert answer.accepted, answer
        yield one


async def until(condition: Callable[[], object]) -> None:
    """Wait for a condition of the agent in this loop."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():
            await asyncio.sleep(0.005)
