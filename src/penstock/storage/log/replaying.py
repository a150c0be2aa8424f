"""Replay of journal rows into a log's files when the log is loaded, and truncation of files.

After a crash the journal is read once, and only the rows of its entries are kept in memory. A row
states where batches are in the journal, and where they belong in a segment. No segment is touched,
so the duration of a start depends on the journal, not on the number of logs. The journal files stay
until a checkpoint has synced the replayed segments.

Replay follows the rows in journal order. It writes each row's bytes at the recorded position of the
segment, and truncates files where a row states a truncation, so it is idempotent. If the batches of
a row were written directly to the segment, replay leaves them unchanged; such a row never follows a
truncation that must be replayed. Retention keeps the segment of the recovery point and later
segments, so the target file always exists.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Final, NamedTuple

from penstock.base.files import Buffer, Files, read_file, read_range, replace_file, write_all
from penstock.records.header import LENGTH_OVERHEAD_BYTES, TRANSACTIONAL_FLAG
from penstock.storage.files.checkpoint import RecoveryPoint
from penstock.storage.files.errors import (
    LAZY_REPLAY_BYTES_MAX,
    REPLAY_WRITE_BYTES,
    StorageError,
    disk_full,
)
from penstock.storage.files.journal import STARTS, Row, decode_reference
from penstock.storage.files.segment_files import Descriptors
from penstock.storage.files.transaction_index import ENTRY_BYTES, TransactionIndex
from penstock.storage.files.values import (
    INDEX,
    LOG,
    RECENT_BATCHES,
    SEGMENT_SUFFIXES,
    SNAPSHOT,
    TIME_INDEX,
    TXN_INDEX,
    Standing,
    offset_name,
    parse_offset_name,
)

# Truncation of a log's files.
#
# A log calls these functions once the journal entry of the truncation is durable; every replay of
# that entry calls them again. The functions are therefore idempotent, and may be interrupted at any
# point. The caller syncs their effects before the journal entry may be freed.


def cut_files(
    files: Files,
    directory: str,
    *,
    segment_base: int,
    position: int,
    end_offset: int,
    forget: Callable[[str], object],
) -> None:
    """Truncate a log at byte `position` of one segment; `end_offset` is the new log end offset.

    Removes later segments, and the segment itself if `position` is 0. Removes the segment's offset
    and time indexes, which are rebuilt on first use. Truncates its index of aborted transactions.
    Removes producer snapshots above `end_offset`: the log would take them for its own when it
    reaches their offsets again. Calls `forget` with each path before removing the file.

    Raises:
        OSError: the truncation is incomplete.
    """
    for name in files.names_in(directory):
        parsed = parse_offset_name(name)
        if parsed is None:
            continue
        base, suffix = parsed
        if suffix in (SNAPSHOT, RECENT_BATCHES):
            gone = base > end_offset
        elif base == segment_base and position:
            gone = suffix in (INDEX, TIME_INDEX)
            if suffix == TXN_INDEX:
                cut_transactions(files, os.path.join(directory, name), end_offset)
        else:
            gone = suffix in SEGMENT_SUFFIXES and base >= segment_base
        if gone:
            path = os.path.join(directory, name)
            forget(path)
            files.remove(path)
    if position:
        descriptor = files.open(os.path.join(directory, offset_name(segment_base, LOG)))
        try:
            files.truncate(descriptor, position)
        finally:
            files.close(descriptor)


def cut_transactions(files: Files, path: str, end_offset: int) -> None:
    """Drop incomplete entries of a `.txnindex` and entries from `end_offset` on; sync the file.

    Raises:
        OSError: the file cannot be changed.
    """
    data = read_file(files, path)
    index = TransactionIndex(data[: len(data) - len(data) % ENTRY_BYTES])
    index.cut(end_offset)
    if len(index.entries) < len(data):
        descriptor = files.open(path)
        try:
            files.truncate(descriptor, len(index.entries))
            files.sync_file(descriptor)
        finally:
            files.close(descriptor)


def clear_files(
    files: Files, directory: str, *, offset: int, producers: Buffer, forget: Callable[[str], object]
) -> None:
    """Remove all segments and snapshots of a log that restarts at `offset`.

    `producers`, if not empty, is saved as the snapshot at `offset`; it is encoded as `.batches`.

    Raises:
        OSError: the change is incomplete.
    """
    cut_files(files, directory, segment_base=0, position=0, end_offset=-1, forget=forget)
    if producers:
        path = os.path.join(directory, offset_name(offset, RECENT_BATCHES))
        replace_file(files, path, producers, durable=False)


_BATCH: Final = Struct(">8xii5xh")
"""Length, leader epoch and attributes of a batch."""


class Cut(NamedTuple):
    """Truncation of a log, or its restart at an offset with an empty segment."""

    next_offset: int
    segment_base: int
    position: int
    producers: bool = False


class LogReplay:
    """Journal rows of one log, in journal order, which `perform` replays into the log's files."""

    __slots__ = (
        "_read", "_rows", "begun", "cut", "cut_end", "end_offset", "leader_epoch", "least_end",
        "size_bytes", "standing", "start_offset", "transactional",
    )  # fmt: skip

    def __init__(self, read: Callable[[int, int, int], bytes]) -> None:
        """Create an empty replay; `read(file, size, position)` returns journal bytes."""
        self._read = read
        self._rows: list[tuple[int, int, int, int, int, int]] = []
        self.standing: Standing | None = None
        self.start_offset = 0
        """Base offset of the first row's segment."""
        self.end_offset: int | None = None
        """End offset after the last row, which is not always the highest; None if no row has
        batches or truncates the log."""
        self.cut_end = 0
        """End offset of the last truncation or restart; 0 if batches follow it. It is above the end
        of the last batch if the log has an offset gap there."""
        self.least_end = 0
        """Offset below which loading removes nothing as a torn end; see `recovery`."""
        self.cut: Cut | None = None
        """Lowest truncation since the last restart; bytes below it never changed."""
        self.begun: Cut | None = None
        """Last restart of the log."""
        self.leader_epoch = -1
        """Leader epoch of the newest batches; -1 after a truncation."""
        self.size_bytes = 0
        """Bytes of all batches."""
        self.transactional = False
        """Whether some batches belong to transactions."""

    def add(self, row: Row, file: int, position: int) -> None:
        """Add a journal row without batches: a truncation, a restart or a standing.

        Its entry is at byte `position` of the journal file number `file`.
        """
        if row.is_standing:
            self.standing = Standing(row.base_offset, row.next_offset, bool(row.position))
            return
        self._note(file, position, row)
        self.cut_end = row.next_offset
        if row.is_start:
            self.begun = Cut(row.next_offset, row.next_offset, 0, producers=row.size_bytes > 0)
            self.cut = None
        elif self.cut is None or row.next_offset < self.cut.next_offset:
            self.cut = Cut(row.next_offset, row.segment_base, row.position)
        self.leader_epoch = -1

    def add_batches(self, row: Row, file: int, position: int, data: bytes) -> None:
        """Add a journal row of an append whose batches are in its journal entry, `data`."""
        self._note(file, position, row)
        self.cut_end = 0
        _, _, _, _, size_bytes, _, at = row
        self.size_bytes += size_bytes
        length, self.leader_epoch, flags = _BATCH.unpack_from(data, at)
        if flags & TRANSACTIONAL_FLAG:
            self.transactional = True
        elif length + LENGTH_OVERHEAD_BYTES != size_bytes and not self.transactional:
            self.transactional = has_transactions(data, at, at + size_bytes)

    def add_reference(self, row: Row, file: int, position: int, data: bytes) -> None:
        """Add a journal row of a large append, whose batches were written to the segment only.

        Instead of the batches, the journal entry `data` has a `Reference`: their size, their leader
        epoch, and whether they are transactional.
        """
        self._note(file, position, row)
        there = decode_reference(data, row)
        self.size_bytes += there.size_bytes
        self.leader_epoch = there.leader_epoch
        self.transactional = self.transactional or bool(there.transactional)

    def keep_above(self, offset: int) -> None:
        """Keep the appends that end above an offset; drop all other rows.

        Used if the journal may be older than the log's files, which end at this offset.
        """
        kept = [row for row in self._rows if row[5] > offset and row[4] != STARTS and row[2]]
        self._rows = kept
        self.cut = self.begun = None
        self.cut_end = 0
        self.end_offset = kept[-1][5] if kept else None

    @property
    def place(self) -> tuple[int, int] | None:
        """End of the last batches in the journal: base offset of their segment, and position in it.

        None if the journal has no batches of the log.
        """
        for _, _, size_bytes, segment_base, target, _ in reversed(self._rows):
            if target >= 0 and size_bytes:
                return segment_base, target + size_bytes
        return None

    def _note(self, file: int, position: int, row: Row) -> None:
        segment_base, target, _, next_offset, size_bytes, _, data_at = row
        if self.end_offset is None:
            self.start_offset = segment_base
        self.end_offset = next_offset
        self._rows.append((file, position + data_at, size_bytes, segment_base, target, next_offset))

    @property
    def simple(self) -> bool:
        """Whether the replay can wait until the log is used.

        It can if it is short and only appends batches without transactions: then the rows state
        the log's end, and no file is needed.
        """
        plain = self.cut is None and self.begun is None and not self.transactional
        return plain and self.size_bytes <= LAZY_REPLAY_BYTES_MAX

    @property
    def lowest_end(self) -> int | None:
        """Lowest end offset since the checkpoint, 0 after a restart; None if the log only grew."""
        if self.begun is not None:
            return 0
        return None if self.cut is None else self.cut.next_offset

    def point_after(self, point: RecoveryPoint | None) -> RecoveryPoint:
        """Return the checkpoint's recovery point, adjusted to the truncation, restart and standing
        that the rows state."""
        if point is None:
            base = self.start_offset
            point = RecoveryPoint(base, base, base, 0, 0, -1, 0)
        if self.begun is not None:
            point = point.begun(self.begun.next_offset, producers=self.begun.producers)
        if self.cut is not None:
            point = point.cut(*self.cut[:3])._replace(leader_epoch=-1)
        if self.standing is not None:
            point = point.with_standing(self.standing)
        return point

    def perform(self, files: Files, descriptors: Descriptors, directory: str) -> set[int]:
        """Apply the journal rows to the log's files; return base offsets of the segments to sync.

        Raises:
            StorageError: a file cannot be changed.
        """
        writing = _Writing(files, descriptors, directory)
        try:
            for file, position, size_bytes, segment_base, target, next_offset in self._rows:
                if target == STARTS:
                    writing.start(next_offset, self._read(file, size_bytes, position))
                elif target < STARTS:
                    writing.touched.add(segment_base)
                elif size_bytes == 0:
                    writing.cut(segment_base, target, next_offset)
                else:
                    data = self._read(file, size_bytes, position)
                    writing.write(segment_base, target, data)
            writing.flush()
        except OSError as error:
            raise disk_full(error, directory) or StorageError(
                f"cannot replay the journal into {directory}: {error}"
            ) from error
        return writing.touched


