"""Audit log file: a thread appends lines, and files are rotated by size.

audit.log, audit.log.1, audit.log.2, … from the newest to the oldest; `audit.log.files` of them
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import queue
import stat
import threading
from typing import TYPE_CHECKING, ClassVar, Final

from penstock.base.errors import InvalidError

if TYPE_CHECKING:
    from penstock.security.audit.log import Line

logger = logging.getLogger(__name__)

BATCH_LINES_MAX: Final = 1000
CLOSE_SECONDS: Final = 5.0
_FLAGS: Final = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_MODE: Final = 0o600


class AuditFileUnusable(InvalidError):
    """Audit log file that cannot be opened, or that another process has locked."""

    code: ClassVar[str] = "invalid_config"


class AuditFile:
    """Sink that writes audit lines to a file, from a thread of its own."""

    name = "file"

    def __init__(self, path: str, *, bytes_max: int, files_max: int, queue_max: int) -> None:
        """Open or create the file, and start the thread.

        Raises:
            AuditFileUnusable: the file cannot be opened or locked; the message has the reason.
        """
        self._path = path
        self._bytes_max = bytes_max
        self._files_max = files_max
        self.dropped = 0
        self._failing = False
        self._closed = False
        self._lines: queue.Queue[bytes | None] = queue.Queue(queue_max)
        try:
            self._file, self._size = _open(path)
        except OSError as error:
            raise AuditFileUnusable(f"audit.log.file {path}: {error.strerror}") from None
        self._thread = threading.Thread(target=self._work, name="audit", daemon=True)
        self._thread.start()

    def offer(self, line: Line) -> None:
        try:
            self._lines.put_nowait(line.text)
        except queue.Full:
            self.dropped += 1

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(queue.Full):
            self._lines.put(None, timeout=CLOSE_SECONDS)
        self._thread.join(CLOSE_SECONDS)

    def _work(self) -> None:
        going_on = True
        while going_on:
            lines = [self._lines.get()]
            with contextlib.suppress(queue.Empty):
                while len(lines) < BATCH_LINES_MAX:
                    lines.append(self._lines.get_nowait())
            going_on = None not in lines
            self._write([line for line in lines if line is not None])
        os.close(self._file)

    def _write(self, lines: list[bytes]) -> None:
        """Append lines; start a new file after the line that reaches the size limit."""
        begin = written = 0
        try:
            for end, line in enumerate(lines, 1):
                self._size += len(line)
                if self._size >= self._bytes_max or end == len(lines):
                    _append(self._file, b"".join(lines[begin:end]))
                    begin = written = end
                    if self._size >= self._bytes_max:
                        self._rotate()
            self._failing = False
        except OSError as error:
            self.dropped += len(lines) - written
            if not self._failing:
                logger.error(
                    "dropping audit events: cannot write audit.log.file %s: %s",
                    self._path,
                    error.strerror,
                )
            self._failing = True

    def _rotate(self) -> None:
        for number in range(self._files_max - 1, 0, -1):
            older = f"{self._path}.{number - 1}" if number > 1 else self._path
            with contextlib.suppress(FileNotFoundError):
                os.replace(older, f"{self._path}.{number}")
        if self._files_max == 1:
            os.unlink(self._path)
        old = self._file
        self._file, self._size = _open(self._path)
        os.close(old)


def _open(path: str) -> tuple[int, int]:
    """Open a file for appending and lock it; return its descriptor and its size in bytes."""
    file = os.open(path, _FLAGS, _MODE)
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(0, "not a regular file")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OSError(0, "another process has locked it") from None
    except OSError:
        os.close(file)
        raise
    return file, found.st_size


def _append(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]
