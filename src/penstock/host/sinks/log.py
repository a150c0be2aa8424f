"""Sink that appends frames to the log, each with its producer's own id, epoch and sequence.

Accepted means that every batch of the frame is on the log, acknowledged by the broker with
acks=all. The agent keeps no state for this. A producer counts its records per topic and partition,
keeps at most five batches of each unacknowledged, and after any crash sends the same frames again
in order. The broker's producer state recognises the frames that are already written.

| event                                                     | verdict                        |
|-----------------------------------------------------------|--------------------------------|
| all batches written, now or by an earlier attempt         | accepted                       |
| no broker, no leader or no response within the time limit | failed as retryable            |
| out of order: an earlier frame to the partition failed    | failed as retryable            |
| the queue of this sink is full, or the agent stops        | failed as retryable            |
| unknown topic or partition, too large, corrupt, invalid   | failed permanently             |
| a newer epoch of the producer has written                 | failed permanently             |

A frame of several batches that fails permanently may have been written in part.

Source: `host-ipc.txt`, the chunk sink; `docs/decisions/0009-pending-verdicts.md`,
`0010-identity-carried-into-the-log.md`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from penstock.base.crc import warm_up
from penstock.base.errors import InvalidSetting, PenstockError
from penstock.base.system import SYSTEM_CLOCK, SYSTEM_RANDOMNESS, Clock, Randomness
from penstock.base.traces import TRACEPARENT, TRACESTATE, TraceContext
from penstock.client import Client
from penstock.client.appender import Appender
from penstock.client.errors import RETRY, ClientClosed, UnknownTopic
from penstock.client.producer_partitions import Pieces, ProducerPartition
from penstock.client.replicas import SHORT_CALLS, outage
from penstock.host.errors import CHUNKS_PER_FRAME_MAX, LOG_SEQUENCES, SinkUnavailable
from penstock.host.port import (
    ACCEPTED,
    NO_LOG_SEQUENCE,
    NO_PRODUCER_ID,
    PENDING,
    ChunkFormat,
    Chunks,
    Completion,
    Failed,
    FinalVerdict,
    Introduction,
    Verdict,
)
from penstock.host.sinks import counting
from penstock.host.sinks.counting import Counts, failure
from penstock.records import (
    HEADER_BYTES,
    BatchHeader,
    CorruptBatch,
    InvalidRecord,
    RecordTooLarge,
    decode_header,
    stamp_identity,
    validate_batch,
    verify_crc,
)
from penstock.records.columnar.arrays import NO_HEADERS, Column, Headers, Input
from penstock.records.columnar.encode import encode_batches

# Encoding of frames as record batches with their producer's id, epoch and sequence.
#
# An OPAQUE frame becomes one batch; each chunk is the value of a record. Columns are encoded from
# the received bytes without a copy. The sequences of the batch follow from `log_sequence` and
# `count` alone. So a repeated frame is recognised, even if another agent encodes it again later.
# Timestamps are not part of this: they are the agent's time at the first attempt that was written.
#
# The chunks of a RECORD_BATCH frame are batches already. Each is checked as a broker would check
# it, so a bad batch is rejected before anything of its frame is sent. The records are not copied: a
# batch is sent as a new header and a view of the rest. The new checksum is derived from the old
# one, not from the records, so it protects them from producer to reader.
#
# Source: KIP-98; `docs/decisions/0010-identity-carried-into-the-log.md`.


_RECORD_OVERHEAD_BYTES: Final = 10
"""Bytes of a record besides its value of up to 8,191 bytes.

They are two lengths of two bytes each, attributes, timestamp delta, an offset delta of two bytes,
no key and no headers.
"""
_LONG_OVERHEAD_BYTES: Final = 2
"""Additional bytes for a longer value of up to 1 MiB: a third byte of both lengths."""
_LONG_VALUE_BYTES: Final = 8_000
_ENCODER_SLACK_BYTES: Final = 32
"""Bytes reserved per record; they exceed the encoder's estimate, so it never splits a frame."""
_NO_EPOCH: Final = -1
_TRACE_BYTES_MAX: Final = 640
"""Largest size of the headers of a trace context."""


