"""Permissions of a broker's files: for its user only, or also for its group, whatever the umask.

SQLite gives the files beside a database the permissions of the database.

Source: SQLite's `findCreateFileMode`; PostgreSQL's `data_directory_mode`.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from penstock.apps.process.wiring import CONTROL, LOG

logger = logging.getLogger(__name__)

UMASKS: Final = {"owner": 0o077, "group": 0o027}
"""Umask by the value of `log.dirs.access`: the permissions that new files and directories do not
get.
"""
OTHERS: Final = 0o007


def protect(directory: Path, access: str) -> None:
    """Restrict the permissions of new files, and of existing ones in the data directory.

    Sets the umask of this process and its children. Removes from the files of the control database
    all permissions that `access` does not allow, and from directories those of other users.
    Failures are logged.

    Args:
        directory: the data directory; it need not exist.
        access: a key of `UMASKS`.
    """
    os.umask(UMASKS[access])
    for path in control_files(directory):
        _take(path, UMASKS[access])
    if (directory / CONTROL).exists() or (directory / LOG).exists():
        for path in sorted(directory.iterdir()):
            if path.is_dir():
                _take(path, OTHERS)


def control_files(directory: Path) -> Iterator[Path]:
    """Yield the files of the SQLite control database, with those that SQLite keeps beside it."""
    if directory.is_dir():
        yield from sorted(path for path in directory.glob(f"{CONTROL}*") if path.is_file())


def _take(path: Path, rights: int) -> None:
    """Remove permissions from a file or a directory, but not through a symbolic link."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return  # SQLite has removed it
    if path.is_symlink() or not mode & rights:
        return
    try:
        path.chmod(mode & ~rights)
    except OSError as error:
        logger.warning(
            "%s has mode %04o, which allows access by other users, and cannot be changed: %s."
            " Change its owner to the user of the broker, or run chmod %04o %s as its owner",
            path, mode, error.strerror, mode & ~rights, path,
        )  # fmt: skip
