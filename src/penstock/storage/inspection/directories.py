"""Listing of a directory's partitions and their files; no file is opened.

A path may be a partition's directory, a directory of partitions (a store of Penstock, `log.dirs` of
Apache Kafka), or the parent of such directories, as with `penstock serve --data-dir`.

Source: Kafka's `LogManager.loadLogs` and `UnifiedLog`, for the names.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal, NamedTuple

from msgspec import Struct, field

from penstock.base.crc import Readable
from penstock.base.errors import PenstockError
from penstock.base.files import MACHINE_FILES
from penstock.base.ids import TopicPartition
from penstock.records import BatchHeader, verify_crc
from penstock.records.columnar.validation import check_records
from penstock.storage.files.errors import StoreLocked
from penstock.storage.files.values import (
    CHECKPOINT_FILE,
    JOURNAL_DIRECTORY,
    LOCK_FILE,
    LOG,
    QUARANTINED,
    RECENT_BATCHES,
    SNAPSHOT,
    offset_name,
    parse_directory_name,
    parse_offset_name,
)
from penstock.storage.store import lock_directory

Wanted = Callable[[TopicPartition], bool]

_CLEAN_FILE: Final = ".kafka_cleanshutdown"
_KAFKA_FILES: Final = ("meta.properties", _CLEAN_FILE)


class PartitionFiles(Struct):
    """Names of the files in a partition's directory; offsets ascend."""

    where: TopicPartition
    path: str
    segments: list[int] = field(default_factory=list)
    snapshots: list[tuple[int, str]] = field(default_factory=list)
    """Offset and suffix: `.snapshot`, or `.batches`."""
    quarantined: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)

    def file(self, offset: int, suffix: str) -> str:
        return os.path.join(self.path, offset_name(offset, suffix))


def find_roots(path: Path) -> list[str]:
    """Return the directories that contain partitions: the path itself, or some of its children;
    raises OSError."""
    if _is_root(path):
        return [str(path)]
    below = sorted(child for child in path.iterdir() if child.is_dir())
    return [str(child) for child in below if _is_root(child)]


def _is_root(path: Path) -> bool:
    names = set(os.listdir(path))
    if CHECKPOINT_FILE in names or JOURNAL_DIRECTORY in names or names & {*_KAFKA_FILES}:
        return True
    return any(parse_directory_name(name) and is_partition(path / name) for name in names)


def is_partition(path: Path) -> bool:
    return (
        parse_directory_name(path.name) is not None
        and path.is_dir()
        and any((parse_offset_name(name) or (0, ""))[1] == LOG for name in os.listdir(path))
    )


def partitions_of(root: str, wanted: Wanted) -> Iterator[PartitionFiles]:
    """Yield the wanted partitions below a directory of partitions, sorted by name."""
    for name in sorted(os.listdir(root)):
        where = parse_directory_name(name)
        path = os.path.join(root, name)
        if where is not None and wanted(where) and os.path.isdir(path):
            yield list_partition(where, path)


def list_partition(where: TopicPartition, path: str) -> PartitionFiles:
    """Return the files of one partition; none for a missing directory."""
    found = PartitionFiles(where, path)
    try:
        names = sorted(os.listdir(path))
    except FileNotFoundError:
        return found
    for name in names:
        parsed = parse_offset_name(name)
        if name.endswith(QUARANTINED):
            found.quarantined.append(name)
        elif parsed is None:
            found.others.append(name)
        elif parsed[1] == LOG:
            found.segments.append(parsed[0])
        elif parsed[1] in (SNAPSHOT, RECENT_BATCHES):
            found.snapshots.append(parsed)
    return found


def was_closed_cleanly(root: str) -> bool | None:
    """Return whether Apache Kafka closed its directory cleanly; None for other directories."""
    if os.path.exists(os.path.join(root, CHECKPOINT_FILE)):
        return None
    names = os.listdir(root)
    return _CLEAN_FILE in names if set(names) & {*_KAFKA_FILES} else None


@contextmanager
def locked(root: str) -> Iterator[None]:
    """Lock an existing directory against Penstock's and Apache Kafka's brokers.

    Both kinds of locks are taken: Penstock uses flock, Java uses fcntl, and neither detects the
    other's lock.

    Raises:
        StoreLocked: a broker uses the directory.
    """
    file = lock_directory(root, MACHINE_FILES)
    try:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            path = os.path.join(root, LOCK_FILE)
            raise StoreLocked(f"{path} is locked: a broker uses the directory") from error
        yield
    finally:
        MACHINE_FILES.close(file)


# Findings about stored logs: all are counted, and the first ones are kept.
#
# A batch is checked as with `record.validation = full`: its checksum, then record by record. A
# batch from which compaction removed records has offset gaps, which this check rejects. Such a
# batch is decoded instead, as a consumer would do.


FINDINGS_MAX: Final = 1_000
"""Maximum number of findings that are kept, and of notes."""

Kind = Literal[
    "batch", "offsets", "index", "timeindex", "txnindex", "snapshot", "epochs", "journal",
    "checkpoint", "file", "object",
]  # fmt: skip


class Finding(NamedTuple):
    """Error or irregularity in stored files: its location and reason; unknown offsets are -1."""

    partition: TopicPartition | None
    base_offset: int
    last_offset: int
    place: str
    reason: str
    kind: Kind = "batch"


class BatchVerifier:
    """Verifier of batches, which counts them and keeps findings.

    `findings` has the first `FINDINGS_MAX` errors. `notes` has the first findings that may be
    harmless: offset gaps, which compaction may have left as well as a lost file, and torn ends,
    which the next start removes.
    """

    def __init__(self, *, deep: bool = True) -> None:
        self.deep = deep
        self.findings: list[Finding] = []
        self.notes: list[Finding] = []
        self.wrong = self.noted = self.partitions = self.batches = self.records = 0
        self.size_bytes = self.entries = 0

    def verify(
        self, where: TopicPartition, batch: Readable, header: BatchHeader, place: str
    ) -> bool:
        """Verify a complete batch; return whether it is intact.

        `place` is its location for messages.
        """
        self.batches += 1
        self.records += header.record_count
        self.size_bytes += header.size_bytes
        try:
            verify_crc(batch, header)
            if self.deep:
                _check(batch, header)
        except PenstockError as error:
            self.found(Finding(where, header.base_offset, header.last_offset, place, str(error)))
            return False
        return True

    def found(self, finding: Finding) -> None:
        self.wrong += 1
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(finding)

    def note(self, finding: Finding) -> None:
        self.noted += 1
        if len(self.notes) < FINDINGS_MAX:
            self.notes.append(finding)


def _check(batch: Readable, header: BatchHeader) -> None:
    if header.record_count == header.last_offset_delta + 1:
        check_records(batch, header)
        return
    # Imported on first use, because the kernels load slowly.
    from penstock.records.columnar.rows import read_rows

    read_rows(batch, include_control=True, check_crc=False)
