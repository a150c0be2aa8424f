"""Additional state of a consumer group's member that uses the classic protocol.

Source: Kafka's `ConsumerGroupMemberMetadataValue.ClassicMemberMetadata`; KIP-848.
"""

from __future__ import annotations

from msgspec import Struct

from penstock.broker.coordination.classic import Protocol


class ClassicSide(Struct, frozen=True, kw_only=True):
    session_timeout_ms: int
    protocols: tuple[Protocol, ...]
