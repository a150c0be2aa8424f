"""Errors of stored logs, each with Kafka's error name, and limits that are not settings."""

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


INLINE_COMMIT_BYTES_MAX: Final = 128 << 10
"""Maximum bytes of a lone group that the event loop's thread writes and syncs itself, because a
thread switch costs more than the wait (158 against 226 µs, measured)."""

COPIED_APPEND_BYTES_MAX: Final = 16 << 10
"""Maximum bytes of an append that is copied into the tail; larger ones keep the receive buffer."""

SEGMENT_WRITE_BYTES: Final = 256 << 10
"""Durable bytes of one partition that gather in memory before they are written to its segment."""

INLINE_WRITE_BYTES_MAX: Final = 64 << 10
"""Maximum bytes of a segment write that the event loop's thread performs itself."""

SEGMENT_WRITE_LOGS_MAX: Final = 64
"""Maximum number of partitions whose segments one job writes, because the event loop's thread opens
and indexes the files."""

SEGMENT_WRITE_SHARE: Final = 4
"""All partitions together may have `1 / SEGMENT_WRITE_SHARE` of the tail cache unwritten."""

JOURNAL_ENTRY_BYTES_MAX: Final = 16 << 20
"""Approximate maximum size of a journal entry; recovery reads one at a time."""

SEGMENT_SYNCS_MAX: Final = 4
"""Maximum number of segments that are synced in parallel for the large appends of one group."""

JOURNAL_PREWRITE_BYTES: Final = 256 << 10
"""Bytes of zeros that extend a journal file at once, so that small entries overwrite blocks."""

SCAN_BYTES: Final = 64 << 10
"""Bytes that a header walk reads at once."""

RECOVERY_SCAN_BYTES: Final = 4 << 20
"""Bytes that a recovery walk, which verifies checksums, reads at once."""

REPLAY_WRITE_BYTES: Final = 4 << 20
"""Bytes of a segment that replay writes at once."""

LAZY_REPLAY_BYTES_MAX: Final = 4 << 20
"""Journal bytes of a log above which it is loaded at the start instead of on first use."""

REPLAYED_LOGS_MAX: Final = 32
"""Maximum number of logs whose journal entries one call replays after a start."""

INDEX_CACHE_BYTES: Final = 64 << 20
"""Maximum bytes of memory for the indexes of closed segments."""

HOUSEKEEPING_LOGS_MAX: Final = 256
"""Maximum number of partitions that one `housekeeping` call examines."""

HOUSEKEEPING_SEGMENTS_MAX: Final = 64
"""Maximum number of segments that one `housekeeping` call examines or drops, at 120 µs each."""

HOUSEKEEPING_FILES_MAX: Final = 256
"""Maximum number of files that one `housekeeping` call removes."""

CHECKPOINT_FILE_BYTES_MAX: Final = 256 << 20
"""Size of a checkpoint file, in bytes, above which it is rejected as damaged."""

CARRIED_BATCHES_MAX: Final = 20_000
"""Maximum number of producers' batches, of 46 bytes each, that a replica receives when its log
restarts at another offset."""
