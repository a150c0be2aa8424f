"""Walk of the directories below a root, hour by hour, with a limited number of entries in memory.

    for hour in walk(files, root, Window()):
        for batches in looks(files, hour): ...

Every directory is opened relative to its parent, without following symlinks (`O_NOFOLLOW`). It
stays open while its entries are walked, so a rename cannot redirect the walk. Names that do not
follow the layout are counted and otherwise ignored. A directory that is removed during the walk is
skipped.

`TreeFiles` has one method per file call, so that tests can fail or record any call, or kill the
process.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec import Struct, field

from penstock.outbox.errors import RootUnavailable
from penstock.outbox.gc.pointer_index import Window
from penstock.outbox.layout import (
    BATCH_PATTERN,
    BATCH_PREFIX,
    DATA_FILE,
    PARTITION_PATTERN,
    is_temporary,
)

ENTRIES_PER_STEP: Final = 16_384
"""Batch directories that one step of a walk returns."""
FILES_PER_BATCH_MAX: Final = 1_024
"""Entries of a batch directory that one sweep processes. Later sweeps process the rest."""
NOTES_MAX: Final = 1_000
"""Findings in a report. Further ones are only counted."""

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LEVELS: Final = (
    re.compile(rf"(?!\.{{1,2}}$){PARTITION_PATTERN}()", re.ASCII),
    re.compile(r"year=(\d{4})", re.ASCII),
    re.compile(r"month=(\d\d)", re.ASCII),
    re.compile(r"day=(\d\d)", re.ASCII),
    re.compile(r"hour=(\d\d)", re.ASCII),
)
_BATCH: Final = re.compile(rf"{BATCH_PREFIX}{BATCH_PATTERN}", re.ASCII)
NANOSECONDS_PER_MILLISECOND: Final = 1_000_000


class Entry(Struct, frozen=True):
    """A name in a directory. `is_directory` is false for a symlink to a directory."""

    name: str
    is_directory: bool


class TreeFiles:
    """File calls of sweeper and audit. Each raises OSError on failure."""

    def open_root(self, path: Path) -> int:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def open_directory(self, directory: int, name: str) -> int:
        """Open a directory. Raises ELOOP or ENOTDIR for a symlink."""
        return os.open(name, _DIRECTORY, dir_fd=directory)

    def entries(self, directory: int) -> Iterator[Entry]:
        with os.scandir(directory) as found:
            for entry in found:
                yield Entry(entry.name, entry.is_dir(follow_symlinks=False))

    def stat(self, directory: int, name: str) -> os.stat_result:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)

    def stat_directory(self, directory: int) -> os.stat_result:
        return os.fstat(directory)

    def remove_file(self, directory: int, name: str) -> None:
        os.unlink(name, dir_fd=directory)

    def remove_directory(self, directory: int, name: str) -> None:
        """Remove an empty directory. Raises ENOTEMPTY for a directory with entries."""
        os.rmdir(name, dir_fd=directory)

    def close(self, handle: int) -> None:
        os.close(handle)


class File(Struct, frozen=True, kw_only=True):
    name: str
    size_bytes: int
    modified_ms: int
    identity: tuple[int, int, int]
    """Inode, modification time in nanoseconds, and size. A newer file of the name has others."""


class Batch(Struct, frozen=True, kw_only=True):
    """Snapshot of a batch directory. `others` counts entries that do not follow the layout."""

    name: str
    modified_ms: int
    data: File | None
    temporaries: tuple[File, ...]
    others: int
    whole: bool
    """Whether the snapshot has all entries of the directory."""


class Hour(Struct, frozen=True, kw_only=True):
    """Directory of an hour. It is open until `walk` yields the next one."""

    handle: int
    path: str
    """Path relative to the root."""
    hour: str
    """Ten digits: year, month, day, hour."""


class WalkCounts(Struct):
    foreign: int = 0
    failed: list[str] = field(default_factory=list)
    failures: int = 0

    def fail(self, path: str, error: OSError) -> None:
        self.failures += 1
        if len(self.failed) < NOTES_MAX:
            self.failed.append(f"{path}: {error.strerror}")


Leave = Callable[[int, str, str, int], None]
"""Callback that is called after a directory has been walked.

