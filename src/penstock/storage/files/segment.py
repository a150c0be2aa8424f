"""Segment of a partition: its files, how far they are written, and its indexes.

`end_position` is the position of the next append; `written_bytes` is the length of the file. The
bytes between are in memory: durable in the journal, or waiting for it. The indexes cover written
bytes; they grow with the segment, are loaded on first use, and are rebuilt by a walk over batch
headers when they are missing or wrong.

Source: Kafka's `LogSegment`.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Final

from penstock.records import BatchHeader
from penstock.storage.files.checkpoint import ABORTED_SHIFT
from penstock.storage.files.errors import CorruptLog
from penstock.storage.files.index import SparseIndex
from penstock.storage.files.transaction_index import TransactionIndex, checksum
from penstock.storage.files.values import INDEX, LOG, TIME_INDEX, TXN_INDEX, offset_name

_base_offset: Final = attrgetter("base_offset")
UNKNOWN: Final = -2
"""Value of a timestamp that was not read from the files yet."""


class Segment:
    """State of one segment; used on the event loop's thread."""

    __slots__ = (
        "aborted_checksum", "base_offset", "bytes_since_entry", "end_position", "first_timestamp",
        "gaps", "index", "max_timestamp", "max_timestamp_offset", "named", "path", "saved_offsets",
        "saved_times", "saved_transactions", "transactions", "written_bytes",
    )  # fmt: skip

    def __init__(self, directory: str, base_offset: int, size_bytes: int = 0) -> None:
        self.path = os.path.join(directory, offset_name(base_offset, LOG))
        self.base_offset = base_offset
        self.end_position = size_bytes
        self.written_bytes = size_bytes
        self.named = False
        """Whether the directory entry of the file is known to be synced."""
        self.gaps = False
        """Whether offsets may be missing without damage, because the segment was repaired."""
        self.index: SparseIndex | None = None if size_bytes else SparseIndex(base_offset)
        self.bytes_since_entry = 0
        self.max_timestamp = UNKNOWN if size_bytes else -1
        self.max_timestamp_offset = -1
        self.first_timestamp = UNKNOWN if size_bytes else -1
        self.saved_offsets = 0
        self.saved_times = 0
        self.transactions: TransactionIndex | None = TransactionIndex()
        """Index of aborted transactions; None if its file was not read yet."""
        self.saved_transactions = 0
        self.aborted_checksum = 0
        """Checksum of the saved transaction index."""

    def sibling(self, suffix: str) -> str:
        return self.path[: -len(LOG)] + suffix

    def add(self, last_offset: int, timestamp: int, size_bytes: int, interval_bytes: int) -> None:
        """Index a batch that was written at `written_bytes`; its highest timestamp is -1 for none.

        Raises:
            CorruptLog: the index is not loaded.
        """
        index = self.index
        if index is None:
            raise not_loaded(self)
        if self.first_timestamp < 0:
            self.first_timestamp = timestamp
        if timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
            self.max_timestamp_offset = last_offset
        if self.bytes_since_entry > interval_bytes:
            index.add_offset(last_offset, self.written_bytes)
            if self.max_timestamp >= 0:
                index.add_time(self.max_timestamp, self.max_timestamp_offset)
            self.bytes_since_entry = 0
        self.bytes_since_entry += size_bytes
        self.written_bytes += size_bytes

    def add_batches(
        self,
        headers: Iterable[BatchHeader],
        interval_bytes: int,
        base_offset: int | None = None,
    ) -> None:
        """Index batches as `add`; their offsets begin at `base_offset` if the headers lack them."""
        for header in headers:
            first = header.base_offset if base_offset is None else base_offset
            last_offset, size_bytes = first + header.last_offset_delta, header.size_bytes
            self.add(last_offset, header.newest_timestamp, size_bytes, interval_bytes)
            if base_offset is not None:
                base_offset = last_offset + 1

    def close_index(self) -> None:
        if self.index is not None and self.max_timestamp >= 0:
            self.index.add_time(self.max_timestamp, self.max_timestamp_offset)

    def indexed(self) -> tuple[int, int, int]:
        """Return the sizes of the three index files, in bytes, once unsaved entries are written."""
        index, transactions = self.index, self.transactions
        return (
            self.saved_offsets if index is None else len(index.offsets),
            self.saved_times if index is None else len(index.times),
            self.saved_transactions if transactions is None else len(transactions.entries),
        )

    def saved(self, lengths: tuple[int, int, int]) -> None:
        self.saved_offsets, self.saved_times, self.saved_transactions = lengths
        if self.transactions is not None:
            entries = memoryview(self.transactions.entries)[: self.saved_transactions]
            self.aborted_checksum = checksum(self.base_offset, bytes(entries))

    @property
    def aborted(self) -> int:
        """Checksum of the index of aborted transactions, as far as the segment is written."""
        known = self.transactions
        return self.aborted_checksum if known is None else checksum(self.base_offset, known.entries)

    def unsaved(self) -> list[tuple[str, int, bytes]]:
        index = self.index
        missing: list[tuple[str, int, bytes]] = []
        if self.transactions is not None:
            data = bytes(memoryview(self.transactions.entries)[self.saved_transactions :])
            if data:
                missing.append((self.sibling(TXN_INDEX), self.saved_transactions, data))
        if index is None:
            return missing
        if len(index.offsets) > self.saved_offsets:
            data = bytes(memoryview(index.offsets)[self.saved_offsets :])
            missing.append((self.sibling(INDEX), self.saved_offsets, data))
        if len(index.times) > self.saved_times:
            data = bytes(memoryview(index.times)[self.saved_times :])
            missing.append((self.sibling(TIME_INDEX), self.saved_times, data))
        return missing


def segment_place(segments: Sequence[Segment], offset: int) -> int:
    return max(0, bisect_right(segments, offset, key=_base_offset) - 1)


def not_loaded(segment: Segment) -> CorruptLog:
    reason = "the segment was written before its index was loaded"
    return CorruptLog(Path(segment.path), segment.written_bytes, reason)


def aborted_flags(segments: Iterable[Segment]) -> int:
    """Return the bits of a recovery point's flags that hold the checksum of all indexes of aborted
    transactions."""
    checksums = 0
    for segment in segments:
        if segment.transactions is None or segment.transactions.entries:
            checksums ^= segment.aborted
    return checksums << ABORTED_SHIFT
