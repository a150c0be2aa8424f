r"""`partition.metadata`: the topic id that a partition's directory belongs to.

    version: 0\n
    topic_id: <base64, URL alphabet, no padding, 22 characters>

Source: Kafka's `PartitionMetadataFile`; KIP-516.
"""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Final
from uuid import UUID

from penstock.storage.errors import CorruptFile

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
