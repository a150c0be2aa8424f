"""Bugs to be found: each replaces functions of the product by some that break a rule."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any

from msgspec.structs import replace

from penstock.base import files as base_files
from penstock.base.files import Buffer, Files, Name, read_range, write_all
from penstock.objects.directory import DirectoryStore
from penstock.storage import maintenance, store
from penstock.storage.compaction import cleaner
from penstock.storage.compaction.cleaner import LogCleaner
from penstock.storage.compaction.rewriting import CleanedSegment
from penstock.storage.files.checkpoint import write_checkpoint
from penstock.storage.files.index import Entry, SparseIndex
from penstock.storage.files.journal import (
    ALIGNMENT_BYTES,
    EntryHead,
    Journal,
    JournalFile,
    decode_rows,
    is_whole,
)
from penstock.storage.files.segment import Segment
from penstock.storage.files.segment_files import SegmentFiles
from penstock.storage.files.settings import LogConfig
from penstock.storage.files.transaction_index import ENTRY_BYTES, TransactionIndex
from penstock.storage.files.values import LOG, SWAP, offset_name
from penstock.storage.log import loading, replaying, swapping
from penstock.storage.log import replaying as cutting
from penstock.storage.log.compaction import PassPlan
from penstock.storage.log.loading import load_epochs
from penstock.storage.log.replica import LogReplica
from penstock.storage.log.state import LogState, kept_here
from penstock.storage.store import LogStore
from penstock.storage.writing import checkpointing, committing, recovery, segment_writing
from penstock.storage.writing.checkpointing import Checkpointer, Plan
from penstock.storage.writing.committing import Committer, Group
from penstock.storage.writing.segment_writing import Direct, SegmentWriter
from sim.storage.exploring import Result, explore
from sim.storage.scenarios import SCENARIOS

STATES = 2_000
"""After so many states of a seed, the next one is tried."""
SEEDS = 3

Patch = tuple[Any, str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plant:
    """What is replaced, and the scenario in which it shows."""

    what: str
    scenario: str
    patches: Sequence[Patch]


def planted(plant: Plant) -> Result:
    """Look for a violation with the bug in place."""
    (scenario,) = [scenario for scenario in SCENARIOS if scenario.name == plant.scenario]
    with _replaced(plant.patches):
        for seed in count():
            result = explore(scenario, seed, states=STATES)
            if result.violation or seed + 1 == SEEDS:
                return result
    raise AssertionError


@contextmanager
def _replaced(patches: Sequence[Patch]) -> Iterator[None]:
    before = [(owner, name, vars(owner)[name]) for owner, name, _ in patches]
    try:
        for owner, name, replacement in patches:
            setattr(owner, name, replacement)
        yield
    finally:
        for owner, name, original in before:
            setattr(owner, name, original)


def _nothing(*arguments: Any, **options: Any) -> None:
    return


# Order and syncs


def _checkpoint_first(files: Files, root: str, plan: Plan) -> None:
    write_checkpoint(files, root, plan.checkpoint)
    _PERFORM(files, root, plan)


_PERFORM = checkpointing.perform


def _acknowledge_unsynced(self: Journal) -> None:
    self._unsynced = []
    self.durable_sequence = self.sequence


def _take_oldest(self: Journal, size_bytes: int) -> JournalFile:
    if not self._free and self._full and self._count >= self._files_max:
        self._free.append(self._full.pop(0))
    return _TAKE_FILE(self, size_bytes)


_TAKE_FILE = Journal._take_file


def _write_unsynced(files: Files, path: Name, data: Buffer, *, sync: bool) -> None:
    _WRITE_FILE(files, path, data, sync=False)


_WRITE_FILE = base_files.write_file


def _make_unsynced(files: Files, path: str) -> None:
    unsynced = {"sync_directory": _nothing}
    with _replaced([(base_files, name, function) for name, function in unsynced.items()]):
        _MAKE_DIRECTORIES(files, path)


_MAKE_DIRECTORIES = base_files.make_directories


# Large appends


def _entry_first(self: Committer, group: Group, sync: bool) -> None:
    _PERFORM_GROUP(self, replace(group, direct=()), sync)
    segment_writing.write_direct(self._files, self._root, group.direct, None)


_PERFORM_GROUP = Committer._perform


def _write_direct_unsynced(files: Files, root: str, direct: Sequence[Direct], _: Any) -> None:
    for write in direct:
        write_all(files, write.handle.descriptor, write.position, [write.data])


def _write_direct_unnamed(files: Files, root: str, direct: Sequence[Direct], _: Any) -> None:
    unnamed = [write._replace(directory=None) for write in direct]
    segment_writing.write_direct(files, root, unnamed, None)


def _large_behind_cuts(self: SegmentWriter, items: list[Any], size_bytes: int) -> list[Any]:
    for item in items:
        item.log.tail.cut_sequence = 0
    return _LARGE_IN(self, items, size_bytes)


_LARGE_IN = SegmentWriter.large_in


# The archive


def _put_unsynced(self: DirectoryStore, sync: Any, what: str) -> None:
    return


def _kept_by_size_alone(config: LogConfig, committed_offset: int, tiered_offset: int) -> Any:
    return kept_here(config, committed_offset, committed_offset)


# Truncation


def _cut_at_once(self: LogReplica, end: int) -> None:
    _CUT(self, end)
    self._state.queue.pending[-1].perform()  # type: ignore[union-attr]


_CUT = LogReplica._cut


def _cut_transactions_unsynced(files: Files, path: str, end_offset: int) -> None:
    descriptor = files.open(path)
    index = TransactionIndex(read_range(files, descriptor, files.size(descriptor), 0))
    index.entries = index.entries[: len(index.entries) // ENTRY_BYTES * ENTRY_BYTES]
    index.cut(end_offset)
    files.truncate(descriptor, len(index.entries))
    files.close(descriptor)


# Recovery


def _replay_at_the_end(files: Files, file: int, position: int, buffers: Sequence[Buffer]) -> int:
    return write_all(files, file, files.size(file), buffers)


def _follow_anything(self: recovery._Reader, number: int, first: EntryHead) -> None:
    """Whatever is whole is an entry, of whatever use of the file."""
    file = self._journal_files[number]
    for position in range(0, file.size_bytes, ALIGNMENT_BYTES):
        head = recovery._probe(self._files, file, position)
        if head is None or position + head.size_bytes > file.size_bytes:
            continue
        data = read_range(self._files, file.descriptor, head.size_bytes, position)
        if is_whole(memoryview(data), head):
            self._replays.add(decode_rows(data, head), number, position, data)
            self.sequence = max(self.sequence, head.sequence)
            self.entries += 1
            file.last_sequence = head.sequence
    self._read_to[number] = file.size_bytes


def _skip_cuts(self: replaying._Writing, segment_base: int, position: int, end: int) -> None:
    self.flush()


def _walk_unverified(self: SegmentFiles, *arguments: Any, **options: Any) -> Any:
    return _WALK(self, *arguments, **{**options, "verify": False})


_WALK = SegmentFiles.walk


def _newest_snapshot(self: loading._Loading, segments: list[Segment]) -> None:
    for offset in sorted(self.snapshots, reverse=True):
        if self._take_snapshot(offset):
            return


def _trusted_index(self: SegmentFiles, segment: Segment, **cut: int) -> SparseIndex | None:
    files = self.files
    try:
        offsets = base_files.read_file(files, segment.sibling(".index"))
        times = base_files.read_file(files, segment.sibling(".timeindex"))
    except FileNotFoundError:
        return None
    return SparseIndex(segment.base_offset, offsets, times)


def _trusted_entry(
    self: SegmentFiles, segment: Segment, entry: Entry, *, verify: bool = False
) -> Any:
    return self.walk(segment, entry.position, verify=verify)


def _load_all_epochs(
    files: SegmentFiles, directory: str, segments: list[Segment], cut: int | None, **how: Any
) -> Any:
    return load_epochs(files, directory, segments, None, **how)


def _forgetful_delete(self: LogStore, tp: Any) -> None:
    _DELETE(self, tp)
    self._deleted.clear()


_DELETE = LogStore.delete


# Compaction


def _clean_at_once(self: LogCleaner, slot: Any, log: Any, plan: PassPlan) -> None:
    offset = plan.sources[-1].next_offset
    self._offsets.save(self._offsets.encoded_with(log.topic_partition, offset))
    _BEGIN(self, slot, log, plan)


_BEGIN = LogCleaner._begin


def _sync_names(files: Files, directory: str, base_offset: int) -> None:
    base_files.sync_directory(files, directory)


def _forget_first(files: Files, directory: str, base_offset: int) -> None:
    files.remove(os.path.join(directory, offset_name(base_offset, LOG + SWAP)))
    base_files.sync_directory(files, directory)


class _Unsynced:
    """Files whose contents are never synced."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def __getattr__(self, name: str) -> Any:
        return _nothing if name == "sync_file" else getattr(self._files, name)


