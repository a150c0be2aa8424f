r"""`cleaner-offset-checkpoint`: up to where each compacted log of a store is clean.

Text, in Kafka's form of all checkpoints:

    0\n                       version
    1\n                       number of entries
    orders 0 117\n            topic, partition, first offset that is not clean

What is said here must be so: below a clean offset no key has two records, so that a tombstone may
go. An entry that is too low only costs a pass. So a log that is cut or deleted has its entry
lowered, on disk, before; and one that is damaged counts as none.

Source: Kafka's `OffsetCheckpointFile` and `LogCleanerManager`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from penstock.base.errors import InvalidTopicName
from penstock.base.files import Files, read_file, replace_file
from penstock.base.ids import TopicPartition, validate_topic_name
from penstock.storage.errors import CorruptFile, StorageError
from penstock.storage.names import CLEAN_OFFSETS_FILE

logger = logging.getLogger(__name__)

_VERSION: Final = "0"
_FIELDS: Final = 3


def encode_clean_offsets(offsets: dict[TopicPartition, int]) -> bytes:
    """Write the entries in the order of their partitions."""
    rows = sorted(f"{tp.topic} {tp.partition} {offset}" for tp, offset in offsets.items())
    return ("\n".join([_VERSION, str(len(rows)), *rows]) + "\n").encode()


def decode_clean_offsets(data: bytes) -> dict[TopicPartition, int]:
    """Read the entries.

    Raises:
        CorruptFile: another version, or what is no entry.
    """
    try:
        version, count, *rows, end = data.decode("ascii").split("\n")
        if version != _VERSION or int(count) != len(rows) or end:
            raise ValueError(f"version {version}, {len(rows)} of {count} entries, {end!r}")
        found: dict[TopicPartition, int] = {}
        for row in rows:
            fields = row.split(" ")
            if len(fields) != _FIELDS or not (fields[1].isdigit() and fields[2].isdigit()):
                raise ValueError(f"no entry: {row!r}")
            tp = TopicPartition(validate_topic_name(fields[0]), int(fields[1]))
            found[tp] = int(fields[2])
        return found
    except (ValueError, InvalidTopicName) as error:
        raise CorruptFile(f"{CLEAN_OFFSETS_FILE}: {error}") from None


class CleanOffsets:
    """The entries of a store; belongs to the owner's thread."""

    def __init__(self, files: Files, root: str, settle: Callable[[], None]) -> None:
        """`settle` waits for `save`s that are under way."""
        self._files = files
        self._settle = settle
        self._path = os.path.join(root, CLEAN_OFFSETS_FILE)
        self._offsets: dict[TopicPartition, int] = {}
        try:
            self._offsets = decode_clean_offsets(read_file(files, self._path))
        except FileNotFoundError:
            pass
        except CorruptFile as error:
            logger.warning("%s: %s; every compacted log counts as dirty", self._path, error)

    def of(self, tp: TopicPartition) -> int:
        """Up to where a log is clean; 0 if nothing is known."""
        return self._offsets.get(tp, 0)

    def encoded_with(self, tp: TopicPartition, offset: int) -> bytes:
        """What the file is to hold once a pass has ended."""
        self._offsets[tp] = offset
        return encode_clean_offsets(self._offsets)

    def encoded_without(self, tp: TopicPartition) -> bytes | None:
        """What the file is to hold once a log is gone; None where nothing is said of it."""
        if self._offsets.pop(tp, None) is None:
            return None
        return encode_clean_offsets(self._offsets)

    def save(self, data: bytes) -> None:
        """Put the file in its place, on any thread.

        Raises:
            OSError: that cannot be done.
        """
        replace_file(self._files, self._path, data)

    def lower(self, tp: TopicPartition, offset: int) -> None:
        """A log is about to be cut: on disk when this is done.

        Raises:
            StorageError: that cannot be done.
        """
        if self._offsets.get(tp, 0) <= offset:
            return
        self._settle()
        if offset:
            self._offsets[tp] = offset
        else:
            self._offsets.pop(tp, None)
        try:
            self.save(encode_clean_offsets(self._offsets))
        except OSError as error:
            raise StorageError(
                f"cannot write {Path(self._path)}, which says that {tp} is clean: {error}"
            ) from error
