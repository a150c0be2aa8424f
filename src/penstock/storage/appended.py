"""Appends between their acceptance and their segment file, and the bounded tail cache.

An `Appended` is one append call's batches, contiguous in memory. It goes through: accepted
(offsets given), durable (in the synced journal; the durable offset covers it), written (written
to its segment). It stays in its log's tail afterwards, for consumers that keep up, until the
cache needs the room; one whose bytes are leased goes as soon as it is written.

The log of an append is a type parameter: it is made of these parts, and they know no more of it
than `AppendedTo` says.

A `Control` goes the same way, in the same order, and says something else of its log than batches.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from operator import attrgetter
from typing import Any, Final, Generic, Protocol, TypeVar

from penstock.base.settings import LONG_MAX
from penstock.records import BatchHeader
from penstock.storage.errors import StorageError, StorageFailed
from penstock.storage.producers import Undo
from penstock.storage.segment import Segment
from penstock.storage.values import Buffer, Lease

_COMPACT_AT: Final = 64
_OVERHEAD_BYTES: Final = 512
"""What the objects around a small append weigh."""
_base_offset: Final = attrgetter("base_offset")


class AppendedTo(Protocol):
    """What an append's log has for its way to disk: its key in the journal, and its tail."""

    @property
    def key(self) -> bytes: ...

    @property
    def tail(self) -> Tail[Any]: ...


LogT = TypeVar("LogT", bound=AppendedTo)


