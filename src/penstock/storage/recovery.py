"""Reading the journal after a restart, and putting what it holds back into the segments.

Entries are followed from the checkpoint's sequence on: each has the next sequence, the checksum
of its predecessor, and its own. Where the chain ends, the journal ends: the next entry is torn
and was never acknowledged. Unless a later entry says that the missing one had been synced: then
the disk has lost it. Which logs it was about, nobody can say for sure, because one checksum covers
the entry and its table; so any log of the store may lack what it acknowledged. Of logs that others
have, the rest comes from there. Of the others everything counts that is whole by itself: later
entries, and of a damaged one the batches that their own checksums and offsets vouch for. What is
damaged is kept in a file of its own.

What the entries hold is not put anywhere yet: `replaying` has it for when a log is needed. So the
journal goes on where it ended, its files in use until a checkpoint, and what a killed process had
written and not synced is synced here, because it counts from now on.

Which topic id a directory is for, its own file says. Items of topics that have been replaced are
left out, and those of logs that have been deleted.
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
from penstock.storage.damage import whole_batches
from penstock.storage.errors import CorruptFile, CorruptLog, StorageFailed
from penstock.storage.formats.checkpoint import Checkpoint, RecoveryPoint
from penstock.storage.formats.journal_entry import (
    ALIGNMENT_BYTES,
    MAGIC,
    EntryHead,
    Row,
    decode_head,
    decode_key,
    decode_rows,
    encode_key,
    is_whole,
    padded,
)
from penstock.storage.formats.partition_metadata import (
    decode_partition_metadata,
    encode_partition_metadata,
)
from penstock.storage.journal import JournalFile
from penstock.storage.limits import RECOVERY_SCAN_BYTES
from penstock.storage.names import (
    JOURNAL_SUFFIX,
    METADATA_FILE,
    QUARANTINED,
    directory_name,
    parse_directory_name,
)
from penstock.storage.rebuilding import first_point
from penstock.storage.replaying import LogReplay, Replays

logger = logging.getLogger(__name__)

_HEAD_PROBE_BYTES: Final = 64


class JournalState(NamedTuple):
    """What was found: the files, and the highest numbers that were used."""

    files: list[JournalFile]
    sequence: int
    generation: int
    checksum: int
    """Of the last entry, 0 if none was read."""
    entries: int
    size_bytes: int
    lost: CorruptLog | None
    """Where an entry that had been synced is not there; `sequence` is beyond all that follow."""


def read_journal(
    files: Files,
    directory: str,
    checkpoint: Checkpoint,
    replays: Replays,
    alone: Callable[[TopicPartition], bool],
) -> JournalState:
    """Follow the journal from a checkpoint, and have `replays` note what it holds.

    If that is unknown, all that is whole may be news. `alone` says of which partitions nobody else
    has the records.

    Raises:
        StorageFailed: what it holds cannot be synced.
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
    """Files that are gone, or were cut: entries that were synced may have gone with them."""
    size_bytes = sum([file.size_bytes for file in journal_files])
    if size_bytes >= least_bytes:
        return None
    reason = (
        f"the journal has {size_bytes} bytes, it had {least_bytes}: files are gone, or were cut"
    )
    return CorruptLog(Path(directory), 0, reason)


def _probe(files: Files, file: JournalFile, position: int) -> EntryHead | None:
    return decode_head(read_range(files, file.descriptor, _HEAD_PROBE_BYTES, position))


class _Candidate(NamedTuple):
    """What looks like an entry; the better one of two of the same sequence is the greater."""

    whole: bool
    generation: int
    number: int
    at: int
    head: EntryHead


