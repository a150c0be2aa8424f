"""ConsumerGroupHeartbeat and ConsumerGroupDescribe: consumer groups whose coordinator assigns.

The core decides (`coordination/consumer/`); these functions translate.

Source: KIP-848; KIP-1082 (the client makes its member id, from version 1).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from penstock.base.errors import PenstockError
from penstock.broker.connection import RequestContext
from penstock.broker.coordination.assignors import Partitions
from penstock.broker.coordination.consumer import (
    Beaten,
    ConsumerHeartbeat,
    DescribedConsumer,
    DescribedConsumerGroup,
)
from penstock.broker.coordination.core import Refused
from penstock.broker.coordination.groups import GroupIdNotFound
from penstock.broker.errors import error_number, error_of
from penstock.broker.handlers.groups import unexpected
from penstock.broker.operations import GROUP_OPERATIONS, NOT_ASKED
from penstock.wire.kafka.primitives import milliseconds

if TYPE_CHECKING:
    from penstock.base.system import Randomness
    from penstock.broker.coordination.groups import GroupCoordinator
    from penstock.broker.metadata import ClusterMetadata

MEMBER_ID_VERSION: Final = 1
"""Members make their ids from this version; before, the coordinator does for those without."""

CLASSIC: Final = 0
CONSUMER: Final = 1
"""Types of members in descriptions."""

Entry = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What these handlers use."""

    randomness: Randomness
    cluster: ClusterMetadata
    coordinator: GroupCoordinator


# -- ConsumerGroupHeartbeat -----------------------------------------------------------------


async def consumer_group_heartbeat(parts: Parts, context: RequestContext, request: Any) -> Entry:
    coordinator = parts.coordinator
    coordinator.check_owner(request.group_id)
    joins_without_id = context.version < MEMBER_ID_VERSION and request.member_epoch == 0
    names, owned = request.subscribed_topic_names, request.topic_partitions
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
        )
    )
    if isinstance(response, Refused):
        return {
            "error_code": error_number(response.error),
            "error_message": response.message,
            "member_id": request.member_id,
            "member_epoch": 0,
            "heartbeat_interval": 0,
        }
    if not isinstance(response, Beaten):
        raise unexpected(response)
    return {
        "member_id": response.member_id,
        "member_epoch": response.epoch,
        "heartbeat_interval": response.heartbeat_interval_ms,
        "assignment": None if response.assigned is None else _assignment(response.assigned),
    }


def _partitions(topics: Iterable[Any]) -> Partitions:
    found: dict[bytes, frozenset[int]] = {}
    for topic in topics:
        if topic.topic_id is not None and topic.partitions:
            key = topic.topic_id.bytes
            found[key] = found.get(key, frozenset()).union(topic.partitions)
    return found


def _assignment(partitions: Partitions) -> Entry:
    return {
        "topic_partitions": [
            {"topic_id": UUID(bytes=topic), "partitions": sorted(numbers)}
            for topic, numbers in partitions.items()
        ]
    }


# -- ConsumerGroupDescribe ------------------------------------------------------------------


async def consumer_group_describe(parts: Parts, context: RequestContext, request: Any) -> Entry:
    operations = GROUP_OPERATIONS if request.include_authorized_operations else NOT_ASKED
    names = {topic.topic_id.bytes: name for name, topic in parts.cluster.image.topics.items()}
    return {
        "groups": [
            {
                **await _described(parts, group_id, names),
                "group_id": group_id,
                "authorized_operations": operations,
            }
            for group_id in request.group_ids
        ]
    }


async def _described(parts: Parts, group_id: str, names: Mapping[bytes, str]) -> Entry:
    try:
        coordinator = parts.coordinator
        coordinator.check_owner(group_id)
        group = await coordinator.describe(group_id)
        if not isinstance(group, DescribedConsumerGroup):
            why = "not found" if group is None else "is not a consumer group"
            raise GroupIdNotFound(f"Group {group_id} {why}.")
    except PenstockError as error:
        number, message = error_of(error)
        return {
            "error_code": number, "error_message": message, "group_state": "", "group_epoch": 0,
            "assignment_epoch": 0, "assignor_name": "", "members": (),
        }  # fmt: skip
    return {
        "error_code": 0,
        "group_state": group.state,
        "group_epoch": group.epoch,
        "assignment_epoch": group.assignment_epoch,
        "assignor_name": group.assignor,
        "members": [_member(member, names) for member in group.members],
    }


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
        "assignment": _named(member.assigned, names),
        "target_assignment": _named(member.target, names),
        "member_type": CLASSIC if member.is_classic else CONSUMER,
    }


def _named(partitions: Partitions, names: Mapping[bytes, str]) -> Entry:
    """Partitions of topics that are still there."""
    return {
        "topic_partitions": [
            {
                "topic_id": UUID(bytes=topic),
                "topic_name": names[topic],
                "partitions": sorted(numbers),
            }
            for topic, numbers in partitions.items()
            if topic in names
        ]
    }
