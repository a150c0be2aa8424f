"""The file calls of a directory store, one method each, so that tests can fail any of them."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import Final

from penstock.objects import limits
from penstock.objects.port import Buffer

FILE_MODE: Final = 0o666
DIRECTORY_MODE: Final = 0o777
"""Both less the process's umask: who may read is the deployment's decision."""

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
_READ: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class MachineFiles:
    """Calls below open directories; every one raises OSError when it fails."""

    def open_directory(self, directory: int, name: str) -> int:
        """Open a directory; ENOTDIR for a symlink."""
        return os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=directory)

    def make_directory(self, directory: int, name: str) -> None:
        os.mkdir(name, DIRECTORY_MODE, dir_fd=directory)

    def create(self, directory: int, name: str) -> int:
        """Create a file for writing; EEXIST when the name is taken."""
        return os.open(name, _CREATE, FILE_MODE, dir_fd=directory)

    def open(self, directory: int, name: str) -> int:
        """Open a file for reading; ELOOP for a symlink."""
        return os.open(name, _READ, dir_fd=directory)

    def write(self, file: int, buffers: Sequence[memoryview]) -> int:
        """Write some of the buffers, in order; the number of bytes written."""
        return os.writev(file, buffers)

    def read(self, file: int, size_bytes: int, position: int) -> bytes:
        return os.pread(file, size_bytes, position)

    def sync_file(self, file: int) -> None:
        os.fdatasync(file)

    def sync_directory(self, directory: int) -> None:
        os.fsync(directory)

    def link(self, source: int, name: str, directory: int, target: str) -> None:
        """Give a file a second name; EEXIST when it is taken."""
        os.link(name, target, src_dir_fd=source, dst_dir_fd=directory, follow_symlinks=False)

    def remove(self, directory: int, name: str) -> None:
        os.unlink(name, dir_fd=directory)


def open_root(path: str | os.PathLike[str]) -> int:
    """Open the directory itself, through symlinks if need be."""
    return os.open(path, _DIRECTORY)


def write_all(files: MachineFiles, file: int, pieces: Sequence[Buffer]) -> int:
    """Write every byte of the pieces in order; the number of bytes."""
    buffers = [memoryview(piece).cast("B") for piece in pieces if len(piece)]
    total = sum(map(len, buffers))
    first = 0
    while first < len(buffers):
        written = files.write(file, buffers[first : first + limits.BUFFERS_PER_CALL_MAX])
        if written <= 0:
            raise OSError(errno.EIO, "no byte of the file could be written")
        while first < len(buffers) and written >= len(buffers[first]):
            written -= len(buffers[first])
            first += 1
        if written:
            buffers[first] = buffers[first][written:]
    return total


def read_range(files: MachineFiles, file: int, start: int, size_bytes: int) -> bytes:
    """Read a range; fewer bytes only where the file ends."""
    content = files.read(file, size_bytes, start)
    if len(content) in (0, size_bytes):
        return content
    parts = [content]
    size = len(content)
    while size < size_bytes:
        content = files.read(file, size_bytes - size, start + size)
        if not content:
            break
        parts.append(content)
        size += len(content)
    return b"".join(parts)
