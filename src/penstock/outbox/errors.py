"""Errors of the outbox, by what the caller should do.

A failed write leaves nothing partially visible: `data.bin` is complete or missing. Every error of
a write or send, except those about an invalid call, has the `identity` of the batch: a retry with
the same partition id, batch id and `at_ms` finds the files of an earlier attempt, and cannot write
the batch twice.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from penstock.base.errors import (
    BugError,
    CorruptError,
    FencedError,
    InvalidError,
    PenstockError,
    RetriableError,
    UnavailableError,
)


class BatchIdentity(Struct, frozen=True, kw_only=True):
    """Identity of a batch, which a caller keeps for a retry. `at_ms` is since the epoch."""

    partition_id: str
    batch_id: str
    at_ms: int


class BatchError(PenstockError):
    """An error about one batch; `identity` is None if the batch had no name yet."""

    identity: BatchIdentity | None = None


class InvalidPartitionId(InvalidError):
    def __init__(self, text: object, reason: str) -> None:
        super().__init__(f"partition id {shown(text)}: {reason}")
        self.reason = reason


class InvalidBatchId(InvalidError):
    def __init__(self, text: object, reason: str) -> None:
        super().__init__(f"batch id {shown(text)}: {reason}")
        self.reason = reason


class InvalidPath(InvalidError):
    """A path outside the outbox's layout."""

    def __init__(self, path: object, reason: str) -> None:
        super().__init__(f"outbox path {shown(path)}: {reason}")
        self.reason = reason


class InvalidPayload(InvalidError):
    """A payload, or one of its attributes, that can never be written."""


class InvalidPointer(InvalidError):
    """Bytes that are not a pointer, or a pointer that contradicts itself."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"outbox pointer: {reason}")
        self.reason = reason


class PathEscapes(InvalidError):
    """A path that leaves the root, or could: through a symlink or `..`."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"outbox path {shown(path)}: {reason}")
        self.path = path
        self.reason = reason


class BatchConflict(BatchError, InvalidError):
    """The batch was written before with another content: the id was used for two payloads.

    `found` and `expected` are size in bytes and CRC32C of the stored file and of the payload.
    """

    def __init__(
        self, batch_id: str, path: str, *, found: tuple[int, int], expected: tuple[int, int]
    ) -> None:
        there, given = (f"{size} bytes with CRC32C {crc:08x}" for size, crc in (found, expected))
        super().__init__(
            f"batch {batch_id}: {path} holds {there}, and the payload has {given}:"
            " use a batch id for one payload only"
        )
        self.path = path
        self.found = found
        self.expected = expected


class NotAFile(BatchError, InvalidError):
    """A directory entry of another kind where a directory or a payload is expected."""


class NameTooLong(BatchError, InvalidError):
    """The file system does not support names as long as the outbox's."""


class PayloadMissing(UnavailableError):
    def __init__(self, path: str) -> None:
        super().__init__(f"{path}: the payload is missing below the outbox's root")
        self.path = path


class PayloadCorrupt(CorruptError):
    """A file whose size or checksum differs from its pointer's."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class OutboxBusy(BatchError, RetriableError):
    """A queue of the outbox is full."""


class AdmissionTimedOut(BatchError, RetriableError):
    """The write was not admitted within the time limit; nothing was written."""


class WriteTimedOut(BatchError, RetriableError):
    """The file was not complete within the time limit; the write may still succeed."""


class PublishTimedOut(BatchError, RetriableError):
    """The record was not acknowledged within the time limit; it may still be published."""


class WriteFailed(BatchError, RetriableError):
    """A file call failed, maybe temporarily; nothing of the attempt is visible."""


class StorageFull(WriteFailed):
    """The file system is full, or the quota is exhausted."""


class TooManyOpenFiles(WriteFailed):
    """The process or the machine has no free file descriptor."""


class SyncFailed(WriteFailed):
    """A sync failed, so the file's content on disk is unknown. The file is discarded; only a new
    one, written from the beginning, may be synced."""


class RootUnavailable(BatchError, UnavailableError):
    """The root is missing or is not a directory: its file system may not be mounted."""


class ReadOnlyRoot(RootUnavailable):
    """The file system is mounted read-only, or was made so by the kernel after an error."""


class AccessDenied(RootUnavailable):
    """The process may not write below the root."""


class UnfitFileSystem(RootUnavailable):
    """The file system supports neither rename without replacing nor link, so that two writers of
    one batch could replace each other's file."""


class PublishFailed(BatchError, RetriableError):
    """The record was not published; a written file stays. Send again to publish."""


class PublishRefused(BatchError, InvalidError):
    """The topic permanently rejects the record; a written file stays."""


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

    `action` names the call ("write", "sync", …), `path` its subject. Unknown failures are
    retriable, as most are over a network file system.
    """
    name = errno.errorcode.get(number, f"errno {number}")
    kind = _BY_ERRNO.get(number)
    if kind is None:
        kind = SyncFailed if action.startswith("sync") else WriteFailed
    return kind(f"{action} {path}: {name}")


def shown(text: object) -> str:
    """Return a value for error messages: quoted, cut at 80 characters."""
    quoted = repr(text)
    return quoted if len(quoted) <= 80 else f"{quoted[:77]}…"