class Appended(Generic[LogT]):
    """One append; see the module's text for its life."""

    __slots__ = (
        "base_offset", "data", "headers", "in_segment", "lease", "log", "next_offset", "position",
        "segment", "size_bytes", "stamped", "undo",
    )  # fmt: skip

    def __init__(
        self,
        log: LogT,
        segment: Segment,
        position: int,
        base_offset: int,
        next_offset: int,
        size_bytes: int,
        headers: list[BatchHeader],
        data: Buffer,
        lease: Lease | None,
        undo: list[Undo] | None,
        stamped: bool = False,
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
        self.in_segment = False
        """Whether its bytes are synced in its segment before the journal has the append."""
        self.stamped = stamped
        """Whether the headers have offsets: of batches that need not follow each other closely."""

    def let_go(self) -> None:
        """Drop the bytes, and the lease on them."""
        self.data = b""
        lease, self.lease = self.lease, None
        if lease is not None:
            lease.release()


class Control(Appended[LogT]):
    """What is to be done with a log once the journal says so: a row of it without batches.

    `perform` is called when it is durable, before the appends that came after it count; it raises
    OSError where files cannot be changed. `take_back` is called when nothing became of it, newest
    first among the appends of its log. It is in no tail.
    """

    __slots__ = ("perform", "take_back")

    def __init__(
        self,
        log: LogT,
        segment: Segment,
        position: int,
        base_offset: int,
        next_offset: int,
        *,
        data: bytes = b"",
        perform: Callable[[], None],
        take_back: Callable[[], None],
    ) -> None:
        offsets = base_offset, next_offset
        super().__init__(log, segment, position, *offsets, len(data), [], data, None, None)
        self.perform = perform
        self.take_back = take_back

    def cuts_behind(self, sequence: int) -> None:
        """Where it is a cut, or a start: its entry is not behind this one."""
        if self.segment.base_offset >= 0:
            self.log.tail.cut_sequence = sequence


class Tail(Generic[LogT]):
    """A log's newest appends in order; the first `written` of them are in their segment."""

    __slots__ = ("_head", "_items", "cut_sequence", "written")

    def __init__(self) -> None:
        self._items: list[Appended[LogT]] = []
        self._head = 0
        self.written = 0
        self.cut_sequence = 0
        """The log's newest cut in the journal is not behind this entry; until a checkpoint covers
        it, a replay would cut what is in segments alone."""

    def __len__(self) -> int:
        return len(self._items) - self._head

    @property
    def first_offset(self) -> int | None:
        return self._items[self._head].base_offset if len(self._items) > self._head else None

    def push(self, item: Appended[LogT]) -> None:
        self._items.append(item)

    def pop_newest(self) -> Appended[LogT]:
        return self._items.pop()

    def pop_oldest(self) -> Appended[LogT]:
        """Remove the oldest, which must be written."""
        item = self._items[self._head]
        self._head += 1
        self.written -= 1
        if self._head >= _COMPACT_AT and self._head * 2 >= len(self._items):
            del self._items[: self._head]
            self._head = 0
        return item

    def unwritten(self) -> list[Appended[LogT]]:
        return self._items[self._head + self.written :]

    def from_offset(self, offset: int) -> int | None:
        """The place (for `at`) of the append that holds `offset`; None when it is not here."""
        items = self._items
        place = bisect_right(items, offset, self._head, key=_base_offset) - 1
        return place if place >= self._head else None

    def at(self, place: int) -> Appended[LogT] | None:
        return self._items[place] if place < len(self._items) else None


class TailCache(Generic[LogT]):
    """The tails of all logs, bounded together; the oldest append goes first."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._order: deque[Appended[LogT]] = deque()
        self.size_bytes = 0

    @property
    def crowded(self) -> bool:
        """Whether `shrink` has something to do."""
        return self.size_bytes > self._limit_bytes

    def add(self, item: Appended[LogT]) -> None:
        self._order.append(item)
        self.size_bytes += item.size_bytes + _OVERHEAD_BYTES

    def shrink(self) -> LogT | None:
        """Drop written appends from the oldest on, until the cache fits its bound.

        Returns the log whose oldest append must be written before more can go, if there is one.
        """
        order = self._order
        while order and self.size_bytes > self._limit_bytes:
            item = order[0]
            if item.data:
                tail = item.log.tail
                if tail.written == 0:
                    return item.log
                self.drop(tail.pop_oldest())
            else:
                order.popleft()
        return None

    def drop(self, item: Appended[LogT]) -> None:
        """Forget an append that left its tail; its place in the order is found later."""
        self.size_bytes -= item.size_bytes + _OVERHEAD_BYTES
        item.let_go()
        order = self._order
        while order and not order[0].data:
            order.popleft()


class AppendQueue(Generic[LogT]):
    """Accepted appends that wait for the journal, and whether more are taken."""

    __slots__ = (
        "controls", "failed", "limit_bytes", "pending", "pending_bytes", "unwritten_bytes",
        "write_error",
    )  # fmt: skip

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.pending: list[Appended[LogT]] = []
        self.pending_bytes = 0
        self.controls = False
        """Whether some of what waits are no appends."""
        self.unwritten_bytes = 0
        """Durable bytes that wait for their segment write."""
        self.write_error: StorageError | None = None
        """Why segments cannot be written, while they cannot."""
        self.failed: StorageFailed | None = None
        """Set for good when a sync failed: nothing is taken from then on."""

    def add(self, item: Appended[LogT]) -> None:
        """An append was accepted."""
        self.pending.append(item)
        self.pending_bytes += item.size_bytes

    def add_control(self, item: Control[LogT]) -> None:
        """Something else is to become durable, after what was accepted."""
        self.add(item)
        self.controls = True
        item.cuts_behind(LONG_MAX)  # it has no entry yet

    def drop(self, item: Appended[LogT]) -> None:
        """One that waits is taken back by its log."""
        self.pending.remove(item)
        self.pending_bytes -= item.size_bytes

    def take(self) -> tuple[list[Appended[LogT]], int, bool]:
        """All that wait, their bytes, and whether some are no appends."""
        taken = self.pending, self.pending_bytes, self.controls
        self.pending, self.pending_bytes, self.controls = [], 0, False
        return taken

    def forget(self, log: LogT) -> None:
        """Drop what waits for a log that is deleted."""
        self.pending_bytes -= sum([item.size_bytes for item in self.pending if item.log is log])
        self.pending = [item for item in self.pending if item.log is not log]

    def fail(self, error: StorageFailed) -> None:
        """Take nothing any more; the first failure is the one that is told."""
        self.failed = self.failed or error
