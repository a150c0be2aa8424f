"""Journal: one sequential write and one sync make a group of appends durable.

Files are filled one after another, beginning with `00000000.journal`. A file is reused once a
checkpoint covers its entries, because a sync of overwritten blocks costs half as much as a sync
that grows a file. New files are extended with zeros in small steps ahead of their entries, so that
an empty store starts fast.

`write` and `sync` may run on a worker's thread; all other calls are made on the event loop's
thread. A write that fails before its sync is undone: its position and sequence are used again. Each
entry holds its predecessor's checksum, so leftovers of the failed write are never taken for the
next entry. After a failed sync (`StorageFailed`) the journal must be reopened.

Source: the measurements in `design/performance.md`; Pillai et al., "Crash Consistency" (2014) for
the state after a failed sync.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from struct import Struct
from typing import Final, NamedTuple
from uuid import UUID

from penstock.base.crc import crc32c
from penstock.base.files import Files, sync_directory, write_all
from penstock.records import decode_header
from penstock.storage.files.appended import LogT, Queued, Wide
from penstock.storage.files.errors import (
    JOURNAL_ENTRY_BYTES_MAX,
    JOURNAL_PREWRITE_BYTES,
    CorruptFile,
    StorageFailed,
    write_error,
)
from penstock.storage.files.values import JOURNAL_SUFFIX, Buffer

# Entry of the journal: batches of many partitions and their positions in segments.
#
# Big endian; an entry begins at a multiple of 4096 bytes and is followed by zeros up to the next:
#
#     at  bytes  field
#      0      4  "PJE1"
#      4      4  CRC32C of everything from byte 8 to the end of the entry
#      8      8  size of the entry
#     16      8  sequence: one more than that of the entry before
#     24      8  generation of the file: rises each time that a file is taken into use
#     32      8  durable sequence: the newest entry known to be synced when this one was written
#     40      4  checksum of the entry before, so that only its true successor is accepted
#     44      4  number of items
#     48      4  size of the table
#     52      …  table, one row per item:
#                  segment base offset i64, position i64, base offset i64, next offset i64,
#                  size u32, key (below)
#      …      …  the items' batches back to back, in the order of the table
#
#     key: topic id 16, partition i32, size of the topic's name u8, name
#
# An ordinary row has batches of one partition; `position` is where they belong in the segment.
# There are four other kinds:
#
# *Restart*, with position -1: the log is discarded and restarts empty; base and next offset are its
# new start. The row's bytes are the producer state, encoded as `.batches` (`files/producers.py`).
#
# *Standing* of a replica, with segment base offset -1 and size 0: base offset is the promised
# epoch, next offset is the epoch up to which the replica is in limbo (-1: none). Position is 1 if
# synced batches may be lost, else 0.
#
# *Truncation*, any other row of size 0: the log is truncated at `position` of the segment, and
# later segments are removed; base and next offset are the new log end offset.
#
# *Reference*, with a position below -1: the batches were synced in their segment before the entry
# was written. They begin there at the position -2 - `position`. The row's bytes describe the
# batches:
#
#     at  bytes  field
#      0      4  size
#      4      4  leader epoch
#      8      4  1 if some of them belong to transactions, else 0
#
# Rows take effect in their order: a truncation undoes what was appended before it, and nothing that
# is appended after it.
#
# The checksum covers sequence and generation, so leftovers of an earlier use of the file never
# count as entries. The durable sequence distinguishes a torn end from a loss: if a later entry
# states that a missing entry was synced, the disk has lost it.


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
"""Base offset of the segment, position in it, base and next offset of the append, and its size."""
_KEY: Final = Struct(">16siB")
_CHECKED_FROM: Final = 8
_CHECKED_HEAD: Final = Struct(">QQQQIII")
_CHECKSUM: Final = Struct(">4sI")


class EntryHead(NamedTuple):
    """Fixed-size fields at the beginning of a journal entry."""

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
    """Row in the table of a journal entry: one change of one log.

    The change is an append of batches (in the entry, or in the segment with a `Reference` in the
    entry), a truncation, a restart at an offset, or a new `Standing`. `data_at` is the position in
    the entry of the bytes that belong to the row.
    """

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
    """Description of a large append whose batches are in their segment, not in the journal."""

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
    """Encode a journal entry, whose payloads the caller writes behind the result.

    Returns the bytes of head and table, the size of the whole entry, and its checksum. `rows` has
    two items for each table row: the packed `ROW` and the key of the log.
    """
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
    """Decode the fixed-size fields of the entry at `offset`; None if no entry begins there.

    The checksum is not verified.
    """
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


_ZEROS = bytes(ALIGNMENT_BYTES)
_PREWRITE = bytes(JOURNAL_PREWRITE_BYTES)
_ROW_KEY_BYTES = 300


class JournalFile:
    """Journal file: its size, and the generation and last sequence of its current use."""

    __slots__ = ("descriptor", "generation", "last_sequence", "path", "size_bytes")

    def __init__(self, path: str, descriptor: int, size_bytes: int) -> None:
        self.path = path
        self.descriptor = descriptor
        self.size_bytes = size_bytes
        self.generation = 0
        self.last_sequence = 0


class Journal:
    """Journal of a store, after recovery."""

    def __init__(
        self,
        files: Files,
        directory: str,
        *,
        file_bytes: int,
        files_max: int,
        sequence: int,
        generation: int,
        checksum: int = 0,
        existing: Sequence[JournalFile] = (),
        checkpoint_sequence: int = 0,
        bytes_since_checkpoint: int = 0,
    ) -> None:
        """Open a journal. `sequence` and `generation` are the highest ever used; `checksum` is that
        of the last entry. Existing files with entries after the checkpoint stay in use."""
        self._files = files
        self._directory = directory
        self._file_bytes = file_bytes
        self._files_max = files_max
        self._generation = generation
        self._free = [file for file in existing if file.last_sequence <= checkpoint_sequence]
        self._full = [file for file in existing if file.last_sequence > checkpoint_sequence]
        self._count = len(existing)
        self._active: JournalFile | None = None
        self._position = 0
        self._previous_checksum = checksum
        self._unsynced: list[JournalFile] = []
        self._taken: list[JournalFile] = []
        self.sequence = sequence
        self.durable_sequence = sequence
        self.applied_sequence = sequence
        """Sequence of the newest entry that is applied to the logs; set by the committer."""
        self.checkpoint_sequence = checkpoint_sequence
        self.bytes_since_checkpoint = bytes_since_checkpoint
        self.written_bytes = 0
        self.syncs = 0
        self._total_bytes = sum([file.size_bytes for file in existing])
        self.synced_bytes = 0
        """Lower bound of the total size of all journal files, as of the last sync."""

    @property
    def files_in_use(self) -> int:
        return len(self._full) + (self._active is not None)

    @property
    def file_count(self) -> int:
        return self._count

    def has_room(self, size_bytes: int) -> bool:
        """Return whether a group of this size fits before a checkpoint must free files."""
        if self._active is None or self._position + size_bytes <= self._file_bytes:
            return True
        needed = -(-size_bytes // min(self._file_bytes, JOURNAL_ENTRY_BYTES_MAX)) + 1
        available = len(self._free) + max(0, self._files_max - self._count)
        return available >= needed or not self._full

    @property
    def crowded(self) -> bool:
        """Whether more than half of the files are in use, so that a checkpoint is due."""
        return len(self._full) * 2 > self._files_max - 1

    def prepare(self) -> None:
        active = self._take_file(ALIGNMENT_BYTES)
        if active.size_bytes < ALIGNMENT_BYTES:
            ahead = memoryview(_PREWRITE)[: max(self._file_bytes, ALIGNMENT_BYTES)]
            self._grow(active, write_all(self._files, active.descriptor, 0, [ahead]))
            self._files.sync_file(active.descriptor)
            sync_directory(self._files, self._directory)
        self.synced_bytes = self._total_bytes

    def write(self, items: Sequence[Queued[LogT]], size_bytes: int, *, sync: bool) -> None:
        """Write a group's appends; with `sync`, sync them as well.

        `size_bytes` is the most that they take in the journal; it decides whether they share an
        entry.

        Raises:
            DiskFull: the disk is full; nothing of the group is visible.
            StorageError: another error before the sync; nothing of the group is visible.
            StorageFailed: a sync failed, or the disk accepts no writes; the journal must not be
                used again.
        """
        active, position, sequence = self._active, self._position, self.sequence
        checksum, unsynced = self._previous_checksum, len(self._unsynced)
        self._taken = []
        try:
            small = size_bytes <= JOURNAL_ENTRY_BYTES_MAX
            for entry_items in (items,) if small else _entries(items):
                self._write_entry(entry_items)
        except OSError as error:
            self.sequence, self._previous_checksum = sequence, checksum
            self.durable_sequence = min(self.durable_sequence, sequence)
            del self._unsynced[unsynced:]
            self._take_back(active, position)
            path = self._directory
            raise write_error(error, path, f"cannot write the journal in {path}") from error
        if sync:
            self.sync()

    def sync(self) -> None:
        """Sync everything written; raises StorageFailed."""
        sequence, total_bytes = self.sequence, self._total_bytes
        unsynced, self._unsynced = self._unsynced, []
        for file in unsynced:
            try:
                self._files.sync_file(file.descriptor)
            except OSError as error:
                raise StorageFailed(
                    f"syncing {file.path} failed: {error}; its content is unknown until the store"
                    " is reopened"
                ) from error
            self.syncs += 1
        self.durable_sequence, self.synced_bytes = sequence, total_bytes

    def free(self, sequence: int) -> None:
        """Let journal files be reused: those without an entry above `sequence`.

        A checkpoint has synced the content of all other entries in the segments.
        """
        self.checkpoint_sequence = sequence
        kept: list[JournalFile] = []
        for file in self._full:
            (self._free if file.last_sequence <= sequence else kept).append(file)
        self._full = kept
        self.bytes_since_checkpoint = 0

    def close(self) -> None:
        for file in self._all():
            self._files.close(file.descriptor)
        self._free, self._full, self._active = [], [], None

    def _all(self) -> Iterator[JournalFile]:
        yield from self._free
        yield from self._full
        if self._active is not None:
            yield self._active

    def _write_entry(self, items: Sequence[Queued[LogT]]) -> None:
        rows, payloads, count, direct_bytes = _rows(items)
        payload_bytes = sum(map(len, payloads))
        file = self._take_file(payload_bytes + count * _ROW_KEY_BYTES)
        head, size_bytes, checksum = encode_entry(
            rows,
            payloads,
            payload_bytes,
            item_count=count,
            sequence=self.sequence + 1,
            generation=file.generation,
            durable_sequence=self.durable_sequence,
            previous_checksum=self._previous_checksum,
        )
        taken = padded(size_bytes)
        self._write_ahead(file, taken)
        buffers: list[Buffer] = [head, *payloads]
        if taken > size_bytes:
            buffers.append(memoryview(_ZEROS)[: taken - size_bytes])
        self._position = write_all(self._files, file.descriptor, self._position, buffers)
        self._grow(file, self._position)
        # Add the file before the sequence, as another thread may sync meanwhile.
        if not self._unsynced or self._unsynced[-1] is not file:
            self._unsynced.append(file)
        self.sequence += 1
        file.last_sequence = self.sequence
        self._previous_checksum = checksum
        self.bytes_since_checkpoint += taken + direct_bytes
        self.written_bytes += taken

    def _write_ahead(self, file: JournalFile, size_bytes: int) -> None:
        """Extend a file with zeros beyond a small entry, so that later entries overwrite blocks."""
        end = self._position + size_bytes
        if end > file.size_bytes and size_bytes < JOURNAL_PREWRITE_BYTES:
            ahead = min(len(_PREWRITE), max(self._file_bytes - file.size_bytes, size_bytes))
            zeros = memoryview(_PREWRITE)[:ahead]
            write_all(self._files, file.descriptor, file.size_bytes, [zeros])
            self._grow(file, file.size_bytes + ahead)

    def _grow(self, file: JournalFile, size_bytes: int) -> None:
        self._total_bytes += max(0, size_bytes - file.size_bytes)
        file.size_bytes = max(file.size_bytes, size_bytes)

    def _take_file(self, size_bytes: int) -> JournalFile:
        """Return the file that receives the next entry, whose size is about `size_bytes`."""
        active = self._active
        if active is not None and (
            self._position == 0 or self._position + size_bytes <= self._file_bytes
        ):
            return active
        file = self._free.pop() if self._free else self._create()
        if active is not None:
            self._full.append(active)
        self._generation += 1
        file.generation = self._generation
        self._active, self._position = file, 0
        self._taken.append(file)
        return file

    def _create(self) -> JournalFile:
        number = self._count
        path = os.path.join(self._directory, f"{number:08d}{JOURNAL_SUFFIX}")
        descriptor = self._files.open(path, create=True)
        sync_directory(self._files, self._directory)
        self._count += 1
        return JournalFile(path, descriptor, 0)

    def _take_back(self, active: JournalFile | None, position: int) -> None:
        """Undo a group that was not written completely, and so was never acknowledged."""
        for file in self._taken:
            if file in self._full:
                self._full.remove(file)
            self._free.append(file)
            self._scrub(file, 0)
        if active in self._full:
            self._full.remove(active)
        self._active, self._position = active, position
        if active is not None:
            active.last_sequence = min(active.last_sequence, self.sequence)
            self._scrub(active, position)

    def _scrub(self, file: JournalFile, position: int) -> None:
        """Clear the first block of a failed entry, so that a restart does not restore it.

        Errors are ignored.
        """
        if file.size_bytes >= position + ALIGNMENT_BYTES:
            with suppress(OSError):
                self._files.write_at(file.descriptor, [_ZEROS], position)


def journal_bytes(item: Queued[LogT]) -> int:
    """Return how many bytes the journal stores for an append, without its table row."""
    return REFERENCE_BYTES if item.in_segment else item.size_bytes


def row_count(items: Sequence[Queued[LogT]]) -> int:
    """Return how many rows the journal stores for a group."""
    return sum([len(item.logs) if isinstance(item, Wide) else 1 for item in items])


def _rows(items: Sequence[Queued[LogT]]) -> tuple[list[bytes], list[Buffer], int, int]:
    """Return the table and the payloads of an entry, the number of its rows, and the bytes that
    are in segments instead."""
    pack = ROW.pack
    rows: list[bytes] = []
    payloads: list[Buffer] = []
    count = direct_bytes = 0
    for item in items:
        if isinstance(item, Wide):
            rows.append(item.table)
            payloads.append(item.data)
            count += len(item.logs)
            continue
        count += 1
        position, size_bytes, data = item.position, item.size_bytes, item.data
        if item.in_segment:
            leader_epoch = decode_header(item.data).partition_leader_epoch
            transactional = any([header.is_transactional for header in item.headers])
            data = encode_reference(Reference(size_bytes, leader_epoch, transactional))
            direct_bytes += size_bytes
            position, size_bytes = position_in_segment(position), REFERENCE_BYTES
        offsets = item.base_offset, item.next_offset
        rows.append(pack(item.segment.base_offset, position, *offsets, size_bytes))
        rows.append(item.log.key)
        payloads.append(data)
    return rows, payloads, count, direct_bytes


def _entries(items: Sequence[Queued[LogT]]) -> Iterator[Sequence[Queued[LogT]]]:
    """Split a group into entries of bounded size."""
    start = size_bytes = 0
    for place, item in enumerate(items):
        item_bytes = journal_bytes(item)
        if size_bytes and size_bytes + item_bytes > JOURNAL_ENTRY_BYTES_MAX:
            yield items[start:place]
            start, size_bytes = place, 0
        size_bytes += item_bytes
    yield items[start:]
