"""Delivery of publications over any number of connections: decides what is sent next.

A `ClientMachine` handles one connection. `Delivery` keeps publications until they have ended:

| event                   | with `resend`                                | without `resend`        |
|-------------------------|----------------------------------------------|-------------------------|
| no credit, no agent     | waits, within the limits of the buffer       | `submit` raises         |
| the connection ends     | sent again unchanged                         | `LostOnDisconnect`      |
| failed as retryable     | sent again, after later frames are answered  | `FrameFailed`           |
|                         | and a pause has passed                       |                         |
| failed permanently      | `FrameRefused`                               | `FrameRefused`          |
| no answer in time       | `PublishTimedOut` after the delivery timeout | `PublishTimedOut` after |
|                         |                                              | the publish timeout     |

With `resend`, order is kept within a producer partition (`producer_partitions.py`). With
`idempotent` too, publications with a topic and a partition are numbered, and the log stores each
once. If a number cannot be sent again, the producer needs a higher epoch. Then nothing new is sent
until all numbered frames are answered. After that the client reconnects, because HELLO states the
epoch.

It has no clock, randomness or I/O. After each call, the shell first copies `take_ring_writes` into
the ring and then sends `take_output`.

Source: `host-ipc.txt`, delivery; the rules of Kafka's idempotent producer (KIP-98, KIP-360).
"""

from __future__ import annotations

from collections import OrderedDict, deque
from math import inf
from typing import Final

from penstock.base.crc import Readable
from penstock.base.errors import PenstockError
from penstock.base.retry import Backoff
from penstock.host import limits
from penstock.host.client_machine import (
    ClientMachine,
    ClientState,
    ClientTerms,
    Disconnect,
    Ended,
    Event,
    Started,
)
from penstock.host.errors import (
    ClientClosed,
    FrameFailed,
    FrameRefused,
    FrameTooLarge,
    HandshakeRefused,
    LostOnDisconnect,
    NoCredit,
    ProducerFenced,
    PublishTimedOut,
)
from penstock.host.port import NO_LOG_SEQUENCE, NO_PRODUCER_ID
from penstock.host.producer_partitions import ProducerPartition, ProducerPartitions
from penstock.host.publication import NO_POSITION, Publication
from penstock.wire.frames import Frame

_STARTED: Final = ClientState.STARTED
BACKOFF: Final = Backoff(first_ms=50, ceiling_ms=5_000)
"""Pauses between connection attempts, and before a failed frame is sent again."""


