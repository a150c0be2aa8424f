"""Requests of members of consumer groups, and what they are answered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from penstock.broker.coordination.assignors import Partitions

LEAVE_FOR_A_WHILE: Final = -2
"""What a static member's heartbeat says instead of an epoch."""

UNCHANGED: Final = -1
"""A rebalance timeout that is as it was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHeartbeat:
    """A member joins, lives or leaves; None is for what has not changed.

    `fresh_id` is the id of a member that has none, where the request's version allows that.
    """

    group_id: str
    member_id: str
    epoch: int
    client_id: str
    client_host: str
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = UNCHANGED
    topics: frozenset[str] | None = None
    regex: str | None = None
    assignor: str | None = None
    owned: Partitions | None = None
    fresh_id: str = ""
    visible: Callable[[str], bool] | None = field(default=None, compare=False, repr=False)
    """Which topics the member may describe; None where all of them."""

    @property
    def is_full(self) -> bool:
        """Whether the member says all of itself, as after an error; it is told all then."""
        return (
            self.rebalance_timeout_ms != UNCHANGED
            and (self.topics is not None or self.regex is not None)
            and self.owned is not None
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedConsumer:
    """A member of a consumer group."""

    member_id: str
    group_instance_id: str | None
    rack_id: str | None
    epoch: int
    client_id: str
    client_host: str
    topics: tuple[str, ...]
    regex: str
    assigned: Partitions
    target: Partitions
    is_classic: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedConsumerGroup:
    """A consumer group; topics in assignments are ids."""

    group_id: str
    state: str
    epoch: int
    assignment_epoch: int
    assignor: str
    members: tuple[DescribedConsumer, ...]
    protocol_type: str = "consumer"

    @property
    def protocol(self) -> str:
        """What a classic group's protocol is here."""
        return self.assignor