class _Writing:
    """Writer that applies journal rows to segment files; it writes adjacent batches in one call."""

    def __init__(self, files: Files, descriptors: Descriptors, directory: str) -> None:
        self._files = files
        self._descriptors = descriptors
        self._directory = directory
        self._segment_base = self._position = self._end = -1
        self._buffers: list[Buffer] = []
        self.touched: set[int] = set()

    def write(self, segment_base: int, position: int, data: Buffer) -> None:
        adjacent = segment_base == self._segment_base and position == self._end
        if not adjacent or self._end - self._position >= REPLAY_WRITE_BYTES:
            self.flush()
            self._segment_base, self._position = segment_base, position
        self._buffers.append(data)
        self._end = position + len(data)

    def flush(self) -> None:
        if self._buffers:
            file = self._open(self._segment_base)
            write_all(self._files, file, self._position, self._buffers)
            self._buffers = []
        self._segment_base = self._end = -1

    def cut(self, segment_base: int, position: int, end_offset: int) -> None:
        self.flush()
        if position:
            # Create the file even if all of its bytes come from the journal.
            self._open(segment_base)
        kept = segment_base if position else segment_base - 1
        self.touched = {base for base in self.touched if base <= kept}
        cut_files(
            self._files,
            self._directory,
            segment_base=segment_base,
            position=position,
            end_offset=end_offset,
            forget=self._descriptors.forget,
        )

    def start(self, offset: int, producers: bytes) -> None:
        self.flush()
        self.touched = set()
        forget = self._descriptors.forget
        clear_files(self._files, self._directory, offset=offset, producers=producers, forget=forget)

    def _open(self, segment_base: int) -> int:
        self.touched.add(segment_base)
        path = os.path.join(self._directory, offset_name(segment_base, LOG))
        return self._descriptors.get(path, create=True).descriptor


