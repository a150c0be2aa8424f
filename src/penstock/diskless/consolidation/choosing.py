"""Selection of the extents that become a sealed segment. A pure core over pages of the batch index.

A *run* is a sequence of adjacent extents in write-ahead objects. It begins at the first extent that
is in no segment:

| end of the run                           | run is | becomes a segment                         |
|------------------------------------------|--------|-------------------------------------------|
| the next extent would make it too large  | full   | if all its extents are old                |
| a segment follows                        | closed | if all its extents are old; it cannot grow|
| the log ends                             | open   | up to its last old extent, if these are   |
|                                          |        | at least `min_extents`                    |

An extent is old if its newest record is old, or that of a later extent: a log is in append order,
whatever the clocks of producers show. Records with timestamps in the future are not old.

The core stores the offset below which each partition has no work left, so a pass does not read the
rows of all segments again. It requests one page at a time, and returns one run at a time.

Source: Inkless's `FileMerger`; Kafka's rules for rolling a segment (size before age).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from msgspec import Struct

from penstock.base.errors import BugError
from penstock.control.batch_index.values import PartitionKey
from penstock.diskless.settings import RUN_EXTENTS_MAX
from penstock.records.extents import Extent

PAGE_EXTENTS: Final = 1_001
"""Extents in a page. A run has fewer, so the page shows where the run ends."""
REMEMBERED_MAX: Final = 100_000
"""Partitions whose progress is stored between passes."""


class Rules(Struct, frozen=True, kw_only=True):
    """Limits of a run. If `min_age_ms` is None, extents of every age and number are taken."""

    segment_bytes: int
    min_extents: int
    min_age_ms: int | None


class Choice(NamedTuple):
    """A run that becomes a segment, possibly empty, and where to continue reading.

    `following` is the next offset to read, or None at the end. Below `done_before` no work is left,
    once the run has become a segment.
    """

    run: tuple[Extent, ...]
    following: int | None
    done_before: int


def choose(page: Sequence[Extent], *, rules: Rules, now_ms: int, last: bool) -> Choice:
    """Return the first run of a page of extents. `last` means that no extents follow the page."""
    first = next((place for place, extent in enumerate(page) if extent.kind == "wal"), len(page))
    if first == len(page):
        end = page[-1].next_offset if page else 0
        return Choice((), None if last else end, end)
    base_offset = page[first].base_offset
    length, ending = _run_length(page[first:], rules.segment_bytes)
    if ending == "page" and not last:
        if first == 0:
            raise BugError(f"a page of {len(page)} extents is too short for a run")
        return Choice((), base_offset, base_offset)
    old = min(length, _old(page, rules, now_ms) - first)
    if not (_is_enough(old, rules) if ending == "page" else old == length):
        return Choice((), None, base_offset)
    run = tuple(page[first : first + old])
    return Choice(run, run[-1].next_offset, run[-1].next_offset)


def _is_enough(extents: int, rules: Rules) -> bool:
    return extents > 0 and (rules.min_age_ms is None or extents >= rules.min_extents)


def _run_length(extents: Sequence[Extent], segment_bytes: int) -> tuple[int, str]:
    """Return the length of the run at the start of `extents`, and its end: full, closed or page."""
    size_bytes, following = extents[0].size_bytes, extents[0].next_offset
    for length, extent in enumerate(extents[1:], 1):
        if extent.kind != "wal" or extent.base_offset != following:
            return length, "closed"
        size_bytes, following = size_bytes + extent.size_bytes, extent.next_offset
        if size_bytes > segment_bytes or length == RUN_EXTENTS_MAX:
            return length, "full"
    return len(extents), "full" if size_bytes >= segment_bytes else "page"


def _old(page: Sequence[Extent], rules: Rules, now_ms: int) -> int:
    if rules.min_age_ms is None:
        return len(page)
    before_ms = now_ms - rules.min_age_ms
    for place in range(len(page), 0, -1):
        if 0 <= page[place - 1].max_timestamp <= before_ms:
            return place
    return 0


class Page(NamedTuple):
    """A request for the extents of a partition from `start` on. Pass them to `Selection.page`."""

    key: PartitionKey
    start: int
    limit: int


class Selection:
    """The partitions of one pass, in order, and the progress of each."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._done_before: dict[PartitionKey, int] = {}
        self._waiting: list[PartitionKey] = []
        self._key: PartitionKey | None = None
        self._start = 0
        self._whole = True
        self._choice: Choice | None = None

    def begin(
        self, keys: Iterable[PartitionKey], *, order: Callable[[PartitionKey], int]
    ) -> Page | None:
        """Begin a pass over partitions, sorted by `order`; return the first request."""
        self._choice = None
        self._waiting = sorted(set(keys), key=lambda key: (order(key), key), reverse=True)
        return self._next_partition()

    def page(self, extents: Sequence[Extent], now_ms: int) -> Choice | None:
        """Return the run of a requested page, or None if the page has none.

        The caller then calls `done`, `failed` or `lost` for the run.
        """
        last = len(extents) < PAGE_EXTENTS
        choice = choose(extents, rules=self._rules, now_ms=now_ms, last=last)
        if choice.run:
            self._choice = choice
            return choice
        self._advance(choice)
        return None

    def ask(self) -> Page | None:
        """Return the next request, or None at the end of the pass."""
        if self._key is None:
            return None
        return Page(self._key, self._start, PAGE_EXTENTS)

    def done(self) -> None:
        """Report that the run has become a segment."""
        self._advance(self._taken())

    def failed(self) -> None:
        """Report that the run could not become a segment. The next pass retries it."""
        choice = self._taken()
        self._whole = False
        self._advance(choice)

    def lost(self) -> None:
        """Report that the run changed concurrently. This pass skips the rest of the partition."""
        self._taken()
        self._next_partition()

    def _taken(self) -> Choice:
        choice, self._choice = self._choice, None
        if choice is None:
            raise BugError("no run was chosen")
        return choice

    def _advance(self, choice: Choice) -> None:
        key = self._key
        if key is None:
            raise BugError("no partition was chosen")
        if self._whole and choice.done_before:
            self._done_before.pop(key, None)
            self._done_before[key] = choice.done_before
            if len(self._done_before) > REMEMBERED_MAX:
                del self._done_before[next(iter(self._done_before))]
        if choice.following is None:
            self._next_partition()
        else:
            self._start = choice.following

    def _next_partition(self) -> Page | None:
        self._key = self._waiting.pop() if self._waiting else None
        self._whole = True
        if self._key is not None:
            self._start = self._done_before.get(self._key, 0)
        return self.ask()
