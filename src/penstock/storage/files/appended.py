"""Appends that are not in their segment file yet, and the bounded tail cache.

An `Appended` holds the batches of one append call, contiguous in memory. It passes three states:
accepted (it has offsets), durable (synced in the journal), written (stored in its segment file).
Consumers of the newest records read appends from memory, from the tail of the log. When the tail
cache exceeds its limit, it evicts the oldest written appends. An append that still uses its receive
buffer (`Lease`) is evicted as soon as it is written.

A `Control` is a journal row that changes its log, for example by a truncation, instead of adding
batches. The journal keeps appends and controls in one order.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar

from msgspec import Struct

from penstock.base.settings import LONG_MAX
from penstock.records import BatchHeader, decode_header
from penstock.storage.files.errors import StorageError, StorageFailed
from penstock.storage.files.producers import Undo
from penstock.storage.files.segment import Segment
from penstock.storage.files.values import Buffer, Lease

_COMPACT_AT: Final = 64
_OVERHEAD_BYTES: Final = 512
"""Estimated memory of the objects around a small append."""
_base_offset: Final = attrgetter("base_offset")


class AppendedTo(Protocol):
    """Log that receives an append: its key in the journal, and its tail in memory."""

    @property
    def key(self) -> bytes: ...

    @property
    def tail(self) -> Tail[Any]: ...


LogT = TypeVar("LogT", bound=AppendedTo)


class Appended(Struct, Generic[LogT], eq=False):
    """Batches of one append call, from acceptance to eviction."""

    log: LogT
    segment: Segment
    position: int
    base_offset: int
    next_offset: int
    size_bytes: int
    known_headers: list[BatchHeader] | None
    """Headers of the batches; None if `data` is one batch whose header is decoded when needed."""
    data: Buffer
    lease: Lease | None = None
    undo: list[Undo] | None = None
    stamped: bool = False
    """Whether the headers hold final offsets, as in a replica's batches with offset gaps."""
    in_segment: bool = False
    """Whether the bytes are synced in the segment before the journal entry is written."""

    @property
    def headers(self) -> list[BatchHeader]:
        headers = self.known_headers
        return [decode_header(self.data)] if headers is None else headers

    def release(self) -> None:
        self.data = b""
        if self.lease is not None:
            lease, self.lease = self.lease, None
            lease.release()


class Control(Appended[LogT], eq=False, kw_only=True):
    """Journal row without batches: a change of a log, performed once the row is durable.

    `perform` changes the files. It runs before later appends of the log become durable, and raises
    OSError if the files cannot be changed. If the row could not be written, `take_back` undoes the
    change in memory; appends and controls of a log are undone newest first. Controls are not
    added to the tail.
    """

    perform: Callable[[], None]
    take_back: Callable[[], None]

    def cuts_behind(self, sequence: int) -> None:
        if self.segment.base_offset >= 0:
            self.log.tail.cut_sequence = sequence


class Wide(Struct, Generic[LogT], eq=False):
    """Appends to many logs that share one part of a journal entry (`log/wide.py`).

    `table` has the encoded journal rows of the appends in `rows`; `data` has their batches.
    """

    rows: list[Appended[LogT]]
    table: bytes
    data: bytes
    in_segment: ClassVar[bool] = False

    @property
    def size_bytes(self) -> int:
        return len(self.data)


Queued = Appended[LogT] | Wide[LogT]


def separate(items: Iterable[Queued[LogT]]) -> list[Appended[LogT]]:
    """Return the appends of all items, in their order."""
    appends: list[Appended[LogT]] = []
    for item in items:
        if isinstance(item, Wide):
            appends += item.rows
        else:
            appends.append(item)
    return appends


