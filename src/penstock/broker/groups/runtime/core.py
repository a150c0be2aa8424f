"""Port of a coordinator core, which decides without I/O, clock or randomness; timers of cores.

A core handles one kind of keys: group ids, or transactional ids. It receives events and stored
rows. It returns effects, which the runtime performs in order: responses to requests, and saves of a
key's rows. The runtime reports the outcome of each save; only then does the core send the responses
that depend on it. The same events at the same times give the same effects. The runtime handles row
versions, ownership of keys, and database transactions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from heapq import heapify, heappop, heappush
from typing import Any, Final, Protocol

from msgspec import Struct

from penstock.base.errors import BugError
from penstock.control import GROUP_MEMBER, OffsetsEnd

NO_TOKEN: Final = 0


class Reply(Struct, frozen=True):
    token: int
    response: Any


class Save(Struct, frozen=True, kw_only=True):
    """Effect: replace all stored rows of a key, and report `Saved` or `SaveFailed`.

    `rows` maps a member to its row; the row of the key itself has the empty member. Without rows
    the key is deleted. `deletes_offsets` also deletes the committed offsets of the group.
    `completes_offsets` commits or drops the offsets that groups staged in the key's transaction;
    `rows` must then contain no row of a group.
    """

    key: str
    rows: Mapping[str, bytes]
    deletes_offsets: bool = False
    completes_offsets: OffsetsEnd | None = None

    def __post_init__(self) -> None:
        if self.completes_offsets and any(member.startswith(GROUP_MEMBER) for member in self.rows):
            raise BugError(f"transaction {self.key!r} is decided but still has rows of groups")


class Act(Struct, frozen=True, kw_only=True):
    """Base of effects that only one kind of core has, such as writing transaction markers.

    The core's shell performs such an effect and reports its outcome by an event.
    """


class Work(Protocol):
    """Computation that shares no state with its core, so that it can run on any thread."""

    @property
    def size(self) -> int:
        """Estimated cost, in units of about a microsecond."""
        ...

    def __call__(self) -> Any: ...


class Compute(Struct, frozen=True, kw_only=True):
    """Effect: run a computation in the background, and report `Computed` with the same ticket."""

    key: str
    ticket: int
    work: Work


Effect = Reply | Save | Compute | Act


class Refused(Struct, frozen=True, kw_only=True):
    """Error response. `error` is Kafka's name of the error in lower case.

    `member_id` is the member id in a JoinGroup response, if it must contain one. `delay_ms` is the
    time after which a JoinGroup response is sent.
    """

    error: str
    message: str = ""
    member_id: str = ""
    delay_ms: int = 0


class Saved(Struct, frozen=True, kw_only=True):
    """Report that the newest `Save` of a key is durable."""

    key: str


class SaveFailed(Struct, frozen=True, kw_only=True):
    """Report that the newest `Save` of a key failed, or that its outcome is unknown."""

    key: str
    reason: str = ""


class Computed(Struct, frozen=True, kw_only=True):
    """Report of the outcome of a `Compute`: a result, or the reason of its failure."""

    key: str
    ticket: int
    result: Any = None
    reason: str = ""


class Tick(Struct, frozen=True, kw_only=True):
    """Event that a deadline has passed. The runtime sends it at `next_deadline_ms()` or later."""


class Stored(Struct, frozen=True, kw_only=True):
    """Stored rows of a key by member, and whether its group has committed offsets.

    `rows` is None if the core has the same rows already.
    """

    key: str
    rows: Mapping[str, bytes] | None
    has_offsets: bool = False


class Core(Protocol):
    def handle(self, event: Any, now_ms: int, token: int = NO_TOKEN) -> list[Effect]:
        """Return the effects of an event.

        `now_ms` comes from a clock that does not jump. `token` identifies the request in a later
        `Reply`; every request is answered exactly once.
        """
        ...

    def load(self, stored: Stored, now_ms: int) -> list[Effect]:
        """Load the stored rows of a key.

        If the core has the key already and rows are given, another broker has coordinated the key
        meanwhile; waiting requests then get NOT_COORDINATOR.

        Raises:
            CorruptError: the rows cannot be decoded; the core is unchanged.
        """
        ...

    def forget(self, key: str) -> list[Effect]:
        """Drop a key that another broker coordinates now, and refuse its waiting requests."""
        ...

    def keys(self) -> Collection[str]: ...

    def next_deadline_ms(self) -> int | None: ...


# Timers of a core in one heap, with lazy deletion.
#
# Every heartbeat postpones a timer, which is one assignment: the heap entry moves to the new
# deadline when the old deadline passes. The entry of a stopped timer stays in the heap as a stale
# entry. The heap is rebuilt when more than half of its entries are stale. A tick examines only
# entries whose deadline has passed.


STALE_ENTRIES_MIN: Final = 64


class Timer:
    """Deadline and its callback; stopped while `deadline_ms` is None."""

    __slots__ = ("deadline_ms", "entry", "fire")

    def __init__(self, fire: Callable[[], None]) -> None:
        self.fire = fire
        self.deadline_ms: int | None = None
        self.entry: tuple[int, int] | None = None


class Timers:
    """Heap of entries (deadline in ms, sequence number, timer)."""

    __slots__ = ("_heap", "_live", "_sequence")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Timer]] = []
        self._sequence = 0
        self._live = 0

    def __len__(self) -> int:
        """Return the number of heap entries, stale ones included."""
        return len(self._heap)

    def start(self, timer: Timer, deadline_ms: int) -> None:
        timer.deadline_ms = deadline_ms
        entry = timer.entry
        if entry is None:
            self._live += 1
            self._push(timer, deadline_ms)
        elif deadline_ms < entry[0]:
            self._push(timer, deadline_ms)
            self._compact()

    def stop(self, timer: Timer) -> None:
        timer.deadline_ms = None
        if timer.entry is not None:
            timer.entry = None
            self._live -= 1
            self._compact()

    def next_deadline_ms(self) -> int | None:
        """Return the time of the next tick, which may be too early, but never too late."""
        heap = self._heap
        while heap:
            when, sequence, timer = heap[0]
            if timer.entry == (when, sequence):
                return when
            heappop(heap)
        return None

    def due(self, now_ms: int) -> Iterator[Timer]:
        heap = self._heap
        while heap and heap[0][0] <= now_ms:
            when, sequence, timer = heappop(heap)
            if timer.entry != (when, sequence) or timer.deadline_ms is None:
                continue
            if timer.deadline_ms > now_ms:
                self._push(timer, timer.deadline_ms)
                continue
            timer.entry = None
            timer.deadline_ms = None
            self._live -= 1
            yield timer

    def _push(self, timer: Timer, when: int) -> None:
        self._sequence += 1
        timer.entry = (when, self._sequence)
        heappush(self._heap, (when, self._sequence, timer))

    def _compact(self) -> None:
        if len(self._heap) - self._live > max(self._live, STALE_ENTRIES_MIN):
            self._heap[:] = [entry for entry in self._heap if entry[2].entry == entry[:2]]
            heapify(self._heap)
