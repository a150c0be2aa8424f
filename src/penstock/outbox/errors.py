"""Errors of the outbox. Their base class shows whether a retry can succeed.

A failed write leaves nothing partially visible: `data.bin` is complete or missing. Every error of a
write or send, except for an invalid call, has the `identity` of the batch. A retry with the same
partition id, batch id and `at_ms` finds the file of an earlier attempt, and cannot write the batch
twice.
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
    """Identity of a batch, with which a caller can retry. `at_ms` is in milliseconds since 1970."""

    partition_id: str
    batch_id: str
    at_ms: int


class BatchError(PenstockError):
    """An error about one batch. `identity` is None if the batch has no id yet."""

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
    """A path does not follow the outbox's layout."""

    def __init__(self, path: object, reason: str) -> None:
        super().__init__(f"outbox path {shown(path)}: {reason}")
        self.reason = reason


class InvalidPayload(InvalidError):
    """A payload, or one of its attributes, is invalid, so it can never be written."""


class InvalidPointer(InvalidError):
    """Bytes are not a pointer, or a pointer contradicts itself."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"outbox pointer: {reason}")
        self.reason = reason


class PathEscapes(InvalidError):
    """A path leads out of the root, or might: through a symlink or `..`."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"outbox path {shown(path)}: {reason}")
        self.path = path
        self.reason = reason


class BatchConflict(BatchError, InvalidError):
    """The batch was written before with other content, because its id was used for two payloads.

    `found` and `expected` are (size in bytes, CRC32C) of the stored file and of the payload.
    """

    def __init__(
        self, batch_id: str, path: str, *, found: tuple[int, int], expected: tuple[int, int]
    ) -> None:
        there, given = (f"{size} bytes with CRC32C {crc:08x}" for size, crc in (found, expected))
        super().__init__(
            f"batch {batch_id}: {path} has {there}, but the payload has {given}:"
            " use a batch id for one payload only"
        )
        self.path = path
        self.found = found
        self.expected = expected


class NotAFile(BatchError, InvalidError):
    """A directory entry is not of the expected kind, a directory or a regular file."""


class NameTooLong(BatchError, InvalidError):
    """The file system does not support names as long as those of the outbox."""


class PayloadMissing(UnavailableError):
    def __init__(self, path: str) -> None:
        super().__init__(f"{path}: the payload is missing below the outbox's root")
        self.path = path


class PayloadCorrupt(CorruptError):
    """The size or checksum of a file differs from its pointer's."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class OutboxBusy(BatchError, RetriableError):
    """A queue of the outbox is full."""


class AdmissionTimedOut(BatchError, RetriableError):
    """The write was not admitted within `outbox.acquire.timeout.ms`. Nothing was written."""


class WriteTimedOut(BatchError, RetriableError):
    """The file was not complete within `outbox.write.timeout.ms`. The write may still succeed."""


class PublishTimedOut(BatchError, RetriableError):
    """The record was not acknowledged within `outbox.publish.timeout.ms`.

    It may still be published.
    """


class WriteFailed(BatchError, RetriableError):
    """A file call failed, possibly temporarily. Nothing of the attempt is visible."""


class StorageFull(WriteFailed):
    """The file system is full, or the quota is exhausted."""


class TooManyOpenFiles(WriteFailed):
    """The process or the machine has no free file descriptor."""


class SyncFailed(WriteFailed):
    """A sync failed, so the content of the file on disk is unknown.

    The file was discarded. A retry writes a new one from the beginning.
    """


class RootUnavailable(BatchError, UnavailableError):
    """The root is missing or is not a directory. Its file system may not be mounted."""


class ReadOnlyRoot(RootUnavailable):
    """The file system is mounted read-only, or the kernel made it so after an error."""


class AccessDenied(RootUnavailable):
    """The process may not write below the root."""


class UnfitFileSystem(RootUnavailable):
    """The file system supports neither link nor rename without replacing.

    Without these, two writers of one batch could replace each other's file.
    """


class PublishFailed(BatchError, RetriableError):
    """The record may not have been published. The written file stays; send again to publish."""


class PublishRefused(BatchError, InvalidError):
    """The topic permanently rejects the record. The written file stays."""


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

    `action` names the call ("write", "sync", …) and `path` its file. Failures of unknown kinds may
    be retried, because most failures of network file systems are temporary.
    """
    name = errno.errorcode.get(number, f"errno {number}")
    kind = _BY_ERRNO.get(number)
    if kind is None:
        kind = SyncFailed if action.startswith("sync") else WriteFailed
    return kind(f"{action} {path}: {name}")


def shown(text: object) -> str:
    """Return a value for messages: quoted, and cut at 80 characters."""
    quoted = repr(text)
    return quoted if len(quoted) <= 80 else f"{quoted[:77]}…"
