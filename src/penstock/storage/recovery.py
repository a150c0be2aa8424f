"""Reading the journal after a restart, and putting what it holds back into the segments.

Entries are followed from the checkpoint's sequence on: each has the next sequence, the checksum
of its predecessor, and its own. Where the chain ends, the journal ends: the next entry is torn
and was never acknowledged. Unless a later entry says that the missing one had been synced: then
the disk has lost it, with all that came after it. Which logs it was about, nobody can say, because
one checksum covers the entry and its table; so any log of the store may lack what it acknowledged.

Replay writes each item's bytes at the position that it was given, and cuts files where a row says
so, in the order of the journal: it comes to the same however often it is done. Items of topics
that have been replaced are left out, and those of logs that have been deleted. Retention removes
no segment that the checkpoint's recovery point points at or before, so what is replayed always has
its file.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

from penstock.base.files import (
    Files,
    read_file,
    read_range,
    replace_file,
    sync_directory,
    write_all,
)
from penstock.base.ids import TopicPartition
from penstock.storage.cutting import clear_files, cut_files
from penstock.storage.errors import CorruptFile, CorruptLog
from penstock.storage.formats.checkpoint import RecoveryPoint
from penstock.storage.formats.journal_entry import (
    ALIGNMENT_BYTES,
    EntryHead,
    Item,
    decode_head,
    decode_items,
    is_whole,
    padded,
)
from penstock.storage.formats.partition_metadata import (
    decode_partition_metadata,
    encode_partition_metadata,
)
from penstock.storage.journal import JournalFile
from penstock.storage.names import (
    JOURNAL_SUFFIX,
    LOG,
    METADATA_FILE,
    directory_name,
    offset_name,
)
from penstock.storage.values import Standing

logger = logging.getLogger(__name__)

_HEAD_PROBE_BYTES: Final = 64


class JournalState(NamedTuple):
    """What was found: the files, and the highest numbers that were used."""

    files: list[JournalFile]
    sequence: int
    generation: int
    entries: int
    size_bytes: int
    lost: CorruptLog | None
    """Where an entry that had been synced is not there; `sequence` is beyond all that follow."""


Replay = Callable[[list[Item]], None]


def read_journal(files: Files, directory: str, after_sequence: int, replay: Replay) -> JournalState:
    """Follow the journal from `after_sequence`, handing each entry's items to `replay`."""
    journal_files = _open_files(files, directory)
    starts: dict[int, tuple[JournalFile, EntryHead]] = {}
    generation = 0
    for file in journal_files:
        head = _probe(files, file, 0)
        if head is not None:
            file.generation = head.generation
            generation = max(generation, head.generation)
            starts[head.sequence] = file, head
    reader = _Reader(files, after_sequence, replay)
    ordered = sorted(starts.values(), key=lambda start: start[1].generation)
    for place, (file, head) in enumerate(ordered):
        last = place + 1 == len(ordered)
        following = None if last else ordered[place + 1][1].sequence
        if following is not None and following <= after_sequence + 1:
            continue
        reader.follow(file, head)
    lost = reader.find_rot(journal_files)
    return JournalState(
        journal_files,
        max(reader.sequence, reader.highest),
        max(generation, reader.generation),
        reader.entries,
        reader.size_bytes,
        lost,
    )


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

    def __init__(self, files: Files, after_sequence: int, replay: Replay) -> None:
        self._files = files
        self._after = after_sequence
        self._replay = replay
        self._previous_checksum: int | None = None
        self._ended_at: tuple[str, int] | None = None
        self.sequence = after_sequence
        self.highest = after_sequence
        self.generation = 0
        self.entries = 0
        self.size_bytes = 0

    def follow(self, file: JournalFile, first: EntryHead) -> None:
        """Read one file's entries in order."""
        position = 0
        while position < file.size_bytes:
            head = _probe(self._files, file, position)
            if head is None or head.generation != first.generation:
                break
            if head.sequence > self.sequence + 1 or position + head.size_bytes > file.size_bytes:
                break
            data = memoryview(read_range(self._files, file.descriptor, head.size_bytes, position))
            if not is_whole(data, head):
                break
            if not self._take(head, data):
                break
            position += padded(head.size_bytes)
            file.last_sequence = head.sequence
        else:
            return
        self._ended_at = file.path, position

    def _take(self, head: EntryHead, data: memoryview) -> bool:
        """Use an entry that is whole; False if it does not belong to the chain."""
        chained = self._previous_checksum in (None, head.previous_checksum)
        if head.sequence <= self._after:
            self._previous_checksum = head.checksum if head.sequence == self._after else None
            return True
        if head.sequence != self.sequence + 1 or not chained:
            return False
        self._replay(decode_items(data, head))
        self.sequence = head.sequence
        self.generation = max(self.generation, head.generation)
        self._previous_checksum = head.checksum
        self.entries += 1
        self.size_bytes += head.size_bytes
        return True

    def find_rot(self, journal_files: list[JournalFile]) -> CorruptLog | None:
        """Look for entries beyond the end that say the missing one was synced."""
        lost: CorruptLog | None = None
        for file in journal_files:
            if file.last_sequence == 0 and file.generation and file.generation < self.generation:
                continue
            position = 0
            while position < file.size_bytes:
                head = _probe(self._files, file, position)
                position += ALIGNMENT_BYTES
                if head is None or head.durable_sequence <= self.sequence:
                    continue
                at = position - ALIGNMENT_BYTES
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