class _Reader:
    """Follows the chain of entries over the files."""

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
        """A file has nothing that the checkpoint does not cover."""
        self._read_to[number] = self._journal_files[number].size_bytes

    def follow(self, number: int, first: EntryHead) -> None:
        """Read one file's entries in order."""
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
        """Use an entry that is whole; False if it does not belong to the chain."""
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
        """Look for entries beyond the end that say the missing one was synced."""
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
                    f"journal entry {self.sequence + 1} is damaged or gone; entry "
                    f"{head.sequence} in {file.path} says that entries up to "
                    f"{head.durable_sequence} were synced",
                )
        return lost

    def salvage(self, alone: Callable[[TopicPartition], bool]) -> None:
        """Note what can be proven of entries that were not followed, in the order of sequences.

        Of logs that are not `alone`, only what they keep as replicas. Damaged entries are copied
        beside the journal.
        """
        found: dict[int, list[_Candidate]] = {}
        for number, file in enumerate(self._journal_files):
            behind = 0
            for at, head in self._heads(file, 0):
                if at < behind or at + head.size_bytes > file.size_bytes:
                    continue  # in an entry, as what a record holds
                whole = is_whole(memoryview(self._entry(number, at, head)), head)
                behind = at + padded(head.size_bytes) if whole else at
                if head.sequence > self.sequence:
                    one = _Candidate(whole, head.generation, number, at, head)
                    found.setdefault(head.sequence, []).append(one)
        following = None
        chosen: list[_Candidate] = []
        for sequence in sorted(found, reverse=True):
            # One may have been taken back, and written again: its successor names the right one.
            named = [one for one in found[sequence] if one.head.checksum == following]
            best = max(named or found[sequence], key=lambda one: one[:4])
            chosen.append(best)
            following = best.head.previous_checksum if best.whole else None
        for one in reversed(chosen):
            self._salvage(one, alone)

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
        """The rows of a damaged entry whose batches are whole, and of the offsets that it says."""
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
                    "journal entry %d in %s is damaged: offsets %d to %d of %s are not whole there",
                    head.sequence, path, row.base_offset, row.next_offset - 1, where,
                )  # fmt: skip
        write_file(self._files, f"{path}.{one.at}{QUARANTINED}", data, sync=True)
        return good

    def _goes_on(self, row: Row) -> bool:
        """Whether a row goes where its log ended before, or begins a segment."""
        end = self._replays.end_of(row.key)
        if end is None:
            topic_id, topic, partition = decode_key(row.key)
            known = self._points.get((topic, partition))
            if known is not None and known[0] == topic_id:
                end = known[1].segment_base, known[1].position
        return (row.segment_base, row.position) in (end, (row.base_offset, 0))

    def _heads(self, file: JournalFile, position: int) -> Iterator[tuple[int, EntryHead]]:
        """Whatever looks like the beginning of an entry, from a position on."""
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
    """Whether a row of a damaged entry has whole batches of the offsets that it says."""
    if row.segment_base < 0 or row.position < 0 or not row.size_bytes:
        return False
    batches = memoryview(data)[row.data_at : row.data_at + row.size_bytes]
    size_bytes, next_offset = whole_batches(batches, -1)
    first = int.from_bytes(batches[:8])
    return size_bytes == row.size_bytes and (first, next_offset) == row[2:4]


class FoundLog(NamedTuple):
    """A log that a store has; `replay` is what the journal has of it beyond the checkpoint.

    Of one that is not `known`, neither says anything: it may be anything that its files have.
    """

    where: TopicPartition
    topic_id: UUID
    point: RecoveryPoint
    replay: LogReplay | None
    known: bool


class Directories:
    """Which logs a store has: directories, with what checkpoint and journal say of them."""

    def __init__(self, files: Files, root: str, checkpoint: Checkpoint, replays: Replays) -> None:
        self._files = files
        self._root = root
        self._checkpoint = checkpoint
        self._replays = replays.logs
        self._topic_ids: dict[TopicPartition, UUID] = {}
        """As the journal has them first."""
        for key in replays.logs:
            topic_id, topic, partition = decode_key(key)
            self._topic_ids.setdefault(TopicPartition(topic, partition), topic_id)
        self.made = False
        """Whether some directories had to be made."""

    def find(self) -> tuple[list[FoundLog], list[TopicPartition]]:
        """All logs, and directories that belong to no known topic."""
        names = self._files.names_in(self._root)
        found: list[FoundLog] = []
        strays: list[TopicPartition] = []
        # Without a checkpoint, the journal may be about logs that were deleted long ago.
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
                logger.error("the directory of %s is gone", TopicPartition(topic, partition))

    def _make_missing(self, names: set[str]) -> Iterator[TopicPartition]:
        """Make the directories of logs of the journal that are not there.

        Those of the checkpoint were synced with it: one that is gone was deleted since, and what
        the journal has of it is not all of it.
        """
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
        """The topic id that a directory says it is for; as journal or checkpoint know it otherwise.

        The file is not synced when it is made, because the checkpoint, or before it the
        journal, says the same.
        """
        known = self._checkpoint.points.get((where.topic, where.partition))
        if known is not None and self._checkpoint.clean:
            return known[0]
        topic_id = self._topic_ids.get(where) or (None if known is None else known[0])
        path = os.path.join(self._root, directory_name(where), METADATA_FILE)
        try:
            said = decode_partition_metadata(read_file(self._files, path))
            if self._may_be(where, said, topic_id):
                return said
            logger.warning("%s: topic id %s, everything else says %s", path, said, topic_id)
        except NotADirectoryError:
            return None
        except (FileNotFoundError, CorruptFile) as error:
            logger.warning("%s: %s", path, error)
        if topic_id is not None:
            replace_file(self._files, path, encode_partition_metadata(topic_id))
        return topic_id

    def _may_be(self, where: TopicPartition, said: UUID, topic_id: UUID | None) -> bool:
        """Whether a directory is for the topic id that its file says, which has no checksum."""
        if topic_id in (None, said) or self._checkpoint.unknown:
            return True
        return encode_key(said, where.topic, where.partition) in self._replays
