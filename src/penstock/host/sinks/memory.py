"""Sink that keeps copies of frames in memory until they are drained, for tests and embedding.

Accepted means that this process holds the frame, until it ends. The memory is bounded. A frame that
does not fit is failed as retryable, because a `drain` may make room. A stand-alone agent never
drains (`drained=False`). There it is rejected permanently, so that no producer waits for ever."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from penstock.base.system import SYSTEM_RANDOMNESS, Randomness
from penstock.host.errors import SinkUnavailable
from penstock.host.port import (
    ACCEPTED,
    NO_PRODUCER_ID,
    ChunkFormat,
    Chunks,
    Completion,
    Failed,
    Introduction,
    Verdict,
)
from penstock.host.sinks import counting
from penstock.host.sinks.counting import Counts

MEMORY_BYTES_MAX: Final = 256 << 20
"""Maximum bytes that the memory sink holds until they are drained."""
MEMORY_FRAMES_MAX: Final = 100_000
"""Maximum number of frames that the memory sink holds until they are drained."""


class StoredFrame(Struct, frozen=True, kw_only=True):
    """Copy of an accepted frame; `chunks` are the bytes of its chunks, in order."""

    producer_id: int
    producer_epoch: int
    first_sequence: int
    event_count: int
    topic: str
    partition: int
    log_sequence: int
    format: ChunkFormat
    chunks: tuple[bytes, ...]
    size_bytes: int


class MemorySink:
    """Sink that keeps frames until `drain` removes them."""

    name = "memory"
    stands_on = ""

    def __init__(
        self,
        *,
        bytes_max: int = MEMORY_BYTES_MAX,
        frames_max: int = MEMORY_FRAMES_MAX,
        frame_bytes_max: int = counting.FRAME_BYTES_MAX,
        retry_after_ms: int = counting.RETRY_AFTER_MS,
        drained: bool = True,
        randomness: Randomness = SYSTEM_RANDOMNESS,
    ) -> None:
        self.frame_bytes_max = min(frame_bytes_max, bytes_max)
        self.counts = Counts()
        self.held_bytes = 0
        self._bytes_max = bytes_max
        self._frames_max = frames_max
        self._retry_after_ms = retry_after_ms if drained else 0
        self._drained = drained
        self._randomness = randomness
        self._frames: deque[StoredFrame] = deque()
        self._full = ""  # why the last frame was sent back

    @property
    def retained_bytes(self) -> int:
        """Payload bytes without a verdict: always 0, because every frame is answered at once."""
        return 0

    async def start(self) -> None:
        """Do nothing."""

    async def stop(self, deadline_seconds: float) -> None:
        """Keep the frames until they are drained."""

    async def check(self) -> None:
        """Check that there is room.

        Raises:
            SinkUnavailable: the last frame did not fit, and nothing was drained since.
        """
        if self._full:
            raise SinkUnavailable(self._full)

    async def introduce(self, producer_id: int, topics: Sequence[str]) -> Introduction:
        """Return a random id for a producer without one; topics have no meaning here."""
        if producer_id == NO_PRODUCER_ID:
            producer_id = self._randomness.bits(counting.PRODUCER_ID_BITS)
        return Introduction(producer_id=producer_id)

    def accept(self, chunks: Chunks, complete: Completion) -> Verdict:
        size_bytes = len(chunks.payload)
        if len(self._frames) >= self._frames_max or self.held_bytes + size_bytes > self._bytes_max:
            self._full = (
                f"the memory sink is full: it holds {len(self._frames)} frames of"
                f" {self.held_bytes} bytes; its limits are {self._frames_max} frames and"
                f" {self._bytes_max} bytes (host.memory.bytes)"
            )
            full = Failed(self._full, self._drained, self._retry_after_ms)
            return self.counts.frame(chunks, full)
        self._full = ""
        self._frames.append(_copy(chunks))
        self.held_bytes += size_bytes
        return self.counts.frame(chunks, ACCEPTED)

    def drain(self, frames_max: int | None = None) -> list[StoredFrame]:
        """Remove and return the oldest frames, at most `frames_max`, or all."""
        count = len(self._frames) if frames_max is None else min(frames_max, len(self._frames))
        drained = [self._frames.popleft() for _ in range(count)]
        self.held_bytes -= sum(frame.size_bytes for frame in drained)
        if drained:
            self._full = ""
        return drained


def _copy(chunks: Chunks) -> StoredFrame:
    content = bytes(chunks.payload)
    offsets, lengths = chunks.offsets.tolist(), chunks.lengths.tolist()
    return StoredFrame(
        producer_id=chunks.producer_id,
        producer_epoch=chunks.producer_epoch,
        first_sequence=chunks.first_sequence,
        event_count=chunks.event_count,
        topic=chunks.topic,
        partition=chunks.partition,
        log_sequence=chunks.log_sequence,
        format=chunks.format,
        chunks=tuple(content[at : at + size] for at, size in zip(offsets, lengths, strict=True)),
        size_bytes=len(content),
    )


# Sink that counts frames and drops them, to measure the transport alone.
#
# It guarantees nothing: an accepted chunk is lost.


class NullSink:
    """Sink that accepts every frame and keeps none."""

    name = "null"
    stands_on = ""

    def __init__(
        self,
        *,
        frame_bytes_max: int = counting.FRAME_BYTES_MAX,
        randomness: Randomness = SYSTEM_RANDOMNESS,
    ) -> None:
        self.frame_bytes_max = frame_bytes_max
        self.counts = Counts()
        self._randomness = randomness

    @property
    def retained_bytes(self) -> int:
        return 0

    async def start(self) -> None:
        """Do nothing."""

    async def stop(self, deadline_seconds: float) -> None:
        """Do nothing."""

    async def check(self) -> None:
        """Do nothing, because every frame is accepted."""

    async def introduce(self, producer_id: int, topics: Sequence[str]) -> Introduction:
        """Return a random id for a producer without one; topics have no meaning here."""
        if producer_id == NO_PRODUCER_ID:
            producer_id = self._randomness.bits(counting.PRODUCER_ID_BITS)
        return Introduction(producer_id=producer_id)

    def accept(self, chunks: Chunks, complete: Completion) -> Verdict:
        return self.counts.frame(chunks, ACCEPTED)
