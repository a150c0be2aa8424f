"""What producers were told, what sinks said and what the log has; and whether they fit together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from struct import Struct

from penstock.base.errors import PenstockError
from penstock.host.errors import FrameRefused
from penstock.host.port import ChunkFormat
from penstock.host.publication import Publication, batch, single
from sim.host.log import ModelLog
from sim.host.scheduler import Violation

HEAD = Struct(">IBBB")
"""At the start of every chunk: its item's number, its place, its records, whether it is poison."""
ACCEPTED = -2
"""Stands for all producer ids where the order of what was accepted is looked at."""
ProducerPartition = tuple[str, int]


@dataclass(slots=True, eq=False)
class Item:
    """One publication, seen from outside."""

    number: int
    writer: int
    """Items of one writer and lane keep their order."""
    lane: ProducerPartition | None
    idempotent: bool
    poison: bool
    chunks: Sequence[bytes]
    format: ChunkFormat
    publication: Publication | None = None
    ends: int = 0
    error: PenstockError | None = None
    accepted_by_sink: bool = False
    deliveries: int = 0
    """How often a sink was handed it."""
    must_arrive: bool = False
    """Submitted after all was well again."""
    producer_gone: bool = False

    @property
    def batches(self) -> list[bytes]:
        """The batches that it becomes in the log."""
        if self.format is ChunkFormat.RECORD_BATCH:
            return list(self.chunks)
        return [b"".join(self.chunks)]

    def __str__(self) -> str:
        return f"item {self.number} of writer {self.writer} in {self.lane}"


@dataclass(slots=True)
class History:
    """All items of a story."""

    items: list[Item] = field(default_factory=list)

    def new_item(
        self,
        random: Random,
        *,
        writer: int,
        lane: ProducerPartition | None,
        idempotent: bool,
        poison: bool,
    ) -> Item:
        """A publication with one to four chunks, of one of the three kinds."""
        number = len(self.items)
        kind = random.random()
        count = 1 if kind < 0.6 else random.randint(1, 4)
        batched = lane is not None and random.random() < 0.4
        chunks, records = [], []
        for index in range(count):
            records.append(random.randint(1, 3))
            head = HEAD.pack(number, index, records[-1], poison)
            chunks.append(head + bytes([number % 251]) * random.randint(0, 60))
        topic, partition = lane if lane is not None else ("", -1)
        format_ = ChunkFormat.RECORD_BATCH if batched else ChunkFormat.OPAQUE
        item = Item(number, writer, lane, idempotent, poison, chunks, format_)
        if kind < 0.6:
            publication = single(
                chunks[0], event_count=records[0], topic=topic, partition=partition, format=format_
            )
        else:
            publication = batch(
                chunks, event_counts=records, topic=topic, partition=partition, format=format_
            )
        publication.on_end = lambda ended: self._ended(item, ended)
        item.publication = publication
        self.items.append(item)
        return item

    def _ended(self, item: Item, publication: Publication) -> None:
        item.ends += 1
        item.error = publication.error
        if item.ends > 1:
            raise Violation(f"{item} ended {item.ends} times")
        if item.error is None and not item.accepted_by_sink:
            raise Violation(f"{item} is called accepted, and no sink accepted it")

    # At the end

    def check(self, log: ModelLog) -> None:
        """Compare what producers were told with what is in the log."""
        found: dict[ProducerPartition | None, Counter[bytes]] = {}
        for lane, batches in log.entries.items():
            found[lane] = Counter(data for data, _ in batches)
            self._check_order(lane, batches)
        for item in self.items:
            self._check_item(item, found.get(item.lane or ("", -1), Counter()))

    def _check_item(self, item: Item, found: Counter[bytes]) -> None:
        counts = [found[data] for data in item.batches]
        if item.ends != 1 and not item.producer_gone:
            raise Violation(f"{item} ended {item.ends} times")
        if item.ends and item.error is None and min(counts) < 1:
            raise Violation(f"{item} was accepted, and is not in the log: {counts}")
        if item.idempotent and max(counts) > 1:
            raise Violation(f"{item} is in the log more than once: {counts}")
        if item.must_arrive and item.error is not None:
            raise Violation(f"{item} failed though all was well: {item.error}")
        if item.poison and max(counts) > 0:
            raise Violation(f"{item} must be refused, and is in the log")
        if isinstance(item.error, FrameRefused) and item.deliveries == 1 and min(counts) > 0:
            raise Violation(f"{item} was refused for good, and is in the log")

    def _check_order(self, lane: ProducerPartition, batches: list[tuple[bytes, int]]) -> None:
        """Payloads are as they were sent; a writer's idempotent items are in their order.

        With one exception: a log does not know that one producer id follows another. What was given
        up under the old one, and is still on its way, may arrive after something of the new one.
        """
        last: dict[tuple[int, int], tuple[int, int]] = {}
        for data, producer_id in batches:
            number, index, _, _ = HEAD.unpack_from(data)
            if number >= len(self.items):
                raise Violation(f"the log has bytes of an item {number} that never was")
            item = self.items[number]
            if data not in item.batches or (item.lane or ("", -1)) != lane:
                raise Violation(f"{item} is in {lane} of the log with other bytes")
            if not item.idempotent:
                continue
            for order in ((item.writer, producer_id), (item.writer, ACCEPTED)):
                if order[1] == ACCEPTED and (not item.ends or item.error is not None):
                    continue
                if last.get(order, (-1, -1)) >= (number, index):
                    raise Violation(f"{item} is behind item {last[order][0]} in the log")
                last[order] = (number, index)
