"""Encoding of the watermarks of diskless partitions, for the notices that brokers send each other.

A partition is one word of numbers, separated by commas: topic id, partition, high watermark, log
start. A partition with transactions has two more: the first offset of its first open transaction,
and the marker of the last aborted one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final
from uuid import UUID

from penstock.control.batch_index.values import PartitionKey, Watermarks
from penstock.control.limits import NOTICE_BYTES_MAX

NoticedWatermarks = tuple[UUID, int, Watermarks]
"""Topic id, partition, and watermarks whose size in bytes is `UNKNOWN_SIZE`."""

UNKNOWN_SIZE: Final = -1


def watermark_notices(head: str, watermarks: Mapping[PartitionKey, Watermarks]) -> list[str]:
    """Return notices that hold the watermarks, each of at most `NOTICE_BYTES_MAX` bytes.

    `head` is the beginning of each notice.
    """
    notices: list[str] = []
    words, size = [head], len(head)
    for (topic_id, partition), (start, end, _, open_offset, aborted_offset) in watermarks.items():
        word = f"{topic_id.hex},{partition},{end},{start}"
        if (open_offset, aborted_offset) != (-1, -1):
            word += f",{open_offset},{aborted_offset}"
        if size + len(word) + 1 > NOTICE_BYTES_MAX:
            notices.append(" ".join(words))
            words, size = words[:1], len(head)
        words.append(word)
        size += len(word) + 1
    return [*notices, " ".join(words)] if len(words) > 1 else notices


def decode_watermarks(words: Iterable[str]) -> list[NoticedWatermarks]:
    """Decode the watermarks in a notice's words. Raises ValueError for malformed ones."""
    found: list[NoticedWatermarks] = []
    for word in words:
        topic_id, partition, end, start, *transactions = word.split(",")
        watermarks = Watermarks(int(start), int(end), UNKNOWN_SIZE, *map(int, transactions))
        found.append((UUID(hex=topic_id), int(partition), watermarks))
    return found
