"""Frames of a producer to one partition, in order, with the record sequences of the log.

The log writes a producer's batches once and in order, if they have a producer id, an epoch, and the
record sequence after the last one. It remembers five batches per producer and partition. The number
of a frame is the sequence of its first record. These rules follow:

- A frame is numbered when it is first sent, and keeps its number when it is sent again.
- At most five record batches are unanswered, so that each of them can be sent again.
- The first frame is sent alone. A log that does not know a producer accepts any number. So a second
  frame could be written before a failed first one, which could then never be written.
- Numbering stops after a gap: a numbered frame that is not sent again. There is no gap if that
  frame was the last one and its number is certainly unused. When all numbered frames are answered,
  the producer continues from 0 with the next epoch.

A frame that may be in the log is never renumbered. If a frame is certainly not in the log, later
frames cannot be in the log either, and may be renumbered.

Source: KIP-98 and KIP-360; `penstock.storage.producers` implements the log's side.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from typing import Final

from penstock.host import limits
from penstock.host.errors import InvalidChunks
from penstock.host.port import NO_LOG_SEQUENCE
from penstock.host.publication import NO_SEQUENCE, Publication

LANE_BATCHES_IN_FLIGHT_MAX: Final = 5
"""Maximum unanswered record batches of a producer partition; the log remembers as many."""
PARTITIONS_PER_PRODUCER_MAX: Final = 65_536
"""Maximum number of partitions for which a producer may number its frames; all are remembered."""

_NOWHERE: Final = limits.SEQUENCE_MAX
ProducerPartitionKey = tuple[str, int]


def _latest_first(publication: Publication) -> int:
    return -publication.first_sequence


class ProducerPartition:
    """Publications that are sent in order; those without a partition share one, without numbers."""

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
        """Whether the next frame must wait for answers to others."""
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
        """Whether frames wait that can only be sent with a new epoch."""
        return self._gap_at != NO_SEQUENCE and not self.batches and self.head() is not None

    @property
    def broken(self) -> bool:
        return self._gap_at != NO_SEQUENCE

    def number(self, publication: Publication) -> bool:
        """Number the next frame if it has no number; return whether it got one."""
        if not self.numbered or publication.log_sequence != NO_LOG_SEQUENCE:
            return False
        publication.log_sequence = self._next
        return True

    def sent(self, publication: Publication, *, numbered_now: bool) -> None:
        """Record that the next frame was sent."""
        if publication is (self.again[-1] if self.again else None):
            self.again.pop()
        else:
            self.waiting.popleft()
        self.under_way += 1
        if numbered_now:
            self._next = (self._next + publication.records) % limits.LOG_SEQUENCES
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
        """Queue a frame to be sent again; it may already be in the log."""
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
        """Restart the numbers at 0; `known` is False for a new producer id, which no log knows."""
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
            and (publication.log_sequence + publication.records) % limits.LOG_SEQUENCES
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
        """Restart the numbers of all producer partitions at 0."""
        self.broken.clear()
        for producer_partition in self._producer_partitions.values():
            producer_partition.restart(known=known)
