r"""A compacted segment takes the place of those it was made of; safe wherever it is broken off.

    1  <base>.log.cleaned and its indexes are written and synced
    2  each gets a second name, <base>.log.swap; the log's comes last, and is what counts:
       from here on the swap happens, by whoever comes first, the store or its next start
    3  the old segments become .deleted, the .cleaned files <base>.log and so on
    4  once these names are synced, the .swap names go, that of the log first

A start removes .cleaned files, and does again what a .swap file says: which segments it replaces
follows from its name, where it begins, and from its last batch, which reaches as far as they did.
While 3 and 4 are under way, nothing else may change the log's files: what comes later must not be
found without the swap that was before it.

Source: Kafka's `UnifiedLog.replaceSegments` and `LogLoader.completeSwapOperations`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from penstock.base.files import Files, sync_directory
from penstock.storage.errors import CorruptLog, StorageFailed
from penstock.storage.names import (
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
from penstock.storage.segment import walk

_INDEXES: Final = (INDEX, TIME_INDEX, TXN_INDEX)


def discard(files: Files, directory: str, base_offset: int) -> None:
    """Remove what was written of a segment that nobody wants."""
    for suffix in SEGMENT_SUFFIXES:
        with suppress(OSError):
            files.remove(_path(directory, base_offset, suffix + CLEANED))


def decide(files: Files, directory: str, base_offset: int) -> None:
    """Step 2.

    Raises:
        OSError: it is not done; nothing has happened.
        StorageFailed: nobody knows whether it is done.
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
        raise StorageFailed(f"{path} cannot be taken back: {error}") from error


def _name_again(files: Files, directory: str, base_offset: int, suffix: str) -> None:
    target = _path(directory, base_offset, suffix + SWAP)
    with suppress(FileNotFoundError):
        files.remove(target)
    files.link(_path(directory, base_offset, suffix + CLEANED), target)


def put_in_place(files: Files, directory: str, bases: Sequence[int]) -> list[str]:
    """Step 3, for the segments with these bases, of which the first one's name stays.

    Returns the files that are to be removed when nobody reads them any more.

    Raises:
        OSError: it is not done; the next start does it.
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
    """Put a file into the place of another; there is no index of transactions without any."""
    if target.endswith(TXN_INDEX) and files.size_of(source) == 0:
        for path in source, target:
            with suppress(FileNotFoundError):
                files.remove(path)
    else:
        files.rename(source, target)


def settle(files: Files, directory: str, base_offset: int) -> None:
    """Step 4.

    Raises:
        StorageFailed: it is not done; the next start does it.
    """
    path = _path(directory, base_offset, LOG + SWAP)
    try:
        sync_directory(files, directory)
        files.remove(path)
        sync_directory(files, directory)
        for suffix in _INDEXES:
            files.remove(_path(directory, base_offset, suffix + SWAP))
    except OSError as error:
        raise StorageFailed(f"what {path} says cannot be made durable: {error}") from error


def finish_swaps(
    files: Files, directory: str, names: Iterable[str], forget: Callable[[str], object]
) -> bool:
    """Do what the names in a directory say was under way; whether some of them are others now.

    `forget` is told of files before they go.

    Raises:
        CorruptLog: a segment that is to take the place of others is damaged.
        OSError: some of it is not done, and may be tried again.
    """
    parsed = [one for one in map(parse_offset_name, names) if one is not None]
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
    """Step 3 of one file, unless that has been done before a crash."""
    try:
        files.size_of(path + SWAP)
    except FileNotFoundError:
        return
    # Two names of one file are left as they are by a rename.
    _remove(files, path, forget)
    _replace(files, path + SWAP, path)


def _remove(files: Files, path: str, forget: Callable[[str], object]) -> None:
    forget(path)
    with suppress(FileNotFoundError):
        files.remove(path)


def _end_of(files: Files, path: str) -> int:
    """The offset behind the last batch of a segment's file."""
    file = files.open_file(path)
    try:
        end = -1
        for _, header in walk(files, file, path, 0, files.size(file), verify=False):
            end = header.next_offset
    finally:
        files.close(file)
    if end < 0:
        raise CorruptLog(Path(path), 0, "it is to take the place of other segments, and is empty")
    return end


def _path(directory: str, base_offset: int, suffix: str) -> str:
    return os.path.join(directory, offset_name(base_offset, suffix))
