r"""Swap of a compacted segment with the segments that it replaces; safe at every interruption.

    1  <base>.log.cleaned and its indexes are written and synced
    2  each file gets a second name, such as <base>.log.swap; this one is made last and decides
       the swap: from then on, the store or its next start completes it
    3  the old segments are renamed to .deleted, the .cleaned files to <base>.log and its indexes
    4  once these names are synced, the .swap names are removed, <base>.log.swap first

A start removes .cleaned files, and completes the swap of each .log.swap file. The name and the last
batch of that file state the offsets of the segments that it replaces.
During steps 3 and 4, nothing else may change the log's files. Otherwise a crash could leave a later
change on disk without the swap before it.

Source: Kafka's `UnifiedLog.replaceSegments` and `LogLoader.completeSwapOperations`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from penstock.base.files import Files, sync_directory
from penstock.storage.files.errors import CorruptLog, StorageFailed
from penstock.storage.files.values import (
    CLEANED,
    DELETED,
    INDEX,
    LOG,
    SEGMENT_SUFFIXES,
    SWAP,
    TIME_INDEX,
    TXN_INDEX,
    offset_name,
    parse_offset_name,
)
from penstock.storage.files.walk import walk_file

_INDEXES: Final = (INDEX, TIME_INDEX, TXN_INDEX)


def discard(files: Files, directory: str, base_offset: int) -> None:
    for suffix in SEGMENT_SUFFIXES:
        with suppress(OSError):
            files.remove(_path(directory, base_offset, suffix + CLEANED))


def decide(files: Files, directory: str, base_offset: int) -> None:
    """Decide a swap (step 2 above): give the new segment's files their `.swap` names.

    Raises:
        OSError: the step failed; nothing has changed.
        StorageFailed: the outcome is unknown.
    """
    try:
        for suffix in _INDEXES:
            _name_again(files, directory, base_offset, suffix)
        sync_directory(files, directory)
        _name_again(files, directory, base_offset, LOG)
        sync_directory(files, directory)
    except OSError:
        _undecide(files, directory, base_offset)
        raise


def _undecide(files: Files, directory: str, base_offset: int) -> None:
    try:
        for suffix in (LOG, *_INDEXES):
            with suppress(FileNotFoundError):
                files.remove(_path(directory, base_offset, suffix + SWAP))
        sync_directory(files, directory)
    except OSError as error:
        path = _path(directory, base_offset, LOG + SWAP)
        raise StorageFailed(f"cannot remove {path} to undo a swap: {error}") from error


def _name_again(files: Files, directory: str, base_offset: int, suffix: str) -> None:
    target = _path(directory, base_offset, suffix + SWAP)
    with suppress(FileNotFoundError):
        files.remove(target)
    files.link(_path(directory, base_offset, suffix + CLEANED), target)


def put_in_place(files: Files, directory: str, bases: Sequence[int]) -> list[str]:
    """Replace the segments with these base offsets by the new segment (step 3 above).

    The new segment takes the name of the first one. Returns the files to remove when no reader has
    them open.

    Raises:
        OSError: the step failed; the next start completes it.
    """
    gone: list[str] = []
    for base in bases[1:]:
        for suffix in SEGMENT_SUFFIXES:
            path = _path(directory, base, suffix)
            with suppress(FileNotFoundError):
                files.rename(path, path + DELETED)
                gone.append(path + DELETED)
    for suffix in (*_INDEXES, LOG):
        path = _path(directory, bases[0], suffix)
        _replace(files, path + CLEANED, path)
    return gone


def _replace(files: Files, source: str, target: str) -> None:
    """Rename a file to `target`; if it is an empty index of transactions, remove both instead."""
    if target.endswith(TXN_INDEX) and files.size_of(source) == 0:
        for path in source, target:
            with suppress(FileNotFoundError):
                files.remove(path)
    else:
        files.rename(source, target)


def release(files: Files, directory: str, base_offset: int) -> None:
    """End a swap (step 4 above): remove the `.swap` names, so that no start repeats the swap.

    Raises:
        StorageFailed: the step failed; the next start completes it.
    """
    path = _path(directory, base_offset, LOG + SWAP)
    try:
        sync_directory(files, directory)
        files.remove(path)
        sync_directory(files, directory)
        for suffix in _INDEXES:
            files.remove(_path(directory, base_offset, suffix + SWAP))
    except OSError as error:
        raise StorageFailed(f"the swap of {path} cannot be made durable: {error}") from error


def finish_swaps(
    files: Files, directory: str, names: Iterable[str], forget: Callable[[str], object]
) -> bool:
    """Complete the decided swaps in a log's directory; return whether there were any.

    Files of undecided swaps are removed. `forget` is called with files before they are replaced.

    Raises:
        CorruptLog: a compacted segment is damaged.
        OSError: the swap is incomplete; a retry is safe.
    """
    parsed = [name for name in map(parse_offset_name, names) if name is not None]
    decided = sorted(base for base, suffix in parsed if suffix == LOG + SWAP)
    for base, suffix in parsed:
        if suffix.endswith(CLEANED) or (suffix.endswith(SWAP) and base not in decided):
            files.remove(_path(directory, base, suffix))
    for base in decided:
        end = _end_of(files, _path(directory, base, LOG + SWAP))
        for other, suffix in parsed:
            if base < other < end and suffix in SEGMENT_SUFFIXES:
                _remove(files, _path(directory, other, suffix), forget)
        for suffix in _INDEXES:
            _put_again(files, _path(directory, base, suffix), forget)
        sync_directory(files, directory)
        _put_again(files, _path(directory, base, LOG), forget)
        sync_directory(files, directory)
    return bool(decided)


def _put_again(files: Files, path: str, forget: Callable[[str], object]) -> None:
    """Rename one file of a decided swap to its final name, unless that was done before a crash."""
    try:
        files.size_of(path + SWAP)
    except FileNotFoundError:
        return
    # A rename between two names of the same file would do nothing.
    _remove(files, path, forget)
    _replace(files, path + SWAP, path)


def _remove(files: Files, path: str, forget: Callable[[str], object]) -> None:
    forget(path)
    with suppress(FileNotFoundError):
        files.remove(path)


def _end_of(files: Files, path: str) -> int:
    end = max([batch.header.next_offset for batch in walk_file(files, path)], default=-1)
    if end < 0:
        raise CorruptLog(Path(path), 0, "the compacted segment has no batch")
    return end


def _path(directory: str, base_offset: int, suffix: str) -> str:
    return os.path.join(directory, offset_name(base_offset, suffix))
