"""Recovery of the journal after a restart.

Recovery follows the chain of journal entries from the checkpoint's sequence on. Each entry must
have the next sequence, its predecessor's checksum, and a valid checksum of its own. The journal
ends where the chain ends: the next entry is torn, and was never acknowledged.

If a later entry states that the missing entry was synced, the disk has lost it. Then any log of the
store may lack acknowledged batches, because the table of the entry is lost too. Replicated logs
fetch the batches from other replicas. For all other logs, recovery uses later complete entries and,
from damaged entries, batches with valid checksums and offsets. Damaged entries are copied to
`.quarantined` files.

Entries are not applied here: `replaying` applies them when a log is loaded. New entries continue
the sequence, and the old files stay in use until a checkpoint covers them. Bytes that a killed
process wrote without a sync are synced here, because they count from now on.

The topic id of a directory is in its file `partition.metadata`. Rows of replaced topics and of
deleted logs are ignored.

After damage to the checkpoint or the journal, the durable offset of a log is unknown. The log then
ends after the last complete batch in its files or in the remaining journal, and only torn bytes are
removed. Earlier damage stays, as an ordinary damaged range. Without a checkpoint, it is also
unknown which journal entries are older than a compaction or a deletion. Replay then only appends
after the end of the files, and records that were deleted within a segment reappear.

Source: Kafka's `LogManager.loadLogs`, which begins at the first segment without a recovery point.
"""

from __future__ import annotations

import logging
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

from penstock.base.files import Files, read_file, read_range, replace_file, write_file
from penstock.base.ids import TopicPartition
from penstock.base.settings import LONG_MAX
from penstock.storage.files.checkpoint import HAS_PRODUCERS, Checkpoint, RecoveryPoint
from penstock.storage.files.errors import (
    RECOVERY_SCAN_BYTES,
    CorruptFile,
    CorruptLog,
    StorageFailed,
)
from penstock.storage.files.journal import (
    ALIGNMENT_BYTES,
    MAGIC,
    EntryHead,
    JournalFile,
    Row,
    decode_head,
    decode_key,
    decode_rows,
    encode_key,
    is_whole,
    padded,
)
from penstock.storage.files.segment import Segment
from penstock.storage.files.values import (
    JOURNAL_SUFFIX,
    LOG,
    METADATA_FILE,
    QUARANTINED,
    SNAPSHOT,
    decode_partition_metadata,
    directory_name,
    encode_partition_metadata,
    offset_name,
    parse_directory_name,
    parse_offset_name,
)
from penstock.storage.files.walk import Survey, whole_batches
from penstock.storage.log.replaying import LogReplay, Replays
from penstock.storage.log.state import LogState

logger = logging.getLogger(__name__)

_HEAD_PROBE_BYTES: Final = 64


class JournalState(NamedTuple):
    """State of the recovered journal: its files, and the highest numbers in use."""

    files: list[JournalFile]
    sequence: int
    generation: int
    checksum: int
    """Checksum of the last entry, 0 if none was read."""
    entries: int
    size_bytes: int
    lost: CorruptLog | None
    """Error that locates a synced entry that the disk lost, or None. After a loss, `sequence` is
    above all later entries."""


def read_journal(
    files: Files,
    directory: str,
    checkpoint: Checkpoint,
    replays: Replays,
    alone: Callable[[TopicPartition], bool],
) -> JournalState:
    """Follow the journal from a checkpoint, and add its rows to `replays`.

    Without a valid checkpoint, every complete entry counts as new. `alone` returns whether a
    partition has no other replica.

    Raises:
        StorageFailed: the journal cannot be synced.
    """
    journal_files = _open_files(files, directory)
    replays.read_from([file.descriptor for file in journal_files])
    starts: dict[int, tuple[int, EntryHead]] = {}
    generation = 0
    for number, file in enumerate(journal_files):
        head = _probe(files, file, 0)
        if head is not None:
            file.generation = head.generation
            generation = max(generation, head.generation)
            starts[head.sequence] = number, head
    reader = _Reader(files, journal_files, checkpoint, replays)
    if checkpoint.unknown:
        reader.salvage(alone)
        starts.clear()
    ordered = sorted(starts.values(), key=lambda start: start[1].generation)
    for place, (number, head) in enumerate(ordered):
        last = place + 1 == len(ordered)
        following = None if last else ordered[place + 1][1].sequence
        if following is not None and following <= reader.after + 1:
            reader.superseded(number)
            continue
        reader.follow(number, head)
    lost = None if checkpoint.unknown else reader.find_rot()
    if lost is None and not checkpoint.clean:
        lost = _cut_off(directory, journal_files, checkpoint.journal_bytes)
    if lost is not None:
        reader.salvage(alone)
    for file in journal_files:
        if file.last_sequence > reader.after:
            _sync(files, file)
    return JournalState(
        journal_files,
        max(reader.sequence, reader.highest),
        max(generation, reader.generation),
        reader.checksum or 0,
        reader.entries,
        reader.size_bytes,
        lost,
    )


