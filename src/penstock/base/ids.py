"""Types for ids, offsets and epochs that all rooms use.

With `NewType`, type checkers reject an offset that is passed as an epoch. At run time these are
plain ints.
"""

from __future__ import annotations

import re
from typing import Final, NewType
from uuid import UUID

from msgspec import Struct

from penstock.base.errors import InvalidTopicName

Offset = NewType("Offset", int)
Epoch = NewType("Epoch", int)
BrokerId = NewType("BrokerId", int)
ProducerId = NewType("ProducerId", int)
TopicId = NewType("TopicId", UUID)
TimestampMs = NewType("TimestampMs", int)

NO_OFFSET: Final = Offset(-1)
NO_EPOCH: Final = Epoch(-1)
NO_PRODUCER_ID: Final = ProducerId(-1)
NO_TIMESTAMP: Final = TimestampMs(-1)

TOPIC_NAME_CHARS_MAX: Final = 249
_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]+")


class TopicPartition(Struct, frozen=True, order=True):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def validate_topic_name(name: str) -> str:
    """Return `name` if Kafka's rules allow it as a topic name.

    Raises:
        InvalidTopicName: the name is empty, `.` or `..`, longer than 249 characters, or contains a
            character outside `[a-zA-Z0-9._-]` (Kafka's `org.apache.kafka.common.internals.Topic`).
    """
    if not name:
        raise InvalidTopicName(name, "a topic name must not be empty")
    if name in {".", ".."}:
        raise InvalidTopicName(name, "a topic name must not be '.' or '..'")
    if len(name) > TOPIC_NAME_CHARS_MAX:
        raise InvalidTopicName(
            name[:32] + "…",
            f"a topic name must have at most {TOPIC_NAME_CHARS_MAX} characters, not {len(name)}",
        )
    if _TOPIC_NAME.fullmatch(name) is None:
        raise InvalidTopicName(
            name, "a topic name may contain only ASCII letters, digits, '.', '_' and '-'"
        )
    return name
