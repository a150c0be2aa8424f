"""Which extents become a segment: the core of consolidation, which sees pages of the batch index.

A *run* is extents in write-ahead objects that adjoin, from the first one on that is in none of the
segments:

| it ends where                            | it is  | and is taken                              |
|------------------------------------------|--------|-------------------------------------------|
| the next extent would make it too large  | full   | when all of it is old                     |
| a segment follows                        | closed | when all of it is old: it never grows     |
| the log ends                             | open   | as far as it is old, with enough extents  |

An extent is old when its newest record is, or that of one behind it: the log is in the order of its
appends, whatever the clocks of producers said. A partition whose records all lie in the future is
not consolidated before they are past.

The core remembers of every partition below which offset there is nothing left to do, so that a pass
does not read the rows of all segments again. It asks for extents one page at a time and answers
with a run, as a shell reports what became of the one before.

Source: Inkless's `FileMerger`; Kafka's rules for rolling a segment (size before age).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from penstock.base.errors import BugError
from penstock.control.batch_index.values import PartitionKey
from penstock.diskless.consolidation.limits import PAGE_EXTENTS, REMEMBERED_MAX
from penstock.diskless.limits import RUN_EXTENTS_MAX
from penstock.records.extents import Extent


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What a run must be. `min_age_ms` None takes extents of every age, few as they may be."""

    segment_bytes: int
    min_extents: int
    min_age_ms: int | None


class Choice(NamedTuple):
    """A run to make a segment of, empty if there is none; where to look next, None for nowhere.

    Everything below `done_before` is done for good, if the run becomes a segment.
    """

    run: tuple[Extent, ...]
    following: int | None
    done_before: int


def choose(page: Sequence[Extent], *, rules: Rules, now_ms: int, last: bool) -> Choice:
    """The first run of a page, which has extents by offset; `last` says that none follow it."""
    first = next((place for place, one in enumerate(page) if one.kind == "wal"), len(page))
    if first == len(page):
        end = page[-1].next_offset if page else 0
        return Choice((), None if last else end, end)
    base_offset = page[first].base_offset
    length, ending = _run_length(page[first:], rules.segment_bytes)
    if ending == "page" and not last:
        if first == 0:
            raise BugError(f"a page of {len(page)} extents has no room for a run")
        return Choice((), base_offset, base_offset)
    old = min(length, _old(page, rules, now_ms) - first)
    if not (_is_enough(old, rules) if ending == "page" else old == length):
        return Choice((), None, base_offset)
    run = tuple(page[first : first + old])
    return Choice(run, run[-1].next_offset, run[-1].next_offset)


def _is_enough(extents: int, rules: Rules) -> bool:
    return extents > 0 and (rules.min_age_ms is None or extents >= rules.min_extents)


def _run_length(extents: Sequence[Extent], segment_bytes: int) -> tuple[int, str]:
    """How many extents the run has that begins here, and what ended it: full, closed, page."""
    size_bytes, following = extents[0].size_bytes, extents[0].next_offset
    for length, extent in enumerate(extents[1:], 1):
        if extent.kind != "wal" or extent.base_offset != following:
            return length, "closed"
        size_bytes, following = size_bytes + extent.size_bytes, extent.next_offset
        if size_bytes > segment_bytes or length == RUN_EXTENTS_MAX:
            return length, "full"
    return len(extents), "full" if size_bytes >= segment_bytes else "page"


def _old(page: Sequence[Extent], rules: Rules, now_ms: int) -> int:
    """How many extents of a page, from its first on, are old enough."""
    if rules.min_age_ms is None:
        return len(page)
    before_ms = now_ms - rules.min_age_ms
    for place in range(len(page), 0, -1):
        if 0 <= page[place - 1].max_timestamp <= before_ms:
            return place
    return 0


class Page(NamedTuple):
    """Ask for the extents of a partition from an offset on; answer with `Selection.page`."""

    key: PartitionKey
    start: int
    limit: int


class Selection:
    """The partitions of one pass, one after the other; see the module's text.

    `order` gives each partition its place in the pass: brokers that draw different ones begin at
    different partitions and rarely meet.
    """

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
        """A new pass over these partitions; the first thing to ask for."""
        self._choice = None
        self._waiting = sorted(set(keys), key=lambda key: (order(key), key), reverse=True)
        return self._next_partition()

    def page(self, extents: Sequence[Extent], now_ms: int) -> Choice | None:
        """A run of what was asked for, to be followed by `done`, `failed` or `lost`.

        None where there is none; `ask` then says what to look at next.
        """
        last = len(extents) < PAGE_EXTENTS
        choice = choose(extents, rules=self._rules, now_ms=now_ms, last=last)
        if choice.run:
            self._choice = choice
            return choice
        self._go_on(choice)
        return None

    def ask(self) -> Page | None:
        """What to look at next; None at the end of the pass."""
        if self._key is None:
            return None
        return Page(self._key, self._start, PAGE_EXTENTS)

    def done(self) -> None:
        """The run has become a segment: look behind it."""
        self._go_on(self._taken())

    def failed(self) -> None:
        """The run could not be made a segment: the next pass tries again. Look behind it."""
        choice = self._taken()
        self._whole = False
        self._go_on(choice)

    def lost(self) -> None:
        """Somebody else changed the partition meanwhile: leave it to them."""
        self._taken()
        self._next_partition()

    def _taken(self) -> Choice:
        choice, self._choice = self._choice, None
        if choice is None:
            raise BugError("there is no run under way")
        return choice

    def _go_on(self, choice: Choice) -> None:
        key = self._key
        if key is None:
            raise BugError("there is no partition under way")
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
