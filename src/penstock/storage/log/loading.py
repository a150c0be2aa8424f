"""Loading of a log from its directory after a clean or unclean restart.

The checkpoint's recovery point states up to which offset, segment and position the log was synced.
Bytes below it are trusted; only file sizes are compared. Beyond it, the header and checksum of
every batch are verified. The durable offset is the higher end of recovery point and journal. An
incomplete batch at or above the durable offset ends the log. An incomplete batch below it is
damage: the files stay unchanged, and records before the damage can be read.

After a clean shutdown the recovery point is the log's end, so that loading a partition costs a
directory listing and one `stat` per segment. Loading removes nothing but the torn end of a log, and
is idempotent.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from penstock.base.files import read_file, read_range, replace_file
from penstock.base.settings import LONG_MAX
from penstock.records import BatchHeader, CorruptBatch
from penstock.records.transactions import AbortedTransaction
from penstock.storage.files.checkpoint import ABORTED_SHIFT, EXACT, HAS_PRODUCERS, RecoveryPoint
from penstock.storage.files.epochs import Entry, EpochHistory, decode_epochs
from penstock.storage.files.errors import RECOVERY_SCAN_BYTES, SCAN_BYTES, CorruptFile, CorruptLog
from penstock.storage.files.index import SparseIndex
from penstock.storage.files.producers import (
    BATCHES_VERSION,
    SNAPSHOT_VERSION,
    ProducerStates,
    decode_snapshot,
    encoded_snapshots,
)
from penstock.storage.files.segment import Segment, aborted_flags, segment_place
from penstock.storage.files.segment_files import SegmentFiles
from penstock.storage.files.transaction_index import ENTRY_BYTES, TransactionIndex, checksum
from penstock.storage.files.values import (
    DELETED,
    EPOCHS_FILE,
    LOG,
    QUARANTINED,
    RECENT_BATCHES,
    SNAPSHOT,
    TXN_INDEX,
    offset_name,
    parse_offset_name,
)
from penstock.storage.log.replaying import LogReplay, cut_transactions
from penstock.storage.log.swapping import finish_swaps

# Leader epochs of a loaded log: from the checkpoint file, or from the first batch of each segment.
#
# The file `leader-epoch-checkpoint` has no checksum. It is therefore compared with the segments,
# because every leader epoch begins a new segment.


logger = logging.getLogger(__name__)


def load_epochs(
    files: SegmentFiles,
    directory: str,
    segments: Sequence[Segment],
    cut_offset: int | None,
    *,
    start_offset: int,
    newest: int,
    interval_bytes: int,
    changed: bool,
    has_holes: bool,
) -> tuple[EpochHistory, bool]:
    """Return the history of leader epochs, and whether it differs from the saved file.

    `cut_offset` is the lowest log end offset since the file was saved, or None if the log was not
    truncated. `newest` is the newest epoch in checkpoint and journal. `changed` states whether
    segments have grown since the file was saved. With `has_holes` the log has offset gaps, so an
    epoch may begin without a batch at its start offset.
    """
    path = os.path.join(directory, EPOCHS_FILE)
    saved: list[Entry] | None = None
    doubt: CorruptFile | str | None = None
    try:
        saved = decode_epochs(read_file(files.files, path))
        if not has_holes:
            doubt = _doubt(files, saved, segments, start_offset, newest, interval_bytes)
    except FileNotFoundError:
        pass
    except CorruptFile as error:
        doubt = error
    if doubt is not None:
        logger.warning("%s: %s; rebuilt from the segments", path, doubt)
        saved = None
    history = EpochHistory(saved)
    if cut_offset is not None:
        history.cut_end(cut_offset)
    if saved is None or changed:
        for segment in segments:
            first = _batch(files, segment)
            if first is not None and first.partition_leader_epoch > history.latest:
                history.assign(first.partition_leader_epoch, first.base_offset)
    history.cut_start(start_offset)
    return history, history.entries != (saved or [])


def _doubt(
    files: SegmentFiles,
    saved: Sequence[Entry],
    segments: Sequence[Segment],
    start_offset: int,
    newest: int,
    interval_bytes: int,
) -> str | None:
    for place, (epoch, start) in enumerate(saved):
        segment = segments[segment_place(segments, start)]
        begins = segment.base_offset == start
        if not begins and not (place == 0 and start <= max(start_offset, segments[0].base_offset)):
            if _holds(files, segment, start, interval_bytes):
                return f"epoch {epoch} begins at offset {start}, but no segment begins there"
            continue
        first, second = _batch(files, segment), _batch(files, segment, behind=1)
        if first is None or epoch == first.partition_leader_epoch:
            continue
        # The header may be wrong instead, but not if its successor has the same epoch, or if the
        # saved epoch is above the newest known one.
        same = second is not None and first.partition_leader_epoch == second.partition_leader_epoch
        if same or first.partition_leader_epoch <= newest < epoch:
            return (
                f"the batch at offset {start} has epoch {first.partition_leader_epoch}, but the"
                f" file states epoch {epoch}"
            )
    return None


def _holds(files: SegmentFiles, segment: Segment, offset: int, interval_bytes: int) -> bool:
    """Return whether a segment has a readable batch at an offset or above it."""
    with suppress(CorruptLog):
        if segment.written_bytes:
            return files.locate(segment, offset, interval_bytes) is not None
    return False


def _batch(files: SegmentFiles, segment: Segment, *, behind: int = 0) -> BatchHeader | None:
    if segment.written_bytes:
        with suppress(CorruptLog):
            for _, header in islice(files.walk(segment, 0), behind, behind + 1):
                return header
    return None


class Loaded(NamedTuple):
    """State of a log as loaded from its files."""

    segments: list[Segment]
    epochs: EpochHistory
    epochs_dirty: bool
    """Whether the epoch file differs from `epochs`."""
    producers: ProducerStates
    due_snapshots: list[tuple[int, bytes, bytes]]
    """Producer snapshots to write at the starts of walked segments: offset and both files."""
    start_offset: int
    end_offset: int
    durable_offset: int
    """Log end offset according to checkpoint and journal; above `end_offset` if the end of the log
    is damaged."""
    damage: CorruptLog | None
    changed: set[Segment]
    has_holes: bool
    """Whether the walked part has offset gaps."""


def load_log(
    segment_files: SegmentFiles,
    directory: str,
    point: RecoveryPoint,
    *,
    interval_bytes: int,
    now_ms: int,
    replay: LogReplay | None = None,
) -> Loaded:
    """Replay the journal rows of a log, if any, and load its directory.

    Raises:
        StorageError, OSError: the files cannot be read or changed.
    """
    if replay is None:
        durable = point.recovery_offset
        return _Loading(segment_files, directory, point, interval_bytes, now_ms, durable).run(None)
    touched = replay.perform(segment_files.files, segment_files.descriptors, directory)
    durable = max(point.recovery_offset, replay.end_offset or 0, replay.least_end)
    loading = _Loading(segment_files, directory, point, interval_bytes, now_ms, durable)
    loading.cut_end = replay.cut_end
    loading.leader_epoch = max(point.leader_epoch, replay.leader_epoch)
    # The epoch file may be older than a truncation.
    loaded = loading.run(replay.lowest_end)
    loaded.changed.update([part for part in loaded.segments if part.base_offset in touched])
    return loaded


def producers_at(
    segment_files: SegmentFiles,
    directory: str,
    point: RecoveryPoint,
    segments: list[Segment],
    *,
    now_ms: int,
) -> ProducerStates:
    """Return the producer states at a recovery point, from a snapshot and the batches after it.

    Raises:
        OSError: a file cannot be read.
    """
    loading = _Loading(segment_files, directory, point, 0, now_ms, 0)
    loading.list_snapshots()
    loading.load_producers(segments)
    return loading.producers


def mend_transactions(
    segment_files: SegmentFiles,
    directory: str,
    point: RecoveryPoint,
    segments: list[Segment],
    segment: Segment,
    damage: CorruptLog,
) -> None:
    """Rebuild a segment's index of aborted transactions up to a recovery point; raises OSError."""
    logger.warning("rebuilding an index of aborted transactions: %s", damage)
    loading = _Loading(segment_files, directory, point, 0, 0, 0)
    loading.list_snapshots()
    index = TransactionIndex()
    later = segments[segments.index(segment) + 1 :]
    end = later[0].base_offset if later else LONG_MAX
    start = loading.take_snapshot_below(segment.base_offset, segments[0].base_offset)
    for aborted in loading.replay_producers(segments, start):
        if segment.base_offset <= aborted.last_offset < end:
            index.add(aborted)
    replace_file(segment_files.files, segment.sibling(TXN_INDEX), index.entries)
    segment.transactions, segment.saved_transactions = index, len(index.entries)
    segment.aborted_checksum = checksum(segment.base_offset, index.entries)