def _sync(files: Files, file: JournalFile) -> None:
    try:
        files.sync_file(file.descriptor)
    except OSError as error:
        raise StorageFailed(f"syncing {file.path} failed: {error}") from error


def _open_files(files: Files, directory: str) -> list[JournalFile]:
    found = []
    for name in sorted(files.names_in(directory)):
        if name.endswith(JOURNAL_SUFFIX):
            path = os.path.join(directory, name)
            found.append(JournalFile(path, files.open(path), files.size_of(path)))
    return found


def _cut_off(
    directory: str, journal_files: list[JournalFile], least_bytes: int
) -> CorruptLog | None:
    """Return the error if files are missing or truncated, and synced entries may be lost."""
    size_bytes = sum([file.size_bytes for file in journal_files])
    if size_bytes >= least_bytes:
        return None
    reason = (
        f"the journal has {size_bytes} bytes, but had at least {least_bytes}: files are missing or"
        " truncated"
    )
    return CorruptLog(Path(directory), 0, reason)


def _probe(files: Files, file: JournalFile, position: int) -> EntryHead | None:
    return decode_head(read_range(files, file.descriptor, _HEAD_PROBE_BYTES, position))


class _Candidate(NamedTuple):
    """Possible journal entry, found behind the end of the chain and perhaps damaged.

    Candidates with the same sequence are compared as tuples; the greatest is used. So a whole
    entry wins over a damaged one, then a later generation over an earlier one.
    """

    whole: bool
    generation: int
    number: int
    at: int
    head: EntryHead


