"""Frame on its way from a producer to its agent.

A publication is created once and may be sent several times. It gets its sequences when it is first
sent, and keeps them. `end` sets its result, exactly once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import pack
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from penstock.base.crc import Readable
from penstock.base.errors import PenstockError
from penstock.base.ids import TOPIC_NAME_CHARS_MAX
from penstock.base.traces import TraceContext
from penstock.host import errors
from penstock.host.credits import Credit
from penstock.host.errors import InvalidChunks
from penstock.host.port import NO_LOG_SEQUENCE, NO_PARTITION, ChunkFormat
from penstock.wire.frames import DATA, DATA_BATCH, Header

NO_SEQUENCE: Final = -1
NO_POSITION: Final = -1


class Publication:
    """Chunks with one target, which are accepted or fail as a whole.

    `payload` holds the pieces of the chunks' bytes, in order. `records` is the number of records
    that the chunks become in the log, `batches` the number of their record batches.
    """

    __slots__ = (
        "batches",
        "count",
        "deadline_ms",
        "ended",
        "error",
        "event_count",
        "event_counts",
        "failed_by",
        "failures",
        "first_sent_ms",
        "first_sequence",
        "format",
        "in_doubt",
        "lengths",
        "log_sequence",
        "on_end",
        "partition",
        "payload",
        "payload_bytes",
        "producer_partition",
        "records",
        "ring_position",
        "topic",
        "trace",
        "waiter",
    )  # fmt: skip

    def __init__(
        self,
        payload: Sequence[Readable],
        *,
        payload_bytes: int,
        count: int = 1,
        event_count: int = 1,
        lengths: bytes = b"",
        event_counts: bytes = b"",
        topic: str = "",
        partition: int = NO_PARTITION,
        format: ChunkFormat = ChunkFormat.OPAQUE,  # noqa: A002
        on_end: Callable[[Publication], None] | None = None,
    ) -> None:
        self.payload = payload
        self.payload_bytes = payload_bytes
        self.count = count
        self.event_count = event_count
        self.lengths = lengths
        self.event_counts = event_counts
        self.topic = topic
        self.partition = partition
        self.format = format
        self.on_end = on_end
        batched = format is ChunkFormat.RECORD_BATCH
        self.records = event_count if batched else count
        self.batches = count if batched else 1
        self.log_sequence = NO_LOG_SEQUENCE
        self.first_sequence = NO_SEQUENCE
        self.ring_position = NO_POSITION
        self.deadline_ms = 0.0
        self.first_sent_ms = -1.0
        self.failures = 0
        self.failed_by = ""
        """Reason of the agent's last retryable failure."""
        self.ended = False
        self.error: PenstockError | None = None
        self.in_doubt = False
        """Whether it was sent, and may have been accepted without an answer that arrived."""
        self.producer_partition: Any = None
        """Producer partition of `Delivery` to which it belongs."""
        self.trace: TraceContext | None = None
        """Sampled trace context in which it was published."""
        self.waiter: Any = None
        """Object of the shell that waits for the end, such as a future."""

    @property
    def footprint(self) -> Credit:
        return Credit(self.count, self.event_count, self.payload_bytes)

    def end(self, error: PenstockError | None) -> None:
        """Set the result, accepted without an error; only the first call has an effect."""
        if self.ended:
            return
        self.ended = True
        self.error = error
        self.payload = ()
        if self.on_end is not None:
            self.on_end(self)

    def header(self) -> Header:
        """Return the header of the frame: DATA for one chunk, DATA_BATCH for several."""
        header = Header(
            type=DATA_BATCH if self.lengths else DATA,
            first_sequence=self.first_sequence,
            event_count=self.event_count,
        )
        if self.topic:
            header.topic = self.topic
        if self.format:
            header.format = int(self.format)  # type: ignore[assignment]
        if self.lengths:
            header.count = self.count
            header.lengths = self.lengths
            if self.event_counts:
                header.event_counts = self.event_counts
        if self.partition >= 0:
            header.partition = self.partition
        if self.log_sequence >= 0:
            header.log_sequence = self.log_sequence
        if self.trace is not None:
            header.traceparent = self.trace.traceparent
            header.tracestate = self.trace.state
        return header


