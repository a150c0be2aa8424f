"""Closed segments in log directories of Apache Kafka or Penstock, as a source of extents.

The directories may be copies, or in use by a broker. The newest segment of a partition is still
written, so it is left out. A partition's snapshot of its producers shows which transactions were
open where that segment begins. The readable part ends before the first of these transactions. So
the transaction indexes of the closed segments name every aborted transaction in this part.

The files must have the same paths on the driver and on all workers.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import Final, NamedTuple

from penstock.base.files import MACHINE_FILES, read_file
from penstock.base.ids import TopicPartition
from penstock.mirror.topics import MirrorRefused
from penstock.records.errors import CorruptBatch
from penstock.records.extents import Extent, file_extent
from penstock.records.header import HEADER_BYTES, decode_header
from penstock.records.transactions import AbortedRange
from penstock.spark.reads.extents import PartitionExtents
from penstock.storage.files.index import SparseIndex
from penstock.storage.files.values import INDEX, LOG, METADATA_FILE, SNAPSHOT, SWAP, TXN_INDEX
from penstock.storage.inspection.directories import (
    PartitionFiles,
    Wanted,
    find_roots,
    partitions_of,
)
from penstock.storage.inspection.dumping import rows_of

PIECE_BYTES: Final = 64 << 20
_LOG_STARTS: Final = "log-start-offset-checkpoint"


class Part(NamedTuple):
    """Readable offsets [start, end) of a partition, and the files that have them."""

    start: int
    end: int
    files: PartitionFiles
    topic_id: str
    """Id of the topic that the files belong to; empty if the directory has none."""


class LogDirectories:
    """Partitions below some directories; of several replicas the longest is used.

    Args:
        directories: values of `log.dirs`, or parents of them.
        wanted: selects partitions.
        piece_bytes: bytes of an extent; a larger segment is cut at entries of its offset index.

    Raises:
        MirrorRefused: directories do not exist, or have no partitions.
        CorruptFile: a snapshot or `partition.metadata` is damaged.
        OSError: a directory cannot be read.
    """

    def __init__(
        self, directories: Sequence[Path], wanted: Wanted, piece_bytes: int = PIECE_BYTES
    ) -> None:
        self._piece_bytes = piece_bytes
        self.parts: dict[TopicPartition, Part] = {}
        roots = {path: find_roots(path) if path.is_dir() else [] for path in directories}
        if wrong := [str(path) for path, found in roots.items() if not found]:
            raise MirrorRefused(
                f"{', '.join(wrong)}: no directory with partitions. Correct the path"
            )
        for root in dict.fromkeys(chain.from_iterable(roots.values())):
            starts = _log_starts(root)
            for files in partitions_of(root, wanted):
                part = _part(files, starts.get(files.where, 0))
                known = self.parts.get(files.where)
                if part is not None and (known is None or part.end > known.end):
                    self.parts[files.where] = part

    def extents(self, at: TopicPartition, start: int, end: int) -> PartitionExtents:
        """Return the extents of the offsets [start, end) that are in closed segments.

        Between two extents, only offsets of files that were deleted meanwhile are missing.
        """
        part = self.parts.get(at)
        if part is None:
            return PartitionExtents(topic_id="", log_start_offset=start, extents=())
        found = _extents(part.files, start, end, self._piece_bytes)
        return PartitionExtents(
            topic_id=part.topic_id,
            log_start_offset=part.start,
            # A file may have deleted records, which are below the part's start.
            extents=tuple(
                extent for extent in found
                if start >= part.start or extent.base_offset >= part.start
            ),
            aborted=tuple(_aborted(part.files)),
        )  # fmt: skip


def _part(files: PartitionFiles, log_start: int) -> Part | None:
    """Return the readable part of a partition; None if it has no closed segment.

    A copy that was taken while compaction replaced segments may lack some, so it is not used. The
    part ends where a segment begins that has a snapshot of the producers, or before the first
    transaction that is open there.
    """
    if any(name.endswith(SWAP) for name in os.listdir(files.path)):
        return None
    snapshots = {offset for offset, suffix in files.snapshots if suffix == SNAPSHOT}
    ends = [base for base in files.segments[1:] if base in snapshots]
    if not ends:
        return None
    producers = rows_of(files.file(ends[-1], SNAPSHOT))
    open_from = [row["current_txn_first_offset"] for row in producers]
    end = min([ends[-1], *(offset for offset in open_from if offset >= 0)])
    start = max(files.segments[0], log_start)
    topic_id = ""
    if METADATA_FILE in files.others:
        (row,) = rows_of(os.path.join(files.path, METADATA_FILE))
        topic_id = row["topic_id"]
    return Part(start, end, files, topic_id) if end > start else None


def _log_starts(root: str) -> dict[TopicPartition, int]:
    """Return the log start offsets in Apache Kafka's checkpoint; empty without one."""
    path = os.path.join(root, _LOG_STARTS)
    if not os.path.exists(path):
        return {}
    return {TopicPartition(row["topic"], row["partition"]): row["offset"] for row in rows_of(path)}


def _aborted(files: PartitionFiles) -> list[AbortedRange]:
    """Return the aborted transactions whose markers are in closed segments."""
    found: list[AbortedRange] = []
    for base in files.segments[:-1]:
        path = files.file(base, TXN_INDEX)
        if os.path.exists(path):
            found += [
                AbortedRange(row["producer_id"], row["first_offset"], row["last_offset"])
                for row in rows_of(path)
            ]
    return found


def _extents(files: PartitionFiles, start: int, end: int, piece_bytes: int) -> Iterator[Extent]:
    """Yield the extents of closed segments that may have offsets in [start, end).

    An extent ends where the next one begins, so it includes offsets that compaction has removed. If
    these are the first offsets of a segment, they have an extent without bytes.
    """
    first = max(0, bisect_right(files.segments, start) - 1)
    for base, following in pairwise(files.segments[first:]):
        if base >= end:
            return
        try:
            edges = _edges(files, base, following, piece_bytes)
        except FileNotFoundError:  # the broker has deleted or compacted it meanwhile
            continue
        for (position, offset), (behind, after) in pairwise(edges):
            if offset < after:
                yield file_extent(
                    files.file(base, LOG), byte_offset=position, size_bytes=behind - position,
                    base_offset=offset, next_offset=after,
                )  # fmt: skip


def _edges(
    files: PartitionFiles, base: int, following: int, piece_bytes: int
) -> list[tuple[int, int]]:
    """Return positions and offsets at which a segment is cut, about `piece_bytes` apart.

    The first ones are the position and offset of the segment and of its first batch, the last ones
    are the end of the file and the offset of the following segment. An index entry that matches no
    batch is not used.
    """
    try:
        index = SparseIndex(base, read_file(MACHINE_FILES, files.file(base, INDEX)))
    except FileNotFoundError:
        index = SparseIndex(base)
    edges = [(0, base)]
    descriptor = os.open(files.file(base, LOG), os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(descriptor).st_size
        if size >= HEADER_BYTES:
            header = decode_header(os.pread(descriptor, HEADER_BYTES, 0))
            edges.append((0, header.base_offset))
            for wanted in range(piece_bytes, size, piece_bytes):
                entry = index.by_position(wanted)
                if not edges[-1][0] < entry.position < size:
                    continue
                try:
                    found = decode_header(os.pread(descriptor, HEADER_BYTES, entry.position))
                except CorruptBatch:
                    continue
                if header.next_offset <= found.base_offset <= entry.last_offset:
                    header = found
                    edges.append((entry.position, header.base_offset))
    finally:
        os.close(descriptor)
    return [*edges, (size, following)]