class _Reader:
    """Reader that follows the chain of entries over the files."""

    def __init__(
        self,
        files: Files,
        journal_files: list[JournalFile],
        checkpoint: Checkpoint,
        replays: Replays,
    ) -> None:
        self._files = files
        self._journal_files = journal_files
        self._points = checkpoint.points
        self.after = after_sequence = checkpoint.sequence
        self._replays = replays
        self._ended_at: tuple[str, int] | None = None
        self._read_to = [0] * len(journal_files)
        self.checksum: int | None = None
        self.sequence = after_sequence
        self.highest = after_sequence
        self.generation = 0
        self.entries = 0
        self.size_bytes = 0

    def superseded(self, number: int) -> None:
        self._read_to[number] = self._journal_files[number].size_bytes

    def follow(self, number: int, first: EntryHead) -> None:
        file = self._journal_files[number]
        position = 0
        while position < file.size_bytes:
            head = _probe(self._files, file, position)
            if head is None or head.generation != first.generation:
                break
            if head.sequence > self.sequence + 1 or position + head.size_bytes > file.size_bytes:
                break
            data = read_range(self._files, file.descriptor, head.size_bytes, position)
            if not is_whole(memoryview(data), head):
                break
            if not self._take(head, data, number, position):
                break
            position += padded(head.size_bytes)
            file.last_sequence = head.sequence
        else:
            self._read_to[number] = file.size_bytes
            return
        self._read_to[number] = position
        self._ended_at = file.path, position

    def _take(self, head: EntryHead, data: bytes, number: int, position: int) -> bool:
        """Add a whole entry; return False if it does not continue the chain."""
        chained = self.checksum in (None, head.previous_checksum)
        if head.sequence <= self.after:
            self.checksum = head.checksum if head.sequence == self.after else None
            return True
        if head.sequence != self.sequence + 1 or not chained:
            return False
        self._replays.add(decode_rows(data, head), number, position, data)
        self.sequence = head.sequence
        self.generation = max(self.generation, head.generation)
        self.checksum = head.checksum
        self.entries += 1
        self.size_bytes += head.size_bytes
        return True

    def find_rot(self) -> CorruptLog | None:
        """Check whether the disk has lost a synced entry; return the error, or None if it has not.

        The proof is a whole entry behind the end of the chain that states that the missing entry
        was synced. Without one, the chain ends at a torn entry, which was never acknowledged.
        """
        lost: CorruptLog | None = None
        for number, file in enumerate(self._journal_files):
            if file.last_sequence == 0 and file.generation and file.generation < self.generation:
                continue
            for at, head in self._heads(file, self._read_to[number]):
                if head.durable_sequence <= self.sequence:
                    continue
                data = memoryview(read_range(self._files, file.descriptor, head.size_bytes, at))
                if not is_whole(data, head):
                    continue
                self.highest = max(self.highest, head.sequence)
                path, where = self._ended_at or (file.path, at)
                lost = lost or CorruptLog(
                    Path(path),
                    where,
                    f"journal entry {self.sequence + 1} is damaged or missing, but entry"
                    f" {head.sequence} in {file.path} states that entries up to"
                    f" {head.durable_sequence} were synced",
                )
        return lost

    def salvage(self, alone: Callable[[TopicPartition], bool]) -> None:
        """Add the rows of entries after the end of the chain, in the order of their sequences.

        Of a damaged entry, only rows with intact batches are added, and the entry is copied to a
        `.quarantined` file. For logs that are not `alone`, only standings are added.
        """
        found: dict[int, list[_Candidate]] = {}
        for number, file in enumerate(self._journal_files):
            behind = 0
            for at, head in self._heads(file, 0):
                if at < behind or at + head.size_bytes > file.size_bytes:
                    continue  # inside another entry, as the content of a record
                whole = is_whole(memoryview(self._entry(number, at, head)), head)
                behind = at + padded(head.size_bytes) if whole else at
                if head.sequence > self.sequence:
                    candidate = _Candidate(whole, head.generation, number, at, head)
                    found.setdefault(head.sequence, []).append(candidate)
        following = None
        chosen: list[_Candidate] = []
        for sequence in sorted(found, reverse=True):
            # A sequence may have been rewritten: the successor's checksum selects the right entry.
            candidates = found[sequence]
            named = [entry for entry in candidates if entry.head.checksum == following]
            best = max(named or candidates, key=lambda entry: entry[:4])
            chosen.append(best)
            following = best.head.previous_checksum if best.whole else None
        for candidate in reversed(chosen):
            self._salvage(candidate, alone)

    def _salvage(self, one: _Candidate, alone: Callable[[TopicPartition], bool]) -> None:
        file, head = self._journal_files[one.number], one.head
        data = self._entry(one.number, one.at, head)
        rows = decode_rows(data, head) if one.whole else self._proven(data, one)
        kept = [row for row in rows if row.is_standing or alone(_partition_of(row.key))]
        self._replays.add(kept, one.number, one.at, data)
        if one.whole:
            self.highest = max(self.highest, head.sequence)
            self.generation = max(self.generation, head.generation)
            file.last_sequence = max(file.last_sequence, head.sequence)
            self.entries += 1

    def _entry(self, number: int, at: int, head: EntryHead) -> bytes:
        descriptor = self._journal_files[number].descriptor
        return read_range(self._files, descriptor, head.size_bytes, at)

    def _proven(self, data: bytes, one: _Candidate) -> list[Row]:
        """Return the rows of a damaged entry that have intact batches with the stated offsets."""
        path, head = self._journal_files[one.number].path, one.head
        try:
            rows = decode_rows(data, head)
            names = [_partition_of(row.key) for row in rows]
        except (CorruptFile, IndexError, UnicodeDecodeError, struct.error) as error:
            logger.error("journal entry %d in %s is damaged: %s", head.sequence, path, error)
            rows, names = [], []
        good: list[Row] = []
        for row, where in zip(rows, names, strict=True):
            if is_proven(row, data) and self._goes_on(row):
                good.append(row)
            elif row.size_bytes:
                logger.error(
                    "journal entry %d in %s is damaged: its batches of offsets %d to %d of %s are"
                    " not intact",
                    head.sequence, path, row.base_offset, row.next_offset - 1, where,
                )  # fmt: skip
        write_file(self._files, f"{path}.{one.at}{QUARANTINED}", data, sync=True)
        return good

    def _goes_on(self, row: Row) -> bool:
        """Return whether the batches of a row follow the end of their log, or begin a segment."""
        end = self._replays.end_of(row.key)
        if end is None:
            topic_id, topic, partition = decode_key(row.key)
            known = self._points.get((topic, partition))
            if known is not None and known[0] == topic_id:
                end = known[1].segment_base, known[1].position
        return (row.segment_base, row.position) in (end, (row.base_offset, 0))

    def _heads(self, file: JournalFile, position: int) -> Iterator[tuple[int, EntryHead]]:
        while position < file.size_bytes:
            data = read_range(self._files, file.descriptor, RECOVERY_SCAN_BYTES, position)
            firsts, place = data[::ALIGNMENT_BYTES], -1
            while (place := firsts.find(MAGIC[:1], place + 1)) >= 0:
                at = place * ALIGNMENT_BYTES
                head = decode_head(data, at)
                if head is not None:
                    yield position + at, head
            position += RECOVERY_SCAN_BYTES


