"""Local records of the target: those that neither this mirror nor another one took from the source.

A group that has not read these records must not resume behind them. `LocalRecords` knows an offset
of each partition below which the target has no local records. The mirror's own writes raise it. A
write that does not begin where the previous one ended has offsets of others before it: control
batches, aborted batches, or records. Only these offsets are read. The search ends at the first
local record, and is repeated after `AGAIN_SECONDS`, because retention may have deleted it.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow.compute as pc

from penstock.base.system import SYSTEM_CLOCK
from penstock.client import Client
from penstock.client.protocol import TopicAndPartition
from penstock.mirror.batches import ORIGIN
from penstock.records.extents import READ_COMMITTED

AGAIN_SECONDS: Final = 60.0
SEARCHED_MAX: Final = 20_000
"""Most records that are read for one write; the next write continues."""


def stored_key(place: TopicAndPartition) -> str:
    """Return the key of the position with a partition's offset.

    The position exists while the offset is below the end of the mirror's last write.
    """
    return f"local/{place[0]}/{place[1]}"


class LocalRecords:
    """Offsets of the target below which it has no local records, by partition.

    Args:
        source: cluster id of the source.
    """

    def __init__(self, target: Client, source: str) -> None:
        self._target = target
        self._source = source.encode()
        self._free: dict[TopicAndPartition, int] = {}
        self._again: dict[TopicAndPartition, float] = {}
        """Time of the next search of partitions with local records."""
        self._marked: set[TopicAndPartition] = set()
        """Partitions whose next offset has the commit marker of the mirror's last write."""

    def start(self, place: TopicAndPartition, offset: int) -> None:
        self._free[place] = offset

    def free(self, place: TopicAndPartition) -> int:
        return self._free.get(place, 0)

    def written(self, place: TopicAndPartition, first: int, last: int) -> int | None:
        """Note that the mirror wrote the offsets `first` to `last`, or none if `last` is lower.

        Return the offset to be stored as a position, None if it is the one after `last`.
        """
        free = self.free(place)
        if first > free + (place in self._marked) and self._again.get(place, 0) <= _now():
            free = self._search(place, free, first)
        elif place not in self._again or first < free:  # the latter if the topic was created again
            free = first
        self._marked.discard(place)
        if free >= first:
            free = max(free, last + 1)
            self._again.pop(place, None)
            self._marked |= {place} if last >= first else set()
        self._free[place] = free
        return None if free > last else free

    def _search(self, place: TopicAndPartition, start: int, end: int) -> int:
        """Return the offset of the first local record of a range, or up to which there is none."""
        topic, partition = place
        asked = [partition]
        earliest = self._target.list_offsets(topic, "earliest", partitions=asked)[partition]
        stable = self._target.list_offsets(topic, partitions=asked, isolation=READ_COMMITTED)
        start, end = max(start, earliest), min(end, stable[partition])
        if start >= end:
            return start
        rows = self._target.read_arrow(
            topic, partitions=asked, start={partition: start}, end={partition: end},
            columns=("offset", "headers"), max_records=SEARCHED_MAX, isolation="read_committed",
        )  # fmt: skip
        offsets = rows["offset"].to_numpy()
        found = offsets[self._local(rows["headers"].combine_chunks())]
        if len(found):
            self._again[place] = _now() + AGAIN_SECONDS
            return int(found[0])
        return int(offsets[-1]) + 1 if len(offsets) == SEARCHED_MAX else end

    def _local(self, headers: Any) -> Any:
        """Return whether each record lacks a header that names the source as its origin."""
        entries = headers.flatten()
        mirrored = pc.and_(
            pc.equal(entries.field("key"), ORIGIN), pc.equal(entries.field("value"), self._source)
        )
        local = np.ones(len(headers), bool)
        local[pc.list_parent_indices(headers).filter(mirrored).to_numpy()] = False
        return local


def _now() -> float:
    return SYSTEM_CLOCK.monotonic()
