"""Names of files and directories, exactly Kafka's, so that Kafka's tools can read them.

A segment's files are named by its base offset with twenty digits; a partition's directory is
`<topic>-<partition>`, and `<topic>-<partition>.<hex>-delete` before its removal.

Source: Kafka's `LogFileUtils` and `UnifiedLog`.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

from penstock.base.errors import InvalidTopicName
from penstock.base.ids import TopicPartition, validate_topic_name

LOG: Final = ".log"
INDEX: Final = ".index"
TIME_INDEX: Final = ".timeindex"
TXN_INDEX: Final = ".txnindex"
SNAPSHOT: Final = ".snapshot"
RECENT_BATCHES: Final = ".batches"
DELETED: Final = ".deleted"
CLEANED: Final = ".cleaned"
SWAP: Final = ".swap"
"""Suffixes of compaction's output, before and during its swap with the old segments."""
QUARANTINED: Final = ".quarantined"
"""Suffix of damaged data that recovery or `penstock log repair` keeps; the broker ignores it."""
SEGMENT_SUFFIXES: Final = (LOG, INDEX, TIME_INDEX, TXN_INDEX)

EPOCHS_FILE: Final = "leader-epoch-checkpoint"
METADATA_FILE: Final = "partition.metadata"
LOCK_FILE: Final = ".lock"
CHECKPOINT_FILE: Final = "partitions.checkpoint"
CHECKPOINT_COPY_FILE: Final = "partitions.checkpoint.copy"
CLEAN_OFFSETS_FILE: Final = "cleaner-offset-checkpoint"
JOURNAL_DIRECTORY: Final = "journal"
JOURNAL_SUFFIX: Final = ".journal"

_DELETE: Final = "-delete"
_STRAY: Final = "-stray"
_NAME_CHARS_MAX: Final = 255
_DIGITS: Final = 20


def offset_name(offset: int, suffix: str) -> str:
    """Return the name of a file, for example `00000000000000000042.log` for 42 and `.log`."""
    return f"{offset:020d}{suffix}"


def parse_offset_name(name: str) -> tuple[int, str] | None:
    """Return the offset and suffix of a file name, or None for any other name."""
    stem, dot, rest = name.partition(".")
    if len(stem) != _DIGITS or not (stem.isascii() and stem.isdigit()) or not dot:
        return None
    return int(stem), dot + rest


def directory_name(where: TopicPartition) -> str:
    return f"{where.topic}-{where.partition}"


def parse_directory_name(name: str) -> TopicPartition | None:
    """Return the partition of a directory name, or None for any other name."""
    topic, dash, number = name.rpartition("-")
    if not dash or not (number.isascii() and number.isdigit()) or len(number) > 10:
        return None
    if str(int(number)) != number or int(number) > 2**31 - 1:
        return None
    try:
        return TopicPartition(validate_topic_name(topic), int(number))
    except InvalidTopicName:
        return None


def deleted_directory_name(where: TopicPartition, unique: UUID) -> str:
    """Return the name that a partition's directory gets before its removal."""
    return _renamed(where, unique, _DELETE)


def stray_directory_name(where: TopicPartition, unique: UUID) -> str:
    """Return the name of a directory that holds records of an unknown topic id."""
    return _renamed(where, unique, _STRAY)


def is_deleted_directory(name: str) -> bool:
    return name.endswith(_DELETE) and "." in name


def _renamed(where: TopicPartition, unique: UUID, suffix: str) -> str:
    tail = f".{unique.hex}{suffix}"
    return directory_name(where)[: _NAME_CHARS_MAX - len(tail)] + tail
