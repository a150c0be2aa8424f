"""A producer and an agent joined without a socket: real frames, real bytes, a clock by hand."""

from __future__ import annotations

from collections.abc import Callable

from penstock.host.client_machine import ClientTerms, Event
from penstock.host.credits import Credit
from penstock.host.delivery import Delivery
from penstock.host.port import ACCEPTED, Chunks, Failed, FinalVerdict, Introduction, Pending
from penstock.host.server_machine import (
    Close,
    Deliver,
    Effect,
    Introduce,
    ServerMachine,
    ServerTerms,
)
from penstock.wire.frames import Frame, decode

SERVER_TERMS = ServerTerms(
    credit=Credit(64, 1_000, 1 << 20),
    frame_bytes_max=1 << 20,
    idle_timeout_ms=30_000,
    ping_interval_ms=10_000,
    retry_after_ms=40,
    ring_bytes_max=1 << 20,
)
CLIENT_TERMS = ClientTerms()
Verdict = Callable[[Chunks], FinalVerdict | Pending]


def frames_of(data: bytes, frame_bytes_max: int = 1 << 20) -> list[Frame]:
    """Decode all whole frames."""
    frames, offset = [], 0
    while offset < len(data):
        frame, size = decode(data, offset, frame_bytes_max)
        assert frame is not None, "half a frame"
        frames.append(frame)
        offset += size
    return frames


class Pair:
    """A `Delivery` and the agent that it is connected to at the moment."""

    def __init__(
        self,
        *,
        terms: ClientTerms = CLIENT_TERMS,
        server_terms: ServerTerms = SERVER_TERMS,
        resend: bool = True,
        idempotent: bool = True,
        buffer_bytes_max: int = 1 << 20,
        buffer_frames_max: int = 1_000,
        delivery_timeout_ms: int = 60_000,
        producer_id: int = -1,
        producer_epoch: int = 0,
    ) -> None:
        self.now_ms = 1_000.0
        self.delivery = Delivery(
            terms,
            resend=resend,
            idempotent=idempotent,
            buffer_bytes_max=buffer_bytes_max,
            buffer_frames_max=buffer_frames_max,
            delivery_timeout_ms=delivery_timeout_ms,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
        )
        self.server_terms = server_terms
        self.server: ServerMachine | None = None
        self.ring = bytearray(terms.ring_bytes)
        self.verdict: Verdict = lambda chunks: ACCEPTED
        self.pending: list[Chunks] = []
        self.delivered: list[tuple[int, int, bytes]] = []
        """Log sequence, first sequence and payload of everything that the sink has seen."""
        self.hellos: list[tuple[int, int]] = []
        """Producer id and epoch of every HELLO."""
        self.events: list[Event] = []
        self.closed: list[str] = []
        self.partitions = {"t": 2}

    def connect(self, *, ring: bool = False, draining: bool = False) -> None:
        """Connect and shake hands; what waits is sent."""
        self.server = ServerMachine(self.server_terms, now_ms=self.now_ms, draining=draining)
        if ring:
            self.server.ring = memoryview(self.ring)
        self.delivery.connected(self.now_ms, ring=ring)
        self.exchange()

    def exchange(self) -> None:
        """Let both sides talk until neither has anything to say."""
        while self._to_server() or self._to_client():
            pass

    def advance(self, milliseconds: float) -> None:
        """Let time pass; both sides look at the clock, then talk."""
        self.now_ms += milliseconds
        self.events += self.delivery.tick(self.now_ms)
        if self.server is not None and (close := self.server.tick(self.now_ms)):
            self.closed.append(close.reason)
        self.exchange()

    def cut(self, reason: str = "cut") -> None:
        """End the connection on both sides; what was on its way is lost."""
        if self.server is not None:
            self.server.disconnected()
            self.server = None
        self.pending.clear()
        self.delivery.disconnected(reason, self.now_ms, 0.5)

    def complete(self, verdict: FinalVerdict = ACCEPTED, *, index: int = 0) -> None:
        """Return the verdict of a pending frame, by default the oldest."""
        assert self.server is not None
        self.server.completed(self.pending.pop(index), verdict)
        self.server.flush()
        self.exchange()

    def _to_server(self) -> bool:
        self.delivery.pump(self.now_ms)
        for publication in self.delivery.take_ring_writes():
            payload = b"".join(publication.payload)
            start = publication.ring_position
            self.ring[start : start + len(payload)] = payload
        data = b"".join(self.delivery.take_output())
        if self.server is not None and data:
            self.server.heard(self.now_ms)
            for frame in frames_of(data):
                self._perform(self.server.receive(frame))
            self.server.flush()
        return bool(data)

    def _perform(self, effect: Effect | None) -> None:
        server = self.server
        assert server is not None
        if isinstance(effect, Introduce):
            given = effect.producer_id if effect.producer_id >= 0 else 7
            self.hellos.append((effect.producer_id, self.delivery.machine.producer_epoch))
            server.introduced(
                Introduction(producer_id=given, partitions=self.partitions),
                ring=effect.ring_bytes > 0 and server.ring is not None,
            )
        elif isinstance(effect, Close):
            self.closed.append(effect.reason)
        elif isinstance(effect, Deliver):
            chunks = effect.chunks
            self.delivered.append(
                (chunks.log_sequence, chunks.first_sequence, bytes(chunks.payload))
            )
            verdict = self.verdict(chunks)
            if isinstance(verdict, Pending):
                self.pending.append(chunks)
            else:
                server.completed(chunks, verdict)

    def _to_client(self) -> bool:
        data = b"".join(self.server.take_output()) if self.server is not None else b""
        for frame in frames_of(data):
            self.events += self.delivery.receive(frame, self.now_ms)
        return bool(data)


def busy(chunks: Chunks) -> Failed:
    return Failed("busy", retryable=True, retry_after_ms=100)
