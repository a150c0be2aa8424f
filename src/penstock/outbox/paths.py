"""Opening of files below the root, without following symlinks or leaving the root.

`layout` validates names. This module protects against changes by others: no path leads through a
symlink or out of the root. `openat2` (Linux 5.6) opens a path in one call. Where it is missing, or
a container's filter rejects it, the path is opened one component at a time.

Source: openat2(2), RESOLVE_BENEATH and RESOLVE_NO_SYMLINKS.
"""

from __future__ import annotations

import ctypes
import errno
import os
from typing import Final

from penstock.base.files import open_no_follow
from penstock.outbox.errors import PathEscapes, PayloadMissing, storage_error

PATH_CHARS_MAX: Final = 512
"""Characters of a payload's path below the root. `layout` needs at most 325."""

RESOLVE_NO_MAGICLINKS: Final = 0x02
RESOLVE_NO_SYMLINKS: Final = 0x04
RESOLVE_BENEATH: Final = 0x08
_RESOLVE: Final = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS
_SYS_OPENAT2: Final = 437  # the same on every architecture
_ALWAYS: Final = os.O_CLOEXEC | os.O_NOCTTY
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY
_NO_OPENAT2: Final = frozenset({errno.ENOSYS, errno.EPERM, errno.E2BIG})
_ESCAPES: Final = frozenset({errno.ELOOP, errno.EXDEV})
_INTERRUPTED: Final = frozenset({errno.EINTR, errno.EAGAIN})
_INTERRUPTIONS_MAX: Final = 100


class _OpenHow(ctypes.Structure):
    _fields_ = [
        ("flags", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("resolve", ctypes.c_uint64),
    ]


_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_LIBC.syscall.restype = ctypes.c_long


def open_beneath(root_fd: int, relative: str, flags: int) -> int:
    """Open an existing file or directory below the root. The caller closes the descriptor.

    Raises:
        PathEscapes: a component is a symlink or `..`, or the path is absolute or too long.
        PayloadMissing: the file is missing.
        PenstockError: the file system failed in another way (`storage_error`).
    """
    check_relative(relative)
    try:
        return raw_open_beneath(root_fd, relative, flags)
    except OSError as error:
        number = error.errno or 0
        if number in _ESCAPES:
            raise PathEscapes(relative, "leads through a symlink or out of the root") from None
        if number in {errno.ENOENT, errno.ENOTDIR, errno.ESTALE}:
            raise PayloadMissing(relative) from None
        raise storage_error(number, "open", relative) from error


def check_relative(relative: str) -> str:
    """Return a path after checking that it names an entry below a root.

    Raises:
        PathEscapes: it is absolute, too long, or has an empty, `.`, `..` or NUL component.
    """
    if len(relative) > PATH_CHARS_MAX:
        raise PathEscapes(
            relative, f"has {len(relative)} characters; the limit is {PATH_CHARS_MAX}"
        )
    if "\0" in relative:
        raise PathEscapes(relative, "has a NUL")
    for component in relative.split("/"):
        if component in {"", ".", ".."}:
            raise PathEscapes(relative, f"has a component {component!r}")
    return relative


def raw_open_beneath(root_fd: int, relative: str, flags: int) -> int:
    """Open as `open_beneath` does, for callers that handle errno. The path must be valid.

    Raises:
        OSError: ELOOP or EXDEV for a symlink or a path out of the root, else the kernel's error.
    """
    if _openat2_works(root_fd):
        return _openat2(root_fd, relative, flags)
    return walk_beneath(root_fd, relative, flags)


def walk_beneath(root_fd: int, relative: str, flags: int) -> int:
    """Open a path one component at a time. Raises as `raw_open_beneath`, ELOOP for symlinks."""
    parts = relative.split("/")
    above = root_fd
    try:
        for part in parts[:-1]:
            below = open_no_follow(above, part, _DIRECTORY)
            if above != root_fd:
                os.close(above)
            above = below
        return open_no_follow(above, parts[-1], flags)
    finally:
        if above != root_fd:
            os.close(above)


_works: bool | None = None


def _openat2_works(root_fd: int) -> bool:
    """Return whether this process may call openat2. Checked once."""
    global _works
    if _works is None:
        try:
            os.close(_openat2(root_fd, ".", _DIRECTORY))
            _works = True
        except OSError as error:
            if error.errno not in _NO_OPENAT2:
                raise
            _works = False
    return _works


def _openat2(root_fd: int, relative: str, flags: int) -> int:
    how = _OpenHow(flags | _ALWAYS, 0, _RESOLVE)
    for _ in range(_INTERRUPTIONS_MAX):
        descriptor = _LIBC.syscall(
            ctypes.c_long(_SYS_OPENAT2),
            ctypes.c_int(root_fd),
            ctypes.c_char_p(os.fsencode(relative)),
            ctypes.byref(how),
            ctypes.c_size_t(ctypes.sizeof(how)),
        )
        if descriptor >= 0:
            return int(descriptor)
        # EAGAIN: a concurrent rename raced with the lookup.
        if ctypes.get_errno() not in _INTERRUPTED:
            break
    number = ctypes.get_errno()
    raise OSError(number, os.strerror(number), relative)
