"""Open transactions of a log, which bound reads of committed records: a pure core.

A transaction bounds reads at its first offset until its marker is committed, because only then its
outcome may be read. So the last stable offset never falls, and the list of aborted transactions
below it is complete.

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
    """First offsets of one log's transactions, each unique."""

    __slots__ = ("_decided", "_open", "first_unstable_offset")

    def __init__(self, first_offsets: Iterable[int] = ()) -> None:
        self._open = dict.fromkeys(sorted(first_offsets))
        self._decided: deque[tuple[int, int]] = deque()
        """First offset and marker offset of transactions whose markers may be uncommitted, in
        order."""
        self.first_unstable_offset = next(iter(self._open), LONG_MAX)

    def began(self, first_offset: int) -> None:
        self._open[first_offset] = None
        if self.first_unstable_offset == LONG_MAX:
            self.first_unstable_offset = first_offset

    def began_not(self, first_offset: int) -> None:
        del self._open[first_offset]
        self._find_first()

    def decided(self, first_offset: int, marker_offset: int) -> int:
        """Record the marker of a transaction; return the offset below which all are decided."""
        del self._open[first_offset]
        self._decided.append((first_offset, marker_offset))
        return next(iter(self._open), marker_offset + 1)

    def decided_not(self, first_offset: int) -> None:
        self._decided.pop()
        self._open = dict.fromkeys(sorted([first_offset, *self._open]))
        self._find_first()

    def committed_to(self, offset: int) -> None:
        """Record that everything below an offset is committed, including markers."""
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
    """Return the aborted transactions with batches in [start, end), by first offset.

    `unwritten` are those whose markers are in no file yet, in order.

    Raises:
        CorruptLog: an index is damaged.
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
        found += [txn for txn in unwritten if txn.last_offset >= start and txn.first_offset < end]
    found.sort(key=_first_offset)
    return found


def _first_offset(transaction: AbortedTransaction) -> int:
    return transaction.first_offset


def aborted_flags(segments: Iterable[Segment]) -> int:
    """Return a recovery point's flags for the segments' indexes of aborted transactions."""
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
    """Index aborts whose markers are in a file now; return the others; raises CorruptLog."""
    for place, transaction in enumerate(aborted):
        if transaction.last_offset >= written_offset:
            return aborted[place:]
        segment = segments[segment_place(segments, transaction.last_offset)]
        files.transactions_of(segment).add(transaction)
    return []