def _partition_of(key: bytes) -> TopicPartition:
    _, topic, partition = decode_key(key)
    return TopicPartition(topic, partition)


def is_proven(row: Row, data: bytes) -> bool:
    """Return whether a row of a damaged entry has intact batches with the stated offsets."""
    if row.segment_base < 0 or row.position < 0 or not row.size_bytes:
        return False
    batches = memoryview(data)[row.data_at : row.data_at + row.size_bytes]
    size_bytes, next_offset = whole_batches(batches, -1)
    first = int.from_bytes(batches[:8])
    return size_bytes == row.size_bytes and (first, next_offset) == row[2:4]


class FoundLog(NamedTuple):
    """Log of a store; `replay` holds its journal rows beyond the checkpoint.

    If the log is not `known`, checkpoint and journal may be incomplete, and its files determine its
    state.
    """

    where: TopicPartition
    topic_id: UUID
    point: RecoveryPoint
    replay: LogReplay | None
    known: bool


class Directories:
    """Logs of a store: its directories, combined with checkpoint and journal."""

    def __init__(self, files: Files, root: str, checkpoint: Checkpoint, replays: Replays) -> None:
        self._files = files
        self._root = root
        self._checkpoint = checkpoint
        self._replays = replays.logs
        self._topic_ids: dict[TopicPartition, UUID] = {}
        """Topic ids, from the first journal entry of each partition."""
        for key in replays.logs:
            topic_id, topic, partition = decode_key(key)
            self._topic_ids.setdefault(TopicPartition(topic, partition), topic_id)
        self.made = False
        """Whether directories had to be created."""

    def find(self) -> tuple[list[FoundLog], list[TopicPartition]]:
        """Return all logs, and the directories that belong to no known topic."""
        names = self._files.names_in(self._root)
        found: list[FoundLog] = []
        strays: list[TopicPartition] = []
        # Without a checkpoint, the journal may contain logs that were deleted long ago.
        missing = () if self._checkpoint.unknown else self._make_missing(set(names))
        for where in [*map(parse_directory_name, names), *missing]:
            if where is None:
                continue
            topic_id = self._topic_id(where)
            if topic_id is None:
                strays.append(where)
                continue
            known = self._checkpoint.points.get((where.topic, where.partition))
            point = known[1] if known is not None and known[0] == topic_id else None
            replay = None
            if self._replays:
                replay = self._replays.get(encode_key(topic_id, where.topic, where.partition))
            if self._checkpoint.unknown:
                point = first_point(self._files, os.path.join(self._root, directory_name(where)))
                if replay is not None and replay.standing is not None:
                    point = point.with_standing(replay.standing)
            elif replay is not None:
                point = replay.point_after(point)
            nothing = RecoveryPoint(0, 0, 0, 0, 0, -1, 0)
            found.append(
                FoundLog(where, topic_id, point or nothing, replay, known=point is not None)
            )
        self._report_missing(found)
        return found, strays

    def _report_missing(self, found: list[FoundLog]) -> None:
        if self._checkpoint.clean and len(found) < len(self._checkpoint.points):
            there = {(log.where.topic, log.where.partition) for log in found}
            for topic, partition in self._checkpoint.points.keys() - there:
                logger.error("the directory of %s is missing", TopicPartition(topic, partition))

    def _make_missing(self, names: set[str]) -> Iterator[TopicPartition]:
        """Create missing directories of logs that only the journal has, not the checkpoint."""
        for where, topic_id in self._topic_ids.items():
            name = directory_name(where)
            if name in names:
                continue
            known = self._checkpoint.points.get((where.topic, where.partition))
            if known is None or known[0] != topic_id:
                self._files.make_directory(os.path.join(self._root, name), mode=0o755)
                self.made = True
                yield where

    def _topic_id(self, where: TopicPartition) -> UUID | None:
        """Return the topic id of a partition's directory; None if it is unknown.

        It is in the file `partition.metadata`. If that file is missing or damaged, it is rewritten
        with the topic id of journal or checkpoint.
        """
        known = self._checkpoint.points.get((where.topic, where.partition))
        if known is not None and self._checkpoint.clean:
            return known[0]
        topic_id = self._topic_ids.get(where) or (None if known is None else known[0])
        path = os.path.join(self._root, directory_name(where), METADATA_FILE)
        try:
            stored = decode_partition_metadata(read_file(self._files, path))
            if self._may_be(where, stored, topic_id):
                return stored
            logger.warning("%s: topic id %s, expected %s", path, stored, topic_id)
        except NotADirectoryError:
            return None
        except (FileNotFoundError, CorruptFile) as error:
            logger.warning("%s: %s", path, error)
        if topic_id is not None:
            replace_file(self._files, path, encode_partition_metadata(topic_id))
        return topic_id

    def _may_be(self, where: TopicPartition, stored: UUID, topic_id: UUID | None) -> bool:
        """Return whether the topic id in a directory's file agrees with checkpoint or journal.

        The check is needed because the file has no checksum.
        """
        if topic_id in (None, stored) or self._checkpoint.unknown:
            return True
        return encode_key(stored, where.topic, where.partition) in self._replays


