"""ShareGroupHeartbeat and ShareGroupDescribe: who reads which partitions for a share group.

The core decides (`coordination/share/`); these functions translate.

Source: `ShareGroupHeartbeatRequest.json`, `ShareGroupDescribeRequest.json`; KIP-932.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from penstock.base.errors import PenstockError
from penstock.broker.connection import RequestContext
from penstock.broker.coordination.assignors import Partitions
from penstock.broker.coordination.core import Refused
from penstock.broker.coordination.groups import GroupIdNotFound
from penstock.broker.coordination.share import (
    DescribedShareGroup,
    DescribedShareMember,
    ShareBeaten,
    ShareHeartbeat,
)
from penstock.broker.errors import error_number, error_of
from penstock.broker.handlers.groups import unexpected
from penstock.broker.operations import GROUP_OPERATIONS, NOT_ASKED

if TYPE_CHECKING:
    from penstock.broker.coordination.groups import GroupCoordinator
    from penstock.broker.metadata import ClusterMetadata

Entry = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What these handlers use."""

    cluster: ClusterMetadata
    coordinator: GroupCoordinator


async def share_group_heartbeat(parts: Parts, context: RequestContext, request: Any) -> Entry:
    coordinator = parts.coordinator
    coordinator.check_owner(request.group_id)
    names = request.subscribed_topic_names
    response = await coordinator.call(
        ShareHeartbeat(
            group_id=request.group_id,
            member_id=request.member_id,
            epoch=request.member_epoch,
            client_id=context.client_id or "",
            client_host=f"/{context.client_host}",
            rack_id=request.rack_id,
            topics=None if names is None else frozenset(names),
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
    if not isinstance(response, ShareBeaten):
        raise unexpected(response)
    return {
        "member_id": response.member_id,
        "member_epoch": response.epoch,
        "heartbeat_interval": response.heartbeat_interval_ms,
        "assignment": None
        if response.assigned is None
        else {
            "topic_partitions": [
                {"topic_id": UUID(bytes=topic), "partitions": sorted(numbers)}
                for topic, numbers in response.assigned.items()
            ]
        },
    }


async def share_group_describe(parts: Parts, context: RequestContext, request: Any) -> Entry:
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
        if not isinstance(group, DescribedShareGroup):
            why = "not found" if group is None else "is not a share group"
            raise GroupIdNotFound(f"Group {group_id} {why}.")
    except PenstockError as error:
        number, message = error_of(error)
        return {
            "error_code": number, "error_message": message, "group_state": "", "group_epoch": 0,
            "assignment_epoch": 0, "assignor_name": "", "members": (),
        }  # fmt: skip
    return {
        "group_state": group.state,
        "group_epoch": group.epoch,
        "assignment_epoch": group.assignment_epoch,
        "assignor_name": group.assignor,
        "members": [_member(member, names) for member in group.members],
    }


def _member(member: DescribedShareMember, names: Mapping[bytes, str]) -> Entry:
    return {
        "member_id": member.member_id,
        "rack_id": member.rack_id,
        "member_epoch": member.epoch,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": member.topics,
        "assignment": _named(member.assigned, names),
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
