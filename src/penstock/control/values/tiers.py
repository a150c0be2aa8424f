"""Values of tiered storage: leases, archived segments, and the bounds of a partition's tiers.

An archived segment has up to four objects with a common key prefix, the *stem*: the log, and
Kafka's indexes. Their ids are consecutive, in the order of `SUFFIXES`. An empty index has no
object.
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
    """Reserved keys of one segment's objects. Their rows are PENDING until the commit."""

    object_id: int
    stem: str

    @property
    def object_ids(self) -> range:
        return range(self.object_id, self.object_id + len(SUFFIXES))


class TierSegment(NamedTuple):
    """An archived segment: batches of one leader epoch with the offsets [base_offset, next_offset).

    Sizes are those of the objects, 0 for an index without an object. `checksum` is the CRC32C of
    the log.
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
        return self.stem + LOG

    def objects(self) -> Iterator[tuple[int, int]]:
        """Return (object id, size in bytes) of each reserved object; the size may be 0."""
        return enumerate(self[6:10], self.object_id)


class TierBounds(NamedTuple):
    """The bounds of a partition: its log start, and the offset up to which it is archived.

    Records below `log_start_offset` are deleted, even if the archive ends below it. `epochs` has
    (leader epoch, first archived offset) in ascending order.
    """

    log_start_offset: int
    tiered_offset: int
    size_bytes: int
    segments: int
    epochs: tuple[tuple[int, int], ...] = ()
    aborted_offset: int = -1
    """Base offset of the last segment with markers of aborted transactions; -1 for none."""

    @property
    def alive(self) -> bool:
        """Whether the archive has readable records."""
        return self.log_start_offset < self.tiered_offset


class TiersDropped(NamedTuple):
    """The segments that a call dropped. `more` means that a limit stopped it."""

    bounds: TierBounds
    segments: int
    size_bytes: int
    more: bool
