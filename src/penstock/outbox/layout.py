"""Layout of the directories below a root: from the identity of a batch to its path, and back.

    <root>/<partition id>/year=2026/month=05/day=24/hour=14/batch-<batch id>/
        data.bin                           the payload, complete, after one rename
        data.bin.tmp.<token>.<attempt>     file of an attempt before its rename

The partition id comes first, so that readers and the sweeper can process one partition without
walking the others. The hour (UTC) follows in Hive's format, so that query engines can prune by it,
and no directory gets millions of entries. Each batch has a directory of its own, with space for
sidecar files. A path is a function of (partition id, batch id, time), so a retry with the same
three finds the earlier files.

Invalid ids are rejected and never normalised, because two ids could become the same directory.

Source: `filesystem-outbox.txt`, "Naming, layout, and the partition directory tree".
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final

from msgspec import Struct

from penstock.base.files import open_no_follow
from penstock.outbox.errors import (
    InvalidBatchId,
    InvalidPartitionId,
    InvalidPath,
    PathEscapes,
    PayloadMissing,
    shown,
    storage_error,
)

# Opening of files below the root, without following symlinks or leaving the root.
#
# `layout` validates names. This module protects against changes by others: no path leads through a
# symlink or out of the root. `openat2` (Linux 5.6) opens a path in one call. Where it is missing,
# or a container's filter rejects it, the path is opened one component at a time.
#
# Source: openat2(2), RESOLVE_BENEATH and RESOLVE_NO_SYMLINKS.


PATH_CHARS_MAX: Final = 512
"""Characters of a payload's path below the root. `layout` needs at most 325."""

RESOLVE_NO_MAGICLINKS: Final = 0x02
RESOLVE_NO_SYMLINKS: Final = 0x04
RESOLVE_BENEATH: Final = 0x08
_RESOLVE: Final = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS
_SYS_OPENAT2: Final = 437  # the same on every architecture
_ALWAYS: Final = os.O_CLOEXEC | os.O_NOCTTY
_OPEN_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY
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
            below = open_no_follow(above, part, _OPEN_DIRECTORY)
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
            os.close(_openat2(root_fd, ".", _OPEN_DIRECTORY))
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


PARTITION_ID_CHARS_MAX: Final = 200
"""Characters of a partition id. A file name has up to 255 bytes; some are for sidecars."""
BATCH_ID_CHARS_MAX: Final = 64
"""Characters of a batch id: twice a UUID in hexadecimal digits."""
AT_MS_MAX: Final = 253_402_300_799_999
"""Last millisecond of the year 9999, the last year with four digits."""

DATA_FILE: Final = "data.bin"
TEMPORARY_PREFIX: Final = "data.bin.tmp."
BATCH_PREFIX: Final = "batch-"
HOUR_MS: Final = 3_600_000
HOURS_CACHED_MAX: Final = 256
"""Hours whose part of a path is kept."""

PARTITION_PATTERN: Final = rf"[A-Za-z0-9._=\-]{{1,{PARTITION_ID_CHARS_MAX}}}"
BATCH_PATTERN: Final = rf"[A-Za-z0-9_\-]{{1,{BATCH_ID_CHARS_MAX}}}"

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_PARTITION: Final = re.compile(PARTITION_PATTERN, re.ASCII)
_BATCH: Final = re.compile(BATCH_PATTERN, re.ASCII)
_TOKEN: Final = re.compile(r"[A-Za-z0-9]{1,32}", re.ASCII)
_TEMPORARY: Final = re.compile(
    r"data\.bin\.tmp\.(?P<token>[A-Za-z0-9]{1,32})\.(?P<attempt>[0-9]{1,9})", re.ASCII
)
_BATCH_DIRECTORY: Final = re.compile(
    rf"(?P<partition>{PARTITION_PATTERN})"
    r"/year=(?P<year>\d{4})/month=(?P<month>\d{2})/day=(?P<day>\d{2})/hour=(?P<hour>\d{2})"
    rf"/batch-(?P<batch>{BATCH_PATTERN})",
    re.ASCII,
)


class PayloadLocation(Struct, frozen=True, kw_only=True):
    """The parts of a payload's path.

    `hour_start_ms` is the first millisecond of the hour, in UTC.
    """

    partition_id: str
    hour_start_ms: int
    batch_id: str

    @property
    def directory(self) -> str:
        return batch_directory(self.partition_id, self.batch_id, self.hour_start_ms)


def check_partition_id(text: object) -> str:
    """Return a partition id after checking it.

    Raises:
        InvalidPartitionId: it is not 1 to 200 of `A-Z a-z 0-9 . _ = -`, or is `.` or `..`.
    """
    if not isinstance(text, str):
        raise InvalidPartitionId(text, "must be text")
    if not _PARTITION.fullmatch(text):
        raise InvalidPartitionId(
            text,
            f"must be 1 to {PARTITION_ID_CHARS_MAX} characters of A-Z a-z 0-9 . _ = -,"
            f" but has {len(text)} characters",
        )
    if text in {".", ".."}:
        raise InvalidPartitionId(text, "must not be . or ..")
    return text


