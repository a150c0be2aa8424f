"""Verification of a store: partitions, and segments against checkpoint and journal.

After a clean shutdown everything must be in the segments. After a crash, bytes that no checkpoint
covers may be only in the journal, and the next start writes them to the segments. So the journal is
read from the checkpoint on, as a start does, and each of its rows is compared with its segment.
Nothing is written; files are read one entry at a time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final, NamedTuple
from uuid import UUID

from penstock.base.files import MACHINE_FILES, read_range
from penstock.base.ids import TopicPartition
from penstock.storage.files.checkpoint import Checkpoint, RecoveryPoint, read_checkpoint, set_aside
from penstock.storage.files.journal import (
    ALIGNMENT_BYTES,
    HEAD_BYTES,
    EntryHead,
    Row,
    decode_head,
    decode_key,
    decode_rows,
    is_whole,
    padded,
)
from penstock.storage.files.values import (
    JOURNAL_DIRECTORY,
    JOURNAL_SUFFIX,
    LOG,
    directory_name,
    offset_name,
)
from penstock.storage.inspection.directories import (
    BatchVerifier,
    Finding,
    Kind,
    Wanted,
    list_partition,
    partitions_of,
    was_closed_cleanly,
)
from penstock.storage.inspection.verification import (
    Advance,
    PartitionCheck,
    Synced,
    opened,
)

ENTRY_BYTES_MAX: Final = 1 << 30


class Entry(NamedTuple):
    """Journal entry and its position; `rows` is None if the entry is incomplete."""

    path: str
    position: int
    head: EntryHead
    rows: list[Row] | None


def journal_files(root: str) -> list[str]:
    directory = os.path.join(root, JOURNAL_DIRECTORY)
    try:
        names = sorted(os.listdir(directory))
    except FileNotFoundError:
        return []
    return [os.path.join(directory, name) for name in names if name.endswith(JOURNAL_SUFFIX)]


def entries_of_journal(path: str) -> Iterator[Entry]:
    """Yield all entries of a journal file, including those of earlier uses; raises OSError."""
    with opened(path) as file:
        position, end = 0, MACHINE_FILES.size(file)
        while position < end:
            head = decode_head(read_range(MACHINE_FILES, file, HEAD_BYTES, position))
            if head is None or head.size_bytes > ENTRY_BYTES_MAX:
                position += ALIGNMENT_BYTES
                continue
            data = memoryview(read_range(MACHINE_FILES, file, head.size_bytes, position))
            rows = decode_rows(bytes(data), head) if is_whole(data, head) else None
            yield Entry(path, position, head, rows)
            position += padded(head.size_bytes) if rows is not None else ALIGNMENT_BYTES


def verify_store(
    root: str,
    wanted: Wanted,
    verifier: BatchVerifier,
    *,
    live: bool = False,
    advance: Advance = lambda size: None,
) -> None:
    """Verify the wanted partitions below a directory, and the store's common files.

    With `live` a broker may be writing, so batches after its last checkpoint may be incomplete.

    Raises:
        OSError: an existing file cannot be read.
    """
    checkpoint, damaged = read_checkpoint(MACHINE_FILES, root)
    for path, error in damaged.items():
        verifier.found(_finding(None, "checkpoint", path, error))
    for path in set_aside(MACHINE_FILES, root):
        reason = "a start quarantined this damaged file; remove it after its analysis"
        verifier.note(_finding(None, "file", path, reason))
    clean = was_closed_cleanly(root)
    if checkpoint is not None:
        clean = checkpoint.clean
    for files in partitions_of(root, wanted):
        synced = None
        known = checkpoint and checkpoint.points.get((files.where.topic, files.where.partition))
        complete = not known[1].has_holes if known else False
        if live or clean is False:
            last = files.segments[-1] if files.segments else 0
            synced = Synced(last, 0)
            if known:
                synced = min(synced, Synced(known[1].segment_base, known[1].position))
        PartitionCheck(files, verifier, synced=synced, complete=complete, advance=advance).run()
    if checkpoint is not None and not live:
        _compare_points(root, checkpoint, wanted, verifier)
        if not checkpoint.clean:
            _compare_journal(root, checkpoint, wanted, verifier)


def _compare_points(
    root: str, checkpoint: Checkpoint, wanted: Wanted, verifier: BatchVerifier
) -> None:
    """Check that segments have the bytes that a checkpoint states as synced."""
    for (topic, partition), (_, point) in checkpoint.points.items():
        where = TopicPartition(topic, partition)
        if not wanted(where):
            continue
        directory = os.path.join(root, directory_name(where))
        if not os.path.isdir(directory):
            verifier.found(_finding(where, "file", directory, "the directory is missing"))
            continue
        path = os.path.join(directory, offset_name(point.segment_base, LOG))
        if reason := _missing(path, point):
            verifier.found(_finding(where, "checkpoint", path, reason))
        start = min(list_partition(where, directory).segments, default=point.log_start_offset)
        if start > point.log_start_offset:
            reason = (
                f"the log begins at offset {point.log_start_offset}, but its files begin at offset"
                f" {start}"
            )
            verifier.found(_finding(where, "file", directory, reason))


def _missing(path: str, point: RecoveryPoint) -> str | None:
    try:
        size = MACHINE_FILES.size_of(path)
    except FileNotFoundError:
        reason = f"the file is missing, but {point.position} bytes of it were synced"
        return reason * bool(point.position)
    if size < point.position:
        return f"the file ends at byte {size}, but {point.position} bytes of it were synced"
    return None


def _compare_journal(
    root: str, checkpoint: Checkpoint, wanted: Wanted, verifier: BatchVerifier
) -> None:
    """Compare the journal's rows after the checkpoint with their segments.

    Missing bytes are a note, because the next start writes them.
    """
    entries: dict[int, tuple[int, Entry]] = {}
    durable = checkpoint.sequence
    for path in journal_files(root):
        for entry in entries_of_journal(path):
            head = entry.head
            if entry.rows is None or head.sequence <= checkpoint.sequence:
                continue
            durable = max(durable, head.durable_sequence)
            known = entries.get(head.sequence)
            if known is None or known[0] < head.generation:
                entries[head.sequence] = head.generation, entry._replace(rows=[])
    sequence = checkpoint.sequence
    waiting: dict[TopicPartition, int] = {}
    while sequence + 1 in entries:
        sequence += 1
        _look_up(root, entries[sequence][1], waiting, checkpoint)
    for where, size_bytes in waiting.items():
        if wanted(where):
            reason = f"{size_bytes} bytes are only in the journal until the next start"
            verifier.note(_finding(where, "journal", os.path.join(root, JOURNAL_DIRECTORY), reason))
    if durable > sequence:
        reason = f"entry {sequence + 1} is damaged or lost: entries up to {durable} were synced"
        place = os.path.join(root, JOURNAL_DIRECTORY)
        verifier.found(_finding(None, "journal", place, reason))


def _look_up(
    root: str, entry: Entry, waiting: dict[TopicPartition, int], checkpoint: Checkpoint
) -> None:
    """Compare the batches of a journal entry with the segments that they belong to.

    Adds the size of batches that are not in their segment to `waiting`, by partition.
    """
    with opened(entry.path) as file:
        size = entry.head.size_bytes
        data = memoryview(read_range(MACHINE_FILES, file, size, entry.position))
    for row in decode_rows(bytes(data), entry.head):
        topic_id, topic, partition = decode_key(row.key)
        where = TopicPartition(topic, partition)
        known: tuple[UUID, RecoveryPoint] | None = checkpoint.points.get((topic, partition))
        elsewhere = not row.size_bytes or row.is_start or row.in_segment
        if elsewhere or (known and known[0] != topic_id):
            continue
        path = os.path.join(root, directory_name(where), offset_name(row.segment_base, LOG))
        expected = data[row.data_at : row.data_at + row.size_bytes]
        if _bytes_at(path, row.position, row.size_bytes) != expected:
            waiting[where] = waiting.get(where, 0) + row.size_bytes


def _bytes_at(path: str, position: int, size: int) -> bytes:
    try:
        with opened(path) as file:
            return read_range(MACHINE_FILES, file, size, position)
    except FileNotFoundError:
        return b""


def _finding(where: TopicPartition | None, kind: Kind, place: str, reason: object) -> Finding:
    return Finding(where, -1, -1, place, str(reason), kind)
