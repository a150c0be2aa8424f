"""File lock that is released when its process ends."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

from penstock.base.errors import InvalidError


class Busy(InvalidError):
    """Lock of a file that another process holds."""

    code: ClassVar[str] = "invalid_request"


@contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Hold the lock of the file `path` while the block runs; `what` names the work in errors.

    Raises:
        Busy: another process holds the lock.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="ascii") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            owner = file.read().strip() or "unknown"
            raise Busy(f"{what} is already running as process {owner}: {path} is locked") from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
