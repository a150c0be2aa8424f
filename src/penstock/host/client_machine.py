"""State machine of a producer's connections, without I/O: publications in, frames out.

The table `_ALLOWED` has the frames that each state allows. A publication is sent only if there is
credit for it in all three dimensions: chunks, events and bytes. Its credit is returned by ACCEPTED
or FAILED, or when the connection ends. The end of a connection fails all publications in flight
with `LostOnDisconnect`. A publication that gets no answer in time ends with `PublishTimedOut`. Its
credit stays taken until the agent answers or the connection ends, because the agent's window
decides.

The shell calls `connected`, passes frames to `receive`, and sends `take_output` after each call. If
a publication has a `ring_position`, its payload must be in the ring before the output is sent.

Source: `host-ipc.txt`, a walk through one publish; draining, reconnecting.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from math import inf
from typing import Final

from msgspec import Struct

from penstock.base.crc import Readable
from penstock.base.errors import PenstockError
from penstock.host import errors
from penstock.host.credits import NO_CREDIT, Credit, CreditWindow
from penstock.host.errors import (
    ClientClosed,
    Draining,
    FrameFailed,
    FrameRefused,
    FrameTooLarge,
    LostOnDisconnect,
    NoCredit,
    NotConnected,
    ProducerFenced,
    ProtocolViolation,
    PublishTimedOut,
)
from penstock.host.port import NO_PRODUCER_ID
from penstock.host.publication import NO_POSITION, NO_SEQUENCE, Publication
from penstock.host.ring import RingSpace
from penstock.wire.frames import (
    ACCEPTED,
    CREDIT_UPDATE,
    DRAIN,
    FAILED,
    HELLO,
    HELLO_ACK,
    PING,
    PONG,
    PRELUDE_BYTES,
    Frame,
    Header,
    encode,
)


class ClientState(Enum):
    """State of the producer's side of a connection."""

    DISCONNECTED = "disconnected"
    HANDSHAKE = "handshake"
    STARTED = "started"
    DRAINING = "draining"
    """The agent is stopping: nothing new is sent, but it may still answer frames in flight."""


class ClientTerms(Struct, frozen=True, kw_only=True):
    """Requirements of a producer for its connections."""

    topics: tuple[str, ...] = ()
    client_name: str = ""
    publish_timeout_ms: int = 30_000
    drain_timeout_ms: int = 20_000
    checksum: bool = False
    ring_bytes: int = 0
    ring_payload_bytes_min: int = 64 << 10
    """Size from which payloads use the ring; for smaller ones the saved copy is not worth it."""


class Started(Struct, frozen=True):
    """The agent has accepted the producer."""

    credit: Credit
    partitions: Mapping[str, int]
    ring: bool


class Ended(Struct, frozen=True):
    """Publications that have ended: accepted, or failed with `error`."""

    publications: Sequence[Publication]
    error: PenstockError | None


class Drained(Struct, frozen=True):
    """The agent is stopping; close the connection after at most `deadline_ms`."""

    deadline_ms: float
    reason: str


class CreditChanged(Struct, frozen=True):
    """The agent granted credit, or requests a pause."""

    retry_after_ms: int


class Disconnect(Struct, frozen=True):
    """The connection must be closed now.

    `refused` means that the agent rejected HELLO; `retryable` that another HELLO may succeed.
    """

    reason: str
    refused: bool = False
    retryable: bool = True


Event = Started | Ended | Drained | CreditChanged | Disconnect

JOINED_BYTES_MAX: Final = 512 << 10
"""Maximum bytes of a payload whose pieces are joined; each piece makes sending more expensive."""
LARGE_PIECE_BYTES: Final = 16 << 10
"""Average size in bytes above which pieces are not joined."""

_STARTED: Final = ClientState.STARTED
"""Alias for the code that runs per frame, because access to an enumeration's member is slower."""

_ANSWERS: Final = (ACCEPTED, FAILED, CREDIT_UPDATE, DRAIN, PING, PONG)
_ALLOWED: Final[Mapping[ClientState, tuple[int, ...]]] = {
    ClientState.DISCONNECTED: (),
    ClientState.HANDSHAKE: (HELLO_ACK, DRAIN),
    ClientState.STARTED: _ANSWERS,
    ClientState.DRAINING: _ANSWERS,
}
_REJECTIONS: Final[Mapping[ClientState, Callable[[], PenstockError]]] = {
    ClientState.DISCONNECTED: lambda: NotConnected("there is no connection to the agent"),
    ClientState.HANDSHAKE: lambda: NotConnected("the agent has not answered HELLO yet"),
    ClientState.DRAINING: lambda: Draining("the agent is draining"),
}


