"""Files with secrets: only their owner can read them, and they are written atomically."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from penstock.base.files import MACHINE_FILES, sync_directory, write_all
from penstock.security.data.key_ring import KeyRingUnusable

FILE_MODE: Final = 0o600
FOLDER_MODE: Final = 0o700
_OTHERS: Final = 0o077


def check_private(path: Path) -> None:
    """Reject a file or directory of keys that other users can read or change.

    Raises:
        KeyRingUnusable: the path does not exist, belongs to another user, or its mode lets other
            users in.
    """
    try:
        found = path.stat()
    except OSError as error:
        raise KeyRingUnusable(f"{path}: {error.strerror}") from error
    mode = stat.S_IMODE(found.st_mode)
    if mode & _OTHERS:
        meant = FOLDER_MODE if stat.S_ISDIR(found.st_mode) else FILE_MODE
        raise KeyRingUnusable(
            f"{path} contains keys, but its mode {mode:04o} gives other users access. Run: "
            f"chmod {meant:04o} {path}"
        )
    user = os.geteuid()
    if user not in (0, found.st_uid):
        raise KeyRingUnusable(
            f"{path} contains keys, but belongs to user {found.st_uid} instead of {user}"
        )


def make_private_folder(folder: Path) -> None:
    """Create a directory that only its owner can use, or check an existing one.

    Raises:
        KeyRingUnusable: the directory exists, but gives other users access.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        folder.mkdir(mode=FOLDER_MODE)
        sync_directory(MACHINE_FILES, folder.parent)
    check_private(folder)


def write_private(path: Path, data: bytes) -> None:
    """Write a file that only its owner can read, atomically and durably."""
    beside = path.with_name(f"{path.name}.tmp")
    with suppress(FileNotFoundError):
        MACHINE_FILES.remove(beside)
    file = MACHINE_FILES.create(beside, mode=FILE_MODE)
    try:
        write_all(MACHINE_FILES, file, 0, [data])
        MACHINE_FILES.sync_file(file)
    finally:
        MACHINE_FILES.close(file)
    MACHINE_FILES.rename(beside, path)
    sync_directory(MACHINE_FILES, path.parent)
