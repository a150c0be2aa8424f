"""ShareGroupHeartbeat and ShareGroupDescribe; the core in `coordination/share/` decides.

Source: `ShareGroupHeartbeatRequest.json`, `ShareGroupDescribeRequest.json`; KIP-932.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.broker.connection import RequestContext
from penstock.broker.coordination.share import (
    DescribedShareGroup,
    DescribedShareMember,
    ShareHeartbeat,
)
from penstock.broker.handlers.modern_groups import described_groups, heartbeat_answer, named

if TYPE_CHECKING:
    from penstock.broker.coordination.groups import GroupCoordinator
    from penstock.broker.metadata import ClusterMetadata

Entry = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
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
    return heartbeat_answer(response, request.member_id)


async def share_group_describe(parts: Parts, context: RequestContext, request: Any) -> Entry:
    return await described_groups(parts, context, request, DescribedShareGroup, "share", _member)


def _member(member: DescribedShareMember, names: Mapping[bytes, str]) -> Entry:
    return {
        "member_id": member.member_id,
        "rack_id": member.rack_id,
        "member_epoch": member.epoch,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": member.topics,
        "assignment": named(member.assigned, names),
    }