class _Loading:
    """Loading of one log, step by step, and the state that the steps share."""

    def __init__(
        self,
        segment_files: SegmentFiles,
        directory: str,
        point: RecoveryPoint,
        interval_bytes: int,
        now_ms: int,
        durable: int,
    ) -> None:
        self.segment_files = segment_files
        self.leader_epoch = point.leader_epoch
        self.descriptors = segment_files.descriptors
        self.files = segment_files.files
        self.directory = directory
        self.recovery_point = point
        self.interval = interval_bytes
        self.now_ms = now_ms
        self.durable = durable
        self.producers = ProducerStates()
        self.changed: set[Segment] = set()
        self.has_holes = False
        self.cut_end = 0
        """Log end offset of the last truncation, which may be above the end of the last batch."""
        self.snapshots: list[int] = []
        self.due: list[tuple[int, bytes, bytes]] = []
        self.transactions: set[int] = set()
        """Base offsets of segments with an index of aborted transactions."""
        self.repaired: set[int] = set()
        """Base offsets of segments that were rewritten without damaged bytes."""

    def run(self, cut_offset: int | None) -> Loaded:
        segments = self._list()
        self._check_transactions(segments)
        damage = self._missing(segments)
        self.load_producers(segments)
        if damage is None:
            segments, end, damage = self._walk(segments)
        else:
            end = max(self.recovery_point.recovery_offset, self.recovery_point.log_start_offset)
        epochs, epochs_dirty = load_epochs(
            self.segment_files,
            self.directory,
            segments,
            cut_offset,
            start_offset=self.recovery_point.log_start_offset,
            newest=self.leader_epoch,
            interval_bytes=self.interval,
            changed=bool(self.changed),
            has_holes=self.recovery_point.has_holes or self.has_holes,
        )
        start = max(self.recovery_point.log_start_offset, segments[0].base_offset)
        if damage is not None:
            logger.error("%s is damaged: %s", self.directory, damage)
        return Loaded(
            segments, epochs, epochs_dirty, self.producers, self.due, start, end,
            max(end, self.durable), damage, self.changed, self.has_holes,
        )  # fmt: skip

    def _list(self) -> list[Segment]:
        """Return the segments of the directory by base offset; at least one."""
        directory = self.directory
        bases: list[int] = []
        try:
            names = self.files.names_in(directory)
        except FileNotFoundError:
            self.files.make_directory(directory, mode=0o755)
            names = []
        if finish_swaps(self.files, directory, names, self.descriptors.forget):
            names = self.files.names_in(directory)
        for name in names:
            parsed = parse_offset_name(name)
            if parsed is None:
                continue
            base, suffix = parsed
            if suffix == LOG:
                bases.append(base)
            elif suffix in (SNAPSHOT, RECENT_BATCHES):
                self.snapshots.append(base)
            elif suffix == TXN_INDEX:
                self.transactions.add(base)
            elif suffix.startswith(LOG) and suffix.endswith(QUARANTINED):
                self.repaired.add(base)
            elif suffix.endswith((DELETED, ".tmp")):
                with suppress(FileNotFoundError):
                    self.files.remove(os.path.join(directory, name))
        bases.sort()
        return self._with_missing([self._segment(base) for base in bases])

    def _with_missing(self, segments: list[Segment]) -> list[Segment]:
        """Add empty segments where the recovery point states a segment that has no file.

        These are the segment of the recovery point and the first segment of the log. Reads of the
        latter then report the missing records.
        """
        point = self.recovery_point
        bases = [segment.base_offset for segment in segments]
        if not segments or (point.position == 0 and point.segment_base not in bases):
            segments.append(Segment(self.directory, point.segment_base))
            segments.sort(key=attrgetter("base_offset"))
        start = point.log_start_offset
        if start < min(segments[0].base_offset, point.recovery_offset):
            segments.insert(0, Segment(self.directory, start))  # reads report the missing records
        return segments

    def _segment(self, base_offset: int) -> Segment:
        path = os.path.join(self.directory, offset_name(base_offset, LOG))
        segment = Segment(self.directory, base_offset, self.files.size_of(path))
        segment.gaps = base_offset in self.repaired
        if base_offset in self.transactions:
            segment.transactions = None
            data = read_file(self.files, segment.sibling(TXN_INDEX))
            index = TransactionIndex(data[: len(data) - len(data) % ENTRY_BYTES])
            index.cut(self.recovery_point.recovery_offset)
            segment.saved_transactions = len(index.entries)
            segment.aborted_checksum = checksum(base_offset, index.entries)
        return segment

    def _check_transactions(self, segments: list[Segment]) -> None:
        """Rebuild the indexes of aborted transactions if they differ from the checkpoint."""
        point = self.recovery_point
        said = point.flags >> ABORTED_SHIFT
        if not point.recovery_offset or aborted_flags(segments) >> ABORTED_SHIFT == said:
            return
        logger.warning("rebuilding the indexes of aborted transactions in %s", self.directory)
        start = self.take_snapshot_below(segments[0].base_offset, segments[0].base_offset)
        made = {segment: TransactionIndex() for segment in segments}
        for aborted in self.replay_producers(segments, start):
            made[segments[segment_place(segments, aborted.last_offset)]].add(aborted)
        for segment, index in made.items():
            saved = segment.transactions is None
            if saved or index.entries:
                replace_file(self.files, segment.sibling(TXN_INDEX), index.entries)
            segment.transactions, segment.saved_transactions = index, len(index.entries)
            segment.aborted_checksum = checksum(segment.base_offset, index.entries)
        self.producers = ProducerStates()

    def _missing(self, segments: list[Segment]) -> CorruptLog | None:
        """Return the damage if the files end before the recovery point."""
        point = self.recovery_point
        for segment in segments:
            if segment.base_offset == point.segment_base:
                if segment.written_bytes >= point.position:
                    return None
                return CorruptLog(
                    Path(segment.path),
                    segment.written_bytes,
                    f"the file ends here, but {point.position} bytes of it were synced",
                )
        path = Path(self.directory, offset_name(point.segment_base, LOG))
        reason = f"the file is missing, but {point.position} bytes of it were synced"
        return CorruptLog(path, 0, reason)

    def _walk(self, segments: list[Segment]) -> tuple[list[Segment], int, CorruptLog | None]:
        """Verify the bytes beyond the recovery point, and remove the torn end."""
        point = self.recovery_point
        expected = point.recovery_offset
        place = [segment.base_offset for segment in segments].index(point.segment_base)
        position = point.position
        while place < len(segments):
            segment = segments[place]
            self._cut_transactions(segments, segment, expected)
            if position < segment.written_bytes or place + 1 < len(segments):
                limit = self._limit(segments, place)
                reached, expected, error = self._walk_segment(segment, position, expected, limit)
                if error is not None and expected < self.durable:
                    return segments, expected, error
                if error is not None:
                    self._cut(segments[place], reached)
                    self._drop(segments, place + 1)
                    break
            position = 0
            place += 1
            if place < len(segments) and segments[place].base_offset < expected:
                reason = f"the segment begins below offset {expected}, the end of the one before"
                return segments, expected, CorruptLog(Path(segments[place].path), 0, reason)
            if place < len(segments) and segments[place].base_offset > expected >= self.durable:
                # The segments between were not synced and are lost; drop the ones behind them.
                self._drop(segments, place)
                break
            if place < len(segments):
                self.has_holes = self.has_holes or segments[place].base_offset > expected
                expected = max(expected, segments[place].base_offset)
                if len(self.producers):
                    states = self.producers.snapshot()
                    self.due.append(encoded_snapshots(segments[place].base_offset, *states))
        self.has_holes = self.has_holes or expected < self.cut_end
        expected = max(expected, self.cut_end)
        if expected < self.durable:
            last = segments[-1]
            reason = f"the log ends at offset {expected}, but offset {self.durable} was durable"
            return segments, expected, CorruptLog(Path(last.path), last.written_bytes, reason)
        return segments, expected, None

    def _limit(self, segments: list[Segment], place: int) -> int:
        """Return the offset from which on the batches of a segment were never acknowledged.

        Large appends leave such batches if their journal entry is missing or was undone.
        """
        later = segments[place + 1 :]
        limit = later[0].base_offset if later else LONG_MAX
        return min(limit, self.durable) if self.recovery_point.flags & EXACT else limit

    def _walk_segment(
        self, segment: Segment, position: int, expected: int, limit: int
    ) -> tuple[int, int, CorruptLog | None]:
        """Verify the batches of a segment from a position on.

        Return the position and the offset after the last valid batch, and the error or None.
        """
        end = segment.written_bytes
        if position >= end:
            return end, expected, None
        index = self.segment_files.saved_index(segment, next_offset=expected, position=position)
        self.changed.add(segment)
        if index is None:
            index = SparseIndex(segment.base_offset)
        self.segment_files.resume_index(segment, index, self.interval, end=position)
        try:
            for at, header in self.segment_files.walk(
                segment, position, end, verify=True, chunk_bytes=RECOVERY_SCAN_BYTES
            ):
                if header.base_offset >= limit:
                    self._cut(segment, at)
                    return at, expected, None
                if header.base_offset < expected:
                    reason = f"base offset {header.base_offset}, expected at least {expected}"
                    raise CorruptLog(Path(segment.path), at, reason)
                self.has_holes = self.has_holes or header.base_offset > expected
                segment.add_batches((header,), self.interval)
                if header.producer_id >= 0:
                    aborted = self._remember(header, segment, at)
                    if aborted is not None:
                        self.segment_files.transactions_of(segment).add(aborted)
                expected = header.next_offset
        except CorruptLog as error:
            reached = segment.written_bytes
            segment.written_bytes = end
            if expected == limit:
                self._cut(segment, reached)
                return reached, expected, None
            return reached, expected, error
        return end, expected, None

    def _cut_transactions(
        self, segments: list[Segment], segment: Segment, next_offset: int
    ) -> None:
        """Drop a segment's index entries of aborted transactions from `next_offset` on.

        A damaged index is rebuilt.
        """
        if segment.transactions is not None:
            return
        try:
            index = self.segment_files.transactions_of(segment)
            self._check_newest(index, segments, segment, next_offset)
        except CorruptLog as error:
            point = self.recovery_point
            mend_transactions(self.segment_files, self.directory, point, segments, segment, error)
            return
        index.cut(next_offset)
        if len(index.entries) < segment.saved_transactions:
            cut_transactions(self.files, segment.sibling(TXN_INDEX), next_offset)
            segment.saved_transactions = len(index.entries)
            segment.aborted_checksum = checksum(segment.base_offset, index.entries)

    def _check_newest(
        self, index: TransactionIndex, segments: list[Segment], segment: Segment, next_offset: int
    ) -> None:
        """Compare the newest index entry below an offset with the log, because it may be torn.

        Raises:
            CorruptLog: the log has no such transaction.
        """
        for place in range(len(index) - 1, -1, -1):
            one = index.at(place)
            if one.last_offset >= next_offset:
                continue
            marker = self._header_at(segment, one.last_offset)
            first = marker
            if one.first_offset >= segments[0].base_offset:
                place_of_first = segment_place(segments, one.first_offset)
                first = self._header_at(segments[place_of_first], one.first_offset)
            if (
                marker is None
                or first is None
                or not marker.is_control
                or {marker.producer_id, first.producer_id} != {one.producer_id}
            ):
                path = Path(segment.sibling(TXN_INDEX))
                raise CorruptLog(path, place * ENTRY_BYTES, f"the log does not contain {one}")
            return

    def _header_at(self, segment: Segment, offset: int) -> BatchHeader | None:
        """Return the header of the synced batch that begins at an offset, or None."""
        end, saved = self._synced_end(segment), self.segment_files.saved_index(segment)
        start = 0 if saved is None else saved.by_offset(offset).position
        for _, header in self.segment_files.walk(segment, start, end, chunk_bytes=SCAN_BYTES):
            if header.last_offset >= offset:
                return header if header.base_offset == offset else None
        return None

    def _synced_end(self, segment: Segment) -> int:
        """Return the position up to which a segment at or below the recovery point was synced."""
        point = self.recovery_point
        last = segment.base_offset == point.segment_base
        return point.position if last else segment.written_bytes

    def _remember(
        self, header: BatchHeader, segment: Segment, position: int
    ) -> AbortedTransaction | None:
        def read() -> bytes:
            descriptor = self.descriptors.get(segment.path).descriptor
            return read_range(self.files, descriptor, header.size_bytes, position)

        try:
            return self.producers.replay(header, read, self.now_ms)
        except CorruptBatch as error:
            raise CorruptLog(Path(segment.path), position, str(error)) from None

    def _drop(self, segments: list[Segment], place: int) -> None:
        for segment in segments[place:]:
            logger.warning("removing %s, which is behind the torn end of the log", segment.path)
            self.descriptors.forget(segment.path)
            for path in segment.path, segment.sibling(TXN_INDEX):
                with suppress(FileNotFoundError):
                    self.files.remove(path)
        del segments[place:]

    def _cut(self, segment: Segment, position: int) -> None:
        logger.warning(
            "truncating the torn end of %s from %d to %d bytes",
            segment.path,
            segment.written_bytes,
            position,
        )
        handle = self.descriptors.get(segment.path)
        self.files.truncate(handle.descriptor, position)
        segment.written_bytes = segment.end_position = position

    def load_producers(self, segments: list[Segment]) -> None:
        point = self.recovery_point
        if not point.flags & HAS_PRODUCERS:
            return
        if self._take_snapshot(point.recovery_offset):
            return
        start = self.take_snapshot_below(point.recovery_offset, segments[0].base_offset)
        logger.warning(
            "%s: rebuilding the producer state at offset %d from the batches after offset %d",
            self.directory, point.recovery_offset, start,
        )  # fmt: skip
        for _ in self.replay_producers(segments, start):
            """Discard the aborted transactions, which the index already has."""

    def list_snapshots(self) -> None:
        for name in self.files.names_in(self.directory):
            parsed = parse_offset_name(name)
            if parsed is not None and parsed[1] in (SNAPSHOT, RECENT_BATCHES):
                self.snapshots.append(parsed[0])

    def take_snapshot_below(self, offset: int, start: int) -> int:
        for snapshot in sorted(self.snapshots, reverse=True):
            if snapshot <= offset and self._take_snapshot(snapshot):
                return snapshot
        return start

    def _take_snapshot(self, offset: int) -> bool:
        for suffix, version in (RECENT_BATCHES, BATCHES_VERSION), (SNAPSHOT, SNAPSHOT_VERSION):
            path = os.path.join(self.directory, offset_name(offset, suffix))
            try:
                self.producers.load(decode_snapshot(read_file(self.files, path), version))
                return True
            except FileNotFoundError:
                continue
            except CorruptFile as error:
                logger.warning("%s: %s", path, error)
        return False

    def replay_producers(self, segments: list[Segment], start: int) -> Iterator[AbortedTransaction]:
        """Rebuild the producer states from the headers between an offset and the recovery point.

        Yields the aborted transactions.
        """
        point = self.recovery_point
        for place, segment in enumerate(segments):
            if segment.base_offset > point.segment_base:
                break
            if place + 1 < len(segments) and segments[place + 1].base_offset <= start:
                continue
            end = self._synced_end(segment)
            if end == 0:
                continue
            with suppress(CorruptLog):
                for at, header in self.segment_files.walk(segment, 0, end, chunk_bytes=SCAN_BYTES):
                    if header.base_offset >= start and header.producer_id >= 0:
                        aborted = self._remember(header, segment, at)
                        if aborted is not None:
                            yield aborted
