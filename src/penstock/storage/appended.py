"""Appends between their acceptance and their segment file, and the bounded tail cache.

An `Appended` is one append call's batches, contiguous in memory. It goes through: accepted
(offsets given), durable (in the synced journal; the high watermark covers it), settled (written
to its segment). It stays in its log's tail afterwards, for consumers that keep up, until the
cache needs the room; one whose bytes are leased goes as soon as it is settled.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from operator import attrgetter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock.records import BatchHeader
    from penstock.storage.partition import PartitionLog
    from penstock.storage.producers import Undo
    from penstock.storage.segment import Segment
    from penstock.storage.values import Buffer, Lease

_COMPACT_AT: Final = 64
_OVERHEAD_BYTES: Final = 512
"""What the objects around a small append weigh."""
_base_offset: Final = attrgetter("base_offset")


class Appended:
    """One append; see the module's text for its life."""

    __slots__ = (
        "base_offset", "data", "headers", "lease", "log", "next_offset", "position", "segment",
        "size_bytes", "undo",
    )  # fmt: skip

    def __init__(
        self,
        log: PartitionLog,
        segment: Segment,
        position: int,
        base_offset: int,
        next_offset: int,
        size_bytes: int,
        headers: list[BatchHeader],
        data: Buffer,
        lease: Lease | None,
        undo: list[Undo] | None,
    ) -> None:
        self.log = log
        self.segment = segment
        self.position = position
        self.base_offset = base_offset
        self.next_offset = next_offset
        self.size_bytes = size_bytes
        self.headers = headers
        self.data = data
        self.lease = lease
        self.undo = undo

    def let_go(self) -> None:
        """Drop the bytes, and the lease on them."""
        self.data = b""
        lease, self.lease = self.lease, None
        if lease is not None:
            lease.release()


class Tail:
    """A log's newest appends in order; the first `settled` of them are in their segment."""

    __slots__ = ("_head", "_items", "settled")

    def __init__(self) -> None:
        self._items: list[Appended] = []
        self._head = 0
        self.settled = 0

    def __len__(self) -> int:
        return len(self._items) - self._head

    @property
    def first_offset(self) -> int | None:
        return self._items[self._head].base_offset if len(self._items) > self._head else None

    def push(self, item: Appended) -> None:
        self._items.append(item)

    def pop_newest(self) -> Appended:
        return self._items.pop()

    def pop_oldest(self) -> Appended:
        """Remove the oldest, which must be settled."""
        item = self._items[self._head]
        self._head += 1
        self.settled -= 1
        if self._head >= _COMPACT_AT and self._head * 2 >= len(self._items):
            del self._items[: self._head]
            self._head = 0
        return item

    def unsettled(self) -> list[Appended]:
        return self._items[self._head + self.settled :]

    def from_offset(self, offset: int) -> int | None:
        """The place (for `at`) of the append that holds `offset`; None when it is not here."""
        items = self._items
        place = bisect_right(items, offset, self._head, key=_base_offset) - 1
        return place if place >= self._head else None

    def at(self, place: int) -> Appended | None:
        return self._items[place] if place < len(self._items) else None


class TailCache:
    """The tails of all logs, bounded together; the oldest append goes first."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._order: deque[Appended] = deque()
        self.size_bytes = 0

    @property
    def crowded(self) -> bool:
        """Whether `shrink` has something to do."""
        return self.size_bytes > self._limit_bytes

    def add(self, item: Appended) -> None:
        self._order.append(item)
        self.size_bytes += item.size_bytes + _OVERHEAD_BYTES

    def shrink(self) -> PartitionLog | None:
        """Drop settled appends from the oldest on, until the cache fits its bound.

        Returns the log whose oldest append must be settled before more can go, if there is one.
        """
        order = self._order
        while order and self.size_bytes > self._limit_bytes:
            item = order[0]
            if item.data:
                tail = item.log.tail
                if tail.settled == 0:
                    return item.log
                self.drop(tail.pop_oldest())
            else:
                order.popleft()
        return None

    def drop(self, item: Appended) -> None:
        """Forget an append that left its tail; its place in the order is found later."""
        self.size_bytes -= item.size_bytes + _OVERHEAD_BYTES
        item.let_go()
        order = self._order
        while order and not order[0].data:
            order.popleft()
