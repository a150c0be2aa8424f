"""Types for the numbers that travel between the rooms.

`NewType` keeps an offset from being passed as an epoch; at run time they are plain ints.
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
        InvalidTopicName: empty, `.` or `..`, longer than 249 characters, or a character
            outside `[a-zA-Z0-9._-]` (Kafka's `org.apache.kafka.common.internals.Topic`).
    """
    if not name:
        raise InvalidTopicName(name, "a topic name must not be empty")
    if name in {".", ".."}:
        raise InvalidTopicName(name, "a topic name must not be '.' or '..'")
    if len(name) > TOPIC_NAME_CHARS_MAX:
        raise InvalidTopicName(
            name[:32] + "…",
            f"a topic name has at most {TOPIC_NAME_CHARS_MAX} characters, this one has {len(name)}",
        )
    if _TOPIC_NAME.fullmatch(name) is None:
        raise InvalidTopicName(
            name, "a topic name is made of ASCII letters, digits, '.', '_' and '-'"
        )
    return name
