"""Errors of stored logs, each with Kafka's error name."""

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
"""Error numbers of a disk that accepts no further writes and may lose the bytes in its caches."""


class StorageError(UnavailableError):
    """An append failed, or did not become durable."""

    code: ClassVar[str] = "kafka_storage_error"


class StorageFailed(StorageError):
    """A sync failed, or the disk accepts no writes; reopen the store to recover its content."""


class DiskFull(StorageError):
    """The file system is full; nothing of the append is visible, and a retry is safe."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(
            f"no space for the log on the file system of {path}: {reason}; free some space there,"
            " or move log.dirs to a larger disk"
        )
        self.path = path


def disk_full(error: OSError, path: str | Path) -> DiskFull | None:
    """Return `DiskFull` if `error` reports that the file system is full, else None."""
    if error.errno in NO_SPACE:
        return DiskFull(Path(path), error.strerror or str(error))
    return None


def write_error(error: OSError, path: str | Path, what: str) -> StorageError:
    """Return the error to raise for a write below `path` that failed before any sync.

    `what` begins its message, for example "cannot write the journal in /data/journal".
    """
    kind = StorageFailed if error.errno in BROKEN else StorageError
    return disk_full(error, path) or kind(f"{what}: {error}")


class AppendBacklog(RetriableError):
    """The bytes that wait for the journal exceed `pending.bytes.max`."""

    code: ClassVar[str] = "kafka_storage_error"


class StoreLocked(UnavailableError):
    """Another process has the data directory open."""

    code: ClassVar[str] = "kafka_storage_error"


class LogDeleted(FencedError):
    """Use of a log whose partition was deleted, or whose store was closed."""

    code: ClassVar[str] = "not_leader_or_follower"


class CompactionStopped(StorageError):
    """A compaction pass stopped: its store is closed, or the log changed."""


class CorruptLog(CorruptError):
    """Stored bytes below the durable offset differ from the written ones; the file is unchanged."""

    code: ClassVar[str] = "kafka_storage_error"

    def __init__(self, path: Path, position: int, reason: str) -> None:
        super().__init__(f"{path} at byte {position}: {reason}")
        self.path = path
        self.position = position
        self.reason = reason


class CorruptFile(CorruptError):
    """Checkpoint, snapshot, index or other small file with invalid content."""

    code: ClassVar[str] = "kafka_storage_error"


class InvalidTimestamp(InvalidError):
    """Batch with timestamps too far from the broker's clock."""

    code: ClassVar[str] = "invalid_timestamp"


class BatchesTooLarge(InvalidError):
    """The batches of one append together exceed `segment.bytes`."""

    code: ClassVar[str] = "record_list_too_large"


class ReplicaOverlap(InvalidError):
    """Batch for a replica that begins below its log end offset."""

    code: ClassVar[str] = "offset_out_of_range"

    def __init__(self, where: object, expected: int, found: int) -> None:
        super().__init__(
            f"{where}: received a batch at offset {found}, but the replica already has all batches"
            f" below offset {expected}"
        )
        self.expected = expected
        self.found = found


class ReplicaEpochFell(FencedError):
    """Batch for a replica with a leader epoch below one that it already has."""

    code: ClassVar[str] = "fenced_leader_epoch"

    def __init__(self, where: object, newest: int, found: int) -> None:
        super().__init__(
            f"{where}: received a batch of leader epoch {found} after a batch of epoch {newest}"
        )
        self.newest = newest
        self.found = found


class TopicIdMismatch(InvalidError):
    """A partition of this name exists with another topic id."""

    code: ClassVar[str] = "inconsistent_topic_id"
