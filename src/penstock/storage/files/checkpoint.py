"""`partitions.checkpoint`: the position up to which each partition is synced in its own segments.

Big endian:

    at  bytes  field
     0      4  "PCP2"
     4      4  CRC32C of everything from byte 8
     8      8  journal sequence: all entries up to it are in the segments, synced
    16      4  flags: bit 0: the store was closed cleanly; bit 1: later appends are acknowledged
               only once their journal entry is synced; bits 8 to 31: lower bound of the total
               size of the journal files, in units of 4096 bytes (journal files never shrink)
    20      4  number of partitions
    24      …  per partition: key as in the journal (topic id 16, partition i32, size u8, name),
               log start i64, recovery offset i64, segment base i64, position i64,
               size of the log i64, leader epoch i32, flags u32 (bit 0: it has producers, bit 1:
               synced batches may be lost, bit 2: transactions are open, bit 3: offsets may lack
               a batch after compaction, bits 8 to 31: exclusive or of the checksums of its indexes
               of aborted transactions), promised epoch i32, epoch up to which the replica is in
               limbo i32 (-1: none)

A file that begins with "PCP1" lacks the last two fields, which then count as -1.

The recovery offset is the partition's durable offset at the checkpoint: everything below it is
synced. A start verifies the partition's segments only from there on, which is byte `position` of
the segment with base offset `segment base`. After a clean shutdown the recovery offset is the log
end offset, and no file of a partition is touched before the partition is used.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from contextlib import suppress
from struct import Struct
from typing import Final, NamedTuple
from uuid import UUID

from penstock.base.crc import crc32c
from penstock.base.files import Files, read_file, sync_directory, write_file
from penstock.storage.files.errors import CHECKPOINT_FILE_BYTES_MAX, CorruptFile
from penstock.storage.files.values import (
    CHECKPOINT_COPY_FILE,
    CHECKPOINT_FILE,
    JOURNAL_DIRECTORY,
    QUARANTINED,
    Standing,
)

MAGIC: Final = b"PCP2"
CLEAN: Final = 1
JOURNALED: Final = 2
HAS_PRODUCERS: Final = 1
LOST: Final = 2
HAS_TRANSACTIONS: Final = 4
HAS_HOLES: Final = 8
EXACT: Final = 16
"""In-memory flag: bytes in segments that neither journal nor checkpoint covers do not count,
because they were never acknowledged."""
ABORTED_SHIFT: Final = 8
"""Position of the bits that hold the checksum of all indexes of aborted transactions."""

_HEAD: Final = Struct(">4sIQII")
_KEY: Final = Struct(">16siB")
_POINT: Final = Struct(">qqqqqiIii")
_POINT_OF: Final = {MAGIC: _POINT, b"PCP1": Struct(">qqqqqiI")}
MAGICS: Final = (*_POINT_OF,)
"""Formats that are read; `MAGIC` is written."""
_CHECKED_FROM: Final = 8
_JOURNAL_SHIFT: Final = 8
_JOURNAL_UNIT: Final = 4096
_JOURNAL_UNITS_MAX: Final = (1 << 24) - 1


class RecoveryPoint(NamedTuple):
    """Checkpointed state of one partition."""

    log_start_offset: int
    recovery_offset: int
    segment_base: int
    position: int
    size_bytes: int
    leader_epoch: int
    flags: int
    promised: int = -1
    limbo: int = -1

    @property
    def standing(self) -> Standing:
        return Standing(self.promised, self.limbo, bool(self.flags & LOST))

    @property
    def has_holes(self) -> bool:
        return bool(self.flags & HAS_HOLES)

    def with_standing(self, standing: Standing) -> RecoveryPoint:
        flags = self.flags | LOST if standing.lost else self.flags & ~LOST
        return self._replace(promised=standing.promised, limbo=standing.limbo, flags=flags)

    def begun(self, offset: int, *, producers: bool) -> RecoveryPoint:
        """Return the recovery point of a log that restarted at `offset`.

        A higher log start offset, from a later deletion of records, is kept.
        """
        start = max(offset, self.log_start_offset)
        flags = self.flags & LOST | (HAS_PRODUCERS if producers else 0)
        return RecoveryPoint(start, offset, offset, 0, 0, -1, flags, self.promised, self.limbo)

    def cut(self, end_offset: int, segment_base: int, position: int) -> RecoveryPoint:
        """Return the recovery point after a truncation, or this one if the truncation is above."""
        if end_offset >= self.recovery_offset:
            return self
        return self._replace(
            recovery_offset=end_offset, segment_base=segment_base, position=position
        )


class Checkpoint(NamedTuple):
    """Decoded checkpoint; `points` has topic ids and recovery points by topic and partition."""

    sequence: int
    clean: bool
    journaled: bool
    """Whether appends after the checkpoint count only if the journal has their entries."""
    points: dict[tuple[str, int], tuple[UUID, RecoveryPoint]]
    journal_bytes: int = 0
    """Lower bound of the total size of the journal files."""
    unknown: bool = False
    """Whether no valid checkpoint was found, although there are logs."""


def encode_recovery_point(key: bytes, point: RecoveryPoint) -> bytes:
    return key + _POINT.pack(*point)


def encode_checkpoint(
    sequence: int,
    points: Iterable[bytes],
    *,
    clean: bool,
    journaled: bool,
    journal_bytes: int = 0,
) -> bytes:
    rows = list(points)
    flags = (CLEAN if clean else 0) | (JOURNALED if journaled else 0)
    flags |= min(journal_bytes // _JOURNAL_UNIT, _JOURNAL_UNITS_MAX) << _JOURNAL_SHIFT
    body = bytearray(_HEAD.pack(MAGIC, 0, sequence, flags, len(rows)))
    body += b"".join(rows)
    checksum = crc32c(memoryview(body)[_CHECKED_FROM:])
    body[4:8] = checksum.to_bytes(4, "big")
    return bytes(body)


def decode_checkpoint(data: bytes) -> Checkpoint:
    """Decode a checkpoint; raises CorruptFile."""
    try:
        magic, checksum, sequence, flags, count = _HEAD.unpack_from(data)
        point = _POINT_OF.get(magic)
        if point is None:
            raise CorruptFile(f"partitions.checkpoint begins with {magic!r}: unknown version")
        actual = crc32c(memoryview(data)[_CHECKED_FROM:])
        if actual != checksum:
            raise CorruptFile(
                f"partitions.checkpoint has checksum {actual:#010x}, expected {checksum:#010x}"
            )
        points: dict[tuple[str, int], tuple[UUID, RecoveryPoint]] = {}
        at = _HEAD.size
        for _ in range(count):
            topic_id, partition, name_bytes = _KEY.unpack_from(data, at)
            at += _KEY.size
            name = data[at : at + name_bytes].decode()
            at += name_bytes
            points[name, partition] = (
                UUID(bytes=topic_id),
                RecoveryPoint(*point.unpack_from(data, at)),
            )
            at += point.size
    except (struct.error, UnicodeDecodeError) as error:
        raise CorruptFile(f"partitions.checkpoint of {len(data)} bytes: {error}") from None
    if at != len(data):
        raise CorruptFile(f"partitions.checkpoint has {len(data) - at} bytes too many")
    journal_bytes = (flags >> _JOURNAL_SHIFT) * _JOURNAL_UNIT
    known = bool(flags & CLEAN), bool(flags & JOURNALED)
    return Checkpoint(sequence, *known, points, journal_bytes)


# Two copies of the file `partitions.checkpoint`; a start of the store needs only one of them.
#
# Both copies are written before journal files are reused, so a start may also use the older copy.
# If one copy is damaged, the start uses the intact one. It keeps the damaged copy with the suffix
# `.quarantined` until an operator removes it.


class FoundCheckpoint(NamedTuple):
    """Newest valid checkpoint (None if there is none), and the errors of damaged copies."""

    checkpoint: Checkpoint | None
    damaged: dict[str, CorruptFile]
    """Error by file path."""


def write_checkpoint(files: Files, root: str, data: bytes) -> None:
    """Write and sync the checkpoint file and its copy; raises OSError."""
    paths = [os.path.join(root, name) for name in (CHECKPOINT_FILE, CHECKPOINT_COPY_FILE)]
    for path in paths:
        write_file(files, f"{path}.tmp", data, sync=True)
    for path in paths:
        files.rename(f"{path}.tmp", path)
    sync_directory(files, root)


def read_checkpoint(files: Files, root: str) -> FoundCheckpoint:
    """Return the first valid copy, and the errors of damaged ones; raises OSError."""
    damaged: dict[str, CorruptFile] = {}
    for name in (CHECKPOINT_FILE, CHECKPOINT_COPY_FILE):
        path = os.path.join(root, name)
        try:
            data = read_file(files, path, CHECKPOINT_FILE_BYTES_MAX)
            return FoundCheckpoint(decode_checkpoint(data), damaged)
        except FileNotFoundError:
            continue
        except CorruptFile as error:
            damaged[path] = CorruptFile(f"{path}: {error}")
    return FoundCheckpoint(None, damaged)


def keep_damaged(files: Files, found: FoundCheckpoint) -> None:
    """Copy each damaged file to its `.quarantined` name; raises OSError."""
    for path in found.damaged:
        data = read_file(files, path, CHECKPOINT_FILE_BYTES_MAX)
        write_file(files, path + QUARANTINED, data, sync=True)


def set_aside(files: Files, root: str) -> list[str]:
    """Return the paths of quarantined journal and checkpoint files of a store; raises OSError."""
    found: list[str] = []
    for directory in root, os.path.join(root, JOURNAL_DIRECTORY):
        with suppress(FileNotFoundError):
            names = sorted(files.names_in(directory))
            found += [os.path.join(directory, name) for name in names if name.endswith(QUARANTINED)]
    return found
