"""Closed segments in log directories of Apache Kafka or Penstock, as slices that Spark tasks read.

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
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple

from penstock.base.files import MACHINE_FILES, read_file
from penstock.base.ids import TopicPartition
from penstock.mirror.topics import MirrorRefused
from penstock.records.errors import CorruptBatch
from penstock.records.extents import file_extent
from penstock.records.header import HEADER_BYTES, BatchHeader, decode_header
from penstock.records.transactions import AbortedRange
from penstock.spark.reads.chunks import Slice, overlapping
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
        piece_bytes: bytes of a slice; a larger segment is cut at entries of its offset index.

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

    def slices(self, at: TopicPartition, start: int, end: int) -> list[Slice]:
        """Return slices that cover the offsets [start, end) in order and without gaps.

        Offsets below the first segment, and partitions that are not in the directories, get a
        slice without a file. Offsets that compaction has removed belong to the slice before them.
        """
        part = self.parts.get(at)
        if part is None:
            return [Slice(at=at, start=start, end=end)]
        aborted = _aborted(part.files)
        found: list[Slice] = []
        here = max(start, min(part.start, end))
        if here > start:
            found.append(Slice(at=at, start=start, end=here))
        for piece in _pieces(part.files, here, end, self._piece_bytes):
            high = min(piece.next_offset, end)
            extent = file_extent(
                piece.path, byte_offset=piece.begin, size_bytes=piece.end - piece.begin,
                base_offset=piece.base_offset, next_offset=piece.next_offset,
            )  # fmt: skip
            extents = (extent,) if piece.path else ()
            marked = overlapping(aborted, here, high)
            found.append(Slice(at=at, start=here, end=high, extents=extents, aborted=marked))
            here = high
        if here < end:  # compaction has removed the last offsets
            found.append(
                replace(found.pop(), end=end) if found else Slice(at=at, start=here, end=end)
            )
        return found


class _Piece(NamedTuple):
    """Whole batches in the bytes [begin, end) of a segment; no path if the file does not exist."""

    path: str
    begin: int
    end: int
    base_offset: int
    next_offset: int


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


def _pieces(files: PartitionFiles, start: int, end: int, piece_bytes: int) -> Iterator[_Piece]:
    """Yield adjacent pieces that have the offsets [start, end).

    Offsets that compaction has removed belong to the piece before them. The first piece may begin
    above `start`, and the last one end below `end`.
    """
    first = max(0, bisect_right(files.segments, start) - 1)
    for place in range(first, len(files.segments) - 1):
        base, following = files.segments[place : place + 2]
        if base >= end:
            return
        path = files.file(base, LOG)
        try:
            edges = _edges(files, base, piece_bytes)
        except FileNotFoundError:  # the broker has deleted or compacted it meanwhile
            yield _Piece("", 0, 0, base, following)
            continue
        if not edges:  # compaction has removed all batches
            continue
        bases = [header.base_offset for _, header in edges]
        positions = [*(position for position, _ in edges), os.path.getsize(path)]
        for number, offset in enumerate([*bases[1:], following]):
            if offset > start and bases[number] < end:
                yield _Piece(path, positions[number], positions[number + 1], bases[number], offset)


def _edges(files: PartitionFiles, base: int, piece_bytes: int) -> list[tuple[int, BatchHeader]]:
    """Return positions and headers of batches, about `piece_bytes` apart; the first is at byte 0.

    An index entry that matches no batch is not used. An empty segment has no edges.
    """
    try:
        index = SparseIndex(base, read_file(MACHINE_FILES, files.file(base, INDEX)))
    except FileNotFoundError:
        index = SparseIndex(base)
    descriptor = os.open(files.file(base, LOG), os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(descriptor).st_size
        if size < HEADER_BYTES:
            return []
        edges = [(0, decode_header(os.pread(descriptor, HEADER_BYTES, 0)))]
        for wanted in range(piece_bytes, size, piece_bytes):
            entry = index.by_position(wanted)
            if edges[-1][0] < entry.position < size:
                try:
                    header = decode_header(os.pread(descriptor, HEADER_BYTES, entry.position))
                except CorruptBatch:
                    continue
                if edges[-1][1].next_offset <= header.base_offset <= entry.last_offset:
                    edges.append((entry.position, header))
    finally:
        os.close(descriptor)
    return edges
