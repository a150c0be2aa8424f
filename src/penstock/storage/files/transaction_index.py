"""`.txnindex`: the aborted transactions whose markers a segment holds, in memory as on disk.

Big endian, in the order of their markers, no header; 34 bytes each:

    at  bytes  field
     0      2  version, 0
     2      8  producer id
    10      8  first offset
    18      8  last offset: that of the marker
    26      8  last stable offset when the marker was appended

A file without entries does not exist. The checkpoint holds a checksum of all of a log's files
(`files/checkpoint.py`).

Source: Kafka's `AbortedTxn` and `TransactionIndex`.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from penstock.base.crc import crc32c
from penstock.records.transactions import AbortedTransaction
from penstock.storage.files.values import Buffer

ENTRY_BYTES: Final = 34
VERSION: Final = 0

_ENTRY: Final = Struct(">hqqqq")
_LAST_OFFSET: Final = Struct(">18xq8x")


def checksum(base_offset: int, entries: Buffer) -> int:
    """Return a 24-bit checksum of a segment's entries; 0 if there is none."""
    return crc32c(entries, crc32c(base_offset.to_bytes(8, "big"))) >> 8 if entries else 0


class TransactionIndex:
    """Entries of one segment, packed."""

    __slots__ = ("entries",)

    def __init__(self, entries: bytes = b"") -> None:
        self.entries = bytearray(entries)

    def __len__(self) -> int:
        return len(self.entries) // ENTRY_BYTES

    def add(self, aborted: AbortedTransaction) -> None:
        """Add a transaction whose marker is behind all others."""
        self.entries += _ENTRY.pack(VERSION, *aborted)

    def at(self, place: int) -> AbortedTransaction:
        _, *fields = _ENTRY.unpack_from(self.entries, place * ENTRY_BYTES)
        return AbortedTransaction(*fields)

    def find(self, start: int, end: int) -> tuple[list[AbortedTransaction], bool]:
        """Return the transactions with batches in [start, end), and whether later entries can be
        skipped."""
        found = []
        for place in range(self._first_from(start), len(self)):
            one = self.at(place)
            if one.first_offset < end:
                found.append(one)
            if one.last_stable_offset >= end:
                return found, True
        return found, False

    def cut(self, next_offset: int) -> None:
        """Drop entries whose marker is not below an offset."""
        del self.entries[self._first_from(next_offset) * ENTRY_BYTES :]

    def doubt(self, base_offset: int) -> str | None:
        """Return why these entries cannot be of a segment with this base offset, or None."""
        if len(self.entries) % ENTRY_BYTES:
            return f"{len(self.entries)} bytes are not a multiple of the entry size {ENTRY_BYTES}"
        newest = base_offset - 1
        for version, *fields in _ENTRY.iter_unpack(self.entries):
            one = AbortedTransaction(*fields)
            if version != VERSION:
                return f"an entry has version {version}, not {VERSION}"
            if not 0 <= one.first_offset <= one.last_offset or one.last_offset <= newest:
                return f"{one} follows a marker at offset {newest}"
            newest = one.last_offset
        return None

    def _first_from(self, offset: int) -> int:
        """Return the index of the first entry whose marker is not below an offset."""
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            if _LAST_OFFSET.unpack_from(self.entries, middle * ENTRY_BYTES)[0] < offset:
                low = middle + 1
            else:
                high = middle
        return low