def _finish_unsynced(self: CleanedSegment, transactions: bytes) -> None:
    self._files = _Unsynced(self._files)
    _FINISH(self, transactions)


_FINISH = CleanedSegment.finish


PLANTS = {
    "directory-not-synced": Plant(
        what="a checkpoint syncs files, and not the directories that have their names",
        scenario="roll",
        patches=[(checkpointing, "sync_directory", _nothing)],
    ),
    "data-directory-not-synced": Plant(
        what="the directory of the store is made, and its name not synced",
        scenario="append",
        patches=[(store, "make_directories", _make_unsynced)],
    ),
    "acknowledged-before-sync": Plant(
        what="a group is acknowledged when it is written",
        scenario="append",
        patches=[(Journal, "sync", _acknowledge_unsynced)],
    ),
    "checkpoint-before-sync": Plant(
        what="the checkpoint is written before what it says is synced",
        scenario="checkpoint",
        patches=[(checkpointing, "perform", _checkpoint_first)],
    ),
    "journal-recycled-early": Plant(
        what="a journal file is used again before its segments are synced",
        scenario="checkpoint",
        patches=[
            (Journal, "_take_file", _take_oldest),
            (Journal, "has_room", lambda *_: True),
            (Journal, "crowded", property(lambda journal: False)),
        ],
    ),
    "small-files-not-synced": Plant(
        what="a small file is put in its place before it is synced",
        scenario="checkpoint",
        patches=[(base_files, "write_file", _write_unsynced)],
    ),
    "stale-entry-accepted": Plant(
        what="an entry of an earlier use of a journal file is replayed",
        scenario="mixed",
        patches=[(recovery._Reader, "follow", _follow_anything)],
    ),
    "torn-entry-accepted": Plant(
        what="an entry of the journal is taken without its checksum",
        scenario="replica append",
        patches=[(recovery, "is_whole", lambda *_: True)],
    ),
    "torn-tail-accepted": Plant(
        what="batches beyond the durable mark are taken without their checksums",
        scenario="policy os",
        patches=[(SegmentFiles, "walk", _walk_unverified)],
    ),
    "replay-appends": Plant(
        what="a replay writes at a file's end: a second one writes it again",
        scenario="append",
        patches=[(replaying, "write_all", _replay_at_the_end)],
    ),
    "cut-before-journal": Plant(
        what="a truncation cuts files before the journal has it",
        scenario="truncate",
        patches=[(LogReplica, "_cut", _cut_at_once)],
    ),
    "cut-not-replayed": Plant(
        what="a truncation that the journal has is not done again after a crash",
        scenario="truncate",
        patches=[(replaying._Writing, "cut", _skip_cuts)],
    ),
    "committed-before-it-is-there": Plant(
        what="an upload is committed before the object is synced",
        scenario="upload",
        patches=[(DirectoryStore, "_sync", _put_unsynced)],
    ),
    "gone-before-it-is-archived": Plant(
        what="local retention lets segments go that are not in the archive",
        scenario="upload",
        patches=[(maintenance, "kept_here", _kept_by_size_alone)],
    ),
    "entry-before-data": Plant(
        what="the journal says where a large append is before that is synced",
        scenario="large appends",
        patches=[(Committer, "_perform", _entry_first)],
    ),
    "data-not-synced": Plant(
        what="a large append is written to its segment, which is not synced",
        scenario="large appends",
        patches=[(committing, "write_direct", _write_direct_unsynced)],
    ),
    "name-not-synced": Plant(
        what="a large append is synced in a segment whose name is not",
        scenario="large appends",
        patches=[(committing, "write_direct", _write_direct_unnamed)],
    ),
    "large-behind-a-cut": Plant(
        what="a replay cuts what is in a segment alone",
        scenario="large appends",
        patches=[(SegmentWriter, "large_in", _large_behind_cuts)],
    ),
    "unsaid-counts": Plant(
        what="a start takes what is in a segment and not in the journal",
        scenario="mixed, large",
        patches=[(loading, "EXACT", 0)],
    ),
    "aborted-come-back": Plant(
        what="an index of aborted transactions is cut, which is neither synced nor looked at",
        scenario="transactions",
        patches=[
            (loading._Loading, "_check_newest", _nothing),
            (loading._Loading, "_check_transactions", _nothing),
            (cutting, "cut_transactions", _cut_transactions_unsynced),
            (loading, "cut_transactions", _cut_transactions_unsynced),
        ],
    ),
    "epochs-not-cut": Plant(
        what="epochs of what was cut are still known after a crash",
        scenario="truncate",
        patches=[(loading, "load_epochs", _load_all_epochs)],
    ),
    "promise-not-in-checkpoint": Plant(
        what="a checkpoint frees the journal of a promise that it does not have",
        scenario="promise",
        patches=[
            (LogState, "current_recovery_point", LogState._written_point),
        ],
    ),
    "later-snapshot-trusted": Plant(
        what="producers are those of the newest snapshot, even one beyond the log's end",
        scenario="snapshot",
        patches=[(loading._Loading, "load_producers", _newest_snapshot)],
    ),
    "index-ahead-of-log": Plant(
        what="entries of an index are believed that point beyond what was recovered",
        scenario="mixed",
        patches=[
            (SegmentFiles, "saved_index", _trusted_index),
            (SegmentFiles, "_walk_from", _trusted_entry),
        ],
    ),
    "start-not-saved": Plant(
        what="a log's start is moved in memory alone",
        scenario="retention",
        patches=[(Checkpointer, "save_recovery_points", _nothing)],
    ),
    "deleted-comes-back": Plant(
        what="a partition is made anew while the journal still has what it held before",
        scenario="deletion",
        patches=[(LogStore, "delete", _forgetful_delete)],
    ),
    "tombstone-lost": Plant(
        what="a log is said to be clean before it is: a tombstone goes, and what it deletes stays",
        scenario="compaction",
        patches=[(LogCleaner, "_begin", _clean_at_once)],
    ),
    "swap-not-decided": Plant(
        what="a compacted segment is put in place, and nothing says that it replaces others",
        scenario="compaction",
        patches=[(cleaner, "decide", _nothing), (cleaner, "release", _sync_names)],
    ),
    "swap-forgotten-early": Plant(
        what="a swap is forgotten before its names are synced",
        scenario="compaction",
        patches=[(cleaner, "release", _forget_first)],
    ),
    "cleaned-not-synced": Plant(
        what="a compacted segment is put in place before its bytes are synced",
        scenario="compaction",
        patches=[(CleanedSegment, "finish", _finish_unsynced)],
    ),
    "swap-names-not-synced": Plant(
        what="a swap goes on before the names that it has given are synced",
        scenario="compaction",
        patches=[(swapping, "sync_directory", _nothing)],
    ),
}
