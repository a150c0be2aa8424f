"""Directories of an outbox, in which several threads write payloads.

`Tree` runs attempts (`SafeWrite`). Between them, it keeps the directories of hours open, so that
later attempts need not walk to them and sync their parents again. An open directory stays the same
even if it is renamed.
"""

from __future__ import annotations

import errno
import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec import Struct

from penstock.base.files import MACHINE_FILES, Files
from penstock.outbox.errors import OutboxClosed, RootUnavailable, StorageFull, storage_error
from penstock.outbox.writer.safe_write import NO_HANDLE, SafeWrite, WritePlan, Written

HOUR_DIRECTORIES_OPEN_MAX: Final = 128
"""Hour directories that a writer keeps open. Beyond it, the least recently used is closed."""

CHECK_BYTES: Final = 4096
CHECK_PREFIX: Final = ".penstock-check-"
_FILE_MODE: Final = 0o600


def _unnamed(directory: int) -> int:
    """Return a new file without a name.

    Where this is not supported (NFS), create a file and unlink it.
    """
    flags = os.O_WRONLY | os.O_CLOEXEC
    try:
        return os.open(".", flags | os.O_TMPFILE, _FILE_MODE, dir_fd=directory)
    except OSError as error:
        if error.errno not in {errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL}:
            raise
    name = f"{CHECK_PREFIX}{os.getpid()}"
    file = os.open(name, flags | os.O_CREAT | os.O_NOFOLLOW, _FILE_MODE, dir_fd=directory)
    os.unlink(name, dir_fd=directory)
    return file


class _Hour(Struct):
    """Open directory of an hour. `users` is the number of attempts that use it.

    After it was dropped from the tree, its last user closes it.
    """

    handle: int
    durable: bool
    users: int = 0
    dropped: bool = False


class Tree:
    """Directories below one root, for attempts from any number of threads.

    Raises:
        RootUnavailable: the root is missing or is not a directory. It is never created, because
            writes below a missing mount would fill the local disk.
    """

    def __init__(
        self,
        root: Path,
        files: Files = MACHINE_FILES,
        *,
        hours_max: int = HOUR_DIRECTORIES_OPEN_MAX,
    ) -> None:
        self._files = files
        self._hours: OrderedDict[str, _Hour] = OrderedDict()
        self._hours_max = hours_max
        self._lock = threading.Lock()
        try:
            self._root = self._files.open_directory(root)
        except OSError as error:
            name = errno.errorcode.get(error.errno or 0, str(error.errno))
            raise RootUnavailable(
                f"outbox root {root}: {name}; the root must be an existing directory"
            ) from error

    def write(self, plan: WritePlan) -> Written:
        """Make one attempt. Return when the file is complete, and durable if the plan requires it.

        Raises:
            PenstockError: the attempt failed, see `SafeWrite.run`.
            OutboxClosed: `close` was called.
        """
        hour = self._borrow(plan.hour_directory)
        write = SafeWrite(
            plan,
            self._files,
            root=self._root,
            hour=hour.handle if hour else NO_HANDLE,
            hour_durable=hour.durable if hour else False,
        )
        done = False
        try:
            written = write.run()
            done = True
        finally:
            self._give_back(plan.hour_directory, hour, write, keep=done)
        return written

    def check(self, bytes_min: int) -> None:
        """Check with a temporary file whether the file system accepts `bytes_min` bytes.

        Raises:
            PenstockError: it does not. The error has the reason.
        """
        if self._root == NO_HANDLE:
            raise OutboxClosed("outbox: the writer is closed")
        try:
            found = os.fstatvfs(self._root)
            free = found.f_bavail * found.f_frsize
            if free < bytes_min:
                raise StorageFull(
                    f"outbox root: {free} bytes are free, but a payload may have {bytes_min}"
                )
            file = _unnamed(self._root)
            try:
                os.write(file, bytes(CHECK_BYTES))
                os.fdatasync(file)
            finally:
                os.close(file)
        except OSError as error:
            raise storage_error(error.errno or errno.EIO, "check", "outbox root") from error

    def close(self) -> None:
        with self._lock:
            root, self._root = self._root, NO_HANDLE
            hours = list(self._hours.values())
            self._hours.clear()
        self._close([hour.handle for hour in hours])
        if root != NO_HANDLE:
            self._close([root])

    def _borrow(self, path: str) -> _Hour | None:
        with self._lock:
            if self._root == NO_HANDLE:
                raise OutboxClosed("outbox: the writer is closed")
            hour = self._hours.get(path)
            if hour is not None:
                hour.users += 1
                self._hours.move_to_end(path)
            return hour

    def _give_back(self, path: str, hour: _Hour | None, write: SafeWrite, *, keep: bool) -> None:
        closing: list[int] = []
        with self._lock:
            if hour is not None:
                hour.users -= 1
                if write.hour_is_stale:
                    self._drop(path, hour)
                if hour.dropped and not hour.users:
                    closing.append(hour.handle)
            if write.opened_hour != NO_HANDLE:
                closing += self._keep(path, write) if keep else [write.opened_hour]
        self._close(closing)

    def _keep(self, path: str, write: SafeWrite) -> list[int]:
        """Keep a directory that an attempt opened. Return handles that the caller must close."""
        kept = self._hours.get(path)
        worse = kept is not None and (kept.durable or not write.hour_durable)
        if worse:
            return [write.opened_hour]
        closing = []
        if kept is not None and self._drop(path, kept):
            closing.append(kept.handle)
        self._hours[path] = _Hour(write.opened_hour, write.hour_durable)
        if len(self._hours) > self._hours_max:
            oldest, least_used = next(iter(self._hours.items()))
            if self._drop(oldest, least_used):
                closing.append(least_used.handle)
        return closing

    def _drop(self, path: str, hour: _Hour) -> bool:
        """Drop a directory.

        Return whether it has no users, in which case the caller must close it.
        """
        if self._hours.get(path) is hour:
            del self._hours[path]
        if hour.dropped:
            return False
        hour.dropped = True
        return hour.users == 0

    def _close(self, handles: Sequence[int]) -> None:
        for handle in handles:
            # A failed close of a directory loses nothing.
            with suppress(OSError):
                self._files.close(handle)
