"""Two copies of the file `partitions.checkpoint`; a start of the store needs only one of them.

Both copies are written before journal files are reused, so a start may also use the older copy. If
one copy is damaged, the start uses the intact one. It keeps the damaged copy with the suffix
`.quarantined` until an operator removes it.
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
    """Newest valid checkpoint (None if there is none), and the errors of damaged copies."""

    checkpoint: Checkpoint | None
    damaged: dict[str, CorruptFile]
    """Error by file path."""


def write_checkpoint(files: Files, root: str, data: bytes) -> None:
    """Write and sync both files; raises OSError."""
    paths = [os.path.join(root, name) for name in (CHECKPOINT_FILE, CHECKPOINT_COPY_FILE)]
    for path in paths:
        write_file(files, f"{path}.tmp", data, sync=True)
    for path in paths:
        files.rename(f"{path}.tmp", path)
    sync_directory(files, root)


def read_checkpoint(files: Files, root: str) -> FoundCheckpoint:
    """Return the first valid copy, and the errors of damaged ones; raises OSError."""
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
    """Copy each damaged file to its `.quarantined` name; raises OSError."""
    for path in found.damaged:
        data = read_file(files, path, CHECKPOINT_FILE_BYTES_MAX)
        write_file(files, path + QUARANTINED, data, sync=True)


def set_aside(files: Files, root: str) -> list[str]:
    """Return the paths of quarantined journal and checkpoint files of a store; raises OSError."""
    found: list[str] = []
    for directory in root, os.path.join(root, JOURNAL_DIRECTORY):
        with suppress(FileNotFoundError):
            names = sorted(files.names_in(directory))
            found += [os.path.join(directory, name) for name in names if name.endswith(QUARANTINED)]
    return found
