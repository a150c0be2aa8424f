"""Codec of the subscription and the assignment of members that use the classic protocol.

    subscription  version int16 · topics · user data · v1: partitions owned · v2: generation int32
                  · v3: rack
    assignment    version int16 · partitions · user data
    topics        count int32 · count × text          partitions  count int32 · count ×
    text          length int16 · bytes                            (text, count int32, count × int32)
    user data     length int32 (−1: none) · bytes

Integers are big-endian. Bytes behind the last field of a version are ignored.

Source: Kafka's `ConsumerProtocolSubscription.json` and `ConsumerProtocolAssignment.json`.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

Owned = Mapping[str, frozenset[int]]
VERSION_MAX: Final = 3
OWNED_VERSION: Final = 1
RACK_VERSION: Final = 3


class Subscription(Struct, frozen=True, kw_only=True):
    """Topics and owned partitions of a member; `owned` is empty below version 1."""

    version: int
    topics: frozenset[str]
    owned: Owned
    rack_id: str | None = None


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, form: str) -> int:
        (value,) = struct.unpack_from(form, self._data, self._at)
        self._at += struct.calcsize(form)
        return int(value)

    def data(self, length: int) -> bytes:
        found = self._data[self._at : self._at + length]
        if length < 0 or len(found) != length:
            raise ValueError(f"a field of {length} bytes at byte {self._at} is truncated")
        self._at += length
        return found

    def text(self) -> str:
        return self.data(self.number(">h")).decode()

    def count(self, least_bytes: int) -> int:
        count = self.number(">i")
        if count < 0 or count * least_bytes > len(self._data) - self._at:
            raise ValueError(f"a list of {count} entries at byte {self._at} is truncated")
        return count

    def partitions(self) -> Owned:
        found: dict[str, frozenset[int]] = {}
        for _ in range(self.count(6)):
            topic = self.text()
            numbers = [self.number(">i") for _ in range(self.count(4))]
            if numbers:
                found[topic] = found.get(topic, frozenset()).union(numbers)
        return found

    def user_data(self) -> None:
        length = self.number(">i")
        if length >= 0:
            self.data(length)


def decode_subscription(metadata: bytes) -> Subscription:
    """Decode the subscription in a member's metadata.

    Raises:
        ValueError: the bytes are not a subscription.
    """
    reader = _Reader(metadata)
    try:
        version = reader.number(">h")
        topics = frozenset([reader.text() for _ in range(reader.count(2))])
        reader.user_data()
        owned = reader.partitions() if version >= OWNED_VERSION else {}
        rack_id = None
        if version >= RACK_VERSION:
            reader.number(">i")
            length = reader.number(">h")
            rack_id = reader.data(length).decode() if length >= 0 else None
    except (struct.error, UnicodeDecodeError) as error:
        raise ValueError(f"the subscription cannot be decoded: {error}") from None
    if version < 0:
        raise ValueError(f"the subscription has the invalid version {version}")
    return Subscription(version=version, topics=topics, owned=owned, rack_id=rack_id)


def decode_assignment(assignment: bytes) -> Owned:
    """Decode the partitions of an assignment; empty bytes mean no partitions.

    Raises:
        ValueError: the bytes are not an assignment.
    """
    if not assignment:
        return {}
    reader = _Reader(assignment)
    try:
        if reader.number(">h") < 0:
            raise ValueError("the assignment has a negative version")
        return reader.partitions()
    except (struct.error, UnicodeDecodeError) as error:
        raise ValueError(f"the assignment cannot be decoded: {error}") from None


def encode_assignment(partitions: Owned, version: int) -> bytes:
    pieces = [struct.pack(">hi", min(version, VERSION_MAX), len(partitions))]
    for topic in sorted(partitions):
        name, numbers = topic.encode(), sorted(partitions[topic])
        pieces.append(struct.pack(">h", len(name)) + name)
        pieces.append(struct.pack(f">i{len(numbers)}i", len(numbers), *numbers))
    pieces.append(struct.pack(">i", -1))
    return b"".join(pieces)
