"""The log of a partition, as far as transactions go.

Data of a transaction are taken after the coordinator was asked, if no marker came meanwhile. A
marker of an older coordinator is refused; one that is there already is not written again; in
version 2 its epoch must be above that of what it ends.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.broker.transactions import ProducerIdentity
from penstock.records.transactions import EPOCH_VERSION


class Violation(Exception):
    """Something has happened that must not."""


class Tag(NamedTuple):
    """A client's transaction, by number."""

    client: int
    number: int


class Marker(NamedTuple):
    """What the core wants written."""

    producer: ProducerIdentity
    commit: bool
    version: int
    coordinator: int


class Entry(NamedTuple):
    """Data of a transaction, or the marker that ends one (without a tag)."""

    producer: ProducerIdentity
    tag: Tag | None
    commit: bool = False


class Log(NamedTuple):
    """Entries, who has a transaction open, the newest epochs by producer id, and coordinator."""

    entries: tuple[Entry, ...] = ()
    open: ProducerIdentity | None = None
    epochs: tuple[tuple[int, int], ...] = ()
    coordinator: int = 0

    def epoch(self, producer_id: int) -> int:
        return dict(self.epochs).get(producer_id, -1)

    def append(self, producer: ProducerIdentity, tag: Tag) -> Log | None:
        """Take data; None if they are refused."""
        if producer.producer_epoch < self.epoch(producer.producer_id):
            return None
        if self.open not in (None, producer):
            raise Violation(f"{producer} writes while the transaction of {self.open} is open")
        return self._with(Entry(producer, tag), producer)

    def mark(self, marker: Marker) -> Log | None:
        """Write a marker where it is not there; None if its coordinator is an old one."""
        if marker.coordinator < self.coordinator:
            return None
        producer = marker.producer
        known = self.epoch(producer.producer_id)
        ends = self.open is not None and self.open.producer_id == producer.producer_id
        if marker.version >= EPOCH_VERSION:
            if known >= producer.producer_epoch:
                return self
        elif known > producer.producer_epoch or (known == producer.producer_epoch and not ends):
            return self
        log = self._with(Entry(producer, None, marker.commit), None if ends else self.open)
        return log._replace(coordinator=marker.coordinator)

    def outcomes(self) -> dict[Tag, bool | None]:
        """By transaction, whether its data here are committed; None while they are open."""
        found: dict[Tag, bool | None] = {}
        for index, entry in enumerate(self.entries):
            if entry.tag is not None:
                later = self.entries[index + 1 :]
                found[entry.tag] = next(
                    (other.commit for other in later if self._ends(other, entry)), None
                )
        return found

    def _ends(self, marker: Entry, data: Entry) -> bool:
        return marker.tag is None and marker.producer.producer_id == data.producer.producer_id

    def _with(self, entry: Entry, opened: ProducerIdentity | None) -> Log:
        producer_id, epoch = entry.producer
        epochs = dict(self.epochs) | {producer_id: epoch}
        return Log((*self.entries, entry), opened, tuple(sorted(epochs.items())), self.coordinator)
