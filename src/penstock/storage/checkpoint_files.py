"""`partitions.checkpoint` and its copy: a start needs one of them.

Both are written one after the other and get their names before journal files are used again, so the
older one of them is good for a start as well. Where one is damaged the other one is taken; what was
damaged is kept beside them, as `.quarantined`, until somebody removes it.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import NamedTuple

from penstock.base.files import Files, read_file, sync_directory, write_file
from penstock.storage.errors import CorruptFile
from penstock.storage.formats.checkpoint import Checkpoint, decode_checkpoint
from penstock.storage.limits import CHECKPOINT_FILE_BYTES_MAX
from penstock.storage.names import (
    CHECKPOINT_COPY_FILE,
    CHECKPOINT_FILE,
    JOURNAL_DIRECTORY,
    QUARANTINED,
)


class FoundCheckpoint(NamedTuple):
    """What the files say; no checkpoint if there is none, or none that is whole."""

    checkpoint: Checkpoint | None
    damaged: dict[str, CorruptFile]
    """By the file's path."""


def write_checkpoint(files: Files, root: str, data: bytes) -> None:
    """Put both files in their places, on disk when this is done.

    Raises:
        OSError: that cannot be done.
    """
    paths = [os.path.join(root, name) for name in (CHECKPOINT_FILE, CHECKPOINT_COPY_FILE)]
    for path in paths:
        write_file(files, f"{path}.tmp", data, sync=True)
    for path in paths:
        files.rename(f"{path}.tmp", path)
    sync_directory(files, root)


def read_checkpoint(files: Files, root: str) -> FoundCheckpoint:
    """The first of both files that is whole.

    Raises:
        OSError: one cannot be read.
    """
    damaged: dict[str, CorruptFile] = {}
    for name in (CHECKPOINT_FILE, CHECKPOINT_COPY_FILE):
        path = os.path.join(root, name)
        try:
            data = read_file(files, path, CHECKPOINT_FILE_BYTES_MAX)
            return FoundCheckpoint(decode_checkpoint(data), damaged)
        except FileNotFoundError:
            continue
        except CorruptFile as error:
            damaged[path] = CorruptFile(f"{path}: {error}")
    return FoundCheckpoint(None, damaged)


def keep_damaged(files: Files, found: FoundCheckpoint) -> None:
    """Copy damaged files beside themselves, where the next checkpoint leaves them; of each the
    newest.

    Raises:
        OSError: that cannot be done.
    """
    for path in found.damaged:
        data = read_file(files, path, CHECKPOINT_FILE_BYTES_MAX)
        write_file(files, path + QUARANTINED, data, sync=True)


def set_aside(files: Files, root: str) -> list[str]:
    """What starts have kept of a store's damaged journal and checkpoints.

    Raises:
        OSError: the directories cannot be listed.
    """
    found: list[str] = []
    for directory in root, os.path.join(root, JOURNAL_DIRECTORY):
        with suppress(FileNotFoundError):
            names = sorted(files.names_in(directory))
            found += [os.path.join(directory, name) for name in names if name.endswith(QUARANTINED)]
    return found
