"""Values of the append and read paths: plain slotted classes, as a frozen dataclass costs several
times as much to create."""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol
from uuid import UUID

from penstock.base.errors import InvalidTopicName
from penstock.base.ids import TopicPartition, validate_topic_name
from penstock.storage.files.errors import CorruptFile

Buffer = bytes | bytearray | memoryview


class Lease(Protocol):
    """Receive buffer that is reused after its last release."""

    def retain(self) -> None: ...

    def release(self) -> None: ...


class Read(NamedTuple):
    """Complete batches, one after another in `buffers`; `next_offset` is where to continue."""

    buffers: list[Buffer]
    size_bytes: int
    next_offset: int


class Standing(NamedTuple):
    """Durable state of a replica besides its log; epochs are -1 for none.

    The replica rejects epochs below `promised`. It may lack acknowledged batches of epochs up to
    `limbo`. With `lost` it may lack synced batches, and its owner has not handled this yet.
    """

    promised: int = -1
    limbo: int = -1
    lost: bool = False


class Later(NamedTuple):
    """Result of a read whose records are in object storage or an archive and are not loaded yet.

    The caller collects the `want`s of one fetch request, and calls `load` with them and the maximum
    total bytes. Fetch requests that wait for the partition are woken when the bytes are loaded.
    """

    load: Callable[[Sequence[Any], int], None]
    want: Any


class LogOwner(Protocol):
    """Owner of a log: the object for its partition.

    The log notifies it of changes; it determines up to which offset consumers may read.
    """

    def became_durable(self, offset: int) -> bool:
        """Record that everything below `offset` is durable; return whether consumers may read
        more."""
        ...

    def log_moved(self) -> None:
        """Handle a change of the log's start offset or leader epoch."""
        ...


class _Nobody:
    def became_durable(self, offset: int) -> bool:
        return False

    def log_moved(self) -> None:
        return


UNOWNED: Final[LogOwner] = _Nobody()
"""Owner of a log without readers."""


class OffsetAndTimestamp(NamedTuple):
    """Offset of a record, its timestamp, and the leader epoch that wrote it."""

    offset: int
    timestamp: int
    leader_epoch: int


# Names of files and directories, exactly Kafka's, so that Kafka's tools can read them.
#
# A segment's files are named by its base offset with twenty digits; a partition's directory is
# `<topic>-<partition>`, and `<topic>-<partition>.<hex>-delete` before its removal.
#
# Source: Kafka's `LogFileUtils` and `UnifiedLog`.


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


# `partition.metadata`: the topic id that a partition's directory belongs to.
#
#     version: 0\n
#     topic_id: <base64, URL alphabet, no padding, 22 characters>
#
# Source: Kafka's `PartitionMetadataFile`; KIP-516.


_VERSION_KEY: Final = "version: "
_TOPIC_ID_KEY: Final = "topic_id: "
_ID_CHARS: Final = 22


def encode_partition_metadata(topic_id: UUID) -> bytes:
    text = urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")
    return f"{_VERSION_KEY}0\n{_TOPIC_ID_KEY}{text}".encode()


def decode_partition_metadata(data: bytes) -> UUID:
    """Decode the topic id; raises CorruptFile."""
    lines = data.decode("latin-1").rstrip("\n").split("\n")
    if (
        len(lines) != 2
        or lines[0] != _VERSION_KEY + "0"
        or not lines[1].startswith(_TOPIC_ID_KEY)
        or len(lines[1]) != len(_TOPIC_ID_KEY) + _ID_CHARS
    ):
        raise CorruptFile(f"partition.metadata holds {data[:80]!r}")
    try:
        raw = urlsafe_b64decode(lines[1][len(_TOPIC_ID_KEY) :] + "==")
        return UUID(bytes=raw)
    except (binascii.Error, ValueError) as error:
        raise CorruptFile(f"partition.metadata: topic id: {error}") from None
