"""ConsumerGroupHeartbeat, ConsumerGroupDescribe, ShareGroupHeartbeat, ShareGroupDescribe.

The cores in `coordination/consumer/` and `coordination/share/` handle the requests.

Source: KIP-848; KIP-1082 (the client creates its member id, from version 1); KIP-932,
`ShareGroupHeartbeatRequest.json`, `ShareGroupDescribeRequest.json`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from msgspec import Struct

from penstock.base.errors import PenstockError
from penstock.broker.coordination.assignors import Partitions
from penstock.broker.coordination.consumer import (
    ConsumerHeartbeat,
    DescribedConsumer,
    DescribedConsumerGroup,
)
from penstock.broker.coordination.core import Refused
from penstock.broker.coordination.groups import GroupIdNotFound
from penstock.broker.coordination.modern.events import HeartbeatResponse
from penstock.broker.coordination.share import (
    DescribedShareGroup,
    DescribedShareMember,
    ShareHeartbeat,
)
from penstock.broker.errors import error_fields, error_number, error_of
from penstock.broker.handlers.groups import unexpected
from penstock.broker.operations import NOT_ASKED, operations_of
from penstock.security import EVERYTHING
from penstock.wire.kafka.primitives import milliseconds

if TYPE_CHECKING:
    from penstock.base.system import Randomness
    from penstock.broker.connection import RequestContext
    from penstock.broker.coordination.groups import GroupCoordinator
    from penstock.broker.metadata import ClusterMetadata

MEMBER_ID_VERSION: Final = 1
"""First version in which members create their own ids; before, the coordinator creates them."""

CLASSIC: Final = 0
CONSUMER: Final = 1
"""Member types in the response to ConsumerGroupDescribe."""

Entry = dict[str, Any]
_NO_TOPICS: Final[Entry] = {"topic_partitions": ()}
Names = Mapping[bytes, str]
"""Topic names by topic id."""


class ModernGroups(Struct, frozen=True, kw_only=True):
    randomness: Randomness
    cluster: ClusterMetadata
    coordinator: GroupCoordinator

    async def consumer_group_heartbeat(self, context: RequestContext, request: Any) -> Entry:
        coordinator = self.coordinator
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
                fresh_id=str(self.randomness.uuid()) if joins_without_id else "",
                visible=None
                if rights is EVERYTHING
                else partial(rights.allows, "describe", "topic"),
            )
        )
        return _heartbeat_answer(response, request.member_id)

    async def consumer_group_describe(self, context: RequestContext, request: Any) -> Entry:
        return await self._described(
            context, request, DescribedConsumerGroup, "consumer", _consumer
        )

    async def share_group_heartbeat(self, context: RequestContext, request: Any) -> Entry:
        coordinator = self.coordinator
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
        return _heartbeat_answer(response, request.member_id)

    async def share_group_describe(self, context: RequestContext, request: Any) -> Entry:
        return await self._described(context, request, DescribedShareGroup, "share", _share_member)

    async def _described(
        self,
        context: RequestContext,
        request: Any,
        kind: type,
        name: str,
        member: Callable[[Any, Names], Entry],
    ) -> Entry:
        """Return the descriptions of the requested groups.

        `kind` is the core's class for descriptions of such groups, `name` their type in error
        messages. `member` returns the response fields of a member.
        """
        rights, asked = context.rights, request.include_authorized_operations
        names = {topic.topic_id.bytes: name for name, topic in self.cluster.image.topics.items()}
        return {
            "groups": [
                {
                    **_seen(
                        context,
                        await _described(self.coordinator, group_id, kind, name, names, member),
                    ),
                    "group_id": group_id,
                    "authorized_operations": (
                        operations_of(rights, "group", group_id) if asked else NOT_ASKED
                    ),
                }
                for group_id in request.group_ids
            ]
        }


def _partitions(topics: Iterable[Any]) -> Partitions:
    found: dict[bytes, frozenset[int]] = {}
    for topic in topics:
        if topic.topic_id is not None and topic.partitions:
            key = topic.topic_id.bytes
            found[key] = found.get(key, frozenset()).union(topic.partitions)
    return found


def _consumer(member: DescribedConsumer, names: Names) -> Entry:
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


def _share_member(member: DescribedShareMember, names: Names) -> Entry:
    return {
        "member_id": member.member_id,
        "rack_id": member.rack_id,
        "member_epoch": member.epoch,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": member.topics,
        "assignment": _named(member.assigned, names),
    }


def _heartbeat_answer(response: Any, member_id: str) -> Entry:
    if isinstance(response, Refused):
        return {
            "error_code": error_number(response.error),
            "error_message": response.message,
            "member_id": member_id,
            "member_epoch": 0,
            "heartbeat_interval": 0,
        }
    if not isinstance(response, HeartbeatResponse):
        raise unexpected(response)
    return {
        "member_id": response.member_id,
        "member_epoch": response.epoch,
        "heartbeat_interval": response.heartbeat_interval_ms,
        "assignment": None if response.assigned is None else _assignment(response.assigned),
    }


def _assignment(partitions: Partitions) -> Entry:
    return {
        "topic_partitions": [
            {"topic_id": UUID(bytes=topic), "partitions": sorted(numbers)}
            for topic, numbers in partitions.items()
        ]
    }


def _seen(context: RequestContext, group: Entry) -> Entry:
    """Return `group`; without members and with an error if one of its topics is not permitted."""
    topics = {
        part["topic_name"]
        for member in group["members"]
        for assignment in ("assignment", "target_assignment")
        for part in member.get(assignment, _NO_TOPICS)["topic_partitions"]
    }
    for topic in topics:
        if not context.rights.allows("describe", "topic", topic):
            number, _ = error_of(context.refusal("describe", "topic", topic))
            message = "the client lacks permission to describe a topic that is assigned to members"
            return {**group, "error_code": number, "error_message": message, "members": ()}
    return group


async def _described(
    coordinator: GroupCoordinator,
    group_id: str,
    kind: type,
    name: str,
    names: Names,
    member: Callable[[Any, Names], Entry],
) -> Entry:
    try:
        coordinator.check_owner(group_id)
        group = await coordinator.describe(group_id)
        if not isinstance(group, kind):
            why = "not found" if group is None else f"is not a {name} group"
            raise GroupIdNotFound(f"Group {group_id} {why}.")
    except PenstockError as error:
        return {
            **error_fields(error), "group_state": "", "group_epoch": 0, "assignment_epoch": 0,
            "assignor_name": "", "members": (),
        }  # fmt: skip
    found: Any = group
    return {
        "group_state": found.state,
        "group_epoch": found.epoch,
        "assignment_epoch": found.assignment_epoch,
        "assignor_name": found.assignor,
        "members": [member(described, names) for described in found.members],
    }


def _named(partitions: Partitions, names: Names) -> Entry:
    """Return the assigned partitions as response fields, without those of deleted topics."""
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
