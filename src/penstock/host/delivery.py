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

With `resend`, order is kept within a producer partition: one producer's frames to one partition.
With `idempotent` too, publications with a topic and a partition are numbered, and the log stores
each once. If a number cannot be sent again, the producer needs a higher epoch. Then nothing new is
sent until all numbered frames are answered. After that the client reconnects, because HELLO states
the epoch.

It has no clock, randomness or I/O. After each call, the shell first copies `take_ring_writes` into
the ring and then sends `take_output`.

Source: `host-ipc.txt`, delivery; the rules of Kafka's idempotent producer (KIP-98, KIP-360).
"""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict, deque
from math import inf
from typing import Final

from penstock.base.crc import Readable
from penstock.base.errors import PenstockError
from penstock.base.retry import Backoff
from penstock.host import errors
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
    InvalidChunks,
    LostOnDisconnect,
    NoCredit,
    ProducerFenced,
    PublishTimedOut,
)
from penstock.host.port import NO_LOG_SEQUENCE, NO_PRODUCER_ID
from penstock.host.publication import NO_POSITION, NO_SEQUENCE, Publication
from penstock.wire.frames import Frame

# Frames of a producer to one partition, in order, with the record sequences of the log.
#
# The log writes a producer's batches once and in order, if they have a producer id, an epoch, and
# the record sequence after the last one. It remembers five batches per producer and partition. The
# number of a frame is the sequence of its first record. These rules follow:
#
# - A frame is numbered when it is first sent, and keeps its number when it is sent again.
# - At most five record batches are unanswered, so that each of them can be sent again.
# - The first frame is sent alone. A log that does not know a producer accepts any number. So a
#   second frame could be written before a failed first one, which could then never be written.
# - Numbering stops after a gap: a numbered frame that is not sent again. There is no gap if that
#   frame was the last one and its number is certainly unused. When all numbered frames are
#   answered, the producer continues from 0 with the next epoch.
#
# A frame that may be in the log is never renumbered. If a frame is certainly not in the log, later
# frames cannot be in the log either, and may be renumbered.
#
# Source: KIP-98 and KIP-360; `penstock.storage.files.producers` implements the log's side.


LANE_BATCHES_IN_FLIGHT_MAX: Final = 5
"""Maximum unanswered record batches of a producer partition; the log remembers as many."""
PARTITIONS_PER_PRODUCER_MAX: Final = 65_536
"""Maximum number of partitions for which a producer may number its frames; all are remembered."""

_NOWHERE: Final = errors.SEQUENCE_MAX
ProducerPartitionKey = tuple[str, int]


def _latest_first(publication: Publication) -> int:
    return -publication.first_sequence


class ProducerPartition:
    """Frames of one producer to one partition, which are sent in order.

    With `numbered`, frames get the record sequences of the log. Frames without a partition share
    one instance that is not numbered. So do all frames of a producer that is not idempotent.
    """

    __slots__ = (
        "_dead_after", "_gap_at", "_known", "_next", "again", "batches", "numbered", "queued",
        "recovering", "resume_at_ms", "under_way", "waiting",
    )  # fmt: skip

    def __init__(self, *, numbered: bool) -> None:
        self.numbered = numbered
        self.waiting: deque[Publication] = deque()
        """Publications that were never sent."""
        self.again: list[Publication] = []
        """Publications to be sent again; the one with the lowest sequence is last."""
        self.under_way = 0
        """Number of frames in flight, including those that have timed out."""
        self.batches = 0
        """Number of record batches with a number that may or may not be in the log."""
        self.recovering = False
        """Whether a frame failed; nothing is sent until all later frames in flight are answered."""
        self.resume_at_ms = 0.0
        self.queued = False
        """Whether `Delivery` has it in its queue."""
        self._next = 0
        self._known = False
        self._gap_at = NO_SEQUENCE
        self._dead_after = _NOWHERE

    def head(self) -> Publication | None:
        """Return the frame to be sent next, or None; drop ended frames."""
        again = self.again
        while again and again[-1].ended:
            again.pop()
        if again:
            return again[-1]
        waiting = self.waiting
        while waiting and waiting[0].ended:
            waiting.popleft()
        return waiting[0] if waiting else None

    def blocked(self, publication: Publication) -> bool:
        """Whether a frame may not be sent until earlier frames of this producer partition are
        answered.
        """
        if self.recovering:
            return True
        if not self.numbered or publication.log_sequence != NO_LOG_SEQUENCE:
            return False
        if self._gap_at != NO_SEQUENCE:
            return True
        if not self._known:
            return self.batches > 0
        return self.batches + publication.batches > LANE_BATCHES_IN_FLIGHT_MAX

    @property
    def stuck(self) -> bool:
        """Whether the next frame can only be sent with a higher producer epoch.

        That is so after a gap in the numbers, when all numbered frames are answered.
        """
        return self._gap_at != NO_SEQUENCE and not self.batches and self.head() is not None

    @property
    def broken(self) -> bool:
        return self._gap_at != NO_SEQUENCE

    def number(self, publication: Publication) -> bool:
        """Give a frame the next log sequence if it has none; return whether it got one."""
        if not self.numbered or publication.log_sequence != NO_LOG_SEQUENCE:
            return False
        publication.log_sequence = self._next
        return True

    def sent(self, publication: Publication, *, numbered_now: bool) -> None:
        """Record that the frame from `head` was sent; `numbered_now` is the result of `number`."""
        if publication is (self.again[-1] if self.again else None):
            self.again.pop()
        else:
            self.waiting.popleft()
        self.under_way += 1
        if numbered_now:
            self._next = (self._next + publication.records) % errors.LOG_SEQUENCES
            self.batches += publication.batches

    def answered(self) -> None:
        """Record that a frame in flight was answered, or lost."""
        self.under_way -= 1
        if not self.under_way:
            self.recovering = False

    def accepted(self, publication: Publication) -> None:
        """Record that a frame was accepted: it and all earlier frames are in the log."""
        self._known = True
        self._resolve(publication)
        if publication.first_sequence > self._gap_at:
            self._gap_at = NO_SEQUENCE
            self._dead_after = _NOWHERE

    def returned(self, publication: Publication) -> None:
        """Queue a frame to be sent again; it may already be in the log, so it usually keeps its
        number.
        """
        publication.in_doubt = True
        if publication.first_sequence > self._dead_after:
            self._unnumber(publication)
        insort(self.again, publication, key=_latest_first)

    def given_up(self, publication: Publication, *, refused: bool = False) -> None:
        """Drop a frame that is not sent again; `refused` means that the agent rejected it
        permanently.
        """
        if publication.log_sequence == NO_LOG_SEQUENCE:
            return
        self._resolve(publication)
        if refused and self._free_again(publication):
            self._next = publication.log_sequence
            return
        self._gap_at = max(self._gap_at, publication.first_sequence)
        if refused and not publication.in_doubt:
            self._dead_after = min(self._dead_after, publication.first_sequence)
            for later in self.again:
                if later.first_sequence > self._dead_after and not later.ended:
                    self._unnumber(later)

    def restart(self, *, known: bool) -> None:
        """Restart the numbers at 0, for a higher epoch or another producer id.

        `known` is False for a new producer id. The log does not know it, so the first frame is sent
        alone.
        """
        self._next = 0
        self._gap_at = NO_SEQUENCE
        self._dead_after = _NOWHERE
        self._known = self._known and known

    def _free_again(self, publication: Publication) -> bool:
        """Return whether the number of a rejected frame may be used again.

        It may if the frame was the last one, was sent once, and no part of it can be in the log.
        """
        return (
            not publication.in_doubt
            and publication.batches == 1
            and (publication.log_sequence + publication.records) % errors.LOG_SEQUENCES
            == self._next
        )

    def _resolve(self, publication: Publication) -> None:
        if publication.log_sequence != NO_LOG_SEQUENCE:
            self.batches -= publication.batches

    def _unnumber(self, publication: Publication) -> None:
        self._resolve(publication)
        publication.log_sequence = NO_LOG_SEQUENCE
        publication.in_doubt = False


class ProducerPartitions:
    """Producer partitions of one producer."""

    def __init__(self, *, idempotent: bool) -> None:
        self._idempotent = idempotent
        self._plain = ProducerPartition(numbered=False)
        self._producer_partitions: dict[ProducerPartitionKey, ProducerPartition] = {}
        self.broken: dict[ProducerPartition, None] = {}
        """Producer partitions that may have a gap."""

    def of(self, publication: Publication) -> ProducerPartition:
        """Return the producer partition of a publication.

        Raises:
            InvalidChunks: the frame has no record or too many record batches, or the producer has
                published to too many partitions.
        """
        if not self._idempotent or publication.partition < 0:
            return self._plain
        if publication.batches > LANE_BATCHES_IN_FLIGHT_MAX:
            raise InvalidChunks(
                f"a frame of {publication.batches} record batches cannot be idempotent; the"
                f" maximum is {LANE_BATCHES_IN_FLIGHT_MAX}, which the log remembers"
            )
        if publication.records < 1:
            raise InvalidChunks("a frame without records cannot be written to the log")
        key = (publication.topic, publication.partition)
        producer_partition = self._producer_partitions.get(key)
        if producer_partition is None:
            if len(self._producer_partitions) >= PARTITIONS_PER_PRODUCER_MAX:
                raise InvalidChunks(
                    f"the producer has published to {len(self._producer_partitions)}"
                    " partitions; the maximum of an idempotent producer is"
                    f" {PARTITIONS_PER_PRODUCER_MAX}"
                )
            producer_partition = self._producer_partitions[key] = ProducerPartition(numbered=True)
        return producer_partition

    def all(self) -> list[ProducerPartition]:
        """Return all producer partitions; the one without numbers is the first."""
        return [self._plain, *self._producer_partitions.values()]

    def given_up(self, publication: Publication, *, refused: bool) -> None:
        """Drop a publication that is not sent again; see `ProducerPartition.given_up`."""
        producer_partition: ProducerPartition = publication.producer_partition
        producer_partition.given_up(publication, refused=refused)
        if producer_partition.broken:
            self.broken[producer_partition] = None

    @property
    def stuck(self) -> bool:
        """Whether a producer partition has frames that can only be sent with a new epoch."""
        for producer_partition in [
            producer_partition
            for producer_partition in self.broken
            if not producer_partition.broken
        ]:
            del self.broken[producer_partition]
        return any(producer_partition.stuck for producer_partition in self.broken)

    @property
    def all_answered(self) -> bool:
        """Whether all numbered frames are answered."""
        return not any(
            producer_partition.batches for producer_partition in self._producer_partitions.values()
        )

    def restart(self, *, known: bool) -> None:
        """Restart the numbers of all producer partitions at 0; `known` is as in
        `ProducerPartition`.
        """
        self.broken.clear()
        for producer_partition in self._producer_partitions.values():
            producer_partition.restart(known=known)


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
            if isinstance(error, LostOnDisconnect):
                continue
            if producer_partition.waiting or producer_partition.again:
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
        """Request a new connection, with a higher epoch, if a producer partition is stuck without
        one.

        It waits until all numbered frames are answered.
        """
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
        known = machine.producer_epoch < errors.PRODUCER_EPOCH_MAX
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
