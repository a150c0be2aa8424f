"""Which transactions of a log keep readers of committed records from reading on: a pure core.

A transaction holds them back at its first offset while it is open, and when it is decided until its
marker is committed: what a marker says may be read by then only. So the last stable offset never
falls, and the list of aborted transactions below it is complete.

Source: Kafka's `ProducerStateManager` (`ongoingTxns`, `unreplicatedTxns`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from penstock.base.settings import LONG_MAX
from penstock.records.transactions import AbortedTransaction
from penstock.storage.formats.checkpoint import ABORTED_SHIFT
from penstock.storage.segment import Segment, segment_place
from penstock.storage.segment_files import SegmentFiles


class OpenTransactions:
    """The first offsets of one log's transactions. No two transactions begin at one offset."""

    __slots__ = ("_decided", "_open", "first_unstable_offset")

    def __init__(self, first_offsets: Iterable[int] = ()) -> None:
        self._open = dict.fromkeys(sorted(first_offsets))
        self._decided: deque[tuple[int, int]] = deque()
        """First offset and marker of those whose markers may not be committed yet, in order."""
        self.first_unstable_offset = next(iter(self._open), LONG_MAX)

    def began(self, first_offset: int) -> None:
        """Behind all that there are."""
        self._open[first_offset] = None
        if self.first_unstable_offset == LONG_MAX:
            self.first_unstable_offset = first_offset

    def began_not(self, first_offset: int) -> None:
        """What began there is taken back."""
        del self._open[first_offset]
        self._find_first()

    def decided(self, first_offset: int, marker_offset: int) -> int:
        """A marker says what becomes of one; returns below which offset all is decided then."""
        del self._open[first_offset]
        self._decided.append((first_offset, marker_offset))
        return next(iter(self._open), marker_offset + 1)

    def decided_not(self, first_offset: int) -> None:
        """The newest marker, which decided this one, is taken back."""
        self._decided.pop()
        self._open = dict.fromkeys(sorted([first_offset, *self._open]))
        self._find_first()

    def committed_to(self, offset: int) -> None:
        """Everything below an offset is committed, markers too."""
        decided = self._decided
        if decided and decided[0][1] < offset:
            while decided and decided[0][1] < offset:
                decided.popleft()
            self._find_first()

    def _find_first(self) -> None:
        first = next(iter(self._open), LONG_MAX)
        if self._decided:
            first = min(first, min(self._decided)[0])
        self.first_unstable_offset = first


def aborted_in(
    files: SegmentFiles,
    segments: Sequence[Segment],
    unwritten: Sequence[AbortedTransaction],
    start: int,
    end: int,
) -> list[AbortedTransaction]:
    """The aborted transactions with batches in [start, end), by first offset.

    `unwritten` are those whose markers are in no file yet, in the order of these.

    Raises:
        CorruptLog: they cannot be told.
    """
    found: list[AbortedTransaction] = []
    for place in range(segment_place(segments, start), len(segments)):
        segment = segments[place]
        index = segment.transactions
        if index is None:
            index = files.transactions_of(segment)
        if index.entries:
            some, complete = index.find(start, end)
            found += some
            if complete:
                break
    else:
        found += [one for one in unwritten if one.last_offset >= start and one.first_offset < end]
    found.sort(key=_first_offset)
    return found


def _first_offset(one: AbortedTransaction) -> int:
    return one.first_offset


def aborted_flags(segments: Iterable[Segment]) -> int:
    """What a recovery point says of the segments' indexes of aborted transactions."""
    checksums = 0
    for segment in segments:
        if segment.transactions is None or segment.transactions.entries:
            checksums ^= segment.aborted
    return checksums << ABORTED_SHIFT


def index_written(
    files: SegmentFiles,
    segments: Sequence[Segment],
    aborted: list[AbortedTransaction],
    written_offset: int,
) -> list[AbortedTransaction]:
    """Put those whose markers are in a file now into their segments' indexes; returns the others.

    Raises:
        CorruptLog: an index is damaged, to which some belong.
    """
    for place, one in enumerate(aborted):
        if one.last_offset >= written_offset:
            return aborted[place:]
        files.transactions_of(segments[segment_place(segments, one.last_offset)]).add(one)
    return []
