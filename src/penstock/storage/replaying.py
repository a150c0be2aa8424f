"""What the journal has of each log beyond the checkpoint, and how it comes into the log's files.

After a crash the journal is read once, and all that is kept of an entry are the rows of its table:
where in the journal the batches are, and where in their segments they go. No segment is touched,
so that a start takes as long as reading the journal does, however many logs it is about. The rows
of a log are put into its files when the log is loaded, before anything else is done with them; the
journal files stay as they are until then, and until a checkpoint has synced what was made of them.

Replay writes each row's bytes at the position that it was given, and cuts files where a row says
so, in the order of the journal: it comes to the same however often it is done. What the journal
says is in a segment is left as it is there: none follows a cut that is to be replayed. Retention
removes no segment that the checkpoint's recovery point points at or before, so what is replayed
always has its file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Final, NamedTuple

from penstock.base.files import Buffer, Files, read_range, write_all
from penstock.records.header import LENGTH_OVERHEAD_BYTES, TRANSACTIONAL_FLAG
from penstock.storage.cutting import clear_files, cut_files
from penstock.storage.descriptors import Descriptors
from penstock.storage.errors import StorageError, disk_full
from penstock.storage.formats.checkpoint import RecoveryPoint
from penstock.storage.formats.journal_entry import STARTS, Row, decode_reference
from penstock.storage.limits import LAZY_REPLAY_BYTES_MAX, REPLAY_WRITE_BYTES
from penstock.storage.names import LOG, offset_name
from penstock.storage.values import Standing

_BATCH: Final = Struct(">8xii5xh")
"""Length, leader epoch and attributes of a batch."""


class Cut(NamedTuple):
    """Where a log was cut, or began anew: then the segment has nothing."""

    next_offset: int
    segment_base: int
    position: int
    producers: bool = False


class LogReplay:
    """The rows of one log, in the order of the journal."""

    __slots__ = (
        "_read", "_rows", "begun", "cut", "cut_end", "end_offset", "leader_epoch", "least_end",
        "size_bytes", "standing", "start_offset", "transactional",
    )  # fmt: skip

    def __init__(self, read: Callable[[int, int, int], bytes]) -> None:
        """`read` gives bytes of the journal: of which file, how many, from where."""
        self._read = read
        self._rows: list[tuple[int, int, int, int, int, int]] = []
        self.standing: Standing | None = None
        self.start_offset = 0
        """Where the segment of the first row begins."""
        self.end_offset: int | None = None
        """Where the log ends after the last row, which is not always the highest; None if all that
        there is are standings."""
        self.cut_end = 0
        """Where the log was cut last of all, though its last batch may end below; 0 if it grew."""
        self.least_end = 0
        """Below it nothing is cut off as torn, whatever is damaged there; see `rebuilding`."""
        self.cut: Cut | None = None
        """The lowest cut after the log began: what is below has been there all the time."""
        self.begun: Cut | None = None
        """The last start of a log that began anew."""
        self.leader_epoch = -1
        """Of the newest batches; -1 after a cut."""
        self.size_bytes = 0
        """Of all batches."""
        self.transactional = False
        """Whether some of the batches belong to transactions."""

    def add(self, row: Row, file: int, position: int) -> None:
        """Note a row that is no batches, of an entry that is at a position of a journal file."""
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
        """Note a row of batches, which are in `data`, the entry."""
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
        """Note a row of batches that are in their segment."""
        self._note(file, position, row)
        there = decode_reference(data, row)
        self.size_bytes += there.size_bytes
        self.leader_epoch = there.leader_epoch
        self.transactional = self.transactional or bool(there.transactional)

    def keep_above(self, offset: int) -> None:
        """Forget all but batches that reach above an offset, and whatever cut or began the log."""
        kept = [row for row in self._rows if row[5] > offset and row[4] != STARTS and row[2]]
        self._rows = kept
        self.cut = self.begun = None
        self.cut_end = 0
        self.end_offset = kept[-1][5] if kept else None

    @property
    def place(self) -> tuple[int, int] | None:
        """The segment and the position behind the last batches; None without any."""
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
        """Whether all is known of the log before its files are looked at, and that is soon done."""
        plain = self.cut is None and self.begun is None and not self.transactional
        return plain and self.size_bytes <= LAZY_REPLAY_BYTES_MAX

    @property
    def lowest_end(self) -> int | None:
        """The lowest end that the log had meanwhile, 0 if nothing was kept; None if it grew."""
        if self.begun is not None:
            return 0
        return None if self.cut is None else self.cut.next_offset

    def point_after(self, point: RecoveryPoint | None) -> RecoveryPoint:
        """What is still so of what the checkpoint says of the log, if it says anything."""
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
        """Put everything into the log's files; returns the segments that are to be synced.

        Raises:
            StorageError: it cannot be done, which may be tried again.
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
                f"what the journal has for {directory} cannot be put there: {error}"
            ) from error
        return writing.touched


class _Writing:
    """Adjacent rows become one write."""

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
            # There even if all of it is to come from the journal.
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
    """The rows of all logs, by their keys in the journal."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._descriptors: Sequence[int] = ()
        self.logs: dict[bytes, LogReplay] = {}

    def read_from(self, descriptors: Sequence[int]) -> None:
        """The journal's files, open for as long as rows have not been performed."""
        self._descriptors = descriptors

    def add(self, rows: Sequence[Row], file: int, position: int, data: bytes) -> None:
        """Note the rows of an entry: in which file, at which position, and its bytes."""
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
        """The segment of a log and the position in it behind what was noted last, if anything."""
        log = self.logs.get(key)
        return None if log is None else log.place

    def nothing(self) -> LogReplay:
        """Of a log that the journal does not have."""
        return LogReplay(self._read)

    def _read(self, file: int, size_bytes: int, position: int) -> bytes:
        return read_range(self._files, self._descriptors[file], size_bytes, position)


def has_transactions(data: Buffer, at: int, end: int) -> bool:
    """Whether some of the batches in [at, end) belong to a transaction."""
    while at < end:
        length, _, flags = _BATCH.unpack_from(data, at)
        if flags & TRANSACTIONAL_FLAG:
            return True
        at += LENGTH_OVERHEAD_BYTES + length
    return False
