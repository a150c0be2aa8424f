"""Sink that writes each frame into the filesystem outbox, as one payload.

Accepted means what the outbox guarantees: the file is synced and renamed, its directory is synced,
and its pointer is published. A small payload is published itself, without a file.

The batch id is the frame's identity, `<producer id in hex>-<epoch>-<first sequence>`. So a repeated
frame finds the file of the first attempt, even if another agent wrote it, and its pointer names the
same batch. The directory of a file is the hour of the first attempt. This agent remembers it for
frames that it failed as retryable, but another agent does not know it. If the frame is sent to
another agent in another hour, it is written to a second directory. That only costs space: readers
ignore a batch id that they have read, and the sweeper removes both files.

The payload is copied when the frame is received. A writer that timed out may still read it after
the frame's verdict, when the producer may already overwrite it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from typing import Final, Protocol

from penstock.base.crc import crc32c
from penstock.base.errors import InvalidError, PenstockError
from penstock.base.system import SYSTEM_CLOCK, SYSTEM_RANDOMNESS, Clock, Randomness
from penstock.host.errors import SinkUnavailable
from penstock.host.port import (
    ACCEPTED,
    NO_PRODUCER_ID,
    PENDING,
    Chunks,
    Completion,
    Failed,
    FinalVerdict,
    Introduction,
    Verdict,
)
from penstock.host.sinks import counting
from penstock.host.sinks.counting import Counts, failure

JOINED_MAX: Final = 8
"""Maximum number of times that the same frame may wait for one write of the outbox."""
SENT_BACK_MAX: Final = 4096
"""Maximum number of failed frames for which the time of the first attempt is remembered."""

logger = logging.getLogger(__name__)

_UNSIGNED: Final = 2**64 - 1


class OutboxSender(Protocol):
    """Interface of an outbox writer that the sink uses; the writer's owner starts and stops it."""

    async def send(
        self,
        payload: bytes,
        *,
        partition_id: str,
        batch_id: str | None = None,
        event_count: int = 1,
        codec: str = "none",
        at_ms: int | None = None,
    ) -> object:
        """Write and publish a payload; return when the outbox guarantees it.

        Raises:
            PenstockError: the payload is not guaranteed.
        """
        ...


class NoPartitionId(InvalidError):
    """A frame names no topic, and the sink has no partition id."""


class _Pending:
    """Frame whose write is in progress; the same frame may be sent again and waits with it."""

    __slots__ = ("at_ms", "chunks", "completions", "content", "events", "size_bytes")

    def __init__(self, chunks: Chunks, complete: Completion, at_ms: int) -> None:
        self.at_ms = at_ms
        self.chunks = chunks.count
        self.content = _content(chunks)
        self.events = chunks.event_count
        self.size_bytes = len(chunks.payload)
        self.completions = [complete]