def first_point(files: Files, directory: str) -> RecoveryPoint:
    """Return a recovery point at the start of a log's files, for a log that has no other."""
    segments, snapshots = _offsets(files, directory, LOG), _offsets(files, directory, SNAPSHOT)
    base = min(segments) if segments else max(snapshots, default=0)
    return RecoveryPoint(base, base, base, 0, 0, -1, HAS_PRODUCERS)


def continue_log(log: LogState, point: RecoveryPoint, *, unknown: bool) -> None:
    """Make a loaded log, which has no other replica, accept appends after its damaged end."""
    # A checkpoint without holes proves that missing offsets were not compacted away.
    log.has_holes = (log.has_holes or log.damage is not None) if unknown else point.has_holes
    if log.damage is not None:
        log.skip_lost_end()


def last_whole(files: Files, directory: str) -> int:
    """Return the offset after the last intact batch in a log's files; 0 without one."""
    for base in sorted(_offsets(files, directory, LOG), reverse=True):
        path = os.path.join(directory, offset_name(base, LOG))
        segment = Segment(directory, base, files.size_of(path))
        following = 0
        descriptor = files.open(path)
        try:
            survey = Survey(files, descriptor, segment, end_offset=LONG_MAX, epoch=-1, gaps=False)
            for _, header, _ in survey.batches(0, base):
                if header is not None:
                    following = header.next_offset
        finally:
            files.close(descriptor)
        if following:
            return following
    return 0


def _offsets(files: Files, directory: str, suffix: str) -> list[int]:
    try:
        parsed = map(parse_offset_name, files.names_in(directory))
    except FileNotFoundError:
        return []
    return [name[0] for name in parsed if name is not None and name[1] == suffix]