class Replayer:
    """Writes items into segment files and remembers what they amount to.

    `known` are the logs of the checkpoint, whose directories were synced with it: one that is gone
    was deleted since, and what the journal has of it is not all of it.
    """

    def __init__(self, files: Files, root: str, known: Mapping[TopicPartition, UUID]) -> None:
        self._files = files
        self._root = root
        self._known = known
        self._topic_ids: dict[TopicPartition, UUID] = {}
        self._open: dict[str, int] = {}
        self._directories: set[str] = set()
        self.ends: dict[TopicPartition, int] = {}
        """Where the logs end after the last of their items, which is not always the highest."""
        self.starts: dict[TopicPartition, Item] = {}
        self.cuts: dict[TopicPartition, Item] = {}
        """The lowest cut of each log that was cut, after it began: what is below has been there all
        the time."""
        self.begun: dict[TopicPartition, Item] = {}
        """The last start of each log that began anew."""
        self.standings: dict[TopicPartition, Standing] = {}

    def replay(self, items: list[Item]) -> None:
        for item in items:
            where = TopicPartition(item.topic, item.partition)
            if self._topic_id(where, item.topic_id) != item.topic_id:
                continue
            if item.is_standing:
                lost = bool(item.position)
                self.standings[where] = Standing(item.base_offset, item.next_offset, lost)
                continue
            self.starts.setdefault(where, item)
            self.ends[where] = item.next_offset
            directory = os.path.join(self._root, directory_name(where))
            self._directories.add(directory)
            if item.is_start:
                self.begun[where] = item
                self.cuts.pop(where, None)
                clear_files(
                    self._files, directory, offset=item.next_offset, producers=item.data,
                    forget=self._forget,
                )  # fmt: skip
            elif item.is_cut:
                lowest = self.cuts.get(where, item)
                self.cuts[where] = min(lowest, item, key=attrgetter("next_offset"))
                self._cut(directory, item)
            else:
                path = os.path.join(directory, offset_name(item.segment_base, LOG))
                write_all(self._files, self._descriptor(path), item.position, [item.data])

    def _cut(self, directory: str, item: Item) -> None:
        if item.position:
            # Synced in the end, and there even if all of it is to come from the journal.
            self._descriptor(os.path.join(directory, offset_name(item.segment_base, LOG)))
        cut_files(
            self._files,
            directory,
            segment_base=item.segment_base,
            position=item.position,
            end_offset=item.next_offset,
            forget=self._forget,
        )

    def cut(self, where: TopicPartition, point: RecoveryPoint) -> RecoveryPoint:
        """What is still so of what the checkpoint says of a log."""
        begun, cut = self.begun.get(where), self.cuts.get(where)
        if begun is not None:
            point = point.begun(begun.next_offset, producers=bool(begun.data))
        if cut is not None:
            point = point.cut(cut.next_offset, cut.segment_base, cut.position)
            point = point._replace(leader_epoch=-1)
        return point

    def lowest_end(self, where: TopicPartition) -> int | None:
        """The lowest end that a log had meanwhile, 0 if nothing was kept of it; None if it grew."""
        cut = self.cuts.get(where)
        return 0 if where in self.begun else None if cut is None else cut.next_offset

    def topic_id(self, where: TopicPartition) -> UUID:
        return self._topic_ids[where]

    def finish(self) -> None:
        """Sync what was written."""
        for descriptor in self._open.values():
            self._files.sync_file(descriptor)
            self._files.close(descriptor)
        for directory in self._directories:
            sync_directory(self._files, directory)
        if self._directories:
            sync_directory(self._files, self._root)
        self._open.clear()

    def _descriptor(self, path: str) -> int:
        descriptor = self._open.get(path)
        if descriptor is None:
            if len(self._open) >= 512:
                oldest = next(iter(self._open))
                self._files.sync_file(self._open[oldest])
                self._files.close(self._open.pop(oldest))
            descriptor = self._open[path] = self._files.open(path, create=True)
        return descriptor

    def _forget(self, path: str) -> None:
        descriptor = self._open.pop(path, None)
        if descriptor is not None:
            self._files.close(descriptor)

    def _topic_id(self, where: TopicPartition, topic_id: UUID) -> UUID | None:
        """Whose directory it is; made for this topic id if there is none, unless it was deleted."""
        known = self._topic_ids.get(where)
        if known is not None:
            return known
        directory = os.path.join(self._root, directory_name(where))
        path = os.path.join(directory, METADATA_FILE)
        try:
            found = decode_partition_metadata(read_file(self._files, path))
        except (FileNotFoundError, CorruptFile):
            if not _exists(self._files, directory):
                if self._known.get(where) == topic_id:
                    return None
                self._files.make_directory(directory, mode=0o755)
            replace_file(self._files, path, encode_partition_metadata(topic_id))
            found = topic_id
        self._topic_ids[where] = found
        return found


def _exists(files: Files, directory: str) -> bool:
    try:
        files.names_in(directory)
    except FileNotFoundError:
        return False
    return True
