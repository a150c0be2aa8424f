"""The port to the file system, and the descriptors that are kept open.

`Files` is the real thing; the simulator and the tests hand in others that fail, tear writes or
record them. Calls are few and large on the hot path, so that one Python call around a system
call does not matter.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from penstock.base.durable import sync_directory
from penstock.storage.errors import DiskFull
from penstock.storage.limits import BUFFERS_PER_CALL_MAX
from penstock.storage.values import Buffer

NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class Files:
    """File operations as the storage needs them; all raise `OSError`."""

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> int:
        flags = (os.O_RDONLY if read_only else os.O_RDWR) | os.O_CLOEXEC
        return os.open(path, flags | os.O_CREAT if create else flags, 0o644)

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def read_at(self, descriptor: int, size_bytes: int, position: int) -> bytes:
        """Fewer bytes only at the end of the file."""
        data = os.pread(descriptor, size_bytes, position)
        if len(data) == size_bytes or not data:
            return data
        parts = [data]
        got = len(data)
        while got < size_bytes:
            data = os.pread(descriptor, size_bytes - got, position + got)
            if not data:
                break
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def write_at(self, descriptor: int, position: int, buffers: Sequence[Buffer]) -> int:
        """One system call; returns what it wrote, which may be less than all."""
        return os.pwritev(descriptor, buffers, position)

    def sync(self, descriptor: int) -> None:
        os.fdatasync(descriptor)

    def truncate(self, descriptor: int, size_bytes: int) -> None:
        os.ftruncate(descriptor, size_bytes)

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def list(self, path: str) -> list[str]:
        return os.listdir(path)

    def make_directory(self, path: str) -> None:
        os.mkdir(path, 0o755)

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def remove(self, path: str) -> None:
        os.unlink(path)

    def remove_tree(self, path: str) -> None:
        shutil.rmtree(path, ignore_errors=True)

    def read(self, path: str, *, max_bytes: int = 1 << 30) -> bytes:
        with open(path, "rb") as file:
            return file.read(max_bytes)

    def sync_directory(self, path: str) -> None:
        sync_directory(path)

    def write_new(self, path: str, data: bytes) -> None:
        """Write a small file of a new directory, unsynced."""
        descriptor = self.open(path, create=True)
        try:
            write_all(self, descriptor, 0, [data])
        finally:
            self.close(descriptor)

    def write(self, path: str, data: bytes, *, sync: bool, sync_directory: bool = True) -> None:
        """Write a small file beside its old version, then put it in its place."""
        temporary = path + ".tmp"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            write_all(self, descriptor, 0, [data])
            if sync:
                self.sync(descriptor)
        finally:
            os.close(descriptor)
        self.rename(temporary, path)
        if sync and sync_directory:
            self.sync_directory(os.path.dirname(path))


def write_all(files: Files, descriptor: int, position: int, buffers: Sequence[Buffer]) -> int:
    """Write all buffers at `position`, over as many calls as it takes; returns the end."""
    count = len(buffers)
    if count == 1:
        written = files.write_at(descriptor, position, buffers)
        if written == len(buffers[0]):
            return position + written
        return _finish(files, descriptor, position + written, buffers, written)
    start = 0
    while start < count:
        part = (
            buffers[start : start + BUFFERS_PER_CALL_MAX]
            if count > BUFFERS_PER_CALL_MAX
            else (buffers)
        )
        start += len(part)
        wanted = sum(map(len, part))
        written = files.write_at(descriptor, position, part)
        position += written
        if written != wanted:
            position = _finish(files, descriptor, position, part, written)
    return position


def _finish(
    files: Files, descriptor: int, position: int, buffers: Sequence[Buffer], written: int
) -> int:
    """Write what a short write left over; the next call fails if the disk is full."""
    rest = memoryview(b"".join(buffers))[written:]
    while rest:
        count = files.write_at(descriptor, position, [rest])
        if count == 0:
            raise OSError(errno.ENOSPC, "a write wrote nothing")
        position += count
        rest = rest[count:]
    return position


def disk_full(error: OSError, path: str | Path) -> DiskFull | None:
    """The error to report if `error` says that there is no room, else None."""
    if error.errno in NO_SPACE:
        return DiskFull(Path(path), error.strerror or str(error))
    return None


class Handle:
    """An open file. Threads other than the owner's use it only while `users` counts them."""

    __slots__ = ("closing", "descriptor", "path", "users")

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor
        self.users = 0
        self.closing = False


class Descriptors:
    """The least recently used open files are closed; those in use by a thread stay.

    Belongs to the owner's thread; `pin` before a handle is given to another one.
    """

    def __init__(self, files: Files, limit: int) -> None:
        self._files = files
        self._limit = limit
        self._open: OrderedDict[str, Handle] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def get(self, path: str, *, create: bool = False) -> Handle:
        """The open file of a path; opened, and created if asked, when it is not."""
        handle = self._open.get(path)
        if handle is not None:
            self._open.move_to_end(path)
            return handle
        if len(self._open) >= self._limit:
            self._evict()
        handle = Handle(path, self._files.open(path, create=create))
        self._open[path] = handle
        return handle

    def pin(self, handle: Handle) -> Handle:
        handle.users += 1
        return handle

    def unpin(self, handle: Handle) -> None:
        handle.users -= 1
        if handle.closing and handle.users == 0:
            self._files.close(handle.descriptor)
        elif len(self._open) > self._limit:
            self._evict()

    def forget(self, path: str) -> None:
        """Close a file that is to be renamed or removed."""
        handle = self._open.pop(path, None)
        if handle is None:
            return
        if handle.users:
            handle.closing = True
        else:
            self._files.close(handle.descriptor)

    def close(self) -> None:
        for path in list(self._open):
            self.forget(path)

    def _evict(self) -> None:
        idle = next((path for path, handle in self._open.items() if handle.users == 0), None)
        if idle is not None:
            self.forget(idle)