def frame_bytes_max(message_bytes_max: int) -> int:
    """Return the maximum payload bytes that fit one batch, in any number of chunks.

    Raises:
        InvalidRecord: no frame would fit.
    """
    chunks = CHUNKS_PER_FRAME_MAX
    room = message_bytes_max - HEADER_BYTES - chunks * _RECORD_OVERHEAD_BYTES - _TRACE_BYTES_MAX
    room -= _LONG_OVERHEAD_BYTES * (room // _LONG_VALUE_BYTES + 1)
    if room <= 0:
        raise InvalidRecord(
            f"message.max.bytes is {message_bytes_max}, too small for a frame of {chunks} chunks;"
            " set a higher limit"
        )
    return room


def encode_opaque(chunks: Chunks, *, now_ms: int, message_bytes_max: int) -> list[Pieces]:
    """Return one batch with a record for each chunk, with timestamp `now_ms`.

    The first record gets the frame's trace context as headers.

    Raises:
        RecordTooLarge: the batch exceeds `message_bytes_max`.
    """
    count = chunks.count
    data = np.frombuffer(chunks.payload or bytes(1), np.uint8)
    starts = chunks.offsets.astype(np.int32)
    values = Column(data=data, starts=starts, ends=starts + chunks.lengths.astype(np.int32))
    producer_id, epoch = chunks.producer_id, chunks.producer_epoch
    if chunks.log_sequence == NO_LOG_SEQUENCE:
        producer_id, epoch = NO_PRODUCER_ID, _NO_EPOCH
    (batch,) = encode_batches(
        Input(
            value=values,
            timestamps=np.full(count, now_ms),
            headers=NO_HEADERS if chunks.trace is None else _trace_headers(chunks.trace, count),
        ),
        now_ms=now_ms,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=chunks.log_sequence,
        max_batch_bytes=HEADER_BYTES + len(data) + count * _ENCODER_SLACK_BYTES + _TRACE_BYTES_MAX,
        records_per_batch=count,
    )
    if batch.size_bytes > message_bytes_max:
        raise RecordTooLarge(
            f"a frame of {count} chunks and {len(chunks.payload)} bytes needs a batch of"
            f" {batch.size_bytes} bytes; the limit is {message_bytes_max} bytes"
        )
    return [Pieces(batch.data, batch.record_count)]


def _trace_headers(trace: TraceContext, count: int) -> Headers:
    """Return the headers of `count` records, of which only the first has any."""
    texts = {TRACEPARENT: trace.traceparent, TRACESTATE: trace.state}
    pairs = [(name.encode(), text.encode()) for name, text in texts.items() if text]
    bounds = np.full(count + 1, len(pairs), np.int32)
    bounds[0] = 0
    keys, values = (Column.of([pair[place] for pair in pairs]) for place in (0, 1))
    return Headers(bounds, keys, values)


def stamp_batches(chunks: Chunks, *, message_bytes_max: int) -> list[Pieces]:
    """Return the frame's batches with the producer's id, as headers and views of the records.

    Raises:
        CorruptBatch: a chunk is not one whole batch, or its checksum is wrong.
        InvalidRecord: clients may not produce such a batch, it is transactional, or the batches
            do not have as many records as the frame has events.
        UnsupportedCodec: Kafka does not define the codec.
        RecordTooLarge: a batch exceeds `message_bytes_max`.
    """
    pieces: list[Pieces] = []
    sequence = chunks.log_sequence
    records = 0
    extents = zip(chunks.offsets.tolist(), chunks.lengths.tolist(), strict=True)
    for index, (at, size) in enumerate(extents):
        batch = chunks.payload[at : at + size]
        header = _checked(batch, index, message_bytes_max)
        pieces.append(_stamped(batch, header, chunks, sequence))
        records += header.record_count
        if sequence != NO_LOG_SEQUENCE:
            sequence = (chunks.log_sequence + records) % LOG_SEQUENCES
    if records != chunks.event_count:
        raise InvalidRecord(
            f"a frame of {chunks.event_count} events has {records} records; both numbers"
            " must be equal"
        )
    return pieces


def _checked(batch: memoryview, index: int, message_bytes_max: int) -> BatchHeader:
    header = decode_header(batch)
    if header.size_bytes != len(batch):
        raise CorruptBatch(
            f"chunk {index} has {len(batch)} bytes, but its batch states {header.size_bytes} bytes"
        )
    if len(batch) > message_bytes_max:
        raise RecordTooLarge(
            f"chunk {index} is a batch of {len(batch)} bytes; the limit is {message_bytes_max}"
        )
    validate_batch(header)
    verify_crc(batch, header)
    return header


def _stamped(batch: memoryview, header: BatchHeader, chunks: Chunks, sequence: int) -> Pieces:
    if sequence != NO_LOG_SEQUENCE:
        producer_id, epoch = chunks.producer_id, chunks.producer_epoch
    elif header.producer_id == NO_PRODUCER_ID:
        return Pieces(batch, header.record_count)
    else:
        producer_id, epoch = NO_PRODUCER_ID, _NO_EPOCH
    head = stamp_identity(
        batch, header, producer_id=producer_id, epoch=epoch, base_sequence=sequence
    )
    return Pieces(head, header.record_count, batch[HEADER_BYTES:])


LOG_MESSAGE_BYTES_MAX: Final = 1_048_588
"""Default of max.message.bytes in Kafka and Penstock."""
LOG_DELIVERY_TIMEOUT_MS: Final = 30_000
"""Maximum time in milliseconds from a batch's first attempt to the failure of its frame."""
LOG_REQUEST_TIMEOUT_MS: Final = 10_000
"""Maximum time in milliseconds for the log's response to one request."""
LOG_STALL_MS: Final = 1_000
"""Age of an unanswered frame, or of a check, after which the check asks brokers for the cause.

It is in milliseconds.
"""
LOG_API_TIMEOUT_MS: Final = 10_000
"""Maximum time in milliseconds to start, or to introduce a producer, including retries."""

_EPOCH_MAX: Final = 2**15 - 1


class LogSinkOptions(Struct, frozen=True, kw_only=True):
    """Brokers of the sink, its time limits, and limits of the frames that it holds."""

    bootstrap: str
    client_id: str = "penstock-host"
    message_bytes_max: int = LOG_MESSAGE_BYTES_MAX
    """Value of max.message.bytes of the topics; batches are not larger."""
    retained_bytes_max: int = counting.RETAINED_BYTES_MAX
    retained_frames_max: int = counting.RETAINED_FRAMES_MAX
    retry_after_ms: int = counting.RETRY_AFTER_MS
    delivery_timeout_ms: int = LOG_DELIVERY_TIMEOUT_MS
    request_timeout_ms: int = LOG_REQUEST_TIMEOUT_MS
    api_timeout_ms: int = LOG_API_TIMEOUT_MS


class _Frame:
    """Frame that waits for its verdict, and the callback for the result of its append."""

    __slots__ = ("_complete", "_count", "_events", "_kept", "_sink", "_size_bytes")

    def __init__(self, sink: LogSink, chunks: Chunks, complete: Completion) -> None:
        self._sink = sink
        self._complete = complete
        self._count = chunks.count
        self._events = chunks.event_count
        self._size_bytes = len(chunks.payload)
        self._kept: Chunks | None = None
        if chunks.format == ChunkFormat.RECORD_BATCH:
            chunks.keep()
            self._kept = chunks

    def release(self) -> None:
        if self._kept is not None:
            self._kept.release()
            self._kept = None

    def __call__(self, error: PenstockError | None) -> None:
        self.release()
        sink = self._sink
        verdict: FinalVerdict = ACCEPTED if error is None else sink._failure(error)
        sink._completed(self, verdict, self._count, self._events, self._size_bytes)
        self._complete(verdict)


class LogSink:
    """Sink that appends frames to the log.

    Raises:
        InvalidSetting: no frame would fit a batch, or the largest would not fit the queue.
        InvalidArgument: `bootstrap` is not a list of addresses.
    """

    name = "log"

    def __init__(
        self,
        options: LogSinkOptions,
        *,
        clock: Clock = SYSTEM_CLOCK,
        randomness: Randomness = SYSTEM_RANDOMNESS,
    ) -> None:
        self.frame_bytes_max = frame_bytes_max(options.message_bytes_max)
        if options.retained_bytes_max < self.frame_bytes_max:
            raise InvalidSetting(
                "retained_bytes_max",
                options.retained_bytes_max,
                f"must have room for the largest frame, {self.frame_bytes_max} bytes",
            )
        self.counts = Counts()
        self.stands_on = f"brokers {options.bootstrap}"
        self._frames: dict[_Frame, float] = {}
        """Unanswered frames, oldest first, each with the time at which it was received."""
        self._retained_bytes = 0
        self._finding: asyncio.Future[None] | None = None
        """Request of a check to any broker that has no response yet."""
        self._options = options
        self._clock = clock
        self._stopping = False
        self._appender = Appender(
            options.bootstrap,
            client_id=options.client_id,
            retry=replace(RETRY, timeout_ms=options.delivery_timeout_ms),
            request_timeout_ms=options.request_timeout_ms,
            api_timeout_ms=options.api_timeout_ms,
            randomness=randomness,
        )

    @property
    def retained_frames(self) -> int:
        return len(self._frames)

    @property
    def retained_bytes(self) -> int:
        return self._retained_bytes

    @property
    def retries(self) -> int:
        """Number of batches that were sent again."""
        return self._appender.retries

    async def start(self) -> None:
        """Connect to the cluster.

        Raises:
            PenstockError: no broker responds.
        """
        warm_up(self.frame_bytes_max)
        await self._appender.start()

    async def stop(self, deadline_seconds: float) -> None:
        """Wait for acknowledgements of queued frames; fail the others at the deadline."""
        self._stopping = True
        if self._finding is not None:
            self._finding.cancel()
        await self._appender.stop(deadline_seconds)

    async def check(self) -> None:
        """Check that the queue has room, that a broker responds, and that no outage delays frames.

        Raises:
            PenstockError: there is no room, or no broker responds.
            SinkUnavailable: a frame has waited for long, and a broker cannot serve.
        """
        refused = self._refusal(0)
        if refused is not None:
            raise SinkUnavailable(refused.reason)
        if self._finding is None:
            self._finding = asyncio.ensure_future(self._appender.find())
        finding, seconds = self._finding, LOG_STALL_MS / 1000
        await asyncio.wait({finding}, timeout=seconds)
        taken = next(iter(self._frames.values()), None)
        waits = taken is not None and self._clock.monotonic() - taken >= seconds
        if waits or not finding.done():
            cause = await asyncio.to_thread(self._outage)
            if cause:
                waiting = "frames wait for an acknowledgement: " if waits else ""
                raise SinkUnavailable(waiting + cause)
        self._finding = None
        await finding

    def _outage(self) -> str:
        """Return the problems of brokers that cannot serve or do not respond; empty if all can."""
        options = self._options
        with Client(options.bootstrap, client_id=options.client_id, **SHORT_CALLS) as client:
            return outage(client.broker_states())

    async def introduce(self, producer_id: int, topics: Sequence[str]) -> Introduction:
        """Return the producer's id, and the number of partitions of each of its topics.

        For the id -1, a broker assigns a new one.

        Raises:
            UnknownTopic: the cluster does not have a topic.
            PenstockError: no broker responds.
        """
        if producer_id == NO_PRODUCER_ID:
            producer_id = await self._appender.producer_id()
        names = list(dict.fromkeys(topics))
        counts = await asyncio.gather(*(self._appender.partitions(name) for name in names))
        return Introduction(
            producer_id=producer_id, partitions=dict(zip(names, counts, strict=True))
        )

    def accept(self, chunks: Chunks, complete: Completion) -> Verdict:
        refused = self._refusal(len(chunks.payload))
        if refused is not None:
            return self.counts.frame(chunks, refused)
        size_bytes = len(chunks.payload)
        frame = _Frame(self, chunks, complete)
        error: PenstockError | None
        self._frames[frame] = self._clock.monotonic()
        self._retained_bytes += size_bytes
        try:
            _check(chunks)
            batches = self._batches(chunks)
            error = self._appender.append(
                _producer_partition(chunks), batches, chunks.log_sequence, frame
            )
        except PenstockError as wrong:
            error = wrong
        if error is not None:
            self._release(frame, size_bytes)
            verdict = self.counts.frame(chunks, self._failure(error))
            frame.release()
            return verdict
        return PENDING

    def _refusal(self, payload_bytes: int) -> Failed | None:
        """Return the failure if no frame of this size can be accepted now, else None."""
        if self._stopping:
            return failure(ClientClosed("the log sink is stopping"))
        options = self._options
        size_bytes = self._retained_bytes + payload_bytes
        full = self.retained_frames >= options.retained_frames_max
        if full or size_bytes > options.retained_bytes_max:
            return Failed(
                f"the log sink holds {self.retained_frames} frames of"
                f" {self._retained_bytes} bytes; its limits are"
                f" {options.retained_frames_max} frames and {options.retained_bytes_max}"
                " bytes",
                retryable=True,
                retry_after_ms=options.retry_after_ms,
            )
        return None

    def _batches(self, chunks: Chunks) -> list[Pieces]:
        most = self._options.message_bytes_max
        if chunks.format == ChunkFormat.RECORD_BATCH:
            return stamp_batches(chunks, message_bytes_max=most)
        return encode_opaque(chunks, now_ms=self._clock.now_ms(), message_bytes_max=most)

    def _failure(self, error: PenstockError) -> Failed:
        return failure(error, retry_after_ms=self._options.retry_after_ms)

    def _release(self, frame: _Frame, size_bytes: int) -> None:
        del self._frames[frame]
        self._retained_bytes -= size_bytes

    def _completed(
        self, frame: _Frame, verdict: FinalVerdict, chunks: int, events: int, size_bytes: int
    ) -> None:
        self._release(frame, size_bytes)
        self.counts.completed(verdict, chunks=chunks, events=events, size_bytes=size_bytes)


def _check(chunks: Chunks) -> None:
    """Check that a frame names a producer partition.

    Raises:
        UnknownTopic: the topic or the partition is missing.
        InvalidRecord: there is no chunk, or the producer cannot be idempotent.
    """
    if not chunks.topic or chunks.partition < 0:
        raise UnknownTopic(
            f"topic {chunks.topic!r}, partition {chunks.partition}: a frame must name both"
        )
    if chunks.count < 1:
        raise InvalidRecord("a frame must have at least one chunk")
    if chunks.log_sequence == NO_LOG_SEQUENCE:
        return
    if chunks.producer_id < 0 or not 0 <= chunks.producer_epoch <= _EPOCH_MAX:
        raise InvalidRecord(
            f"producer {chunks.producer_id} with epoch {chunks.producer_epoch} cannot be"
            f" idempotent; ids begin at 0, and epochs are 0 to {_EPOCH_MAX}"
        )


def _producer_partition(chunks: Chunks) -> ProducerPartition:
    return ProducerPartition(
        chunks.producer_id,
        chunks.producer_epoch,
        chunks.topic,
        chunks.partition,
        chunks.log_sequence != NO_LOG_SEQUENCE,
    )
