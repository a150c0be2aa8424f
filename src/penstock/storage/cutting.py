"""Truncation of a log's files.

A log calls these functions once the journal entry of the truncation is durable; every replay of
that entry calls them again. The functions are therefore idempotent, and may be interrupted at any
point. The caller syncs their effects before the journal entry may be freed.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from penstock.base.files import Files, read_file, replace_file
from penstock.storage.formats.transaction_index import ENTRY_BYTES, TransactionIndex
from penstock.storage.names import (
    INDEX,
    LOG,
    RECENT_BATCHES,
    SEGMENT_SUFFIXES,
    SNAPSHOT,
    TIME_INDEX,
    TXN_INDEX,
    offset_name,
    parse_offset_name,
)
from penstock.storage.values import Buffer


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
