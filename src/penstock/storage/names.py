"""Names of files and directories, exactly Kafka's, so that its tools find their way.

A segment's files are named by its base offset with twenty digits; a partition's directory is
`<topic>-<partition>`, and `<topic>-<partition>.<hex>-delete` once it is to be removed.

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
"""What compaction writes, and what of it is to take the place of segments."""
QUARANTINED: Final = ".quarantined"
"""What a start, a mending or `penstock log repair` has set aside; nobody reads or removes it."""
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
    """`00000000000000000042.log` for 42 and `.log`."""
    return f"{offset:020d}{suffix}"


def parse_offset_name(name: str) -> tuple[int, str] | None:
    """The offset and suffix of a file name, or None if it is none of these."""
    stem, dot, rest = name.partition(".")
    if len(stem) != _DIGITS or not (stem.isascii() and stem.isdigit()) or not dot:
        return None
    return int(stem), dot + rest


def directory_name(where: TopicPartition) -> str:
    return f"{where.topic}-{where.partition}"


def parse_directory_name(name: str) -> TopicPartition | None:
    """The partition that a directory is for, or None if it is none."""
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
    """The name that a partition's directory gets before it is removed."""
    return _renamed(where, unique, _DELETE)


def stray_directory_name(where: TopicPartition, unique: UUID) -> str:
    """The name of a directory that holds records of nobody knows which topic id."""
    return _renamed(where, unique, _STRAY)


def is_deleted_directory(name: str) -> bool:
    return name.endswith(_DELETE) and "." in name


def _renamed(where: TopicPartition, unique: UUID, suffix: str) -> str:
    tail = f".{unique.hex}{suffix}"
    return directory_name(where)[: _NAME_CHARS_MAX - len(tail)] + tail
