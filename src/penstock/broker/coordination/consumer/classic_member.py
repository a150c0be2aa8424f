"""What a member of a consumer group has beside the rest while it speaks the classic protocol.

Source: Kafka's `ConsumerGroupMemberMetadataValue.ClassicMemberMetadata`; KIP-848.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.broker.coordination.classic import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicSide:
    """Its session timeout, and the protocols that it supports, with their subscriptions."""

    session_timeout_ms: int
    protocols: tuple[Protocol, ...]
