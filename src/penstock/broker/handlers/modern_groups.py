"""Heartbeat and describe responses of groups with server-side assignment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol
from uuid import UUID

from penstock.base.errors import PenstockError
from penstock.broker.coordination.assignors import Partitions
from penstock.broker.coordination.core import Refused
from penstock.broker.coordination.groups import GroupIdNotFound
from penstock.broker.coordination.modern.events import HeartbeatResponse
from penstock.broker.errors import error_number, error_of
from penstock.broker.handlers.groups import unexpected
from penstock.broker.operations import NOT_ASKED, operations_of

if TYPE_CHECKING:
    from penstock.broker.connection import RequestContext
    from penstock.broker.coordination.groups import GroupCoordinator
    from penstock.broker.metadata import ClusterMetadata

Entry = dict[str, Any]
_NO_TOPICS: Final[Entry] = {"topic_partitions": ()}
Names = Mapping[bytes, str]
"""Topic names by topic id."""


class GroupParts(Protocol):
    """Parts of the broker that these responses use."""

    @property
    def cluster(self) -> ClusterMetadata: ...
    @property
    def coordinator(self) -> GroupCoordinator: ...


def heartbeat_answer(response: Any, member_id: str) -> Entry:
    """Return the response to a member's heartbeat."""
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


async def described_groups(
    parts: GroupParts,
    context: RequestContext,
    request: Any,
    kind: type,
    name: str,
    member: Callable[[Any, Names], Entry],
) -> Entry:
    """Return the descriptions of a request's groups, of the core's class `kind`."""
    rights, asked = context.rights, request.include_authorized_operations
    names = {topic.topic_id.bytes: name for name, topic in parts.cluster.image.topics.items()}
    return {
        "groups": [
            {
                **_seen(
                    context,
                    await _described(parts.coordinator, group_id, kind, name, names, member),
                ),
                "group_id": group_id,
                "authorized_operations": (
                    operations_of(rights, "group", group_id) if asked else NOT_ASKED
                ),
            }
            for group_id in request.group_ids
        ]
    }


def _seen(context: RequestContext, group: Entry) -> Entry:
    """Return the group, without its members if the caller may not describe one of their topics."""
    topics = {
        part["topic_name"]
        for member in group["members"]
        for assignment in ("assignment", "target_assignment")
        for part in member.get(assignment, _NO_TOPICS)["topic_partitions"]
    }
    for topic in topics:
        if not context.rights.allows("describe", "topic", topic):
            number, _ = error_of(context.refusal("describe", "topic", topic))
            message = "the group has topics that the client is not authorised to describe"
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
        number, message = error_of(error)
        return {
            "error_code": number, "error_message": message, "group_state": "", "group_epoch": 0,
            "assignment_epoch": 0, "assignor_name": "", "members": (),
        }  # fmt: skip
    found: Any = group
    return {
        "group_state": found.state,
        "group_epoch": found.epoch,
        "assignment_epoch": found.assignment_epoch,
        "assignor_name": found.assignor,
        "members": [member(described, names) for described in found.members],
    }


def named(partitions: Partitions, names: Names) -> Entry:
    """Return the partitions of topics that still exist."""
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