class ClientMachine:
    """State machine of a producer over any number of consecutive connections.

    Times are milliseconds of a monotonic clock. `producer_id` is -1 until an agent has assigned
    one.
    """

    def __init__(
        self, terms: ClientTerms, *, producer_id: int = NO_PRODUCER_ID, producer_epoch: int = 0
    ) -> None:
        self.terms = terms
        self.state = ClientState.DISCONNECTED
        self.closing = False
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.window = CreditWindow(NO_CREDIT)
        self.partitions: dict[str, int] = {}
        self.frame_bytes_max = 0
        self.idle_timeout_ms = 0
        self.next_sequence = 0
        self.in_flight: dict[int, Publication] = {}
        self.space: RingSpace | None = None
        self._output: list[Readable] = []
        self.not_before_ms = 0.0
        """Time before which nothing is sent, because the agent requested a pause."""
        self._heard_ms = 0.0
        self._spoke_ms = 0.0
        self._drain_by_ms = 0.0
        self._handlers: dict[int, Callable[[Header, float], list[Event]]] = {
            HELLO_ACK: self._on_hello_ack,
            ACCEPTED: self._on_accepted,
            FAILED: self._on_failed,
            CREDIT_UPDATE: self._on_credit_update,
            DRAIN: self._on_drain,
            PING: self._on_ping,
            PONG: lambda header, now_ms: [],
        }

    # Events

    def connected(self, now_ms: float, *, ring: bool = False) -> None:
        """Begin a connection with HELLO; with `ring`, the shell passes the ring's descriptor with
        it.
        """
        self.state = ClientState.HANDSHAKE
        self._output.clear()
        self._heard_ms = now_ms
        hello = Header(
            type=HELLO,
            version_min=errors.VERSION_MIN,
            version_max=errors.VERSION_MAX,
            producer_epoch=self.producer_epoch,
            topics=self.terms.topics,
            client_name=self.terms.client_name,
            ring_size_bytes=self.terms.ring_bytes if ring else 0,
        )
        if self.producer_id != NO_PRODUCER_ID:
            hello.producer_id = self.producer_id
        self._send(hello, now_ms)

    def publish(self, publication: Publication, now_ms: float) -> None:
        """Send a publication.

        Raises:
            NotConnected, Draining, ClientClosed: the state does not allow it.
            NoCredit: there is not enough credit now, or the agent requested a pause.
            FrameTooLarge: the frame exceeds the limits of this agent.
        """
        if self.state is not _STARTED or self.closing:
            raise self._rejection()
        window = self.window
        size = publication.payload_bytes
        if now_ms < self.not_before_ms:
            raise NoCredit("the agent requested a pause", int(self.not_before_ms - now_ms) + 1)
        if not self._fits_ring(size):
            raise NoCredit(f"the ring has no contiguous space for a payload of {size} bytes")
        if not window.try_acquire(publication.count, publication.event_count, size):
            self._refuse_credit(publication)
        if publication.first_sequence == NO_SEQUENCE:
            publication.first_sequence = self.next_sequence
            self.next_sequence += publication.count
        head = self._head(publication)
        if len(head) - PRELUDE_BYTES + size > self.frame_bytes_max:
            self._give_ring_back(publication)
            window.restore(*publication.footprint)
            raise FrameTooLarge(
                f"a frame of {len(head) - PRELUDE_BYTES + size} bytes exceeds the agent's"
                f" limit of {self.frame_bytes_max}"
            )
        publication.deadline_ms = now_ms + self.terms.publish_timeout_ms
        if publication.first_sent_ms < 0:
            publication.first_sent_ms = now_ms
        self.in_flight[publication.first_sequence] = publication
        self._spoke_ms = now_ms
        payload = () if publication.ring_position != NO_POSITION else publication.payload
        if len(payload) > 1 and size <= min(JOINED_BYTES_MAX, LARGE_PIECE_BYTES * len(payload)):
            self._output.append(b"".join((head, *payload)))
        else:
            self._output.append(head)
            self._output.extend(payload)

    def has_room(self, publication: Publication) -> bool:
        """Whether `publish` should be called now, because the credit and the ring have room.

        It is also true for a frame that exceeds the whole credit window, so that `publish` rejects
        it.
        """
        window = self.window
        if not window.has_room(
            publication.count, publication.event_count, publication.payload_bytes
        ) and window.ever_fits(publication.footprint):
            return False
        return self._fits_ring(publication.payload_bytes)

    def _fits_ring(self, size: int) -> bool:
        """Whether a frame can be sent now: the ring has space for its payload, or it need not use
        the ring.

        It is False only if frames in flight will free space in the ring. Waiting for them costs
        less than sending the payload on the socket, which copies it twice.
        """
        space = self.space
        if space is None or not self.in_flight or size < self.terms.ring_payload_bytes_min:
            return True
        return size > space.size_bytes or space.has_room(size)

    def receive(self, frame: Frame, now_ms: float) -> list[Event]:
        """Process one frame of the agent.

        Raises:
            ProtocolViolation: the frame is invalid; the connection must be closed.
        """
        header = frame.header
        kind = header.type
        state = self.state
        if kind not in (_ANSWERS if state is _STARTED else _ALLOWED[state]):
            raise ProtocolViolation(
                f"the agent sent frame type {int(kind)}, which is not allowed in state"
                f" {state.value}"
            )
        self._heard_ms = now_ms
        return self._handlers[kind](header, now_ms)

    def disconnected(self, reason: str) -> list[Event]:
        """End the connection; all publications in flight are lost, and their credit is free."""
        lost = list(self.in_flight.values())
        self.in_flight.clear()
        self._output.clear()
        self.window = CreditWindow(NO_CREDIT)
        self.space = None
        self.not_before_ms = 0.0
        self.state = ClientState.DISCONNECTED
        for publication in lost:
            publication.ring_position = NO_POSITION
        return [Ended(lost, LostOnDisconnect(f"the connection ended: {reason}"))] if lost else []

    def close(self) -> None:
        """Reject new publications; answers to frames in flight may still arrive."""
        self.closing = True

    def tick(self, now_ms: float) -> list[Event]:
        """Handle timeouts: of publications, of a silent agent, of pings and of a drain."""
        if self.state is ClientState.DISCONNECTED:
            return []
        expired = self._expired(now_ms)
        events: list[Event] = (
            [
                Ended(
                    expired,
                    PublishTimedOut(f"no answer arrived within {self.terms.publish_timeout_ms} ms"),
                )
            ]
            if expired
            else []
        )
        if self.state is ClientState.DRAINING and (
            not self.in_flight or now_ms >= self._drain_by_ms
        ):
            events.append(Disconnect("the agent is draining"))
        elif self.idle_timeout_ms and now_ms - self._heard_ms >= self.idle_timeout_ms:
            events.append(
                Disconnect(f"nothing was received from the agent for {self.idle_timeout_ms} ms")
            )
        elif self._may_ping and now_ms - self._spoke_ms >= self.idle_timeout_ms / 3:
            self._send(Header(type=PING, token=int(now_ms)), now_ms)
        return events

    def next_wake_ms(self) -> float:
        """Return the time of the next `tick`, as far as is known now."""
        if self.state is ClientState.DISCONNECTED:
            return inf
        wake_ms = inf
        if self.idle_timeout_ms:
            wake_ms = self._heard_ms + self.idle_timeout_ms
        if self._may_ping:
            wake_ms = min(wake_ms, self._spoke_ms + self.idle_timeout_ms / 3)
        if self.state is ClientState.DRAINING:
            wake_ms = min(wake_ms, self._drain_by_ms) if self.in_flight else 0.0
        for publication in self.in_flight.values():
            if not publication.ended:
                return min(wake_ms, publication.deadline_ms)
        return wake_ms

    @property
    def _may_ping(self) -> bool:
        """Whether pings are allowed: after the agent has answered HELLO, which sets the idle
        timeout.
        """
        return self.idle_timeout_ms > 0 and self.state is not ClientState.HANDSHAKE

    # Output

    def take_output(self) -> list[Readable]:
        """Return the bytes to send, in order, as pieces."""
        output, self._output = self._output, []
        return output

    def _send(self, header: Header, now_ms: float) -> None:
        self._spoke_ms = now_ms
        self._output.append(encode(header))

    def _head(self, publication: Publication) -> bytes:
        header = publication.header()
        space = self.space
        publication.ring_position = NO_POSITION
        if space is not None and publication.payload_bytes >= self.terms.ring_payload_bytes_min:
            position = space.take(publication.payload_bytes)
            if position is not None:
                publication.ring_position = position
                header.ring_position = position
                header.ring_bytes = publication.payload_bytes
        return encode(
            header,
            publication.payload,
            payload_bytes=publication.payload_bytes,
            in_ring=publication.ring_position != NO_POSITION,
            checksum=self.terms.checksum,
        )

    def _give_ring_back(self, publication: Publication) -> None:
        if publication.ring_position != NO_POSITION and self.space is not None:
            self.space.give_back(publication.ring_position)
            publication.ring_position = NO_POSITION

    def _rejection(self) -> PenstockError:
        if self.closing:
            return ClientClosed("the client has been closed")
        return _REJECTIONS[self.state]()

    def _refuse_credit(self, publication: Publication) -> None:
        footprint = publication.footprint
        if not self.window.ever_fits(footprint):
            raise FrameTooLarge(
                f"a frame of {footprint} exceeds the credit that the agent grants:"
                f" {self.window.granted}"
            )
        raise NoCredit(
            f"a frame of {footprint} needs more credit; {self.window.available} are left"
        )

    def _expired(self, now_ms: float) -> list[Publication]:
        expired = []
        for publication in self.in_flight.values():
            if publication.deadline_ms > now_ms:
                break
            if not publication.ended:
                expired.append(publication)
        return expired

    # Frames

    def _on_hello_ack(self, header: Header, now_ms: float) -> list[Event]:
        if not header.accepted:
            reason = header.reason or "the agent gave no reason"
            return [Disconnect(reason, refused=True, retryable=header.retryable)]
        if not errors.VERSION_MIN <= header.version <= errors.VERSION_MAX:
            raise ProtocolViolation(f"the agent chose version {header.version}")
        given = header.producer_id if header.HasField("producer_id") else NO_PRODUCER_ID
        if given < 0 or self.producer_id not in (NO_PRODUCER_ID, given):
            raise ProtocolViolation(f"the agent assigned id {given} to producer {self.producer_id}")
        self.producer_id = given
        self.window = CreditWindow(
            Credit(header.chunk_slots, header.raw_events, header.payload_bytes)
        )
        self.frame_bytes_max = header.frame_bytes_max
        self.idle_timeout_ms = header.idle_timeout_ms
        counts = header.partition_counts
        self.partitions = dict(zip(self.terms.topics, counts, strict=False))
        ring = 0 < header.ring_size_bytes == self.terms.ring_bytes
        self.space = RingSpace(self.terms.ring_bytes) if ring else None
        self.state = ClientState.STARTED
        return [Started(self.window.granted, self.partitions, ring)]

    def _on_accepted(self, header: Header, now_ms: float) -> list[Event]:
        done: list[Publication] = []
        try:
            self._complete_ranges(header.ranges, done)
        except ProtocolViolation:
            # Ignore a contradictory answer as a whole: its frames are lost with the connection.
            self.in_flight.update((publication.first_sequence, publication) for publication in done)
            raise
        return [Ended(done, None)] if done else []

    def _complete_ranges(self, ranges: Sequence[int], done: list[Publication]) -> None:
        if len(ranges) % 2:
            raise ProtocolViolation(f"{len(ranges)} numbers are not pairs of sequence and count")
        for index in range(0, len(ranges), 2):
            sequence, end = ranges[index], ranges[index] + ranges[index + 1]
            while sequence < end:
                publication = self._complete(sequence)
                sequence += publication.count
                done.append(publication)
            if sequence > end:
                raise ProtocolViolation(
                    f"the agent accepted only a part of a frame, up to sequence {end}"
                )

    def _on_failed(self, header: Header, now_ms: float) -> list[Event]:
        if not header.count:
            return [Disconnect(header.reason or "the agent gave no reason")]
        publication = self.in_flight.get(header.first_sequence)
        restored = Credit(header.chunk_slots, header.raw_events, header.payload_bytes)
        if publication is not None and restored != publication.footprint:
            raise ProtocolViolation(
                f"the agent restored {restored} for a frame of {publication.footprint}"
            )
        publication = self._complete(header.first_sequence)
        if header.retry_after_ms:
            self.not_before_ms = now_ms + header.retry_after_ms
        return [Ended([publication], _failure(header))]

    def _complete(self, sequence: int) -> Publication:
        publication = self.in_flight.pop(sequence, None)
        if publication is None:
            raise ProtocolViolation(
                f"the agent answered sequence {sequence}, which is not in flight"
            )
        self._give_ring_back(publication)
        self.window.restore(publication.count, publication.event_count, publication.payload_bytes)
        return publication

    def _on_credit_update(self, header: Header, now_ms: float) -> list[Event]:
        self.window.grant(Credit(header.chunk_slots, header.raw_events, header.payload_bytes))
        if header.retry_after_ms:
            self.not_before_ms = now_ms + header.retry_after_ms
        return [CreditChanged(header.retry_after_ms)]

    def _on_drain(self, header: Header, now_ms: float) -> list[Event]:
        if self.state is ClientState.HANDSHAKE:
            return [Disconnect(header.reason or "the agent is draining", refused=True)]
        budget_ms = min(header.deadline_ms, self.terms.drain_timeout_ms)
        if self.state is ClientState.STARTED:
            self._drain_by_ms = now_ms + budget_ms
        self._drain_by_ms = min(self._drain_by_ms, now_ms + budget_ms)
        self.state = ClientState.DRAINING
        return [Drained(budget_ms, header.reason)]

    def _on_ping(self, header: Header, now_ms: float) -> list[Event]:
        self._send(Header(type=PONG, token=header.token), now_ms)
        return []


def _failure(header: Header) -> PenstockError:
    if header.fenced:
        return ProducerFenced(header.reason)
    if header.retryable:
        return FrameFailed(header.reason, header.retry_after_ms)
    return FrameRefused(header.reason)
