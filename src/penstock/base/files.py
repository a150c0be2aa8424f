"""Port to the file system: `Files` with its real implementation, and functions that use it.

Everything that must survive a crash is written through `Files`. `MachineFiles` implements it with
system calls. Tests pass implementations that record the calls, make them fail, or simulate a power
failure between them. A name is a path, or with `below` a name in that open directory. Paths follow
symlinks. Names in open directories do not, so that a user who can write to a directory cannot
redirect a writer out of it. The calls for appends and reads are the functions of Python's `os`
module, without a wrapper.

Source: fsync(2): a file's name is durable when its directory was synced; openat(2);
renameat2(2); sync_file_range(2).
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

Buffer = bytes | bytearray | memoryview
Name = str | Path

BUFFERS_PER_CALL_MAX: Final = 1024
"""Limit of buffers in one system call: IOV_MAX of Linux."""
READ_BYTES_MAX: Final = 1 << 30
"""Default limit of `read_file`."""

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY
_CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
_ALWAYS: Final = os.O_CLOEXEC | os.O_NOCTTY
_READ: Final = os.O_RDONLY | os.O_NONBLOCK | _ALWAYS
_RENAME_NOREPLACE: Final = 1
_RANGE_WRITE: Final = 2  # SYNC_FILE_RANGE_WRITE; offset 0 and length 0 mean the whole file
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_RENAMEAT2: Final = getattr(_LIBC, "renameat2", None)
_SYNC_FILE_RANGE: Final = getattr(_LIBC, "sync_file_range", None)
if _SYNC_FILE_RANGE is not None:
    _SYNC_FILE_RANGE.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]


class Files(Protocol):
    """Calls to the file system; each raises OSError on failure. Sizes and offsets are in bytes."""

    def open_directory(self, name: Name, /, below: int | None = None) -> int:
        """Open a directory; ELOOP for a symlink below an open one."""
        ...

    def make_directory(self, name: Name, /, below: int | None = None, mode: int = 0o777) -> None:
        """Create a directory; EEXIST when the name exists. The umask applies to the mode."""
        ...

    def names_in(self, path: Name, /) -> list[str]: ...

    def size_of(self, name: Name, /, below: int | None = None) -> int:
        """Return the size of a regular file; ELOOP for a symlink, EISDIR for anything else."""
        ...

    def open_file(self, name: Name, /, below: int | None = None) -> int:
        """Open a file for reading; ELOOP for a symlink below an open directory."""
        ...

    def create(self, name: Name, /, below: int | None = None, mode: int = 0o666) -> int:
        """Create a file for writing; EEXIST when the name exists."""
        ...

    def open(self, name: Name, /, *, create: bool = False, truncate: bool = False) -> int:
        """Open a file for reading and writing, and create or truncate it on request."""
        ...

    def lock(self, name: Name, /) -> int:
        """Open or create a file and lock it until it is closed; EWOULDBLOCK if it is locked."""
        ...

    def size(self, file: int, /) -> int: ...

    def read(self, file: int, buffers: Sequence[memoryview], /) -> int:
        """Read into the buffers, perhaps not all; return the number of bytes, 0 at the end."""
        ...

    def read_at(self, file: int, size: int, position: int, /) -> bytes:
        """Return at least one and at most `size` bytes from `position` on, none at the end."""
        ...

    def write(self, file: int, buffers: Sequence[Buffer], /) -> int:
        """Write the buffers in order, perhaps only a part; return the number of bytes written."""
        ...

    def write_at(self, file: int, buffers: Sequence[Buffer], position: int, /) -> int:
        """Write the buffers as `write` does, from `position` on; return the number of bytes."""
        ...

    def truncate(self, file: int, size: int, /) -> None: ...

    def set_mode(self, handle: int, mode: int, /) -> None:
        """Set permissions regardless of the umask; a directory keeps its setgid bit."""
        ...

    def start_write_back(self, file: int, /) -> None:
        """Let the kernel start to write back dirty pages, without waiting for the end."""
        ...

    def set_attribute(self, file: int, name: str, value: bytes, /) -> None:
        """Set an extended attribute; ENOTSUP if the file system does not support them."""
        ...

    def attribute(self, file: int, name: str, /) -> bytes:
        """Return an extended attribute; ENODATA if the file has none of this name."""
        ...

    def sync_file(self, file: int, /) -> None: ...

    def sync_directory(self, directory: int, /) -> None: ...

    def rename(self, name: Name, target: Name, /) -> None: ...

    def rename_new(self, name: Name, target: Name, /, below: int) -> None:
        """Rename within a directory, without replacing a file.

        EEXIST if the target exists; EINVAL or ENOSYS if the system does not support such a rename.
        """
        ...

    def link(
        self, name: Name, target: Name, /, below: int | None = None, target_below: int | None = None
    ) -> None:
        """Give a file a second name; EEXIST when that name exists."""
        ...

    def remove(self, name: Name, /, below: int | None = None) -> None: ...

    def remove_tree(self, path: Name, /) -> None: ...

    def close(self, handle: int, /) -> None: ...


class MachineFiles:
    names_in = staticmethod(os.listdir)
    read = staticmethod(os.readv)
    read_at = staticmethod(os.pread)
    write = staticmethod(os.writev)
    write_at = staticmethod(os.pwritev)
    truncate = staticmethod(os.ftruncate)
    set_attribute = staticmethod(os.setxattr)
    attribute = staticmethod(os.getxattr)
    sync_file = staticmethod(os.fdatasync)
    sync_directory = staticmethod(os.fsync)
    rename = staticmethod(os.rename)
    close = staticmethod(os.close)

    def open_directory(self, name: Name, /, below: int | None = None) -> int:
        if below is None:
            return os.open(name, _DIRECTORY | _ALWAYS)
        return open_no_follow(below, name, _DIRECTORY)

    def make_directory(self, name: Name, /, below: int | None = None, mode: int = 0o777) -> None:
        os.mkdir(name, mode, dir_fd=below)

    def size_of(self, name: Name, /, below: int | None = None) -> int:
        found = os.stat(name, dir_fd=below, follow_symlinks=below is None)
        if not stat.S_ISREG(found.st_mode):
            number = errno.ELOOP if stat.S_ISLNK(found.st_mode) else errno.EISDIR
            raise OSError(number, os.strerror(number), str(name))
        return found.st_size

    def open_file(self, name: Name, /, below: int | None = None) -> int:
        return os.open(name, _READ if below is None else _READ | os.O_NOFOLLOW, dir_fd=below)

    def create(self, name: Name, /, below: int | None = None, mode: int = 0o666) -> int:
        return os.open(name, _CREATE | _ALWAYS, mode, dir_fd=below)

    def open(self, name: Name, /, *, create: bool = False, truncate: bool = False) -> int:
        made = (os.O_CREAT if create else 0) | (os.O_TRUNC if truncate else 0)
        return os.open(name, os.O_RDWR | made | _ALWAYS, 0o644)

    def lock(self, name: Name, /) -> int:
        file = self.open(name, create=True)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(file)
            raise
        return file

    def size(self, file: int, /) -> int:
        return os.fstat(file).st_size

    def set_mode(self, handle: int, mode: int, /) -> None:
        os.fchmod(handle, mode | os.fstat(handle).st_mode & stat.S_ISGID)

    def start_write_back(self, file: int, /) -> None:
        if _SYNC_FILE_RANGE is not None:
            _SYNC_FILE_RANGE(file, 0, 0, _RANGE_WRITE)

    def rename_new(self, name: Name, target: Name, /, below: int) -> None:
        if _RENAMEAT2 is None:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), str(name))
        names = os.fsencode(name), os.fsencode(target)
        if _RENAMEAT2(below, names[0], below, names[1], _RENAME_NOREPLACE) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(name))

    def link(
        self, name: Name, target: Name, /, below: int | None = None, target_below: int | None = None
    ) -> None:
        os.link(name, target, src_dir_fd=below, dst_dir_fd=target_below, follow_symlinks=False)

    def remove(self, name: Name, /, below: int | None = None) -> None:
        os.unlink(name, dir_fd=below)

    def remove_tree(self, path: Name, /) -> None:
        shutil.rmtree(path, ignore_errors=True)


MACHINE_FILES: Final = MachineFiles()


def open_no_follow(directory: int, name: Name, flags: int) -> int:
    """Open one name below a directory; raises OSError, ELOOP when it is a symlink."""
    try:
        return os.open(name, flags | _ALWAYS | os.O_NOFOLLOW, dir_fd=directory)
    except NotADirectoryError:
        # O_DIRECTORY with O_NOFOLLOW fails with ENOTDIR on symlinks too: distinguish them.
        if os.path.islink(f"/proc/self/fd/{directory}/{name}"):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(name)) from None
        raise


def read_range(files: Files, file: int, size: int, position: int) -> bytes:
    data = files.read_at(file, size, position)
    if len(data) == size or not data:
        return data
    parts = [data]
    got = len(data)
    while got < size and (data := files.read_at(file, size - got, position + got)):
        parts.append(data)
        got += len(data)
    return b"".join(parts)


def read_file(files: Files, path: Name, max_bytes: int = READ_BYTES_MAX) -> bytes:
    """Return the content of a file, at most its first `max_bytes` bytes."""
    file = files.open_file(path)
    try:
        return read_range(files, file, min(files.size(file), max_bytes), 0)
    finally:
        files.close(file)


def write_all(files: Files, file: int, position: int, buffers: Sequence[Buffer]) -> int:
    """Write all buffers at `position`, in as many calls as necessary; return the end position."""
    count = len(buffers)
    if count == 1:
        written = files.write_at(file, buffers, position)
        if written == len(buffers[0]):
            return position + written
        return _finish(files, file, position + written, buffers, written)
    for first in range(0, count, BUFFERS_PER_CALL_MAX):
        part = buffers
        if count > BUFFERS_PER_CALL_MAX:
            part = buffers[first : first + BUFFERS_PER_CALL_MAX]
        expected = sum(map(len, part))
        written = files.write_at(file, part, position)
        position += written
        if written != expected:
            position = _finish(files, file, position, part, written)
    return position


def _finish(files: Files, file: int, position: int, buffers: Sequence[Buffer], written: int) -> int:
    """Write the rest after a short write; the next call fails if the disk is full."""
    rest = memoryview(b"".join(buffers))[written:]
    while rest:
        count = files.write_at(file, [rest], position)
        if count == 0:
            raise OSError(errno.ENOSPC, "the system wrote 0 bytes")
        position += count
        rest = rest[count:]
    return position


def sync_directory(files: Files, path: Name) -> None:
    directory = files.open_directory(path)
    try:
        files.sync_directory(directory)
    finally:
        files.close(directory)


def make_directories(files: Files, path: str) -> None:
    try:
        files.make_directory(path)
    except FileExistsError:
        return
    except FileNotFoundError:
        make_directories(files, os.path.dirname(path))
        files.make_directory(path)
    sync_directory(files, os.path.dirname(path))


def write_file(files: Files, path: Name, data: Buffer, *, sync: bool) -> None:
    file = files.open(path, create=True, truncate=True)
    try:
        write_all(files, file, 0, [data])
        if sync:
            files.sync_file(file)
    finally:
        files.close(file)


def replace_file(files: Files, path: Name, data: Buffer, *, durable: bool = True) -> None:
    """Write a small file to a temporary name, sync it, and rename it over the old version.

    After a crash the file has either the old or the new content. With `durable` the directory is
    synced too, which guarantees the new content. Without it, a later sync of the directory does.
    """
    write_file(files, f"{path}.tmp", data, sync=True)
    files.rename(f"{path}.tmp", path)
    if durable:
        sync_directory(files, os.path.dirname(path) or ".")


def write_durably(path: Path, data: bytes) -> None:
    """Replace a file atomically and durably; create its directory if it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(MACHINE_FILES, path, data)


def folders(variable: str, package: Path, name: str) -> tuple[Path, ...]:
    """Return the folders of a cache, the preferred one first.

    If the environment variable `variable` is set, it names the only folder. Otherwise the first is
    `__pycache__/name` in `package`. The second, if `package` is read-only, is
    `~/.cache/penstock/name`, or `penstock/name` in XDG_CACHE_HOME.
    """
    if named := os.environ.get(variable):
        return (Path(named),)
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return package / "__pycache__" / name, Path(cache) / "penstock" / name


def can_write(folder: Path) -> bool:
    """Create a folder if it is missing; return whether files can be written to it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)
