"""Entry of the journal: batches of many partitions and their positions in segments.

Big endian; an entry begins at a multiple of 4096 bytes and is followed by zeros up to the next:

    at  bytes  field
     0      4  "PJE1"
     4      4  CRC32C of everything from byte 8 to the end of the entry
     8      8  size of the entry
    16      8  sequence: one more than that of the entry before
    24      8  generation of the file: rises each time that a file is taken into use
    32      8  durable sequence: the newest entry known to be synced when this one was written
    40      4  checksum of the entry before, so that only its true successor is accepted
    44      4  number of items
    48      4  size of the table
    52      …  table, one row per item:
                 segment base offset i64, position i64, base offset i64, next offset i64,
                 size u32, key (below)
     …      …  the items' batches back to back, in the order of the table

    key: topic id 16, partition i32, size of the topic's name u8, name

An ordinary row has batches of one partition; `position` is where they belong in the segment. There
are four other kinds:

*Restart*, with position -1: the log is discarded and restarts empty; base and next offset are its
new start. The row's bytes are the producer state, encoded as `.batches` (`formats/snapshot.py`).

*Standing* of a replica, with segment base offset -1 and size 0: base offset is the promised epoch,
next offset is the epoch up to which the replica is in limbo (-1: none). Position is 1 if synced
batches may be lost, else 0.

*Truncation*, any other row of size 0: the log is truncated at `position` of the segment, and later
segments are removed; base and next offset are the new log end offset.

*Reference*, with a position below -1: the batches were synced in their segment before the entry was
written. They begin there at the position -2 - `position`. The row's bytes describe the batches:

    at  bytes  field
     0      4  size
     4      4  leader epoch
     8      4  1 if some of them belong to transactions, else 0

Rows take effect in their order: a truncation undoes what was appended before it, and nothing that
is appended after it.

The checksum covers sequence and generation, so leftovers of an earlier use of the file never count
as entries. The durable sequence distinguishes a torn end from a loss: if a later entry states that
a missing entry was synced, the disk has lost it.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple
from uuid import UUID

from penstock.base.crc import crc32c
from penstock.storage.errors import CorruptFile
from penstock.storage.values import Buffer

ALIGNMENT_BYTES: Final = 4096
MAGIC: Final = b"PJE1"
STARTS: Final = -1
"""Position of a row that restarts its log."""

_IN_SEGMENT: Final = -2
_REFERENCE: Final = Struct(">IiI")
REFERENCE_BYTES: Final = _REFERENCE.size

_HEAD: Final = Struct(">4sIQQQQIII")
HEAD_BYTES: Final = _HEAD.size
ROW: Final = Struct(">qqqqI")
_KEY: Final = Struct(">16siB")
_CHECKED_FROM: Final = 8
_CHECKED_HEAD: Final = Struct(">QQQQIII")
_CHECKSUM: Final = Struct(">4sI")


class EntryHead(NamedTuple):
    """Fixed part of an entry."""

    magic: bytes
    checksum: int
    size_bytes: int
    sequence: int
    generation: int
    durable_sequence: int
    previous_checksum: int
    item_count: int
    table_bytes: int


class Row(NamedTuple):
    """Row of the table: batches of one partition, a restart, a truncation, a standing or a
    reference. `data_at` is the position of its bytes in the entry."""

    segment_base: int
    position: int
    base_offset: int
    next_offset: int
    size_bytes: int
    key: bytes
    data_at: int

    @property
    def is_standing(self) -> bool:
        return self.segment_base < 0

    @property
    def is_start(self) -> bool:
        return self.position == STARTS

    @property
    def in_segment(self) -> bool:
        return self.position <= _IN_SEGMENT

    @property
    def is_cut(self) -> bool:
        return not self.size_bytes and self.segment_base >= 0


class Reference(NamedTuple):
    """Description of batches that are stored in their segment instead of the entry."""

    size_bytes: int
    leader_epoch: int
    transactional: int


def encode_reference(reference: Reference) -> bytes:
    return _REFERENCE.pack(*reference)


def decode_reference(data: Buffer, row: Row) -> Reference:
    return Reference(*_REFERENCE.unpack_from(data, row.data_at))


def position_in_segment(position: int) -> int:
    """Convert a segment position to its representation in a reference row, or back."""
    return _IN_SEGMENT - position


def segment_position(row: Row) -> int:
    """Return the position in the segment at which a row's batches begin."""
    return position_in_segment(row.position) if row.in_segment else row.position


def encode_key(topic_id: UUID, topic: str, partition: int) -> bytes:
    """Return the key of a partition, which is the same in all its rows."""
    name = topic.encode()
    return _KEY.pack(topic_id.bytes, partition, len(name)) + name


def padded(size_bytes: int) -> int:
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def encode_entry(
    rows: Sequence[bytes],
    payloads: Sequence[Buffer],
    payload_bytes: int,
    *,
    item_count: int,
    sequence: int,
    generation: int,
    durable_sequence: int,
    previous_checksum: int,
) -> tuple[bytes, int, int]:
    """Return head and table, entry size and checksum; `rows` are pairs of `ROW` and key."""
    table = b"".join(rows)
    size_bytes = HEAD_BYTES + len(table) + payload_bytes
    rest = _CHECKED_HEAD.pack(
        size_bytes,
        sequence,
        generation,
        durable_sequence,
        previous_checksum,
        item_count,
        len(table),
    )
    checksum = crc32c(table, crc32c(rest))
    for payload in payloads:
        checksum = crc32c(payload, checksum)
    return _CHECKSUM.pack(MAGIC, checksum) + rest + table, size_bytes, checksum


def decode_head(buffer: Buffer, offset: int = 0) -> EntryHead | None:
    """Decode the fixed part, without the checksum; None if no entry begins here."""
    if len(buffer) - offset < HEAD_BYTES:
        return None
    head = EntryHead._make(_HEAD.unpack_from(buffer, offset))
    if head.magic != MAGIC or head.size_bytes < HEAD_BYTES + head.table_bytes:
        return None
    return head


def is_whole(buffer: memoryview, head: EntryHead, offset: int = 0) -> bool:
    """Return whether the entry at `offset` is complete and has a valid checksum."""
    end = offset + head.size_bytes
    return end <= len(buffer) and crc32c(buffer[offset + _CHECKED_FROM : end]) == head.checksum


def decode_key(key: bytes) -> tuple[UUID, str, int]:
    topic_id, partition, _ = _KEY.unpack_from(key)
    return UUID(bytes=topic_id), key[_KEY.size :].decode(), partition


def decode_rows(data: bytes, head: EntryHead) -> list[Row]:
    """Decode the table of a verified entry, whose bytes are `data`; raises CorruptFile."""
    at = HEAD_BYTES
    data_at = table_end = at + head.table_bytes
    unpack, name_at, row_bytes = ROW.unpack_from, ROW.size + _KEY.size - 1, ROW.size
    new = tuple.__new__  # half the cost of `Row(...)`, for hundreds of thousands of rows
    rows: list[Row] = []
    for _ in range(head.item_count):
        if at + name_at >= table_end:
            raise CorruptFile(f"journal entry {head.sequence}: its table is truncated")
        end = at + name_at + 1 + data[at + name_at]
        row = new(Row, (*unpack(data, at), data[at + row_bytes : end], data_at))
        rows.append(row)
        data_at += row[4]
        at = end
    if at != table_end or data_at != head.size_bytes:
        raise CorruptFile(f"journal entry {head.sequence}: its table does not fit its size")
    return rows
