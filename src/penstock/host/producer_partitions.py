"""Frames of a producer to one partition, in order, numbered as the log counts records.

The log writes a producer's batches once and in order, if they have a producer id, an epoch and the
record sequence that follows the last one. It remembers five batches of a producer in a partition.
A producer partition therefore

- numbers a frame when it is sent first, and keeps the number when it is sent again;
- has at most five record batches without an answer, so that any of them can be repeated;
- sends its first frame alone: a log that does not know a producer accepts any number, so a second
  frame could overtake a first one that failed, which could then never be written;
- stops numbering after a gap, which is a numbered frame that is not sent again, unless it was the
  last one and its number is certainly free. Once all numbered frames are answered, the producer
  continues with the next epoch, from 0.

A frame that may be in the log is never renumbered. A frame that follows one which is certainly not
in the log cannot be in the log either, and may be renumbered.

Source: KIP-98 and KIP-360; `penstock.storage.producers` is the other side of this contract.
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
"""Record batches of a producer partition that may be unacknowledged: what the log remembers of a
producer.
"""
PARTITIONS_PER_PRODUCER_MAX: Final = 65_536
"""Partitions that one producer may number its frames for; it remembers each as long as it lives."""

_NOWHERE: Final = limits.SEQUENCE_MAX
ProducerPartitionKey = tuple[str, int]


def _latest_first(publication: Publication) -> int:
    return -publication.first_sequence


class ProducerPartition:
    """Publications that are sent in order; those without a partition share one, not numbered."""

    __slots__ = (
        "_dead_after", "_gap_at", "_known", "_next", "again", "batches", "numbered", "queued",
        "recovering", "resume_at_ms", "under_way", "waiting",
    )  # fmt: skip

    def __init__(self, *, numbered: bool) -> None:
        self.numbered = numbered
        self.waiting: deque[Publication] = deque()
        """Never sent."""
        self.again: list[Publication] = []
        """Sent before and to be sent again: the earliest is last."""
        self.under_way = 0
        """Frames whose answer is awaited, also those whose time is over."""
        self.batches = 0
        """Record batches that are numbered and may or may not stand in the log."""
        self.recovering = False
        """A frame failed: nothing is sent until those behind it have been answered too."""
        self.resume_at_ms = 0.0
        self.queued = False
        """Whether `Delivery` has it among those to look at."""
        self._next = 0
        self._known = False
        self._gap_at = NO_SEQUENCE
        self._dead_after = _NOWHERE

    def head(self) -> Publication | None:
        """Return the frame to be sent next; drop ended ones."""
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
        """Whether the head has to wait for answers."""
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
        """Whether only a new epoch helps."""
        return self._gap_at != NO_SEQUENCE and not self.batches and self.head() is not None

    @property
    def broken(self) -> bool:
        return self._gap_at != NO_SEQUENCE

    def number(self, publication: Publication) -> bool:
        """Give the head its log sequence, unless it has one; whether it has got one now."""
        if not self.numbered or publication.log_sequence != NO_LOG_SEQUENCE:
            return False
        publication.log_sequence = self._next
        return True

    def sent(self, publication: Publication, *, numbered_now: bool) -> None:
        """The head was sent."""
        if publication is (self.again[-1] if self.again else None):
            self.again.pop()
        else:
            self.waiting.popleft()
        self.under_way += 1
        if numbered_now:
            self._next = (self._next + publication.records) % limits.LOG_SEQUENCES
            self.batches += publication.batches

    def answered(self) -> None:
        """A frame under way has been answered, or lost."""
        self.under_way -= 1
        if not self.under_way:
            self.recovering = False

    def accepted(self, publication: Publication) -> None:
        """Handle an accepted frame: it is in the log, and so is every frame before it."""
        self._known = True
        self._resolve(publication)
        if publication.first_sequence > self._gap_at:
            self._gap_at = NO_SEQUENCE
            self._dead_after = _NOWHERE

    def returned(self, publication: Publication) -> None:
        """Queue a frame to be sent again; it may be in the log."""
        publication.in_doubt = True
        if publication.first_sequence > self._dead_after:
            self._unnumber(publication)
        insort(self.again, publication, key=_latest_first)

    def given_up(self, publication: Publication, *, refused: bool = False) -> None:
        """Drop a frame that is not sent again; `refused` if it was just rejected permanently."""
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
        """Begin at 0 with a new epoch, or with a new producer id, which no log has `known`."""
        self._next = 0
        self._gap_at = NO_SEQUENCE
        self._dead_after = _NOWHERE
        self._known = self._known and known

    def _free_again(self, publication: Publication) -> bool:
        """Return whether a rejected frame's number may be used again: it was the last one, was sent
        once, and no part of it can be in the log."""
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
    """Producer partitions of a producer."""

    def __init__(self, *, idempotent: bool) -> None:
        self._idempotent = idempotent
        self._plain = ProducerPartition(numbered=False)
        self._producer_partitions: dict[ProducerPartitionKey, ProducerPartition] = {}
        self.broken: dict[ProducerPartition, None] = {}
        """Those with a gap, as far as is known."""

    def of(self, publication: Publication) -> ProducerPartition:
        """The producer partition that a publication belongs to.

        Raises:
            InvalidChunks: more record batches than the log remembers of a producer, no record, or
                more partitions than one producer may publish to.
        """
        if not self._idempotent or publication.partition < 0:
            return self._plain
        if publication.batches > LANE_BATCHES_IN_FLIGHT_MAX:
            raise InvalidChunks(
                f"{publication.batches} record batches in one frame; at most"
                f" {LANE_BATCHES_IN_FLIGHT_MAX} can be repeated without being written twice"
            )
        if publication.records < 1:
            raise InvalidChunks("a frame without records cannot be written to the log")
        key = (publication.topic, publication.partition)
        producer_partition = self._producer_partitions.get(key)
        if producer_partition is None:
            if len(self._producer_partitions) >= PARTITIONS_PER_PRODUCER_MAX:
                raise InvalidChunks(
                    f"{len(self._producer_partitions)} partitions have been published to; one"
                    f" idempotent producer may publish to {PARTITIONS_PER_PRODUCER_MAX}"
                )
            producer_partition = self._producer_partitions[key] = ProducerPartition(numbered=True)
        return producer_partition

    def all(self) -> list[ProducerPartition]:
        """The producer partition without numbers first."""
        return [self._plain, *self._producer_partitions.values()]

    def given_up(self, publication: Publication, *, refused: bool) -> None:
        """A publication is not sent again; see `ProducerPartition.given_up`."""
        producer_partition: ProducerPartition = publication.producer_partition
        producer_partition.given_up(publication, refused=refused)
        if producer_partition.broken:
            self.broken[producer_partition] = None

    @property
    def stuck(self) -> bool:
        """Return whether a producer partition needs a new epoch and has frames to send."""
        for producer_partition in [
            producer_partition
            for producer_partition in self.broken
            if not producer_partition.broken
        ]:
            del self.broken[producer_partition]
        return any(producer_partition.stuck for producer_partition in self.broken)

    @property
    def all_answered(self) -> bool:
        """Whether nothing that was numbered is without an answer."""
        return not any(
            producer_partition.batches for producer_partition in self._producer_partitions.values()
        )

    def restart(self, *, known: bool) -> None:
        """Restart all producer partitions at 0."""
        self.broken.clear()
        for producer_partition in self._producer_partitions.values():
            producer_partition.restart(known=known)
