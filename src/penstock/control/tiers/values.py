"""The values of tiered storage: leases, segments in the archive, where tiers begin and end.

A tiered segment is up to four objects below one stem: the log, and its indexes as Kafka has them.
Their ids follow each other, in the order of `SUFFIXES`; an index that would be empty has no object.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

LOG: Final = ".log"
INDEX: Final = ".index"
TIME_INDEX: Final = ".timeindex"
ABORTED: Final = ".txnindex"
SUFFIXES: Final = (LOG, INDEX, TIME_INDEX, ABORTED)


class TierLease(NamedTuple):
    """Reserved keys of one segment: rows PENDING until it is committed, or they are swept."""

    object_id: int
    stem: str

    @property
    def object_ids(self) -> range:
        return range(self.object_id, self.object_id + len(SUFFIXES))


class TierSegment(NamedTuple):
    """Batches [base_offset, next_offset) of one leader epoch, as they lie in the archive.

    Sizes are those of the objects, 0 where there is none; `checksum` is the CRC32C of the log.
    """

    base_offset: int
    next_offset: int
    leader_epoch: int
    max_timestamp: int
    object_id: int
    stem: str
    size_bytes: int
    index_bytes: int
    time_index_bytes: int
    aborted_bytes: int
    checksum: int

    @property
    def key(self) -> str:
        """The key of the log."""
        return self.stem + LOG

    def objects(self) -> Iterator[tuple[int, int]]:
        """The ids of all objects that were reserved, and their sizes."""
        return enumerate(self[6:10], self.object_id)


class TierMarks(NamedTuple):
    """Where a partition begins, and up to where it lies in the archive without a gap.

    What is below `log_start_offset` is deleted, also where the tiers end below it. `epochs` are
    those of the segments, each with the first offset that it wrote there.
    """

    log_start_offset: int
    tiered_offset: int
    size_bytes: int
    segments: int
    epochs: tuple[tuple[int, int], ...] = ()
    aborted_offset: int = -1
    """Where the last segment begins that has markers of aborted transactions; -1 for none."""

    @property
    def alive(self) -> bool:
        """Whether anything that may be read lies in the archive."""
        return self.log_start_offset < self.tiered_offset


class TiersDropped(NamedTuple):
    """What a call has let go from the start of a partition's tiers; `more` is left for another."""

    marks: TierMarks
    segments: int
    size_bytes: int
    more: bool
