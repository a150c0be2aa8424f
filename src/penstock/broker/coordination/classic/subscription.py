"""Decoder of the topics in a classic member's subscription. The other fields are not read.

    ┌─────────┬───────────────┬──────────────────────────────┬───────────────────────────┐
    │ version │ topics: count │ count × (length int16, text) │ user data, owned, … unread│
    │ int16   │ int32         │                              │                           │
    └─────────┴───────────────┴──────────────────────────────┴───────────────────────────┘

All versions begin with these fields. Integers are big-endian.

Source: Kafka's `ConsumerProtocolSubscription.json`.
"""

from __future__ import annotations

import struct
from typing import Final

_PREFIX: Final = struct.Struct(">hi")
_LENGTH: Final = struct.Struct(">h")


def subscribed_topics(metadata: bytes) -> list[str] | None:
    """Return the topics of a subscription; None if it is not one of the consumer protocol."""
    try:
        version, count = _PREFIX.unpack_from(metadata, 0)
        if version < 0 or count < 0 or count * _LENGTH.size > len(metadata):
            return None
        position = _PREFIX.size
        topics = []
        for _ in range(count):
            (length,) = _LENGTH.unpack_from(metadata, position)
            position += _LENGTH.size
            text = metadata[position : position + length]
            if length < 0 or len(text) != length:
                return None
            topics.append(text.decode())
            position += length
    except (struct.error, UnicodeDecodeError):
        return None
    return topics
