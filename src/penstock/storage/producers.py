"""What a partition remembers of its idempotent producers: a pure core.

What one producer's next batch is, `records.idempotence` says. A producer's state is an immutable
value that is replaced by each append, so that an append that did not become durable is undone by
putting the old value back.

Source: Kafka's `ProducerAppendInfo` and `ProducerStateManager`; KIP-98, KIP-360.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

from penstock.records import BatchHeader
from penstock.records.errors import OutOfOrderSequence
from penstock.records.idempotence import (
    SEQUENCES,
    Producer,
    ProducerBatch,
    ProducerState,
    appended,
    described,
    original,
)
from penstock.records.limits import PRODUCER_BATCHES_MAX
from penstock.storage.formats.snapshot import SnapshotEntry

Undo = tuple[int, Producer | None]
"""A producer id and what it was before an append."""


class ProducerStates:
    """All producers of one partition."""

    __slots__ = ("_producers",)

    def __init__(self) -> None:
        self._producers: dict[int, Producer] = {}

    def __len__(self) -> int:
        return len(self._producers)

    def check(self, header: BatchHeader) -> ProducerBatch | None:
        """Return the original if the batch is a duplicate, None if it may be appended.

        Raises:
            InvalidProducerEpoch, OutOfOrderSequence: as the table says.
        """
        producer = self._producers.get(header.producer_id)
        if producer is None:
            return None
        return original(
            producer,
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
            header.last_sequence,
        )

    def check_all(self, headers: list[BatchHeader]) -> ProducerBatch | None:
        """As `check`, for all batches of one append together.

        Raises:
            OutOfOrderSequence: some are duplicates and some are not, too.
        """
        first = headers[0]
        stored = self.check(first) if first.producer_id >= 0 else None
        if len(headers) == 1:
            return stored
        if stored is not None:
            if all([self.check(header) is not None for header in headers]):
                return stored
            raise OutOfOrderSequence(f"an append of {len(headers)} batches repeats some of them")
        undos: list[Undo] = []
        try:
            for header in headers:
                if header.producer_id < 0:
                    continue
                if self.check(header) is not None:
                    raise OutOfOrderSequence("an append holds batches that are stored already")
                undos.append(self.append(header, 0, 0))
        finally:
            for undo in reversed(undos):
                self.undo(undo)
        return None

    def append(self, header: BatchHeader, base_offset: int, seen_ms: int) -> Undo:
        """Remember a batch that was checked and now stands at `base_offset`."""
        producer_id = header.producer_id
        before = self._producers.get(producer_id)
        delta = header.last_offset_delta
        batch = ProducerBatch(
            header.base_sequence,
            header.last_sequence,
            base_offset + delta,
            delta,
            header.max_timestamp,
        )
        self._producers[producer_id] = appended(before, header.producer_epoch, batch, seen_ms)
        return producer_id, before

    def undo(self, undo: Undo) -> None:
        """Put back what was before an append; appends are undone newest first."""
        producer_id, before = undo
        if before is None:
            self._producers.pop(producer_id, None)
        else:
            self._producers[producer_id] = before

    def before(self, undos: list[Undo]) -> ProducerStates:
        """A copy as it was before the appends that `undos` belong to, which are in order."""
        copy = ProducerStates()
        copy._producers = dict(self._producers)
        for undo in reversed(undos):
            copy.undo(undo)
        return copy

    def last_sequence(self, producer_id: int) -> int | None:
        """The sequence of a producer's last record; None for one that is not remembered."""
        producer = self._producers.get(producer_id)
        return None if producer is None else producer.batches[-1].last_sequence

    def expire(self, now_ms: int, expiration_ms: int, kept: Container[int] = ()) -> int:
        """Forget producers that have been idle, but those of `kept`; returns how many."""
        limit = now_ms - expiration_ms
        idle = [
            key
            for key, producer in self._producers.items()
            if producer.seen_ms <= limit and key not in kept
        ]
        for key in idle:
            del self._producers[key]
        return len(idle)

    def describe(self) -> list[ProducerState]:
        return [described(*item) for item in self._producers.items()]

    def states(self) -> dict[int, Producer]:
        """All of them, by producer id."""
        return dict(self._producers)

    def snapshot(self) -> tuple[list[SnapshotEntry], list[SnapshotEntry]]:
        """The last batch of each producer, as Kafka keeps it, and all batches."""
        last = [_entry(key, p, p.batches[-1]) for key, p in self._producers.items()]
        every = [_entry(key, p, batch) for key, p in self._producers.items() for batch in p.batches]
        return last, every

    def load(self, entries: Iterable[SnapshotEntry]) -> None:
        """Restore from a snapshot's entries; several of one producer are in order."""
        for entry in entries:
            delta = entry.offset_delta
            batch = ProducerBatch(
                (entry.last_sequence - delta) % SEQUENCES,
                entry.last_sequence,
                entry.last_offset,
                delta,
                entry.timestamp,
            )
            before = self._producers.get(entry.producer_id)
            batches = before.batches if before and before.epoch == entry.producer_epoch else ()
            self._producers[entry.producer_id] = Producer(
                entry.producer_epoch,
                (*batches[1 - PRODUCER_BATCHES_MAX :], batch),
                entry.timestamp,
            )


def _entry(producer_id: int, producer: Producer, batch: ProducerBatch) -> SnapshotEntry:
    return SnapshotEntry(
        producer_id,
        producer.epoch,
        batch.last_sequence,
        batch.last_offset,
        batch.offset_delta,
        producer.seen_ms,
    )
