"""Cutting a log's files at a truncation: by the log when the journal has it, and by every replay.

It comes to the same however often it is done and wherever it is broken off. What it does is not
synced: the caller sees to it before the journal entry that says so may go.
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
    """End a log at byte `position` of one segment, where `end_offset` would begin.

    Segments behind it go, and so does its own file when nothing is left of it; its indexes, which
    are made anew, but that of transactions, which is cut; and snapshots of producers beyond the
    end, which a log that reaches those offsets again would take for its own. `forget` is told of
    files before they go.

    Raises:
        OSError: some of it is not done.
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
    """Leave of a `.txnindex` what is about offsets below one, up to what is no whole entry.

    Synced at once, as it is rare: what is cut must not come back when the log has other batches.

    Raises:
        OSError: it is not done.
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
    """Leave nothing of a log, which begins anew at an offset, but `producers`, as `.batches` has
    them.

    Raises:
        OSError: some of it is not done.
    """
    cut_files(files, directory, segment_base=0, position=0, end_offset=-1, forget=forget)
    if producers:
        path = os.path.join(directory, offset_name(offset, RECENT_BATCHES))
        replace_file(files, path, producers, durable=False)