def single(
    payload: Readable,
    *,
    event_count: int = 1,
    topic: str = "",
    partition: int = NO_PARTITION,
    format: ChunkFormat = ChunkFormat.OPAQUE,  # noqa: A002
) -> Publication:
    """Return a DATA frame with one chunk.

    Raises:
        InvalidChunks: the event count is out of range.
    """
    _check_events(event_count)
    _check_target(topic, partition)
    return Publication(
        (payload,),
        payload_bytes=len(payload),
        event_count=event_count,
        topic=topic,
        partition=partition,
        format=format,
    )


def batch(
    payloads: Sequence[Readable],
    *,
    event_counts: Sequence[int] | None = None,
    topic: str = "",
    partition: int = NO_PARTITION,
    format: ChunkFormat = ChunkFormat.OPAQUE,  # noqa: A002
) -> Publication:
    """Return a DATA_BATCH frame of several chunks with one target.

    `event_counts` has the number of events of each chunk; without it each chunk is one event.

    Raises:
        InvalidChunks: there is no chunk, there are more than 4,096, or event counts are invalid.
    """
    sizes = list(map(len, payloads))
    return _several(
        payloads,
        payload_bytes=sum(sizes),
        count=len(sizes),
        lengths=pack(f"<{len(sizes)}I", *sizes),
        event_counts=event_counts,
        topic=topic,
        partition=partition,
        format=format,
    )


def adjacent(
    payload: Readable,
    lengths: NDArray[np.integer[Any]],
    *,
    event_counts: Sequence[int] | None = None,
    topic: str = "",
    partition: int = NO_PARTITION,
    format: ChunkFormat = ChunkFormat.OPAQUE,  # noqa: A002
) -> Publication:
    """Return a DATA_BATCH frame of chunks that are contiguous in one buffer.

    `lengths` has the bytes of each chunk, not negative; their sum is the size of the buffer.

    Raises:
        InvalidChunks: as for `batch`, or the lengths do not match the buffer.
    """
    total = int(lengths.sum(dtype=np.int64))
    if total != len(payload):
        raise InvalidChunks(
            f"the chunks have {total} bytes in total, but their buffer has {len(payload)}"
        )
    return _several(
        (payload,),
        payload_bytes=total,
        count=len(lengths),
        lengths=lengths.astype("<u4").tobytes(),
        event_counts=event_counts,
        topic=topic,
        partition=partition,
        format=format,
    )


def _several(
    payload: Sequence[Readable],
    *,
    payload_bytes: int,
    count: int,
    lengths: bytes,
    event_counts: Sequence[int] | None,
    topic: str,
    partition: int,
    format: ChunkFormat,  # noqa: A002
) -> Publication:
    if not 0 < count <= errors.CHUNKS_PER_FRAME_MAX:
        raise InvalidChunks(
            f"{count} chunks in one frame; 1 to {errors.CHUNKS_PER_FRAME_MAX} are allowed"
        )
    _check_target(topic, partition)
    packed, events = b"", count
    if event_counts is not None:
        if len(event_counts) != count:
            raise InvalidChunks(f"{len(event_counts)} event counts were given for {count} chunks")
        events = sum(event_counts)
        _check_events(events)
        if min(event_counts) < 0:
            raise InvalidChunks(f"event count {min(event_counts)}: must not be negative")
        packed = np.array(event_counts, dtype="<u4").tobytes()
    return Publication(
        payload,
        payload_bytes=payload_bytes,
        count=count,
        event_count=events,
        lengths=lengths,
        event_counts=packed,
        topic=topic,
        partition=partition,
        format=format,
    )


def _check_events(events: Any) -> None:
    if not _is_whole(events) or not 0 <= events <= errors.EVENTS_PER_FRAME_MAX:
        raise InvalidChunks(
            f"{events!r} events in one frame; 0 to {errors.EVENTS_PER_FRAME_MAX} are allowed"
        )


def _check_target(topic: Any, partition: Any) -> None:
    """Raise InvalidChunks for a topic or partition that a header cannot hold."""
    if not isinstance(topic, str) or len(topic) > TOPIC_NAME_CHARS_MAX:
        raise InvalidChunks(
            f"topic {str(topic)[:64]!r}: must be a text of at most"
            f" {TOPIC_NAME_CHARS_MAX} characters"
        )
    if not _is_whole(partition) or not NO_PARTITION <= partition <= errors.PARTITION_MAX:
        raise InvalidChunks(
            f"partition {partition!r}: must be a whole number from 0 to"
            f" {errors.PARTITION_MAX}, or {NO_PARTITION} to let the agent choose"
        )


def _is_whole(value: object) -> bool:
    return type(value) is int or isinstance(value, np.integer)
