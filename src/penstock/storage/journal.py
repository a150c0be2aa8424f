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

from penstock.base.files import Files, sync_directory, write_all
from penstock.records import decode_header
from penstock.storage.appended import Appended, LogT
from penstock.storage.errors import StorageFailed, write_error
from penstock.storage.formats.journal_entry import (
    ALIGNMENT_BYTES,
    REFERENCE_BYTES,
    ROW,
    Reference,
    encode_entry,
    encode_reference,
    padded,
    position_in_segment,
)
from penstock.storage.limits import JOURNAL_ENTRY_BYTES_MAX, JOURNAL_PREWRITE_BYTES
from penstock.storage.names import JOURNAL_SUFFIX
from penstock.storage.values import Buffer

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

    def write(self, items: Sequence[Appended[LogT]], *, sync: bool) -> None:
        """Write a group's appends; with `sync`, sync them as well.

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
            for entry_items, payload_bytes in _entries(items):
                self._write_entry(entry_items, payload_bytes)
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
        """Free the files whose entries all have at most `sequence`; segments hold these, synced."""
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

    def _write_entry(self, items: Sequence[Appended[LogT]], payload_bytes: int) -> None:
        rows, payloads = _rows(items)
        file = self._take_file(payload_bytes + len(items) * _ROW_KEY_BYTES)
        head, size_bytes, checksum = encode_entry(
            rows,
            payloads,
            payload_bytes,
            item_count=len(items),
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
        in_segments = [item.size_bytes for item in items if item.in_segment]
        self.bytes_since_checkpoint += taken + sum(in_segments)
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
        """Clear the first block of an undone entry, so that a crash does not restore its group.

        Errors are ignored.
        """
        if file.size_bytes >= position + ALIGNMENT_BYTES:
            with suppress(OSError):
                self._files.write_at(file.descriptor, [_ZEROS], position)


def journal_bytes(item: Appended[LogT]) -> int:
    """Return how many bytes the journal stores for an append, without its table row."""
    return REFERENCE_BYTES if item.in_segment else item.size_bytes


def _rows(items: Sequence[Appended[LogT]]) -> tuple[list[bytes], list[Buffer]]:
    pack = ROW.pack
    rows: list[bytes] = []
    payloads: list[Buffer] = []
    for item in items:
        position, size_bytes, data = item.position, item.size_bytes, item.data
        if item.in_segment:
            leader_epoch = decode_header(item.data).partition_leader_epoch
            transactional = any([header.is_transactional for header in item.headers])
            data = encode_reference(Reference(size_bytes, leader_epoch, transactional))
            position, size_bytes = position_in_segment(position), REFERENCE_BYTES
        offsets = item.base_offset, item.next_offset
        rows.append(pack(item.segment.base_offset, position, *offsets, size_bytes))
        rows.append(item.log.key)
        payloads.append(data)
    return rows, payloads


def _entries(items: Sequence[Appended[LogT]]) -> Iterator[tuple[Sequence[Appended[LogT]], int]]:
    """Split a group into entries of bounded size."""
    total = sum([item.size_bytes for item in items])
    total -= sum([item.size_bytes - REFERENCE_BYTES for item in items if item.in_segment])
    if total <= JOURNAL_ENTRY_BYTES_MAX:
        yield items, total
        return
    start = size_bytes = 0
    for place, item in enumerate(items):
        item_bytes = journal_bytes(item)
        if size_bytes and size_bytes + item_bytes > JOURNAL_ENTRY_BYTES_MAX:
            yield items[start:place], size_bytes
            start, size_bytes = place, 0
        size_bytes += item_bytes
    yield items[start:], size_bytes