class Replays:
    """Journal rows after the checkpoint, sorted by log: a `LogReplay` for each journal key."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._descriptors: Sequence[int] = ()
        self.logs: dict[bytes, LogReplay] = {}

    def read_from(self, descriptors: Sequence[int]) -> None:
        self._descriptors = descriptors

    def add(self, rows: Sequence[Row], file: int, position: int, data: bytes) -> None:
        """Add each row of a journal entry to the replay of its log.

        The entry has the bytes `data` at byte `position` of the journal file number `file`.
        """
        logs = self.logs
        for row in rows:
            log = logs.get(row.key)
            if log is None:
                log = logs[row.key] = LogReplay(self._read)
            segment_base, target, _, _, size_bytes, _, _ = row
            if segment_base >= 0 and target >= 0 and size_bytes:
                log.add_batches(row, file, position, data)
            elif row.in_segment:
                log.add_reference(row, file, position, data)
            else:
                log.add(row, file, position)

    def end_of(self, key: bytes) -> tuple[int, int] | None:
        log = self.logs.get(key)
        return None if log is None else log.place

    def nothing(self) -> LogReplay:
        return LogReplay(self._read)

    def _read(self, file: int, size_bytes: int, position: int) -> bytes:
        return read_range(self._files, self._descriptors[file], size_bytes, position)


def has_transactions(data: Buffer, at: int, end: int) -> bool:
    """Return whether any batch in [at, end) belongs to a transaction."""
    while at < end:
        length, _, flags = _BATCH.unpack_from(data, at)
        if flags & TRANSACTIONAL_FLAG:
            return True
        at += LENGTH_OVERHEAD_BYTES + length
    return False
