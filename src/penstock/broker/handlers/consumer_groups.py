"""ConsumerGroupHeartbeat and ConsumerGroupDescribe; the core in `coordination/consumer/` decides.

Source: KIP-848; KIP-1082 (the client creates its member id, from version 1).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from penstock.broker.connection import RequestContext
from penstock.broker.coordination.assignors import Partitions
from penstock.broker.coordination.consumer import (
    ConsumerHeartbeat,
    DescribedConsumer,
    DescribedConsumerGroup,
)
from penstock.broker.handlers.modern_groups import described_groups, heartbeat_answer, named
from penstock.security import EVERYTHING
from penstock.wire.kafka.primitives import milliseconds

if TYPE_CHECKING:
    from penstock.base.system import Randomness
    from penstock.broker.coordination.groups import GroupCoordinator
    from penstock.broker.metadata import ClusterMetadata

MEMBER_ID_VERSION: Final = 1
"""First version in which members create their ids; before, the coordinator does."""

CLASSIC: Final = 0
CONSUMER: Final = 1
"""Member types in descriptions."""

Entry = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    randomness: Randomness
    cluster: ClusterMetadata
    coordinator: GroupCoordinator


# -- ConsumerGroupHeartbeat -----------------------------------------------------------------


async def consumer_group_heartbeat(parts: Parts, context: RequestContext, request: Any) -> Entry:
    coordinator = parts.coordinator
    coordinator.check_owner(request.group_id)
    joins_without_id = context.version < MEMBER_ID_VERSION and request.member_epoch == 0
    names, owned = request.subscribed_topic_names, request.topic_partitions
    rights = context.rights
    response = await coordinator.call(
        ConsumerHeartbeat(
            group_id=request.group_id,
            member_id=request.member_id,
            epoch=request.member_epoch,
            client_id=context.client_id or "",
            client_host=f"/{context.client_host}",
            instance_id=request.instance_id,
            rack_id=request.rack_id,
            rebalance_timeout_ms=milliseconds(request.rebalance_timeout),
            topics=None if names is None else frozenset(names),
            regex=getattr(request, "subscribed_topic_regex", None),
            assignor=request.server_assignor,
            owned=None if owned is None else _partitions(owned),
            fresh_id=str(parts.randomness.uuid()) if joins_without_id else "",
            visible=None if rights is EVERYTHING else partial(rights.allows, "describe", "topic"),
        )
    )
    return heartbeat_answer(response, request.member_id)


def _partitions(topics: Iterable[Any]) -> Partitions:
    found: dict[bytes, frozenset[int]] = {}
    for topic in topics:
        if topic.topic_id is not None and topic.partitions:
            key = topic.topic_id.bytes
            found[key] = found.get(key, frozenset()).union(topic.partitions)
    return found


# -- ConsumerGroupDescribe ------------------------------------------------------------------


async def consumer_group_describe(parts: Parts, context: RequestContext, request: Any) -> Entry:
    return await described_groups(
        parts, context, request, DescribedConsumerGroup, "consumer", _member
    )


def _member(member: DescribedConsumer, names: Mapping[bytes, str]) -> Entry:
    return {
        "member_id": member.member_id,
        "instance_id": member.group_instance_id,
        "rack_id": member.rack_id,
        "member_epoch": member.epoch,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": member.topics,
        "subscribed_topic_regex": member.regex or None,
        "assignment": named(member.assigned, names),
        "target_assignment": named(member.target, names),
        "member_type": CLASSIC if member.is_classic else CONSUMER,
    }
