"""State machine of the agent's side of one connection, without I/O.

Each received frame has at most one effect, which the shell performs. The table `_ALLOWED` has the
frames that each state allows. Any other frame ends the connection, and so does a frame with
contradicting fields. The credit window of this side decides: a frame beyond it fails as retryable,
whatever the producer's own window is.

The shell passes each frame to `receive` and performs its effect. It calls `flush` after all frames
of one read, and sends `take_output`. So a burst of data frames is answered by one ACCEPTED frame
with ranges of sequences, and answers are a small part of all bytes.

Source: `host-ipc.txt`, frame types and handshake, three-dimensional backpressure, draining.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from penstock.base.traces import parse_traceparent
from penstock.host import errors
from penstock.host.access import Permission
from penstock.host.credits import NO_CREDIT, Credit, CreditWindow
from penstock.host.errors import ProtocolViolation
from penstock.host.port import (
    NO_LOG_SEQUENCE,
    NO_PARTITION,
    NO_PRODUCER_ID,
    Accepted,
    ChunkFormat,
    Chunks,
    Failed,
    FinalVerdict,
    Introduction,
)
from penstock.wire.frames import (
    ACCEPTED,
    CREDIT_UPDATE,
    DATA,
    DATA_BATCH,
    DRAIN,
    FAILED,
    FLAG_PAYLOAD_CRC,
    FLAG_PAYLOAD_IN_RING,
    HELLO,
    HELLO_ACK,
    PING,
    PONG,
    Frame,
    FrameType,
    Header,
    check_payload,
    encode,
)

DENIED_TOPICS_MAX: Final = 100
"""Maximum number of rejected topics per connection that the audit log distinguishes."""
RANGES_PER_FRAME_MAX: Final = 1024
"""Maximum number of ranges of sequences in one ACCEPTED frame."""


class ServerState(Enum):
    """State of a connection."""

    HANDSHAKE = "handshake"
    """Waits for HELLO; PING is answered too, so a health check needs no producer id."""
    INTRODUCING = "introducing"
    """Waits for the sink's answer about the producer."""
    OPEN = "open"
    DRAINING = "draining"
    """The agent is stopping; frames that the producer has already sent are still accepted."""
    CLOSED = "closed"


class ServerTerms(Struct, frozen=True, kw_only=True):
    """Credit and limits that an agent offers to a producer in its answer to HELLO."""

    credit: Credit
    frame_bytes_max: int
    idle_timeout_ms: int
    ping_interval_ms: int
    retry_after_ms: int
    ring_bytes_max: int = 0


class Introduce(Struct, frozen=True):
    """Effect: ask the sink about this producer, then call `introduced` or `refuse`."""

    producer_id: int
    topics: tuple[str, ...]
    ring_bytes: int


class Deliver(Struct, frozen=True, eq=False):
    """Effect: pass these chunks to the sink, and its verdict to `completed`, now or later."""

    chunks: Chunks


class Close(Struct, frozen=True):
    """Effect: send the output, then close the connection."""

    reason: str


Effect = Introduce | Deliver | Close
_Lengths = NDArray[np.uint32]
_Footprint = tuple[int, int, int]
"""Values of `Credit` without the cost of its construction, since each frame has one."""

_DATA: Final = (DATA, DATA_BATCH)
_ALLOWED: Final[Mapping[ServerState, tuple[int, ...]]] = {
    ServerState.HANDSHAKE: (HELLO, PING),
    ServerState.INTRODUCING: (),
    ServerState.OPEN: (*_DATA, PING, PONG),
    ServerState.DRAINING: (*_DATA, PING, PONG),
    ServerState.CLOSED: (),
}