class OutboxSink:
    """Sink that writes frames to an outbox.

    Args:
        sender: the outbox writer.
        partition_id: the partition of all frames; without it each frame uses its topic.
        frame_bytes_max: maximum payload bytes of a frame.
        retained_bytes_max: maximum payload bytes of frames without a verdict.
    """

    name = "outbox"
    stands_on = ""

    def __init__(
        self,
        sender: OutboxSender,
        *,
        partition_id: str | None = None,
        frame_bytes_max: int = counting.FRAME_BYTES_MAX,
        retained_bytes_max: int = counting.RETAINED_BYTES_MAX,
        retained_frames_max: int = counting.RETAINED_FRAMES_MAX,
        retry_after_ms: int = counting.RETRY_AFTER_MS,
        clock: Clock = SYSTEM_CLOCK,
        randomness: Randomness = SYSTEM_RANDOMNESS,
    ) -> None:
        self.frame_bytes_max = min(frame_bytes_max, retained_bytes_max)
        self.counts = Counts()
        self._sender = sender
        self._partition_id = partition_id
        self._retained_bytes_max = retained_bytes_max
        self._retained_frames_max = retained_frames_max
        self._retry_after_ms = retry_after_ms
        self._clock = clock
        self._randomness = randomness
        self._retained_bytes = 0
        self._pending: dict[str, _Pending] = {}
        self._tasks: set[asyncio.Task[FinalVerdict]] = set()
        self._sent_back: OrderedDict[str, int] = OrderedDict()
        self._stopping = False

    @property
    def retained_bytes(self) -> int:
        return self._retained_bytes

    @property
    def retained_frames(self) -> int:
        return len(self._pending)

    async def start(self) -> None:
        """Do nothing, because the writer's owner starts the writer."""

    async def check(self) -> None:
        """Check that the sink may hold another frame; the writer's owner checks its file system.

        Raises:
            SinkUnavailable: there is no room.
        """
        refused = self._refusal(0)
        if refused is not None:
            raise SinkUnavailable(refused.reason)

    async def stop(self, deadline_seconds: float) -> None:
        """Wait for writes in progress; fail the others as retryable at the deadline."""
        self._stopping = True
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=deadline_seconds)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def introduce(self, producer_id: int, topics: Sequence[str]) -> Introduction:
        """Return a random id for a producer without one; topics of an outbox have no partitions."""
        if producer_id == NO_PRODUCER_ID:
            producer_id = self._randomness.bits(counting.PRODUCER_ID_BITS)
        return Introduction(producer_id=producer_id)

    def accept(self, chunks: Chunks, complete: Completion) -> Verdict:
        partition_id = self._partition_id or chunks.topic
        if not partition_id:
            error = NoPartitionId("the frame names no topic, and the sink has no partition id")
            return self.counts.frame(chunks, failure(error))
        batch_id = batch_id_of(chunks)
        known = self._pending.get(batch_id)
        if known is not None:
            return self._join(known, chunks, complete, batch_id)
        refused = self._refusal(len(chunks.payload))
        if refused is not None:
            return self.counts.frame(chunks, refused)
        at_ms = self._sent_back.pop(batch_id, None) or self._clock.now_ms()
        pending = self._pending[batch_id] = _Pending(chunks, complete, at_ms)
        self._retained_bytes += pending.size_bytes
        work = self._send(partition_id, batch_id, pending)
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(partial(self._sent, batch_id))
        return PENDING

    def _refusal(self, payload_bytes: int) -> Failed | None:
        if self._stopping:
            return Failed("the outbox sink is stopping", retryable=True)
        size_bytes = self._retained_bytes + payload_bytes
        full = len(self._pending) >= self._retained_frames_max
        if full or size_bytes > self._retained_bytes_max:
            return Failed(
                f"the outbox sink holds {len(self._pending)} frames of"
                f" {self._retained_bytes} bytes; its limits are {self._retained_frames_max}"
                f" frames and {self._retained_bytes_max} bytes",
                retryable=True,
                retry_after_ms=self._retry_after_ms,
            )
        return None

    def _join(
        self, known: _Pending, chunks: Chunks, complete: Completion, batch_id: str
    ) -> Verdict:
        """Let a frame that is sent again wait for the write of its first attempt, and get its
        verdict.

        It is rejected permanently if its content differs.
        """
        content = _content(chunks)
        if (known.chunks, known.content) != (chunks.count, content):
            differs = Failed(
                f"batch {batch_id} is being written with {known.chunks} chunks of"
                f" {len(known.content)} bytes with CRC32C {crc32c(known.content):08x}, but"
                f" was sent again with {chunks.count} chunks of {len(content)} bytes with"
                f" CRC32C {crc32c(content):08x}",
                retryable=False,
            )
            return self.counts.frame(chunks, differs)
        if len(known.completions) >= JOINED_MAX:
            return self.counts.frame(
                chunks,
                Failed(f"batch {batch_id} is being written", True, self._retry_after_ms),
            )
        known.completions.append(complete)
        return PENDING

    async def _send(self, partition_id: str, batch_id: str, pending: _Pending) -> FinalVerdict:
        try:
            await self._sender.send(
                pending.content,
                partition_id=partition_id,
                batch_id=batch_id,
                event_count=pending.events,
                at_ms=pending.at_ms,
            )
        except PenstockError as error:
            return failure(error, retry_after_ms=self._retry_after_ms)
        except Exception as error:
            logger.exception("the outbox failed batch %s", batch_id)
            return Failed(f"the outbox failed: {error!r}", True, self._retry_after_ms)
        return ACCEPTED

    def _sent(self, batch_id: str, task: asyncio.Task[FinalVerdict]) -> None:
        """Handle a write that has ended, or was cancelled before it began."""
        self._tasks.discard(task)
        pending = self._pending.pop(batch_id)
        self._retained_bytes -= pending.size_bytes
        stopped = Failed("the outbox sink has been stopped", retryable=True)
        verdict: FinalVerdict = stopped if task.cancelled() else task.result()
        if isinstance(verdict, Failed) and verdict.retryable:
            self._sent_back[batch_id] = pending.at_ms
            if len(self._sent_back) > SENT_BACK_MAX:
                self._sent_back.popitem(last=False)
        for complete in pending.completions:
            self.counts.completed(
                verdict,
                chunks=pending.chunks,
                events=pending.events,
                size_bytes=pending.size_bytes,
            )
            complete(verdict)


def batch_id_of(chunks: Chunks) -> str:
    """Return a frame's batch id for the outbox, with at most 43 of the 64 allowed characters."""
    producer = chunks.producer_id & _UNSIGNED
    return f"{producer:x}-{chunks.producer_epoch}-{chunks.first_sequence}"


def _content(chunks: Chunks) -> bytes:
    """Return the bytes of all chunks, in order."""
    if chunks.adjacent:
        return bytes(chunks.payload)
    extents = zip(chunks.offsets.tolist(), chunks.lengths.tolist(), strict=True)
    return b"".join(chunks.payload[at : at + size] for at, size in extents)