def check_batch_id(text: object) -> str:
    """Return a batch id after checking it.

    Raises:
        InvalidBatchId: it is not 1 to 64 of `A-Z a-z 0-9 _ -`.
    """
    if not isinstance(text, str):
        raise InvalidBatchId(text, "must be text")
    if not _BATCH.fullmatch(text):
        raise InvalidBatchId(
            text,
            f"must be 1 to {BATCH_ID_CHARS_MAX} characters of A-Z a-z 0-9 _ -,"
            f" but has {len(text)} characters",
        )
    return text


def hour_directory(partition_id: str, at_ms: int) -> str:
    """Return the directory of an hour, relative to the root.

    `at_ms` is any millisecond of the hour.

    Raises:
        InvalidPartitionId: as in `check_partition_id`.
        InvalidPath: `at_ms` is before 1970 or after the year 9999.
    """
    check_partition_id(partition_id)
    if not isinstance(at_ms, int) or not 0 <= at_ms <= AT_MS_MAX:
        raise InvalidPath(at_ms, f"at_ms must be a whole number from 0 to {AT_MS_MAX}")
    return f"{partition_id}/{_hour_path(at_ms // HOUR_MS)}"


@lru_cache(HOURS_CACHED_MAX)
def _hour_path(hour: int) -> str:
    at = _EPOCH + timedelta(hours=hour)
    return f"year={at.year:04}/month={at.month:02}/day={at.day:02}/hour={at.hour:02}"


def batch_directory(partition_id: str, batch_id: str, at_ms: int) -> str:
    """Return the directory of a batch, relative to the root.

    `at_ms` is any millisecond of its hour.

    Raises:
        InvalidPartitionId, InvalidBatchId: as in `check_partition_id` and `check_batch_id`.
        InvalidPath: `at_ms` is before 1970 or after the year 9999.
    """
    return f"{hour_directory(partition_id, at_ms)}/{BATCH_PREFIX}{check_batch_id(batch_id)}"


def data_path(partition_id: str, batch_id: str, at_ms: int) -> str:
    """Return the path of a payload, relative to the root. Raises as `batch_directory` does."""
    return f"{batch_directory(partition_id, batch_id, at_ms)}/{DATA_FILE}"


def temporary_name(token: str, attempt: int) -> str:
    """Return the file name of an attempt.

    `token` identifies the call that writes the batch: 1 to 32 characters of A-Za-z0-9.

    Raises:
        InvalidPath: the token or the number of the attempt is invalid.
    """
    if not _TOKEN.fullmatch(token) or not 0 <= attempt < 10**9:
        raise InvalidPath(f"{token}.{attempt}", "is not a valid token and attempt number")
    return f"{TEMPORARY_PREFIX}{token}.{attempt}"


def is_temporary(name: str) -> bool:
    return _TEMPORARY.fullmatch(name) is not None


def parse_directory(relative: str) -> PayloadLocation:
    """Return the parts of a batch directory's path, relative to the root.

    Raises:
        InvalidPath: `batch_directory` does not return such paths.
    """
    if len(relative) > PATH_CHARS_MAX:
        raise InvalidPath(
            relative, f"has {len(relative)} characters; the limit is {PATH_CHARS_MAX}"
        )
    found = _BATCH_DIRECTORY.fullmatch(relative)
    if found is None:
        raise InvalidPath(relative, "is not <partition>/year=/month=/day=/hour=/batch-<id>")
    year, month, day, hour = (int(found[name]) for name in ("year", "month", "day", "hour"))
    try:
        start = datetime(year, month, day, hour, tzinfo=UTC)
    except ValueError as error:
        raise InvalidPath(relative, str(error)) from None
    if start < _EPOCH:
        raise InvalidPath(relative, "is before 1970")
    if found["partition"] in {".", ".."}:
        raise InvalidPath(relative, f"has an invalid partition id: {shown(found['partition'])}")
    return PayloadLocation(
        partition_id=found["partition"],
        hour_start_ms=int((start - _EPOCH).total_seconds()) * 1000,
        batch_id=found["batch"],
    )


def parse_path(relative: str) -> PayloadLocation:
    """Return the parts of a payload's path, relative to the root.

    Raises:
        InvalidPath: `data_path` does not return such paths.
    """
    directory, slash, name = relative.rpartition("/")
    if not slash or name != DATA_FILE:
        raise InvalidPath(relative, f"does not end in /{DATA_FILE}")
    return parse_directory(directory)
