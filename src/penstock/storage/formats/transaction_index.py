"""`.txnindex`: the aborted transactions whose markers a segment holds, in memory as on disk.

Big endian, in the order of their markers, no header; 34 bytes each:

    at  bytes  field
     0      2  version, 0
     2      8  producer id
    10      8  first offset
    18      8  last offset: the marker's
    26      8  last stable offset: below it all was decided when the marker came

There is no file where there is nothing in it, and no checksum in it: the checkpoint has one of all
of a log's (`formats/checkpoint.py`).

Source: Kafka's `AbortedTxn` and `TransactionIndex`.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from penstock.base.crc import crc32c
from penstock.records.transactions import AbortedTransaction
from penstock.storage.values import Buffer

ENTRY_BYTES: Final = 34
VERSION: Final = 0

_ENTRY: Final = Struct(">hqqqq")
_LAST_OFFSET: Final = Struct(">18xq8x")


def checksum(base_offset: int, entries: Buffer) -> int:
    """24 bits of what the segment that begins at an offset has; 0 for nothing."""
    return crc32c(entries, crc32c(base_offset.to_bytes(8, "big"))) >> 8 if entries else 0


class TransactionIndex:
    """The entries of one segment, packed."""

    __slots__ = ("entries",)

    def __init__(self, entries: bytes = b"") -> None:
        self.entries = bytearray(entries)

    def __len__(self) -> int:
        return len(self.entries) // ENTRY_BYTES

    def add(self, aborted: AbortedTransaction) -> None:
        """Its marker comes after all that are there."""
        self.entries += _ENTRY.pack(VERSION, *aborted)

    def at(self, place: int) -> AbortedTransaction:
        _, *fields = _ENTRY.unpack_from(self.entries, place * ENTRY_BYTES)
        return AbortedTransaction(*fields)

    def find(self, start: int, end: int) -> tuple[list[AbortedTransaction], bool]:
        """Those with batches in [start, end); and whether no later one can have any there."""
        found = []
        for place in range(self._first_from(start), len(self)):
            one = self.at(place)
            if one.first_offset < end:
                found.append(one)
            if one.last_stable_offset >= end:
                return found, True
        return found, False

    def cut(self, next_offset: int) -> None:
        """Drop those whose marker is not below an offset."""
        del self.entries[self._first_from(next_offset) * ENTRY_BYTES :]

    def doubt(self, base_offset: int) -> str | None:
        """Why these entries cannot be of a segment that begins there; None if they can."""
        if len(self.entries) % ENTRY_BYTES:
            return f"{len(self.entries)} bytes are no whole entries of {ENTRY_BYTES}"
        newest = base_offset - 1
        for version, *fields in _ENTRY.iter_unpack(self.entries):
            one = AbortedTransaction(*fields)
            if version != VERSION:
                return f"an entry has version {version}, not {VERSION}"
            if not 0 <= one.first_offset <= one.last_offset or one.last_offset <= newest:
                return f"{one} after a marker at {newest}"
            newest = one.last_offset
        return None

    def _first_from(self, offset: int) -> int:
        """The place of the first whose marker is not below an offset."""
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            if _LAST_OFFSET.unpack_from(self.entries, middle * ENTRY_BYTES)[0] < offset:
                low = middle + 1
            else:
                high = middle
        return low
