"""The machine's file system behind the safe write's port, and a tree of directories.

`Tree` runs whole attempts on it, from several threads at
once, and keeps the hours' directories open between them: a directory that is open stays the one
that was walked to and synced, whatever happens to its name.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import stat
import threading
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.outbox import limits
from penstock.outbox.errors import OutboxClosed, RootUnavailable, StorageFull, storage_error
from penstock.outbox.paths import open_no_follow
from penstock.outbox.writer.safe_write import (
    NO_HANDLE,
    FileSystem,
    SafeWrite,
    WritePlan,
    Written,
)

FILE_MODE: Final = 0o666
DIRECTORY_MODE: Final = 0o777
"""Both less the process's umask: who may read is the deployment's decision."""

CHECKSUM_ATTRIBUTE: Final = "user.penstock.crc32c"
"""Extended attribute of a payload: the CRC32C of its content in eight hexadecimal digits."""
_CHECKSUM: Final = re.compile(rb"[0-9a-f]{8}")
CHECK_BYTES: Final = 4096
CHECK_PREFIX: Final = ".penstock-check-"
_RENAME_NOREPLACE: Final = 1
_CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_RANGE_WRITE: Final = 2  # SYNC_FILE_RANGE_WRITE; of offset 0 and length 0, that is the whole file
_SYNC_FILE_RANGE: Final = getattr(_LIBC, "sync_file_range", None)
if _SYNC_FILE_RANGE is not None:
    _SYNC_FILE_RANGE.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]


class MachineFiles:
    """The machine's own file system calls."""

    def open_root(self, path: Path) -> int:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def open_directory(self, directory: int, name: str) -> int:
        return open_no_follow(directory, name, os.O_RDONLY | os.O_DIRECTORY)

    def make_directory(self, directory: int, name: str) -> None:
        os.mkdir(name, DIRECTORY_MODE, dir_fd=directory)

    def size_of(self, directory: int, name: str) -> int:
        found = os.stat(name, dir_fd=directory, follow_symlinks=False)
        if not stat.S_ISREG(found.st_mode):
            number = errno.ELOOP if stat.S_ISLNK(found.st_mode) else errno.EISDIR
            raise OSError(number, os.strerror(number), name)
        return found.st_size

    def open_file(self, directory: int, name: str) -> int:
        return open_no_follow(directory, name, os.O_RDONLY)

    def recorded_checksum(self, file: int) -> int:
        text = os.getxattr(file, CHECKSUM_ATTRIBUTE)
        if not _CHECKSUM.fullmatch(text):
            raise OSError(errno.ENODATA, os.strerror(errno.ENODATA), CHECKSUM_ATTRIBUTE)
        return int(text, 16)

    def read(self, file: int, buffers: Sequence[memoryview]) -> int:
        return os.readv(file, buffers)

    def create(self, directory: int, name: str) -> int:
        return os.open(name, _CREATE, FILE_MODE, dir_fd=directory)

    def write(self, file: int, buffers: Sequence[memoryview]) -> int:
        return os.writev(file, buffers)

    def start_write_back(self, file: int) -> None:
        if _SYNC_FILE_RANGE is not None:
            _SYNC_FILE_RANGE(file, 0, 0, _RANGE_WRITE)

    def record_checksum(self, file: int, crc: int) -> None:
        os.setxattr(file, CHECKSUM_ATTRIBUTE, b"%08x" % crc)

    def sync_file(self, file: int) -> None:
        os.fdatasync(file)

    def sync_directory(self, directory: int) -> None:
        os.fsync(directory)

    def rename(self, directory: int, name: str, target: str) -> None:
        rename_new(directory, name, target)

    def link(self, directory: int, name: str, target: str) -> None:
        os.link(name, target, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=False)

    def remove(self, directory: int, name: str) -> None:
        os.unlink(name, dir_fd=directory)

    def close(self, handle: int) -> None:
        os.close(handle)


def rename_new(directory: int, name: str, target: str) -> None:
    """`renameat2(RENAME_NOREPLACE)`, which Python does not offer.

    Raises:
        OSError: EEXIST when the target is taken; EINVAL where the file system, ENOSYS where the
            kernel or the C library does not have it.
    """
    call = getattr(_LIBC, "renameat2", None)
    if call is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), name)
    result = call(directory, os.fsencode(name), directory, os.fsencode(target), _RENAME_NOREPLACE)
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)


