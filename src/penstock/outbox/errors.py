"""Errors of the outbox, by what the caller should do.

A write that did not succeed leaves nothing half visible: `data.bin` is there whole or not at all.
Every error of a write or send, other than those that say the call itself is wrong, carries the
`identity` of the batch: a retry that passes the same partition id, batch id and `at_ms` finds
what an earlier attempt may have left, and cannot write the batch twice.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from penstock.base.errors import (
    BugError,
    CorruptError,
    FencedError,
    InvalidError,
    PenstockError,
    RetriableError,
    UnavailableError,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchIdentity:
    """What names a batch, and so what a caller keeps for a retry. `at_ms` is since the epoch."""

    partition_id: str
    batch_id: str
    at_ms: int


class BatchError(PenstockError):
    """An error about one batch; `identity` is None where the batch had no name yet."""

    identity: BatchIdentity | None = None


class InvalidPartitionId(InvalidError):
    """A partition id that cannot be a directory's name."""

    def __init__(self, text: object, reason: str) -> None:
        super().__init__(f"partition id {shown(text)}: {reason}")
        self.reason = reason


class InvalidBatchId(InvalidError):
    """A batch id that cannot be part of a directory's name."""

    def __init__(self, text: object, reason: str) -> None:
        super().__init__(f"batch id {shown(text)}: {reason}")
        self.reason = reason


class InvalidPath(InvalidError):
    """A path that is none of the outbox's layout."""

    def __init__(self, path: object, reason: str) -> None:
        super().__init__(f"outbox path {shown(path)}: {reason}")
        self.reason = reason


class InvalidPayload(InvalidError):
    """A payload, or something said of it, that can never be written."""


class InvalidPointer(InvalidError):
    """Bytes that are no pointer, or a pointer that contradicts itself."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"outbox pointer: {reason}")
        self.reason = reason


class PathEscapes(InvalidError):
    """A path that leads, or may lead, out of the root: through a symlink or `..`."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"outbox path {shown(path)}: {reason}")
        self.path = path
        self.reason = reason


class BatchConflict(BatchError, InvalidError):
    """The batch has been written before, with another content: the id was used for two payloads.

    `found` and `expected` are size in bytes and CRC32C of what is there and of the payload.
    """

    def __init__(
        self, batch_id: str, path: str, *, found: tuple[int, int], expected: tuple[int, int]
    ) -> None:
        there, given = (f"{size} bytes with CRC32C {crc:08x}" for size, crc in (found, expected))
        super().__init__(
            f"batch {batch_id}: {path} holds {there}, and the payload has {given}:"
            " a batch id names one payload for ever"
        )
        self.path = path
        self.found = found
        self.expected = expected


class NotAFile(BatchError, InvalidError):
    """Something of another kind stands where a directory or a payload belongs."""


class NameTooLong(BatchError, InvalidError):
    """The file system takes shorter names than the outbox makes."""


class PayloadMissing(UnavailableError):
    """There is no file where a pointer points."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path}: there is no such payload below the outbox's root")
        self.path = path


class PayloadCorrupt(CorruptError):
    """A file whose size or checksum is not what its pointer says."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class OutboxBusy(BatchError, RetriableError):
    """More calls wait than a queue of the outbox holds."""


class AdmissionTimedOut(BatchError, RetriableError):
    """No room among the writes under way within the time allowed; nothing was written."""


class WriteTimedOut(BatchError, RetriableError):
    """The file was not there within the time allowed; the write may still end well."""


class PublishTimedOut(BatchError, RetriableError):
    """No acknowledgement within the time allowed; the record may still be published."""


class WriteFailed(BatchError, RetriableError):
    """A file call failed in a way that may pass; nothing of the attempt is visible."""


class StorageFull(WriteFailed):
    """The file system has no room or the quota is used up."""


class TooManyOpenFiles(WriteFailed):
    """The process or the machine has no file descriptor left."""


class SyncFailed(WriteFailed):
    """A sync failed: what the disk holds of it is unknown. The file is given up; only a new one,
    written from the beginning, may be synced in its place."""


class RootUnavailable(BatchError, UnavailableError):
    """The root is not there or is no directory: its file system may not be mounted."""


class ReadOnlyRoot(RootUnavailable):
    """The file system is mounted read-only, or was made so by the kernel after an error."""


class AccessDenied(RootUnavailable):
    """The process may not write below the root."""


class UnfitFileSystem(RootUnavailable):
    """The file system can neither rename without replacing nor link, so that two writers of one
    batch could replace each other's file."""


class PublishFailed(BatchError, RetriableError):
    """The record was not published; a file that was written stays. Send again to publish."""


class PublishRefused(BatchError, InvalidError):
    """The topic refuses the record for good; a file that was written stays."""


class OutboxClosed(BatchError, FencedError):
    """The outbox is not started, is stopping, or has been closed."""


class OutboxBug(BugError):
    """An invariant of the outbox does not hold."""


_BY_ERRNO: Final[Mapping[int, type[PenstockError]]] = {
    errno.ENOSPC: StorageFull,
    errno.EDQUOT: StorageFull,
    errno.EMFILE: TooManyOpenFiles,
    errno.ENFILE: TooManyOpenFiles,
    errno.EROFS: ReadOnlyRoot,
    errno.EACCES: AccessDenied,
    errno.EPERM: AccessDenied,
    errno.ENOTDIR: NotAFile,
    errno.EISDIR: NotAFile,
    errno.ENAMETOOLONG: NameTooLong,
}


def storage_error(number: int, action: str, path: str) -> PenstockError:
    """Return the error for a file call that failed with errno `number`.

    `action` names the call ("write", "sync", …), `path` what it was about. Failures that are not
    known are worth another attempt: over a network file system most are.
    """
    name = errno.errorcode.get(number, f"errno {number}")
    kind = _BY_ERRNO.get(number)
    if kind is None:
        kind = SyncFailed if action.startswith("sync") else WriteFailed
    return kind(f"{action} {path}: {name}")


def shown(text: object) -> str:
    """Return a value as error messages show it: quoted, cut at 80 characters."""
    quoted = repr(text)
    return quoted if len(quoted) <= 80 else f"{quoted[:77]}…"
