"""`<offset>.snapshot`: the state of a partition's producers at that offset.

Big endian:

    at  bytes  field
     0      2  version, 1
     2      4  CRC32C of everything from byte 6
     6      4  number of entries
    10     46  per entry: producer id i64, epoch i16, last sequence i32, last offset i64,
               offset delta i32, timestamp i64, coordinator epoch i32, first offset of the
               open transaction i64 (-1: none)

Kafka keeps only the last batch of each producer. A client may have five batches in flight and may
retry any of them. Therefore a second file, `<offset>.batches`, has all batches that the broker
remembers: the same layout with version 101 and one entry per batch, oldest first.

Source: Kafka's `ProducerStateManager` and `ProducerSnapshot.json`.
"""

from __future__ import annotations

import struct
from struct import Struct
from typing import Final, NamedTuple

from penstock.base.crc import crc32c
from penstock.storage.errors import CorruptFile

SNAPSHOT_VERSION: Final = 1
BATCHES_VERSION: Final = 101

_HEAD: Final = Struct(">hIi")
_ENTRY: Final = Struct(">qhiqiqiq")
_CHECKED_FROM: Final = 6


class SnapshotEntry(NamedTuple):
    """State of a producer with its last batch or, in `.batches`, one of its last batches."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int
    coordinator_epoch: int = -1
    current_txn_first_offset: int = -1


def encode_snapshot(entries: list[SnapshotEntry], version: int = SNAPSHOT_VERSION) -> bytes:
    data = bytearray(_HEAD.pack(version, 0, len(entries)))
    data += b"".join([_ENTRY.pack(*entry) for entry in entries])
    _HEAD.pack_into(data, 0, version, crc32c(memoryview(data)[_CHECKED_FROM:]), len(entries))
    return bytes(data)


def decode_snapshot(data: bytes, version: int = SNAPSHOT_VERSION) -> list[SnapshotEntry]:
    """Decode the entries; raises CorruptFile."""
    try:
        found, checksum, count = _HEAD.unpack_from(data)
    except struct.error as error:
        raise CorruptFile(f"producer snapshot of {len(data)} bytes: {error}") from None
    if found != version:
        raise CorruptFile(f"producer snapshot has version {found}, not {version}")
    if count < 0 or len(data) != _HEAD.size + count * _ENTRY.size:
        raise CorruptFile(f"producer snapshot states {count} entries in {len(data)} bytes")
    actual = crc32c(memoryview(data)[_CHECKED_FROM:])
    if actual != checksum:
        raise CorruptFile(f"producer snapshot has checksum {actual:#x}, expected {checksum:#x}")
    return [SnapshotEntry._make(entry) for entry in _ENTRY.iter_unpack(data[_HEAD.size :])]


def encoded_snapshots(
    offset: int, last: list[SnapshotEntry], batches: list[SnapshotEntry]
) -> tuple[int, bytes, bytes]:
    """Return the offset, and the contents of `.snapshot` and `.batches` at it."""
    return offset, encode_snapshot(last), encode_snapshot(batches, BATCHES_VERSION)
