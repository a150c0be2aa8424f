"""Errors of reading a payload, and the `Trouble` under which `ReadPolicy` handles each.

| error                              | trouble    |
|------------------------------------|------------|
| `PayloadUnreadable`                | unreadable |
| `PayloadMissing`                   | missing    |
| `SizeMismatch`, `ChecksumMismatch` | corrupt    |
| `PayloadTooLarge`                  | too large  |
| `InvalidPointer`, `InvalidPath`, `PathEscapes`, `NotAFile`, `BatchReused` | invalid |
"""

from __future__ import annotations

import errno
from typing import Final

from penstock.base.errors import InvalidError, PenstockError, UnavailableError
from penstock.outbox.errors import (
    InvalidPath,
    InvalidPointer,
    NotAFile,
    PathEscapes,
    PayloadCorrupt,
    PayloadMissing,
)
from penstock.outbox.reader.policy import Trouble


class SizeMismatch(PayloadCorrupt):
    """The file has another size than its pointer: it is torn, or another batch's file."""

    def __init__(self, path: str, found: int, expected: int) -> None:
        super().__init__(path, f"has {found} bytes, but its pointer says {expected}")
        self.found = found
        self.expected = expected


class ChecksumMismatch(PayloadCorrupt):
    """The payload has another checksum than expected: it is damaged, or another batch's."""

    def __init__(self, path: str, found: int, expected: int) -> None:
        super().__init__(path, f"has CRC32C {found:08x} instead of {expected:08x}")
        self.found = found
        self.expected = expected


class BatchReused(InvalidError):
    """The record has the id of a recently processed batch, but another payload."""

    def __init__(self, partition_id: str, batch_id: str, found: int, before: int) -> None:
        super().__init__(
            f"batch {batch_id} of {partition_id} has a payload with CRC32C {found:08x}, but was"
            f" processed before with CRC32C {before:08x}: use a batch id for one payload only"
        )


class PayloadTooLarge(InvalidError):
    """A pointer's size exceeds the reader's limit. The file was not opened."""

    def __init__(self, path: str, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(
            f"{path}: its pointer has a size of {size_bytes} bytes; the limit is {limit_bytes}"
        )
        self.path = path
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes


class PayloadUnreadable(UnavailableError):
    """The file system failed. The payload may be intact."""

    def __init__(self, path: str, number: int) -> None:
        name = errno.errorcode.get(number, f"errno {number}")
        super().__init__(f"{path}: cannot be read: {name}")
        self.path = path
        self.errno = number


class MountSuspected(UnavailableError):
    """So many records in a row became dead letters that the file system may not be mounted."""


_TROUBLES: Final[tuple[tuple[type[PenstockError], Trouble, str], ...]] = (
    (PayloadMissing, Trouble.MISSING, "missing"),
    (SizeMismatch, Trouble.CORRUPT, "size-mismatch"),
    (ChecksumMismatch, Trouble.CORRUPT, "checksum-mismatch"),
    (PayloadCorrupt, Trouble.CORRUPT, "corrupt"),
    (PayloadTooLarge, Trouble.TOO_LARGE, "too-large"),
    (PayloadUnreadable, Trouble.UNREADABLE, "unreadable"),
    (PathEscapes, Trouble.INVALID, "path-escapes"),
    (InvalidPath, Trouble.INVALID, "invalid-path"),
    (InvalidPointer, Trouble.INVALID, "invalid-pointer"),
    (NotAFile, Trouble.INVALID, "not-a-file"),
    (BatchReused, Trouble.INVALID, "batch-reused"),
)


def classify(error: PenstockError) -> tuple[Trouble, str]:
    """Return the `Trouble` of a reader's error, and the word for it in dead letters.

    Errors of other types count as unreadable, which never makes a dead letter.
    """
    for kind, trouble, word in _TROUBLES:
        if isinstance(error, kind):
            return trouble, word
    return Trouble.UNREADABLE, "unreadable"


_ESCAPES: Final = frozenset({errno.ELOOP, errno.EXDEV})
_ABSENT: Final = frozenset({errno.ENOENT, errno.ENOTDIR})


def open_error(path: str, number: int) -> PenstockError:
    """Return the error for an `open` below the root that failed with errno `number`."""
    if number in _ABSENT:
        return PayloadMissing(path)
    if number in _ESCAPES:
        return PathEscapes(path, "leads through a symlink or out of the root")
    if number == errno.ENAMETOOLONG:
        return InvalidPath(path, "has a component that is too long for the file system")
    return PayloadUnreadable(path, number)
