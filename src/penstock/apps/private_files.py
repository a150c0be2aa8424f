"""Permissions of a broker's files: for its user, or for its group too, whatever the umask.

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

from penstock.apps.wiring import CONTROL, LOG

logger = logging.getLogger(__name__)

UMASKS: Final = {"owner": 0o077, "group": 0o027}
"""By the setting `log.dirs.access`: the rights that new files and directories do not get."""
OTHERS: Final = 0o007


def protect(directory: Path, access: str) -> None:
    """Make new files private, and existing ones in the data directory.

    Sets the umask of this process and its children. Files of the control database get no more than
    `access` gives; directories are closed to other users. Failures are logged.

    Args:
        directory: the data directory; it need not be there.
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
    """Yield the files of the control database, with SQLite's own beside it."""
    if directory.is_dir():
        yield from sorted(path for path in directory.glob(f"{CONTROL}*") if path.is_file())


def _take(path: Path, rights: int) -> None:
    """Remove rights from a file or a directory; symbolic links are ignored."""
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
            "%s has mode %04o, which lets other users read it, and cannot be changed: %s; give it"
            " to the user of the broker, or run chmod %04o %s as its owner",
            path, mode, error.strerror, mode & ~rights, path,
        )  # fmt: skip
