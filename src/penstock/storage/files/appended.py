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
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, repeat
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
    wide: Wide[LogT] | None = None
    """Wide append of which this is a row."""

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

    `table` has the encoded journal rows of the appends, and `data` their batches, in the order of
    the other lists. The rows are created after the acknowledgement, which need not wait for them,
    and evicted together; `data` is empty afterwards.
    """

    logs: Sequence[LogT]
    segments: list[Segment]
    positions: list[int]
    base_offsets: list[int]
    next_offsets: list[int]
    sizes: list[int]
    undos: dict[int, list[Undo]]
    table: bytes
    data: bytes
    unwritten: int
    """Number of rows that are not in their segments yet."""
    cached_bytes: int = 0
    """Memory of the rows that are still in tails."""
    made: dict[LogT, Appended[LogT]] | None = None
    """Value of `rows`; None before its first use."""
    in_segment: ClassVar[bool] = False

    @property
    def size_bytes(self) -> int:
        return len(self.data)

    @property
    def rows(self) -> dict[LogT, Appended[LogT]]:
        """Rows by log, without those that left the tails; created together at the first use."""
        if self.made is None:
            ends = list(accumulate(self.sizes))
            data = map(self.data.__getitem__, map(slice, [0, *ends], ends))
            undos = map(self.undos.get, range(len(ends)))
            rows = map(
                Appended, self.logs, self.segments, self.positions, self.base_offsets,
                self.next_offsets, self.sizes, repeat(None), data, repeat(None), undos,
                repeat(False), repeat(False), repeat(self),
            )  # fmt: skip
            self.made = dict(zip(self.logs, rows, strict=True))
        return self.made

    def release(self) -> None:
        self.data = self.table = b""
        self.logs, self.undos, self.made = (), {}, {}
        self.segments, self.positions, self.sizes = [], [], []
        self.base_offsets, self.next_offsets = [], []


Queued = Appended[LogT] | Wide[LogT]


def separate(items: Iterable[Queued[LogT]]) -> list[Appended[LogT]]:
    """Return the appends of all items, in their order."""
    appends: list[Appended[LogT]] = []
    for item in items:
        appends += item.rows.values() if isinstance(item, Wide) else [item]
    return appends


class Tail(Generic[LogT]):
    """Newest appends of a log, in order; the first `written` of them are in their segment."""

    __slots__ = (
        "_head", "_log", "bases", "cut_sequence", "items", "written",
    )  # fmt: skip

    def __init__(self, log: LogT) -> None:
        self._log = log
        self.items: Final[list[Queued[LogT]]] = []
        """Appends, and before them evicted ones. An append adds itself without a call."""
        self.bases: Final[list[int]] = []
        """Base offsets of `items`."""
        self._head = 0
        self.written = 0
        self.cut_sequence = 0
        """Highest sequence of a journal entry that may truncate the log. Until a checkpoint covers
        that entry, a replay of it would remove bytes that only the segment holds."""

    def __len__(self) -> int:
        return len(self.items) - self._head

    @property
    def first_offset(self) -> int | None:
        self._skip_evicted()
        return self.bases[self._head] if len(self.bases) > self._head else None

    @property
    def first_unwritten_offset(self) -> int | None:
        place = self._head + self.written
        return self.bases[place] if len(self.bases) > place else None

    def pop_newest(self) -> Appended[LogT]:
        """Remove and return the newest append, which is not written."""
        self.bases.pop()
        item = self.items.pop()
        if isinstance(item, Wide):
            item.unwritten -= 1
            return item.rows.pop(self._log)
        return item

    def pop_oldest(self) -> Appended[LogT]:
        self._skip_evicted()
        item = self.items[self._head]
        self._head += 1
        if isinstance(item, Wide):
            item.unwritten -= not self.written
            item = item.rows.pop(self._log)
        self.written -= self.written > 0
        if self._head >= _COMPACT_AT and self._head * 2 >= len(self.items):
            self._compact()
        return item

    def waits_for(self, item: Queued[LogT]) -> bool:
        """Return whether an append is the oldest unwritten one."""
        place = self._head + self.written
        return place < len(self.items) and self.items[place] is item

    def unwritten(self) -> list[Appended[LogT]]:
        self._skip_evicted()
        self._compact()
        log, items = self._log, self.items[self.written :]
        return [item.rows[log] if isinstance(item, Wide) else item for item in items]

    def from_offset(self, offset: int) -> int | None:
        """Return the index (for `at`) of the newest append that begins at or below `offset`, or
        None if all begin above."""
        place = bisect_right(self.bases, offset, self._head) - 1
        return place if place >= self._head and self.items[place].data else None

    def at(self, place: int) -> Appended[LogT] | None:
        return self._single(self.items[place]) if place < len(self.items) else None

    def _single(self, item: Queued[LogT]) -> Appended[LogT]:
        return item.rows[self._log] if isinstance(item, Wide) else item

    def _skip_evicted(self) -> None:
        """Remove the rows of evicted wide appends; all of them are written."""
        while self._head < len(self.items) and not self.items[self._head].data:
            self._head += 1
            self.written -= 1

    def _compact(self) -> None:
        del self.items[: self._head], self.bases[: self._head]
        self._head = 0


class TailCache(Generic[LogT]):
    """Tails of all logs under one memory bound; the oldest append is evicted first."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._order: deque[Queued[LogT]] = deque()
        self.size_bytes = 0

    @property
    def crowded(self) -> bool:
        return self.size_bytes > self._limit_bytes

    def add(self, item: Appended[LogT]) -> None:
        self._order.append(item)
        self.size_bytes += item.size_bytes + _OVERHEAD_BYTES

    def add_wide(self, wide: Wide[LogT]) -> None:
        self._order.append(wide)
        wide.cached_bytes = wide.size_bytes + _OVERHEAD_BYTES * len(wide.logs)
        self.size_bytes += wide.cached_bytes

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
            if isinstance(item, Wide):
                if item.unwritten:
                    return next(log for log in item.logs if log.tail.waits_for(item))
                self.size_bytes -= item.cached_bytes
                item.release()
                continue
            tail = item.log.tail
            if tail.waits_for(item):
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
        size_bytes = item.size_bytes + _OVERHEAD_BYTES
        self.size_bytes -= size_bytes
        item.release()
        wide = item.wide
        if wide is not None:
            wide.cached_bytes -= size_bytes
            if not wide.cached_bytes:
                wide.release()
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