def _unnamed(directory: int) -> int:
    """A new file without a name; one that has lost it where the file system (NFS) has no other."""
    flags = os.O_WRONLY | os.O_CLOEXEC
    try:
        return os.open(".", flags | os.O_TMPFILE, FILE_MODE, dir_fd=directory)
    except OSError as error:
        if error.errno not in {errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL}:
            raise
    name = f"{CHECK_PREFIX}{os.getpid()}"
    file = os.open(name, flags | os.O_CREAT | os.O_NOFOLLOW, FILE_MODE, dir_fd=directory)
    os.unlink(name, dir_fd=directory)
    return file


@dataclass(slots=True)
class _Hour:
    """An open directory of an hour. It is closed by the last of its users once it is dropped."""

    handle: int
    settled: bool
    users: int = 0
    dropped: bool = False


class Tree:
    """The tree below one root, for attempts from any number of threads.

    Raises:
        RootUnavailable: the root is not there or is no directory. It is not made: where it is a
            mount that is missing, that would fill the disk below it.
    """

    def __init__(
        self,
        root: Path,
        files: FileSystem | None = None,
        *,
        hours_max: int = limits.HOUR_DIRECTORIES_OPEN_MAX,
    ) -> None:
        self._files = files or MachineFiles()
        self._hours: OrderedDict[str, _Hour] = OrderedDict()
        self._hours_max = hours_max
        self._lock = threading.Lock()
        try:
            self._root = self._files.open_root(root)
        except OSError as error:
            name = errno.errorcode.get(error.errno or 0, str(error.errno))
            raise RootUnavailable(
                f"outbox root {root}: {name}; it must be a directory and is not made"
            ) from error

    def write(self, plan: WritePlan) -> Written:
        """Make one attempt; returns when the file is there, durable where the plan says so.

        Raises:
            PenstockError: as `SafeWrite.run`.
            OutboxClosed: `close` was called.
        """
        hour = self._borrow(plan.hour_directory)
        write = SafeWrite(
            plan,
            self._files,
            root=self._root,
            hour=hour.handle if hour else NO_HANDLE,
            hour_settled=hour.settled if hour else False,
        )
        done = False
        try:
            written = write.run()
            done = True
        finally:
            self._give_back(plan.hour_directory, hour, write, keep=done)
        return written

    def check(self, bytes_min: int) -> None:
        """Find out whether the file system takes a payload of `bytes_min`, by a file of 4 KiB that
        leaves nothing behind.

        Raises:
            PenstockError: it does not, and why.
        """
        if self._root == NO_HANDLE:
            raise OutboxClosed("outbox: its tree was closed")
        try:
            found = os.fstatvfs(self._root)
            free = found.f_bavail * found.f_frsize
            if free < bytes_min:
                raise StorageFull(
                    f"outbox root: {free} bytes are free, and a payload may have {bytes_min}"
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
        """Close all directories; no attempt may be under way or come after."""
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
                raise OutboxClosed("outbox: its tree was closed")
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
        """Keep a directory that an attempt opened; return handles to close in its place."""
        kept = self._hours.get(path)
        worse = kept is not None and (kept.settled or not write.hour_settled)
        if worse:
            return [write.opened_hour]
        closing = []
        if kept is not None and self._drop(path, kept):
            closing.append(kept.handle)
        self._hours[path] = _Hour(write.opened_hour, write.hour_settled)
        if len(self._hours) > self._hours_max:
            oldest, least_used = next(iter(self._hours.items()))
            if self._drop(oldest, least_used):
                closing.append(least_used.handle)
        return closing

    def _drop(self, path: str, hour: _Hour) -> bool:
        """Forget a directory; whether its handle is to be closed now, for it has no users."""
        if self._hours.get(path) is hour:
            del self._hours[path]
        if hour.dropped:
            return False
        hour.dropped = True
        return hour.users == 0

    def _close(self, handles: Sequence[int]) -> None:
        for handle in handles:
            # A directory that was only read has nothing to lose by a close that fails.
            with suppress(OSError):
                self._files.close(handle)