class ServerMachine:
    """State machine of one producer's connection; times are monotonic milliseconds."""

    def __init__(
        self,
        terms: ServerTerms,
        *,
        now_ms: float,
        draining: bool = False,
        sink_trouble: str = "",
        permission: Permission | None = None,
    ) -> None:
        self.terms = terms
        self.permission = permission
        """Permission of the producer; None allows all topics."""
        self.denied: list[str] = []
        """Topics that were rejected since the shell last took them, each once per connection."""
        self._denied_before: set[str] = set()
        self._sink_trouble = sink_trouble
        self.state = ServerState.HANDSHAKE
        self.window = CreditWindow(NO_CREDIT)
        self.producer_id = NO_PRODUCER_ID
        self.producer_epoch = 0
        self.client_name = ""
        self.ring: memoryview | None = None
        """Memory of the producer's ring, once the shell has mapped it."""
        self.in_flight: dict[int, _Footprint] = {}
        self.frames = 0
        self.accepted_chunks = 0
        self.accepted_events = 0
        self.accepted_bytes = 0
        self.failed_frames = 0
        self.overdrafts = 0
        self._agent_draining = draining
        self._drain: Header | None = None
        """DRAIN frame to send once HELLO is answered."""
        self._output: list[bytes] = []
        self._ranges: list[int] = []
        self._heard_ms = now_ms
        self._pinged_ms = now_ms
        self._hello: Header | None = None
        self._handlers: dict[int, Callable[[Frame], Effect | None]] = {
            HELLO: self._on_hello,
            DATA: self._on_data,
            DATA_BATCH: self._on_batch,
            PING: self._on_ping,
            PONG: lambda frame: None,
        }

    # Events

    def receive(self, frame: Frame) -> Effect | None:
        """Process one frame; return its effect, if any.

        Raises:
            ProtocolViolation, MalformedFrame: the connection must be closed; call `violated`.
        """
        kind = frame.header.type
        self.frames += 1
        if kind not in _ALLOWED[self.state]:
            raise ProtocolViolation(
                f"frame type {_name(kind)} is not allowed in state {self.state.value}"
            )
        return self._handlers[kind](frame)

    def heard(self, now_ms: float) -> None:
        """Record that bytes have arrived, so the producer does not count as silent."""
        self._heard_ms = now_ms

    def introduced(self, introduction: Introduction, *, ring: bool = False) -> None:
        """Accept the producer with the sink's answer; `ring` means that its ring is mapped."""
        hello = self._hello
        if self.state is not ServerState.INTRODUCING or hello is None:
            return
        self.producer_id = introduction.producer_id
        self.producer_epoch = hello.producer_epoch
        self.client_name = hello.client_name
        self.window = CreditWindow(self.terms.credit)
        self.state = ServerState.OPEN
        self._send(
            Header(
                type=HELLO_ACK,
                accepted=True,
                version=min(hello.version_max, errors.VERSION_MAX),
                producer_id=introduction.producer_id,
                producer_epoch=hello.producer_epoch,
                chunk_slots=self.terms.credit.slots,
                raw_events=self.terms.credit.events,
                payload_bytes=self.terms.credit.payload_bytes,
                frame_bytes_max=self.terms.frame_bytes_max,
                idle_timeout_ms=self.terms.idle_timeout_ms,
                partition_counts=[introduction.partitions.get(name, 0) for name in hello.topics],
                ring_size_bytes=hello.ring_size_bytes if ring else 0,
            )
        )
        if self._drain is not None:
            self._start_draining(self._drain)

    def refuse(self, reason: str, *, retryable: bool = False) -> Close:
        """Reject HELLO with a reason; `retryable` means that the same HELLO may succeed later."""
        self._send(
            Header(
                type=HELLO_ACK,
                accepted=False,
                reason=reason[: errors.REASON_CHARS_MAX],
                retryable=retryable,
            )
        )
        self.state = ServerState.CLOSED
        return Close(reason)

    def completed(self, chunks: Chunks, verdict: FinalVerdict) -> None:
        """Return the credit of a frame, and add its answer to the output.

        A frame of an ended connection is ignored.
        """
        footprint = self.in_flight.pop(chunks.first_sequence, None)
        if footprint is None:
            return
        self.window.restore(*footprint)
        if isinstance(verdict, Accepted):
            slots, events, payload_bytes = footprint
            self.accepted_chunks += slots
            self.accepted_events += events
            self.accepted_bytes += payload_bytes
            ranges = self._ranges
            if ranges and ranges[-2] + ranges[-1] == chunks.first_sequence:
                ranges[-1] += chunks.count
            else:
                ranges += (chunks.first_sequence, chunks.count)
                if len(ranges) >= 2 * RANGES_PER_FRAME_MAX:
                    self.flush()
            return
        self._fail(chunks.first_sequence, chunks.count, footprint, verdict)

    def grant(self, more: Credit) -> None:
        """Increase the producer's credit."""
        if self.state is ServerState.OPEN and more != NO_CREDIT:
            self.window.grant(more)
            self._send(_credit_update(more))

    def drain(self, deadline_ms: int, reason: str) -> None:
        """Inform the producer that the agent stops within `deadline_ms`."""
        self._agent_draining = True
        drain = Header(type=DRAIN, deadline_ms=deadline_ms, reason=reason)
        if self.state is ServerState.OPEN:
            self._start_draining(drain)
        elif self.state is ServerState.INTRODUCING:
            self._drain = drain

    def _start_draining(self, drain: Header) -> None:
        self.state = ServerState.DRAINING
        self.flush()
        self._send(drain)

    def violated(self, reason: str) -> Close:
        """Send the reason why the connection ends, as a FAILED frame without chunks."""
        if self.state is not ServerState.CLOSED:
            if self.state in (ServerState.HANDSHAKE, ServerState.INTRODUCING):
                return self.refuse(reason, retryable=True)
            self.flush()
            self._send(Header(type=FAILED, reason=reason[: errors.REASON_CHARS_MAX]))
            self.state = ServerState.CLOSED
        return Close(reason)

    def disconnected(self) -> int:
        """Release all credit of an ended connection.

        Returns:
            The number of frames whose verdict cannot be delivered.
        """
        lost = len(self.in_flight)
        self.in_flight.clear()
        self.window = CreditWindow(NO_CREDIT)
        self._output.clear()
        self._ranges.clear()
        self.state = ServerState.CLOSED
        return lost

    def tick(self, now_ms: float) -> Close | None:
        """Handle timeouts: close a connection that was silent for too long, or send a PING."""
        silent_ms = now_ms - self._heard_ms
        if silent_ms >= self.terms.idle_timeout_ms:
            return self.violated(
                f"nothing was received for {silent_ms:.0f} ms (limit {self.terms.idle_timeout_ms})"
            )
        open_ = self.state in (ServerState.OPEN, ServerState.DRAINING)
        if open_ and now_ms - max(self._heard_ms, self._pinged_ms) >= self.terms.ping_interval_ms:
            self._pinged_ms = now_ms
            self._send(Header(type=PING, token=int(now_ms)))
        return None

    # Output

    def flush(self) -> None:
        """Answer all frames that were accepted since the last call, with one frame."""
        if self._ranges:
            ranges, self._ranges = self._ranges, []
            self._send(Header(type=ACCEPTED, ranges=ranges))

    def take_output(self) -> Sequence[bytes]:
        """Return the frames to send, in order."""
        output, self._output = self._output, []
        return output

    def _send(self, header: Header) -> None:
        self._output.append(encode(header))

    # Frames

    def _on_hello(self, frame: Frame) -> Effect:
        header = frame.header
        if header.version_max < errors.VERSION_MIN or header.version_min > errors.VERSION_MAX:
            return self.refuse(
                f"protocol versions {header.version_min} to {header.version_max} are not spoken"
                f" here: {errors.VERSION_MIN} to {errors.VERSION_MAX} are"
            )
        if self._agent_draining:
            return self.refuse("the agent is draining", retryable=True)
        if len(header.topics) > errors.TOPICS_PER_HELLO_MAX:
            return self.refuse(
                f"{len(header.topics)} topics in one HELLO; at most {errors.TOPICS_PER_HELLO_MAX}"
            )
        if header.producer_epoch > errors.PRODUCER_EPOCH_MAX:
            return self.refuse(
                f"producer epoch {header.producer_epoch}; at most {errors.PRODUCER_EPOCH_MAX}"
            )
        for topic in header.topics:
            if self._denies(topic):
                return self.refuse(self._denial(topic))
        producer_id = header.producer_id if header.HasField("producer_id") else NO_PRODUCER_ID
        if producer_id < NO_PRODUCER_ID:
            return self.refuse(f"producer id {producer_id}: must not be negative")
        self._hello = header
        self.state = ServerState.INTRODUCING
        ring_bytes = min(header.ring_size_bytes, self.terms.ring_bytes_max)
        return Introduce(
            producer_id,
            tuple(header.topics),
            ring_bytes if ring_bytes == header.ring_size_bytes else 0,
        )

    def _on_ping(self, frame: Frame) -> Effect | None:
        if self.state is ServerState.HANDSHAKE and self._agent_draining:
            self._send(Header(type=DRAIN, reason="the agent is draining"))
            self.state = ServerState.CLOSED
            return Close("the agent is draining")
        # Before HELLO it is a health check, which wants to know of the sink too.
        reason = self._sink_trouble if self.state is ServerState.HANDSHAKE else ""
        self._send(Header(type=PONG, token=frame.header.token, reason=reason))
        return None

    def _on_data(self, frame: Frame) -> Effect | None:
        header = frame.header
        if header.count > 1 or header.lengths or header.offsets or header.event_counts:
            raise ProtocolViolation("a DATA frame has one chunk; several go into a DATA_BATCH")
        return self._admit(header, self._payload(frame), 1, None, None)

    def _on_batch(self, frame: Frame) -> Effect | None:
        header = frame.header
        count = header.count
        payload = self._payload(frame)
        lengths = _descriptors(header.lengths, count, "lengths")
        if not 0 < count <= errors.CHUNKS_PER_FRAME_MAX:
            raise ProtocolViolation(
                f"{count} chunks in a DATA_BATCH; 1 to {errors.CHUNKS_PER_FRAME_MAX} are allowed"
            )
        offsets = None
        if header.offsets:
            offsets = _descriptors(header.offsets, count, "offsets")
            end = int((offsets.astype(np.int64) + lengths).max())
            if end > len(payload):
                raise ProtocolViolation(
                    f"a chunk ends at byte {end} of a payload of {len(payload)} bytes"
                )
        elif (total := int(np.add.reduce(lengths, dtype=np.int64))) != len(payload):
            raise ProtocolViolation(
                f"{count} chunks of {total} bytes together in a payload of {len(payload)} bytes"
            )
        if header.event_counts:
            counts = _descriptors(header.event_counts, count, "event counts")
            events = int(np.add.reduce(counts, dtype=np.int64))
        else:
            events = count
        if events != header.event_count:
            raise ProtocolViolation(
                f"{events} events in the chunks, {header.event_count} in the header"
            )
        return self._admit(header, payload, count, lengths, offsets)

    def _payload(self, frame: Frame) -> memoryview:
        if not frame.flags & FLAG_PAYLOAD_IN_RING:
            return frame.payload
        start, size = frame.header.ring_position, frame.header.ring_bytes
        ring = self.ring
        if ring is None or start + size > len(ring):
            have = "no ring" if ring is None else f"a ring of {len(ring)} bytes"
            raise ProtocolViolation(f"payload at {start} to {start + size}, and there is {have}")
        if size > self.terms.frame_bytes_max:
            raise ProtocolViolation(
                f"payload of {size} bytes in the ring is over the limit of"
                f" {self.terms.frame_bytes_max}"
            )
        payload = ring[start : start + size]
        if frame.flags & FLAG_PAYLOAD_CRC:
            check_payload(payload, frame.payload_crc)
        return payload

    def _admit(
        self,
        header: Header,
        payload: memoryview,
        count: int,
        lengths: _Lengths | None,
        offsets: _Lengths | None,
    ) -> Deliver | None:
        first, events = header.first_sequence, header.event_count
        if first in self.in_flight or first + count > errors.SEQUENCE_MAX:
            raise ProtocolViolation(f"sequence {first} is under way already, or out of range")
        if events > errors.EVENTS_PER_FRAME_MAX:
            raise ProtocolViolation(
                f"{events} events in one frame; at most {errors.EVENTS_PER_FRAME_MAX}"
            )
        if header.partition > errors.PARTITION_MAX or header.log_sequence >= errors.LOG_SEQUENCES:
            raise ProtocolViolation(
                f"partition {header.partition}, log sequence {header.log_sequence}: at most"
                f" {errors.PARTITION_MAX} and {errors.LOG_SEQUENCES - 1}"
            )
        format_ = _format(header.format)
        topic = header.topic
        footprint = (count, events, len(payload))
        if self.permission is not None and self._denies(topic):
            self._fail(first, count, footprint, Failed(self._denial(topic), False))
            return None
        if not self.window.try_acquire(*footprint):
            self._overdraft(first, count, footprint)
            return None
        self.in_flight[first] = footprint
        return Deliver(
            Chunks(
                producer_id=self.producer_id,
                producer_epoch=self.producer_epoch,
                first_sequence=first,
                count=count,
                event_count=events,
                topic=topic,
                partition=header.partition if header.HasField("partition") else NO_PARTITION,
                log_sequence=(
                    header.log_sequence if header.HasField("log_sequence") else NO_LOG_SEQUENCE
                ),
                format=format_,
                payload=payload,
                lengths=lengths,
                offsets=offsets,
                trace=(
                    parse_traceparent(header.traceparent, header.tracestate)
                    if header.traceparent
                    else None
                ),
            )
        )

    def _denies(self, topic: str) -> bool:
        return self.permission is not None and not self.permission.allows(topic)

    def _denial(self, topic: str) -> str:
        """Return why the producer may not publish to a topic; empty if it may.

        The topic is added to `denied`, once each and up to a limit, for the audit log.
        """
        if topic not in self._denied_before and len(self._denied_before) < DENIED_TOPICS_MAX:
            self._denied_before.add(topic)
            self.denied.append(topic)
        return "" if self.permission is None else self.permission.refusal(topic)

    def _overdraft(self, first: int, count: int, footprint: _Footprint) -> None:
        self.overdrafts += 1
        retry_after_ms = self.terms.retry_after_ms
        self._fail(first, count, footprint, Failed("credit exhausted", True, retry_after_ms))
        self._send(_credit_update(NO_CREDIT, retry_after_ms))

    def _fail(self, first: int, count: int, restored: _Footprint, verdict: Failed) -> None:
        slots, events, payload_bytes = restored
        self.failed_frames += 1
        self.flush()
        self._send(
            Header(
                type=FAILED,
                first_sequence=first,
                count=count,
                reason=verdict.reason[: errors.REASON_CHARS_MAX],
                retryable=verdict.retryable,
                retry_after_ms=verdict.retry_after_ms,
                fenced=verdict.fenced,
                chunk_slots=slots,
                raw_events=events,
                payload_bytes=payload_bytes,
            )
        )


def _credit_update(more: Credit, retry_after_ms: int = 0) -> Header:
    return Header(
        type=CREDIT_UPDATE,
        chunk_slots=more.slots,
        raw_events=more.events,
        payload_bytes=more.payload_bytes,
        retry_after_ms=retry_after_ms,
    )


def _descriptors(data: bytes, count: int, what: str) -> _Lengths:
    if len(data) != 4 * count:
        raise ProtocolViolation(f"{len(data)} bytes of {what} for {count} chunks of 4 bytes each")
    return np.frombuffer(data, dtype="<u4")


def _format(number: int) -> ChunkFormat:
    if number == 0:
        return ChunkFormat.OPAQUE
    try:
        return ChunkFormat(number)
    except ValueError:
        raise ProtocolViolation(f"chunk format {number} is not known") from None


def _name(kind: FrameType) -> str:
    try:
        return str(FrameType.Name(kind))
    except ValueError:
        return str(kind)
