"""Where diskless partitions begin and end by now, in the notices that brokers send each other."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from penstock.control.limits import NOTICE_BYTES_MAX

Mark = tuple[UUID, int, int, int]
"""A partition's topic id and number, its high watermark, where its log starts."""


def watermark_notices(head: str, watermarks: Iterable[Mark]) -> list[str]:
    """As few notices as hold the marks behind `head`, each within `NOTICE_BYTES_MAX`."""
    notices: list[str] = []
    words, size = [head], len(head)
    for topic_id, partition, high_watermark, log_start in watermarks:
        word = f"{topic_id.hex},{partition},{high_watermark},{log_start}"
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
        topic_id, partition, high_watermark, log_start = word.split(",")
        found.append((UUID(hex=topic_id), int(partition), int(high_watermark), int(log_start)))
    return found
