"""What can go wrong with stored logs, each with Kafka's name for it on the wire."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import ClassVar, Final

from penstock.base.errors import (
    CorruptError,
    FencedError,
    InvalidError,
    RetriableError,
    UnavailableError,
)
from penstock.records.errors import InvalidProducerEpoch as InvalidProducerEpoch
from penstock.records.errors import OutOfOrderSequence as OutOfOrderSequence

NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
BROKEN: Final = frozenset({errno.EROFS, errno.EIO, errno.ENXIO, errno.ENODEV})
"""A disk that says so takes nothing more: what is in its caches may be gone as well."""


class StorageError(UnavailableError):
    """Something that was appended did not become durable, or cannot be appended."""

    code: ClassVar[str] = "kafka_storage_error"


class StorageFailed(StorageError):
    """A sync failed, or the disk takes no writes any more: what it holds is unknown until the store
    is reopened and recovered."""


class DiskFull(StorageError):
    """The file system has no room; nothing of the append is visible, and it may be retried."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(
            f"no space for the log on the file system of {path}: {reason}; free some space there,"
            " or move log.dirs to a larger disk"
        )
        self.path = path


def disk_full(error: OSError, path: str | Path) -> DiskFull | None:
    """The error to report if `error` says that there is no room, else None."""
    if error.errno in NO_SPACE:
        return DiskFull(Path(path), error.strerror or str(error))
    return None


def write_error(error: OSError, path: str | Path, what: str) -> StorageError:
    """The error to report of a write below a path that failed before any sync."""
    kind = StorageFailed if error.errno in BROKEN else StorageError
    return disk_full(error, path) or kind(f"{what}: {error}")


class AppendBacklog(RetriableError):
    """More bytes wait for the journal than `pending.bytes.max`."""

    code: ClassVar[str] = "kafka_storage_error"


class StoreLocked(UnavailableError):
    """Another process has the data directory open."""

    code: ClassVar[str] = "kafka_storage_error"


class LogDeleted(FencedError):
    """The partition was deleted, or its store closed, while someone still held its log."""

    code: ClassVar[str] = "not_leader_or_follower"


class CompactionStopped(StorageError):
    """A pass over a log was broken off: its store is closed, or the log is not what it was."""


class CorruptLog(CorruptError):
    """Stored bytes below the durable offset are not what was written; they are kept as they are."""

    code: ClassVar[str] = "kafka_storage_error"

    def __init__(self, path: Path, position: int, reason: str) -> None:
        super().__init__(f"{path} at byte {position}: {reason}")
        self.path = path
        self.position = position
        self.reason = reason


class CorruptFile(CorruptError):
    """A small file (checkpoint, snapshot, index) whose content contradicts its format."""

    code: ClassVar[str] = "kafka_storage_error"


class InvalidTimestamp(InvalidError):
    """A batch whose timestamps are too far from the broker's clock."""

    code: ClassVar[str] = "invalid_timestamp"


class BatchesTooLarge(InvalidError):
    """The batches of one append together exceed `segment.bytes`."""

    code: ClassVar[str] = "record_list_too_large"


class ReplicaOverlap(InvalidError):
    """A batch for a replica that begins below the offset that is due."""

    code: ClassVar[str] = "offset_out_of_range"

    def __init__(self, where: object, expected: int, found: int) -> None:
        super().__init__(
            f"{where}: a batch at offset {found}, the replica has all below {expected}"
        )
        self.expected = expected
        self.found = found


class ReplicaEpochFell(FencedError):
    """A batch for a replica whose leader epoch is lower than one that it holds already."""

    code: ClassVar[str] = "fenced_leader_epoch"

    def __init__(self, where: object, newest: int, found: int) -> None:
        super().__init__(f"{where}: a batch of epoch {found} after one of epoch {newest}")
        self.newest = newest
        self.found = found


class TopicIdMismatch(InvalidError):
    """A partition of that name exists, for another topic id."""

    code: ClassVar[str] = "inconsistent_topic_id"
