"""Reading the journal after a restart, and putting what it holds back into the segments.

Entries are followed from the checkpoint's sequence on: each has the next sequence, the checksum
of its predecessor, and its own. Where the chain ends, the journal ends: the next entry is torn
and was never acknowledged. Unless a later entry says that the missing one had been synced: then
the disk has lost it, with all that came after it. Which logs it was about, nobody can say, because
one checksum covers the entry and its table; so any log of the store may lack what it acknowledged.

What the entries hold is not put anywhere yet: `replaying` has it for when a log is needed. So the
journal goes on where it ended, its files in use until a checkpoint, and what a killed process had
written and not synced is synced here, because it counts from now on.

Which topic id a directory is for, its own file says. Items of topics that have been replaced are
left out, and those of logs that have been deleted.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

from penstock.base.files import Files, read_file, read_range, replace_file
from penstock.base.ids import TopicPartition
from penstock.storage.errors import CorruptFile, CorruptLog, StorageFailed
from penstock.storage.formats.checkpoint import Checkpoint, RecoveryPoint
from penstock.storage.formats.journal_entry import (
    ALIGNMENT_BYTES,
    MAGIC,
    EntryHead,
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
    directory_name,
    parse_directory_name,
)
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
    files: Files, directory: str, after_sequence: int, replays: Replays
) -> JournalState:
    """Follow the journal from `after_sequence`, and have `replays` note what it holds.

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
    reader = _Reader(files, journal_files, after_sequence, replays)
    ordered = sorted(starts.values(), key=lambda start: start[1].generation)
    for place, (number, head) in enumerate(ordered):
        last = place + 1 == len(ordered)
        following = None if last else ordered[place + 1][1].sequence
        if following is not None and following <= after_sequence + 1:
            reader.superseded(number)
            continue
        reader.follow(number, head)
    lost = reader.find_rot()
    for file in journal_files:
        if file.last_sequence > after_sequence:
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


def _probe(files: Files, file: JournalFile, position: int) -> EntryHead | None:
    return decode_head(read_range(files, file.descriptor, _HEAD_PROBE_BYTES, position))


class _Reader:
    """Follows the chain of entries over the files."""

    def __init__(
        self,
        files: Files,
        journal_files: list[JournalFile],
        after_sequence: int,
        replays: Replays,
    ) -> None:
        self._files = files
        self._journal_files = journal_files
        self._after = after_sequence
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
        if head.sequence <= self._after:
            self.checksum = head.checksum if head.sequence == self._after else None
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
        for where in [*map(parse_directory_name, names), *self._make_missing(set(names))]:
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
            if replay is not None:
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
        path = os.path.join(self._root, directory_name(where), METADATA_FILE)
        try:
            return decode_partition_metadata(read_file(self._files, path))
        except NotADirectoryError:
            return None
        except (FileNotFoundError, CorruptFile) as error:
            logger.warning("%s: %s", path, error)
        topic_id = self._topic_ids.get(where) or (None if known is None else known[0])
        if topic_id is not None:
            replace_file(self._files, path, encode_partition_metadata(topic_id))
        return topic_id