class Delivery:
    """Publications of a producer until they have ended; times are monotonic milliseconds."""

    def __init__(
        self,
        terms: ClientTerms,
        *,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = 0,
        resend: bool = True,
        idempotent: bool = True,
        buffer_bytes_max: int,
        buffer_frames_max: int,
        delivery_timeout_ms: int,
        backoff: Backoff = BACKOFF,
    ) -> None:
        self.machine = ClientMachine(terms, producer_id=producer_id, producer_epoch=producer_epoch)
        self.resend = resend
        self.buffer_bytes_max = buffer_bytes_max
        self.buffer_frames_max = buffer_frames_max
        self.delivery_timeout_ms = delivery_timeout_ms
        self.backoff = backoff
        self.buffered_bytes = 0
        self.reconnect_at_ms = 0.0
        self.closing = False
        self.fenced: ProducerFenced | None = None
        self.resent = 0
        """Number of frames that were sent again."""
        self.epochs_raised = 0
        self._producer_partitions = ProducerPartitions(idempotent=idempotent and resend)
        self._alive: OrderedDict[Publication, float] = OrderedDict()
        """Publications that have not ended, with their expiry times, in the order of submission."""
        self._ready: deque[ProducerPartition] = deque()
        self._paused: list[ProducerPartition] = []
        self._ring_writes: list[Publication] = []
        self._attempts = 0
        self._raising = False

    @property
    def outstanding(self) -> int:
        """Number of publications that have not ended."""
        return len(self._alive)

    def submit(self, publication: Publication, now_ms: float) -> None:
        """Queue a publication for `pump`, or send it at once without `resend`.

        Raises:
            ClientClosed: `close` was called.
            ProducerFenced: a newer epoch of this producer exists.
            FrameTooLarge: it exceeds the buffer, or without `resend` the agent's limits.
            NoCredit: the buffer is full, or without `resend` there is no credit.
            NotConnected, Draining: no agent accepts frames now; only without `resend`.
            InvalidChunks: it cannot be idempotent; see `ProducerPartitions.of`.
        """
        if self.fenced is not None:
            raise self.fenced
        if self.closing:
            raise ClientClosed("the client has been closed")
        self._check_room(publication)
        if self.resend:
            producer_partition = publication.producer_partition = self._producer_partitions.of(
                publication
            )
            producer_partition.waiting.append(publication)
            self._look_at(producer_partition)
            expires_ms = now_ms + self.delivery_timeout_ms
        else:
            self._publish(publication, now_ms)
            expires_ms = inf
        self._alive[publication] = expires_ms
        self.buffered_bytes += publication.payload_bytes

    def connected(self, now_ms: float, *, ring: bool) -> None:
        """Begin a connection; its ring, if any, must not have been used for another connection."""
        self._ring_writes.clear()
        if self._may_raise_epoch():
            self._raise_epoch()
        self.machine.connected(now_ms, ring=ring)

    def receive(self, frame: Frame, now_ms: float) -> list[Event]:
        """Process one frame of the agent; return the events that the shell must handle.

        Raises:
            ProtocolViolation: the frame is invalid; the connection must be closed.
        """
        return self._digest(self.machine.receive(frame, now_ms), now_ms)

    def disconnected(self, reason: str, now_ms: float, chance: float) -> None:
        """Handle a connection that ended or could not be made; `chance` in [0, 1) is for jitter."""
        started = self.machine.state is ClientState.STARTED
        self._ring_writes.clear()
        self._digest(self.machine.disconnected(reason), now_ms)
        if started and self._raising and self._may_raise_epoch():
            self.reconnect_at_ms = now_ms
            return
        self._attempts += 1
        self.reconnect_at_ms = now_ms + self.backoff.pause_ms(self._attempts, chance=chance)

    def tick(self, now_ms: float) -> list[Event]:
        """Handle timeouts; return the events that the shell must handle."""
        if self.resend:
            self._expire(now_ms)
        return self._digest(self.machine.tick(now_ms), now_ms)

    def pump(self, now_ms: float) -> None:
        """Send all publications that credit, order and producer partitions allow."""
        machine = self.machine
        if machine.state is not _STARTED or now_ms < machine.not_before_ms:
            return
        if self._paused:
            self._wake(now_ms)
        ready = self._ready
        while ready:
            producer_partition = ready[0]
            publication = self._sendable(producer_partition, now_ms)
            if publication is None:
                ready.popleft()
                producer_partition.queued = False
            elif not self._send(producer_partition, publication, now_ms):
                return
            elif len(ready) > 1:
                ready.rotate(-1)

    def take_output(self) -> list[Readable]:
        """Return the bytes to send, in order, as pieces."""
        return self.machine.take_output()

    def take_ring_writes(self) -> list[Publication]:
        """Return publications whose payload must be in the ring before the output is sent."""
        writes, self._ring_writes = self._ring_writes, []
        return writes

    def next_wake_ms(self, now_ms: float) -> float:
        """Return the time of the next `tick` and `pump`, if nothing else happens before."""
        machine = self.machine
        wake_ms = machine.next_wake_ms()
        if machine.state is ClientState.DISCONNECTED:
            wake_ms = self.reconnect_at_ms
        elif machine.state is ClientState.STARTED:
            if machine.not_before_ms > now_ms:
                if self._ready or self._paused:
                    wake_ms = min(wake_ms, machine.not_before_ms)
            else:
                wake_ms = min(
                    wake_ms,
                    *(producer_partition.resume_at_ms for producer_partition in self._paused),
                    inf,
                )
        if (
            self._producer_partitions.broken
            and not self._raising
            and self._producer_partitions.stuck
        ):
            wake_ms = now_ms
        if self.resend:
            wake_ms = min(wake_ms, next(iter(self._alive.values()), inf))
        return max(wake_ms, now_ms)

    def close(self) -> None:
        """Reject new publications; existing ones are still delivered."""
        self.closing = True

    def abandon(self, error: PenstockError) -> None:
        """End all remaining publications with `error`; the shell then closes the connection."""
        self.closing = True
        self.machine.close()
        self.machine.take_output()
        self._ring_writes.clear()
        for publication in list(self._alive):
            self._end(publication, error)

    # Sending

    def _check_room(self, publication: Publication) -> None:
        if publication.payload_bytes > self.buffer_bytes_max:
            raise FrameTooLarge(
                f"a frame of {publication.payload_bytes} bytes exceeds the client's buffer"
                f" of {self.buffer_bytes_max} (host.client.buffer.bytes)"
            )
        if len(self._alive) >= self.buffer_frames_max:
            raise NoCredit(
                f"{len(self._alive)} frames have not ended; the maximum is"
                f" {self.buffer_frames_max} (host.client.buffer.frames)"
            )
        if self.buffered_bytes + publication.payload_bytes > self.buffer_bytes_max:
            raise NoCredit(
                f"{self.buffered_bytes} bytes have not ended; {publication.payload_bytes}"
                f" more would exceed the maximum of {self.buffer_bytes_max}"
                " (host.client.buffer.bytes)"
            )

    def _look_at(self, producer_partition: ProducerPartition) -> None:
        if not producer_partition.queued:
            producer_partition.queued = True
            self._ready.append(producer_partition)

    def _wake(self, now_ms: float) -> None:
        for producer_partition in self._paused:
            if producer_partition.resume_at_ms <= now_ms:
                self._look_at(producer_partition)
        self._paused = [
            producer_partition
            for producer_partition in self._paused
            if producer_partition.resume_at_ms > now_ms
        ]

    def _sendable(self, producer_partition: ProducerPartition, now_ms: float) -> Publication | None:
        publication = producer_partition.head()
        if publication is None or producer_partition.blocked(publication):
            return None
        if producer_partition.resume_at_ms > now_ms:
            if producer_partition not in self._paused:
                self._paused.append(producer_partition)
            return None
        if self._raising and publication.log_sequence == NO_LOG_SEQUENCE:
            return None
        return publication

    def _send(
        self, producer_partition: ProducerPartition, publication: Publication, now_ms: float
    ) -> bool:
        """Send the next publication of a producer partition; return False without credit."""
        if not self.machine.has_room(publication):
            return False
        again = publication.first_sent_ms >= 0
        numbered_now = producer_partition.number(publication)
        try:
            self._publish(publication, now_ms)
        except FrameTooLarge as error:
            if numbered_now:
                publication.log_sequence = NO_LOG_SEQUENCE
            self._give_up(publication, error)
            return True
        publication.deadline_ms = inf
        producer_partition.sent(publication, numbered_now=numbered_now)
        self.resent += again
        return True

    def _publish(self, publication: Publication, now_ms: float) -> None:
        self.machine.publish(publication, now_ms)
        if publication.ring_position != NO_POSITION:
            self._ring_writes.append(publication)

    # What became of it

    def _digest(self, events: list[Event], now_ms: float) -> list[Event]:
        left: list[Event] = []
        for event in events:
            if isinstance(event, Ended):
                self._ended(event, now_ms)
                continue
            if isinstance(event, Started):
                self._start()
            elif isinstance(event, Disconnect) and not event.retryable:
                self._refused(event.reason)
            left.append(event)
        if self.fenced is not None:
            self.abandon(self.fenced)
            left.append(Disconnect(str(self.fenced)))
        looks = self._raising or self._producer_partitions.broken
        if looks and not any(isinstance(event, Disconnect) for event in left):
            left += self._consider_epoch()
        return left

    def _refused(self, reason: str) -> None:
        """End all publications, because no agent will accept this producer."""
        error = HandshakeRefused(reason)
        for publication in list(self._alive):
            if publication.producer_partition is None:
                self._end(publication, error)
            else:
                self._give_up(publication, error)

    def _start(self) -> None:
        self._attempts = 0
        self._look_at_all()

    def _look_at_all(self) -> None:
        for producer_partition in self._producer_partitions.all():
            self._look_at(producer_partition)

    def _ended(self, event: Ended, now_ms: float) -> None:
        error = event.error
        for publication in event.publications:
            producer_partition: ProducerPartition | None = publication.producer_partition
            if producer_partition is None:
                self._end(publication, error)
                continue
            if isinstance(error, ProducerFenced):
                self.fenced = error
            if isinstance(error, FrameFailed):
                self._pause(producer_partition, publication, error, now_ms)
            producer_partition.answered()
            if error is None:
                producer_partition.accepted(publication)
                self._end(publication, None)
            elif publication.ended or isinstance(error, (FrameRefused, ProducerFenced)):
                self._give_up(publication, error)
            else:
                producer_partition.returned(publication)
            if not isinstance(error, LostOnDisconnect):
                self._look_at(producer_partition)

    def _pause(
        self,
        producer_partition: ProducerPartition,
        publication: Publication,
        error: FrameFailed,
        now_ms: float,
    ) -> None:
        publication.failures += 1
        publication.failed_by = str(error)
        # No jitter here: what is retried comes from producers that had credit, one by one.
        pause_ms = error.retry_after_ms or self.backoff.pause_ms(publication.failures)
        producer_partition.recovering = True
        producer_partition.resume_at_ms = max(producer_partition.resume_at_ms, now_ms + pause_ms)

    def _give_up(self, publication: Publication, error: PenstockError) -> None:
        self._producer_partitions.given_up(publication, refused=isinstance(error, FrameRefused))
        self._end(publication, error)

    def _end(self, publication: Publication, error: PenstockError | None) -> None:
        if self._alive.pop(publication, None) is not None:
            self.buffered_bytes -= publication.payload_bytes
        publication.end(error)

    def _expire(self, now_ms: float) -> None:
        expired = []
        for publication, expires_ms in self._alive.items():
            if expires_ms > now_ms:
                break
            # Its bytes must be in the ring when the agent looks there.
            if publication not in self._ring_writes:
                expired.append(publication)
        for publication in expired:
            error = PublishTimedOut(
                f"{_what_happened(publication)} in {self.delivery_timeout_ms} ms",
                publication.failed_by,
            )
            if publication.first_sequence in self.machine.in_flight:
                self._end(publication, error)
            else:
                self._give_up(publication, error)

    # Epochs

    def _consider_epoch(self) -> list[Event]:
        """Reconnect with a higher epoch if a partition needs it and all numbers are answered."""
        raising = self._producer_partitions.stuck
        if self._raising and not raising:
            self._look_at_all()
        self._raising = raising
        if raising and self.machine.state is ClientState.STARTED and self._may_raise_epoch():
            return [Disconnect("the producer needs a higher epoch")]
        return []

    def _may_raise_epoch(self) -> bool:
        return (
            self._producer_partitions.stuck
            and self._producer_partitions.all_answered
            and not self.machine.in_flight
        )

    def _raise_epoch(self) -> None:
        machine = self.machine
        known = machine.producer_epoch < limits.PRODUCER_EPOCH_MAX
        if known:
            machine.producer_epoch += 1
        else:
            machine.producer_id, machine.producer_epoch = NO_PRODUCER_ID, 0
        self._producer_partitions.restart(known=known)
        self._raising = False
        self.epochs_raised += 1


def _what_happened(publication: Publication) -> str:
    if publication.failures:
        return f"failed {publication.failures} times as retryable"
    return "no answer" if publication.first_sent_ms >= 0 else "not sent"
