r"""`cleaner-offset-checkpoint`: the clean offset of each compacted log of a store.

Text, in the form of Kafka's checkpoint files:

    0\n                       version
    1\n                       number of entries
    orders 0 117\n            topic, partition, first offset that is not clean

Below a clean offset no key has two records, and tombstones may be removed. An entry that is too
high would be an error; one that is too low only costs a pass. So the entry of a log is lowered on
disk before the log is truncated or deleted, and a damaged file counts as empty.

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
from penstock.storage.files.errors import CorruptFile, StorageError
from penstock.storage.files.values import CLEAN_OFFSETS_FILE

logger = logging.getLogger(__name__)

_VERSION: Final = "0"
_FIELDS: Final = 3


def encode_clean_offsets(offsets: dict[TopicPartition, int]) -> bytes:
    rows = sorted(f"{tp.topic} {tp.partition} {offset}" for tp, offset in offsets.items())
    return ("\n".join([_VERSION, str(len(rows)), *rows]) + "\n").encode()


def decode_clean_offsets(data: bytes) -> dict[TopicPartition, int]:
    """Decode the entries; raises CorruptFile."""
    try:
        version, count, *rows, end = data.decode("ascii").split("\n")
        if version != _VERSION or int(count) != len(rows) or end:
            raise ValueError(f"version {version}, {len(rows)} of {count} entries, {end!r}")
        found: dict[TopicPartition, int] = {}
        for row in rows:
            fields = row.split(" ")
            if len(fields) != _FIELDS or not (fields[1].isdigit() and fields[2].isdigit()):
                raise ValueError(f"invalid entry {row!r}")
            tp = TopicPartition(validate_topic_name(fields[0]), int(fields[1]))
            found[tp] = int(fields[2])
        return found
    except (ValueError, InvalidTopicName) as error:
        raise CorruptFile(f"{CLEAN_OFFSETS_FILE}: {error}") from None


class CleanOffsets:
    """Clean offsets of a store's logs; used on the event loop's thread."""

    def __init__(self, files: Files, root: str, wait_saved: Callable[[], None]) -> None:
        """Load the offsets; `wait_saved` waits for running calls of `save`."""
        self._files = files
        self._wait_saved = wait_saved
        self._path = os.path.join(root, CLEAN_OFFSETS_FILE)
        self._offsets: dict[TopicPartition, int] = {}
        try:
            self._offsets = decode_clean_offsets(read_file(files, self._path))
        except FileNotFoundError:
            pass
        except CorruptFile as error:
            logger.warning("%s: %s; all compacted logs count as dirty", self._path, error)

    def of(self, tp: TopicPartition) -> int:
        return self._offsets.get(tp, 0)

    def encoded_with(self, tp: TopicPartition, offset: int) -> bytes:
        """Record that a log is clean up to `offset`; return the file's new content for `save`."""
        self._offsets[tp] = offset
        return encode_clean_offsets(self._offsets)

    def encoded_without(self, tp: TopicPartition) -> bytes | None:
        """Remove the entry of a deleted log; return the file's new content for `save`, or None if
        the log had no entry."""
        if self._offsets.pop(tp, None) is None:
            return None
        return encode_clean_offsets(self._offsets)

    def save(self, data: bytes) -> None:
        """Replace the file's content, on any thread; raises OSError."""
        replace_file(self._files, self._path, data)

    def lower(self, tp: TopicPartition, offset: int) -> None:
        """Lower a log's offset before a truncation; it is on disk at return.

        Raises:
            StorageError: the file cannot be written.
        """
        if self._offsets.get(tp, 0) <= offset:
            return
        self._wait_saved()
        if offset:
            self._offsets[tp] = offset
        else:
            self._offsets.pop(tp, None)
        try:
            self.save(encode_clean_offsets(self._offsets))
        except OSError as error:
            raise StorageError(
                f"cannot write {Path(self._path)} to lower the clean offset of {tp}: {error}"
            ) from error
