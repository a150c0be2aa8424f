"""Sink port: the interface between an agent and the sink of its chunks.

Each frame of chunks is passed to the sink as one `Chunks` object and gets one verdict. `accept`
returns at once: it never blocks, and never raises because the sink is busy. `ACCEPTED` is a
guarantee, and each sink documents what it guarantees. A sink that needs I/O for its guarantee
returns `PENDING` and completes the frame later. (In the source, sinks only accept or fail. An agent
that accepted queued chunks would lose them if it is killed.)

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
from penstock.base.traces import TraceContext

NO_PRODUCER_ID: Final = -1
NO_LOG_SEQUENCE: Final = -1
NO_PARTITION: Final = -1


class ChunkFormat(IntEnum):
    """Format of the chunks of a frame."""

    OPAQUE = 0
    """Bytes of the application; in the log each chunk is the value of one record."""
    RECORD_BATCH = 1
    """A Kafka RecordBatch v2 each."""


class Accepted(Struct, frozen=True):
    """The sink holds the chunks, with the safety that it guarantees."""


class Pending(Struct, frozen=True):
    """The sink will deliver the verdict later."""


class Failed(Struct, frozen=True):
    """The sink does not hold the chunks.

    `retryable` means that the same frame may be accepted later, but not before `retry_after_ms`.
    `fenced` means that a newer epoch of the producer exists, so this producer must stop.
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
    """Chunks of one frame, in the order of their sequences.

    `lengths` and `offsets` (bytes, unsigned 32 bits, one per chunk) divide `payload` into chunks;
    both were checked against its size. Without `offsets` the chunks are contiguous from byte 0.
    Sequences are `first_sequence` to `first_sequence + count - 1`. `log_sequence` is the record
    sequence of the first record within (producer, topic, partition), or -1.

    `payload` is valid during `accept`. A sink that needs it longer calls `keep` in `accept`, and
    `release` once, on the same thread, when it is done. It must not read the payload after the
    frame's verdict, because the producer may then overwrite it.
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
        "trace",
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
        trace: TraceContext | None = None,
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
        """Function that keeps `payload` valid after the call; None unless its buffer is shared."""
        self.trace = trace
        """Sampled trace context that the first record gets in its headers; None without one."""
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
        """Whether the chunks are contiguous from the payload's first byte."""
        return self._offsets is None

    def keep(self) -> None:
        """Keep `payload` valid until `release`."""
        if self.on_keep is not None:
            self.on_keep(self)
        elif self.lease is not None:
            self.lease.retain()
        self._kept = True

    def release(self) -> None:
        """Release `payload`, which must not be read any more."""
        if self._kept:
            self._kept = False
            self.payload = memoryview(b"")
            if self.lease is not None:
                self.lease.release()


class Introduction(Struct, frozen=True, kw_only=True):
    """Answer of the sink to the HELLO of a producer.

    `partitions` has the number of partitions of each requested topic; it is empty for a sink
    without topics.
    """

    producer_id: int
    partitions: Mapping[str, int] = field(default_factory=dict)


class ChunkSink(Protocol):
    """Receiver of chunks; all calls are made on the thread of one event loop."""

    name: str
    stands_on: str
    """System that the sink depends on, for messages: brokers, a directory; empty for none."""
    frame_bytes_max: int
    """Maximum payload bytes of one frame."""

    @property
    def retained_bytes(self) -> int:
        """Payload bytes of chunks that have no verdict yet."""
        ...

    async def start(self) -> None:
        """Prepare the sink for `accept`.

        Raises:
            PenstockError: the system that the sink depends on is not available.
        """
        ...

    async def stop(self, deadline_seconds: float) -> None:
        """Complete pending frames until the deadline, fail the others as retryable, and release
        resources.
        """
        ...

    async def introduce(self, producer_id: int, topics: Sequence[str]) -> Introduction:
        """Return the id of a producer, a new one for -1, and the partitions of its topics.

        Raises:
            PenstockError: the producer cannot be served; its HELLO is rejected with the message.
        """
        ...

    async def check(self) -> None:
        """Check whether frames would be accepted now; it may take long, and may be cancelled.

        Raises:
            PenstockError: frames would not be accepted; the message has the reason.
        """
        ...

    def accept(self, chunks: Chunks, complete: Completion) -> Verdict:
        """Return the verdict on a frame; after `PENDING`, call `complete` exactly once, later."""
        ...