It takes the handle of the parent, the name, the path, and the modification time in milliseconds
from before the walk.
"""


def open_root(files: TreeFiles, root: Path) -> int:
    """Open the root of an outbox; return its handle.

    Raises:
        RootUnavailable: the root is missing, or is not a directory.
    """
    try:
        return files.open_root(root)
    except OSError as error:
        raise RootUnavailable(f"outbox root {root}: {error.strerror}") from None


def walk(
    files: TreeFiles,
    root: int,
    window: Window,
    counts: WalkCounts,
    leave: Leave | None = None,
) -> Iterator[Hour]:
    """Yield the hours of a window, partition by partition. Closes each directory after its walk."""
    try:
        yield from _descend(files, root, window, counts, leave, (), "")
    except OSError as error:
        counts.fail(".", error)


def _descend(
    files: TreeFiles,
    above: int,
    window: Window,
    counts: WalkCounts,
    leave: Leave | None,
    names: tuple[str, ...],
    digits: str,
) -> Iterator[Hour]:
    pattern = _LEVELS[len(names)]
    for entry in files.entries(above):
        found = pattern.fullmatch(entry.name)
        if found is None or not entry.is_directory:
            counts.foreign += 1
            continue
        below = digits + found.group(1)
        if below and not window.touches_hour(below):
            continue
        path = "/".join((*names, entry.name))
        handle = _open(files, above, entry.name, path, counts)
        if handle is None:
            continue
        try:
            modified_ms = _modified_ms(files.stat_directory(handle))
            if len(names) == len(_LEVELS) - 1:
                yield Hour(handle=handle, path=path, hour=below)
            else:
                inner = (*names, entry.name)
                yield from _descend(files, handle, window, counts, leave, inner, below)
        except OSError as error:
            counts.fail(path, error)
            continue
        finally:
            files.close(handle)
        if leave is not None:
            leave(above, entry.name, path, modified_ms)


def looks(files: TreeFiles, hour: Hour, counts: WalkCounts) -> Iterator[list[Batch]]:
    """Yield the batches of an hour, in lists of at most `ENTRIES_PER_STEP`."""
    step: list[Batch] = []
    for entry in _entries(files, hour, counts):
        if _BATCH.fullmatch(entry.name) is None or not entry.is_directory:
            counts.foreign += 1
            continue
        batch = _look(files, hour, entry.name, counts)
        if batch is not None:
            step.append(batch)
        if len(step) == ENTRIES_PER_STEP:
            yield step
            step = []
    if step:
        yield step


def _entries(files: TreeFiles, hour: Hour, counts: WalkCounts) -> Iterator[Entry]:
    try:
        yield from files.entries(hour.handle)
    except OSError as error:
        counts.fail(hour.path, error)


def _look(files: TreeFiles, hour: Hour, name: str, counts: WalkCounts) -> Batch | None:
    path = f"{hour.path}/{name}"
    handle = _open(files, hour.handle, name, path, counts)
    if handle is None:
        return None
    data: File | None = None
    temporaries: list[File] = []
    others, whole = 0, True
    try:
        modified_ms = _modified_ms(files.stat_directory(handle))
        for number, entry in enumerate(files.entries(handle)):
            if number == FILES_PER_BATCH_MAX:
                whole = False
                break
            known = entry.name == DATA_FILE or is_temporary(entry.name)
            found = _file(files, handle, entry.name) if known else None
            if found is None:
                others += 1
            elif entry.name == DATA_FILE:
                data = found
            else:
                temporaries.append(found)
    except OSError as error:
        counts.fail(path, error)
        return None
    finally:
        files.close(handle)
    counts.foreign += others
    return Batch(
        name=name, modified_ms=modified_ms, data=data, temporaries=tuple(temporaries),
        others=others, whole=whole,
    )  # fmt: skip


def _file(files: TreeFiles, handle: int, name: str) -> File | None:
    with suppress(FileNotFoundError):
        found = files.stat(handle, name)
        if stat.S_ISREG(found.st_mode):
            return File(
                name=name,
                size_bytes=found.st_size,
                modified_ms=_modified_ms(found),
                identity=identity_of(found),
            )
    return None


def identity_of(found: os.stat_result) -> tuple[int, int, int]:
    """Return values that differ for a newer file of the same name."""
    return found.st_ino, found.st_mtime_ns, found.st_size


def _modified_ms(found: os.stat_result) -> int:
    return found.st_mtime_ns // NANOSECONDS_PER_MILLISECOND


def _open(files: TreeFiles, above: int, name: str, path: str, counts: WalkCounts) -> int | None:
    try:
        return files.open_directory(above, name)
    except FileNotFoundError:
        return None
    except OSError as error:
        counts.fail(path, error)
        return None
