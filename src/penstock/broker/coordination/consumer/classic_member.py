"""Additional state of a consumer group's member that uses the classic protocol.

Source: Kafka's `ConsumerGroupMemberMetadataValue.ClassicMemberMetadata`; KIP-848.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.broker.coordination.classic import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicSide:
    session_timeout_ms: int
    protocols: tuple[Protocol, ...]
