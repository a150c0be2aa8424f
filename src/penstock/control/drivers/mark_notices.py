"""Where diskless partitions begin and end by now, in the notices that brokers send each other.

A word for each: topic id, number, high watermark, log start; of partitions with transactions, where
the first open one begins and the last aborted one has ended, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final
from uuid import UUID

from penstock.control.batch_index.values import PartitionKey, Watermarks
from penstock.control.limits import NOTICE_BYTES_MAX

Mark = tuple[UUID, int, Watermarks]
"""A partition's topic id and number, and its ends; their size is not told."""


UNTOLD: Final = -1
"""The size in a mark."""


def watermark_notices(head: str, watermarks: Mapping[PartitionKey, Watermarks]) -> list[str]:
    """As few notices as hold the marks behind `head`, each within `NOTICE_BYTES_MAX`."""
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


def decode_marks(words: Iterable[str]) -> list[Mark]:
    """The marks of a notice's words; raises ValueError for what is none."""
    found: list[Mark] = []
    for word in words:
        topic_id, partition, end, start, *transactions = word.split(",")
        marks = Watermarks(int(start), int(end), UNTOLD, *map(int, transactions))
        found.append((UUID(hex=topic_id), int(partition), marks))
    return found
