"""Requests of members of consumer groups, and descriptions of the groups."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from msgspec import Struct

from penstock.broker.groups.runtime.assignors import Partitions

LEAVE_FOR_A_WHILE: Final = -2
"""Epoch in the heartbeat of a static member that leaves temporarily."""

UNCHANGED: Final = -1
"""Value of `rebalance_timeout_ms` in a heartbeat that does not change the timeout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHeartbeat:
    """ConsumerGroupHeartbeat request: a member joins, stays or leaves. None means unchanged.

    `fresh_id` is the member id if the request contains none, as some of its versions allow.
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
    """Function that returns whether the member may describe a topic; None allows all topics."""

    @property
    def is_full(self) -> bool:
        """Whether the heartbeat contains the member's full state, which clients send after errors.

        The response then contains the full assignment.
        """
        return (
            self.rebalance_timeout_ms != UNCHANGED
            and (self.topics is not None or self.regex is not None)
            and self.owned is not None
        )


E = TypeVar("E", bound=ConsumerHeartbeat)


class Beat(Struct, Generic[E], frozen=True):
    """Heartbeat, and the partitions that the member had before it."""

    event: E
    before: Partitions


class DescribedConsumer(Struct, frozen=True, kw_only=True):
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


class DescribedConsumerGroup(Struct, frozen=True, kw_only=True):
    """Description of a consumer group; assignments contain topic ids."""

    group_id: str
    state: str
    epoch: int
    assignment_epoch: int
    assignor: str
    members: tuple[DescribedConsumer, ...]
    protocol_type: str = "consumer"

    @property
    def protocol(self) -> str:
        """Name of the assignor, shown where a classic group shows its protocol."""
        return self.assignor
