"""The sink port: what an agent hands its chunks to, and what it is answered.

A frame of chunks is handed over as one `Chunks` and gets one verdict. `accept` returns at once,
never blocks and never raises for back-pressure. A verdict of `ACCEPTED` is a promise, and every
sink says what it promises; one that can only promise after I/O returns `PENDING` and completes the
frame later. (The source's sinks only accept or fail. An agent that accepted what it had merely
queued would lose accepted chunks when it is killed.)

Source: `host-ipc.txt`, the chunk sink; `docs/decisions/0009-pending-verdicts.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Final, Protocol

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from penstock.base.buffers import Lease

NO_PRODUCER_ID: Final = -1
NO_LOG_SEQUENCE: Final = -1
NO_PARTITION: Final = -1


class ChunkFormat(IntEnum):
    """Content of the chunks of a frame."""

    OPAQUE = 0
    """Bytes that only the application knows; in the log one record's value each."""
    RECORD_BATCH = 1
    """A Kafka RecordBatch v2 each."""


class Accepted(Struct, frozen=True):
    """The sink holds the chunks as safely as it promises to."""


class Pending(Struct, frozen=True):
    """A verdict that the sink delivers later."""


class Failed(Struct, frozen=True):
    """The sink does not hold the chunks.

    `retryable` says that the same frame may be accepted later, not before `retry_after_ms`;
    `fenced`, that a newer epoch of the producer has taken over and this one has to stop.
    """

    reason: str
    retryable: bool
    retry_after_ms: int = 0
    fenced: bool = False


ACCEPTED: Final = Accepted()
PENDING: Final = Pending()
FinalVerdict = Accepted | Failed
Verdict = Accepted | Failed | Pending
Completion = Callable[[FinalVerdict], None]


class Chunks:
    """The chunks of one frame, in the order of their sequences.

    `lengths` and `offsets` (bytes, unsigned 32 bits, one per chunk) cut `payload` into chunks, and
    have been checked to lie inside it; without `offsets` the chunks follow one another from 0.
    Sequences are `first_sequence` to `first_sequence + count - 1`. `log_sequence` is the record
    sequence of the first record within (producer, topic, partition), or -1.

    `payload` is valid during `accept`; a sink that needs it longer calls `keep` in `accept`, and
    `release` once, on the same thread, when it is done. It is not looked at any more once the
    frame has its verdict: the producer may then overwrite it.
    """

    __slots__ = (
        "_kept",
        "_lengths",
        "_offsets",
        "count",
        "event_count",
        "first_sequence",
        "format",
        "lease",
        "log_sequence",
        "on_keep",
        "partition",
        "payload",
        "producer_epoch",
        "producer_id",
        "topic",
    )  # fmt: skip

    def __init__(
        self,
        *,
        producer_id: int,
        producer_epoch: int,
        first_sequence: int,
        count: int,
        event_count: int,
        payload: memoryview,
        lengths: NDArray[np.uint32] | None = None,
        offsets: NDArray[np.uint32] | None = None,
        topic: str = "",
        partition: int = NO_PARTITION,
        log_sequence: int = NO_LOG_SEQUENCE,
        format: ChunkFormat = ChunkFormat.OPAQUE,  # noqa: A002
        lease: Lease | None = None,
        on_keep: Callable[[Chunks], None] | None = None,
    ) -> None:
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.first_sequence = first_sequence
        self.count = count
        self.event_count = event_count
        self.payload = payload
        self._lengths = lengths
        self.topic = topic
        self.partition = partition
        self.log_sequence = log_sequence
        self.format = format
        self.lease = lease
        self.on_keep = on_keep
        """Makes `payload` outlive the call where it lies in a buffer that is received into."""
        self._offsets = offsets
        self._kept = False

    @property
    def lengths(self) -> NDArray[np.uint32]:
        if self._lengths is None:
            self._lengths = np.array((len(self.payload),), dtype=np.uint32)
        return self._lengths

    @property
    def offsets(self) -> NDArray[np.uint32]:
        if self._offsets is None:
            ends = np.cumsum(self.lengths, dtype=np.uint32)
            self._offsets = ends - self.lengths
        return self._offsets

    @property
    def adjacent(self) -> bool:
        """Whether the chunks follow one another without gaps, from the payload's first byte."""
        return self._offsets is None

    def keep(self) -> None:
        """Let `payload` stay valid until `release`."""
        if self.on_keep is not None:
            self.on_keep(self)
        elif self.lease is not None:
            self.lease.retain()
        self._kept = True

    def release(self) -> None:
        """Give `payload` back; it must not be looked at any more."""
        if self._kept:
            self._kept = False
            self.payload = memoryview(b"")
            if self.lease is not None:
                self.lease.release()


class Introduction(Struct, frozen=True, kw_only=True):
    """The sink's answer about a producer that sent HELLO.

    `partitions` has the number of partitions of every topic asked for; a sink without topics
    returns none.
    """

    producer_id: int
    partitions: Mapping[str, int] = field(default_factory=dict)


class ChunkSink(Protocol):
    """Receiver of chunks. All calls come from one event loop's thread."""

    name: str
    stands_on: str
    """What it needs to be there, for messages: brokers, a directory; empty for nothing."""
    frame_bytes_max: int
    """Most payload bytes of one frame that the sink can take."""

    @property
    def retained_bytes(self) -> int:
        """Payload bytes of chunks without a verdict."""
        ...

    async def start(self) -> None:
        """Get ready to accept.

        Raises:
            PenstockError: what the sink stands on is not there.
        """
        ...

    async def stop(self, deadline_seconds: float) -> None:
        """Answer what is pending, at the latest after `deadline_seconds`; then release
        everything."""
        ...

    async def introduce(self, producer_id: int, topics: Sequence[str]) -> Introduction:
        """Name a producer that has no id yet (-1), and say what it must know of its topics.

        Raises:
            PenstockError: the producer cannot be served; its HELLO is refused with the message.
        """
        ...

    async def check(self) -> None:
        """Find out whether frames would be accepted now; it may take long, and be cancelled.

        Raises:
            PenstockError: they would not, and why.
        """
        ...

    def accept(self, chunks: Chunks, complete: Completion) -> Verdict:
        """Accept a frame's chunks; the callback is called exactly once, later, after `PENDING`
        only."""
        ...