class Tail(Generic[LogT]):
    """Newest appends of a log, in order; the first `written` of them are in their segment."""

    __slots__ = ("_head", "_items", "cut_sequence", "push", "written")

    def __init__(self) -> None:
        self._items: list[Appended[LogT]] = []
        self._head = 0
        self.push: Final = self._items.append
        """Adds the newest append. This is the list's own method, because every append calls it."""
        self.written = 0
        self.cut_sequence = 0
        """Highest sequence of a journal entry that may truncate the log. Until a checkpoint covers
        that entry, a replay of it would remove bytes that only the segment holds."""

    def __len__(self) -> int:
        return len(self._items) - self._head

    @property
    def first_offset(self) -> int | None:
        return self._items[self._head].base_offset if len(self._items) > self._head else None

    def pop_newest(self) -> Appended[LogT]:
        return self._items.pop()

    def pop_oldest(self) -> Appended[LogT]:
        """Remove and return the oldest append, which must be written."""
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
        """Return the index (for `at`) of the newest append that begins at or below `offset`, or
        None if all begin above."""
        items = self._items
        place = bisect_right(items, offset, self._head, key=_base_offset) - 1
        return place if place >= self._head else None

    def at(self, place: int) -> Appended[LogT] | None:
        return self._items[place] if place < len(self._items) else None


class TailCache(Generic[LogT]):
    """Tails of all logs under one memory bound; the oldest append is evicted first."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._order: deque[Appended[LogT]] = deque()
        self.size_bytes = 0

    @property
    def crowded(self) -> bool:
        return self.size_bytes > self._limit_bytes

    def add(self, item: Appended[LogT]) -> None:
        self._order.append(item)
        self.size_bytes += item.size_bytes + _OVERHEAD_BYTES

    def add_all(self, wide: Wide[LogT]) -> None:
        self._order += wide.rows
        self.size_bytes += wide.size_bytes + _OVERHEAD_BYTES * len(wide.rows)

    def shrink(self) -> LogT | None:
        """Evict written appends, oldest first, until the cache is within its limit.

        Return the log whose unwritten append prevents further eviction, or None.
        """
        order = self._order
        while order and self.size_bytes > self._limit_bytes:
            item = order[0]
            if not item.data:
                order.popleft()
                continue
            tail = item.log.tail
            if tail.written == 0:
                return item.log
            oldest = tail.pop_oldest()
            self.size_bytes -= oldest.size_bytes + _OVERHEAD_BYTES
            if oldest.lease is None:
                oldest.data = b""
            else:
                oldest.release()
            if oldest is item:
                order.popleft()
        return None

    def drop(self, item: Appended[LogT]) -> None:
        self.size_bytes -= item.size_bytes + _OVERHEAD_BYTES
        item.release()
        order = self._order
        while order and not order[0].data:
            order.popleft()


class AppendQueue(Generic[LogT]):
    """Accepted appends that wait for the journal, and the errors that stop new ones."""

    __slots__ = (
        "controls", "failed", "limit_bytes", "pending", "pending_bytes", "unwritten_bytes",
        "write_error",
    )  # fmt: skip

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.pending: list[Queued[LogT]] = []
        self.pending_bytes = 0
        self.controls = False
        """Whether `pending` holds controls."""
        self.unwritten_bytes = 0
        """Durable bytes that wait for their segment write."""
        self.write_error: StorageError | None = None
        """Error of the last failed segment write, until a write succeeds."""
        self.failed: StorageFailed | None = None
        """Permanent failure after a failed sync; the queue accepts nothing afterwards."""

    def add(self, item: Queued[LogT]) -> None:
        self.pending.append(item)
        self.pending_bytes += item.size_bytes

    def add_control(self, item: Control[LogT]) -> None:
        self.add(item)
        self.controls = True
        item.cuts_behind(LONG_MAX)  # it has no entry yet

    def drop(self, item: Appended[LogT]) -> None:
        self.pending.remove(item)
        self.pending_bytes -= item.size_bytes

    def separated(self) -> list[Appended[LogT]]:
        """Replace wide appends in the queue by their single appends; return all queued appends."""
        appends = separate(self.pending)
        self.pending = [*appends]
        return appends

    def take(self) -> tuple[list[Queued[LogT]], int, bool]:
        """Empty the queue; return its items, their bytes, and whether any are controls."""
        taken = self.pending, self.pending_bytes, self.controls
        self.pending, self.pending_bytes, self.controls = [], 0, False
        return taken

    def forget(self, log: LogT) -> None:
        items = self.separated()
        self.pending_bytes -= sum([item.size_bytes for item in items if item.log is log])
        self.pending = [item for item in items if item.log is not log]

    def fail(self, error: StorageFailed) -> None:
        """Stop accepting appends, and keep the first of several errors."""
        self.failed = self.failed or error
