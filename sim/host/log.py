"""A model of the log: what an idempotent producer may rely on, and nothing more.

Of every producer a partition remembers the epoch and the last five batches. A batch comes once:

- of an older epoch: refused for good;
- one of the five: it is there already;
- the one after the last, or 0 in a newer epoch: appended;
- of a producer that the partition does not know: appended, whatever its sequence;
- anything else: out of order.

Written from Kafka's rules, apart from `penstock.storage.files.producers`, so that both are tried.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

REMEMBERED = 5
MODULUS = 2**31


class Append(Enum):
    """What became of a batch."""

    WRITTEN = "written"
    DUPLICATE = "duplicate"
    OUT_OF_ORDER = "out of order"
    FENCED = "fenced"


@dataclass(slots=True)
class _Producer:
    epoch: int
    batches: list[tuple[int, int]] = field(default_factory=list)
    """First sequence and number of records, oldest first."""


class ModelLog:
    """Partitions of records' bytes; it survives everything that happens in a story."""

    def __init__(self, first_sequence: int = 0) -> None:
        self.entries: dict[tuple[str, int], list[tuple[bytes, int]]] = {}
        """The batches of a partition, in order: the bytes of its chunks, and the producer's id."""
        self.next_producer_id = 100
        self._producers: dict[tuple[str, int, int], _Producer] = {}

    def new_producer_id(self) -> int:
        self.next_producer_id += 1
        return self.next_producer_id

    def append(
        self,
        lane: tuple[str, int],
        producer_id: int,
        epoch: int,
        sequence: int,
        records: int,
        data: bytes,
    ) -> Append:
        """Append a batch; a `sequence` of -1 is not checked."""
        if sequence >= 0:
            outcome = self._check(lane, producer_id, epoch, sequence, records)
            if outcome is not Append.WRITTEN:
                return outcome
        self.entries.setdefault(lane, []).append((data, producer_id))
        return Append.WRITTEN

    def _check(
        self, lane: tuple[str, int], producer_id: int, epoch: int, sequence: int, records: int
    ) -> Append:
        key = (*lane, producer_id)
        known = self._producers.get(key)
        batch = (sequence, records)
        if known is None:
            self._producers[key] = _Producer(epoch, [batch])
            return Append.WRITTEN
        if epoch < known.epoch:
            return Append.FENCED
        if epoch > known.epoch:
            if sequence != 0:
                return Append.OUT_OF_ORDER
            self._producers[key] = _Producer(epoch, [batch])
            return Append.WRITTEN
        if batch in known.batches:
            return Append.DUPLICATE
        last, size = known.batches[-1]
        if sequence != (last + size) % MODULUS:
            return Append.OUT_OF_ORDER
        known.batches = [*known.batches[1 - REMEMBERED :], batch]
        return Append.WRITTEN
