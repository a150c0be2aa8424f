"""FindCoordinator, and the requests of classic, consumer and share groups.

The core in `broker/groups/classic/` handles the requests. This module translates the requests and
responses of all versions to and from the core's events.

Source: KIP-62, KIP-345 (static members), KIP-394 (member ids required), KIP-518 and KIP-848
(filters of ListGroups), KIP-559 (protocol names), KIP-699 (many coordinators), KIP-800 (reasons),
KIP-814 (static leader).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import UUID

from msgspec import Struct

from penstock.base.errors import BugError, PenstockError
from penstock.base.pause import pause
from penstock.broker.groups.classic import (
    Assignment,
    Heartbeat,
    Joined,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    Left,
    Protocol,
    Synced,
    SyncGroup,
)
from penstock.broker.groups.consumer import (
    ConsumerHeartbeat,
    DescribedConsumer,
    DescribedConsumerGroup,
)
from penstock.broker.groups.coordinator import DEAD, GroupCoordinator, GroupIdNotFound
from penstock.broker.groups.modern.core import HeartbeatResponse
from penstock.broker.groups.runtime.assignors import Partitions
from penstock.broker.groups.runtime.core import Refused
from penstock.broker.groups.runtime.kinds import Accepted, DescribedGroup
from penstock.broker.groups.runtime.saving import owner_of
from penstock.broker.groups.share import DescribedShareGroup, DescribedShareMember, ShareHeartbeat
from penstock.broker.net.connection import RequestContext
from penstock.broker.net.errors import BadRequest, error_fields, error_number, error_of
from penstock.broker.net.listeners import address_of
from penstock.broker.requests.access import NOT_ASKED, operations_of
from penstock.security import CLUSTER, EVERYTHING
from penstock.wire.kafka.framing import milliseconds

if TYPE_CHECKING:
    from penstock.base.system import Randomness
    from penstock.broker.metadata import ClusterMetadata
    from penstock.broker.share.service import ShareService


GROUP: Final = 0
TRANSACTION: Final = 1
_ASKED: Final = {GROUP: ("describe", "group"), TRANSACTION: ("describe", "transactional_id")}
KEYS_VERSION: Final = 4
"""First version of FindCoordinator with several keys."""
MEMBER_ID_REQUIRED_VERSION: Final = 4
NULL_PROTOCOL_VERSION: Final = 7
"""First version of JoinGroup in which a missing protocol name is null instead of empty."""
SKIP_ASSIGNMENT_VERSION: Final = 9
SYNC_PROTOCOL_VERSION: Final = 5
"""First version of SyncGroup that requires the protocol type and name (KIP-559)."""
MEMBERS_VERSION: Final = 3
"""First version of LeaveGroup with several members."""
NOT_FOUND_VERSION: Final = 6
"""First version of DescribeGroups that reports unknown groups as GROUP_ID_NOT_FOUND. Older versions
report them in the state Dead."""

Entry = dict[str, Any]


class Groups(Struct, frozen=True, kw_only=True):
    randomness: Randomness
    cluster: ClusterMetadata
    coordinator: GroupCoordinator
    share: ShareService

    # -- FindCoordinator ------------------------------------------------------------------------

    async def find_coordinator(self, context: RequestContext, request: Any) -> Entry:
        await self.cluster.look()
        key_type = getattr(request, "key_type", GROUP)
        if context.version < KEYS_VERSION:
            return self._coordinator(context, request.key, key_type)
        return {
            "coordinators": [
                self._coordinator(context, key, key_type) for key in request.coordinator_keys
            ]
        }

    def _coordinator(self, context: RequestContext, key: str, key_type: int) -> Entry:
        try:
            operation, resource = _ASKED.get(key_type, ("cluster_action", "cluster"))
            name = CLUSTER if resource == "cluster" else key
            context.authorise(operation, resource, name)
            if key_type not in (GROUP, TRANSACTION):
                raise BadRequest(
                    f"coordinator type {key_type} is not supported: must be 0 (groups) or 1"
                    " (transactions)"
                )
            broker = owner_of(self.cluster.image, key)
        except PenstockError as error:
            return {"key": key, "node_id": -1, "host": "", "port": -1, **error_fields(error)}
        return {
            "key": key,
            "node_id": broker.broker_id,
            **address_of(broker, context.connection.listener),
            "error_message": "",
        }

    # -- membership -----------------------------------------------------------------------------

    async def join_group(self, context: RequestContext, request: Any) -> Entry:
        coordinator = self.coordinator
        coordinator.check_owner(request.group_id)
        session_timeout_ms = milliseconds(request.session_timeout)
        response = await coordinator.call(
            JoinGroup(
                group_id=request.group_id,
                member_id=request.member_id,
                group_instance_id=getattr(request, "group_instance_id", None),
                client_id=context.client_id or "",
                client_host=f"/{context.client_host}",
                session_timeout_ms=session_timeout_ms,
                rebalance_timeout_ms=milliseconds(
                    getattr(request, "rebalance_timeout", session_timeout_ms)
                ),
                protocol_type=request.protocol_type,
                protocols=tuple(
                    Protocol(name=protocol.name, metadata=protocol.metadata)
                    for protocol in request.protocols
                ),
                fresh_id=str(self.randomness.uuid()),
                member_id_required=context.version >= MEMBER_ID_REQUIRED_VERSION,
                skip_assignment_known=context.version >= SKIP_ASSIGNMENT_VERSION,
                reason=getattr(request, "reason", None) or "",
            )
        )
        if isinstance(response, Joined):
            return _joined(response)
        if not isinstance(response, Refused):
            raise unexpected(response)
        if response.delay_ms:
            await pause(response.delay_ms / 1000)
        return {
            "error_code": error_number(response.error),
            "generation_id": -1,
            "protocol_name": None if context.version >= NULL_PROTOCOL_VERSION else "",
            "leader": "",
            "member_id": response.member_id or request.member_id,
            "members": (),
        }

    async def sync_group(self, context: RequestContext, request: Any) -> Entry:
        coordinator = self.coordinator
        if context.version >= SYNC_PROTOCOL_VERSION and None in (
            request.protocol_type,
            request.protocol_name,
        ):
            return {"error_code": error_number("inconsistent_group_protocol"), "assignment": b""}
        coordinator.check_owner(request.group_id)
        response = await coordinator.call(
            SyncGroup(
                group_id=request.group_id,
                generation=request.generation_id,
                member_id=request.member_id,
                group_instance_id=getattr(request, "group_instance_id", None),
                protocol_type=getattr(request, "protocol_type", None),
                protocol=getattr(request, "protocol_name", None),
                assignments=tuple(
                    Assignment(member_id=item.member_id, assignment=item.assignment)
                    for item in request.assignments
                ),
            )
        )
        if isinstance(response, Synced):
            return {
                "protocol_type": response.protocol_type,
                "protocol_name": response.protocol,
                "assignment": response.assignment,
            }
        if isinstance(response, Refused):
            return {"error_code": error_number(response.error), "assignment": b""}
        raise unexpected(response)

    async def heartbeat(self, context: RequestContext, request: Any) -> Entry:
        coordinator = self.coordinator
        coordinator.check_owner(request.group_id)
        response = await coordinator.call(
            Heartbeat(
                group_id=request.group_id,
                generation=request.generation_id,
                member_id=request.member_id,
                group_instance_id=getattr(request, "group_instance_id", None),
            )
        )
        if isinstance(response, Accepted):
            return {}
        if isinstance(response, Refused):
            return {"error_code": error_number(response.error)}
        raise unexpected(response)

    async def leave_group(self, context: RequestContext, request: Any) -> Entry:
        coordinator = self.coordinator
        coordinator.check_owner(request.group_id)
        many = context.version >= MEMBERS_VERSION
        members = (
            tuple(
                LeavingMember(
                    member_id=member.member_id,
                    group_instance_id=member.group_instance_id,
                    reason=getattr(member, "reason", None) or "",
                )
                for member in request.members
            )
            if many
            else (LeavingMember(member_id=request.member_id),)
        )
        response = await coordinator.call(LeaveGroup(group_id=request.group_id, members=members))
        if isinstance(response, Refused):
            return {"error_code": error_number(response.error), "members": ()}
        if not isinstance(response, Left):
            raise unexpected(response)
        answers = [
            {
                "member_id": member.member_id,
                "group_instance_id": member.group_instance_id,
                "error_code": error_number(member.error) if member.error else 0,
            }
            for member in response.members
        ]
        if many:
            return {"members": answers}
        return {"error_code": answers[0]["error_code"]}

    # -- administration -------------------------------------------------------------------------

    async def describe_groups(self, context: RequestContext, request: Any) -> Entry:
        asked = getattr(request, "include_authorized_operations", False)
        return {
            "groups": [
                await self._described(context, group_id, asked=asked) for group_id in request.groups
            ]
        }

    async def _described(self, context: RequestContext, group_id: str, *, asked: bool) -> Entry:
        answer: Entry = {
            "group_id": group_id,
            "group_state": "",
            "protocol_type": "",
            "protocol_data": "",
            "members": (),
            "authorized_operations": (
                operations_of(context.rights, "group", group_id) if asked else NOT_ASKED
            ),
        }
        try:
            coordinator = self.coordinator
            coordinator.check_owner(group_id)
            group = await coordinator.describe(group_id)
        except PenstockError as error:
            return {**answer, **error_fields(error)}
        if isinstance(group, DescribedGroup):
            return {**answer, **_group(group)}
        answer["group_state"] = DEAD
        if context.version >= NOT_FOUND_VERSION:
            why = "not found" if group is None else "is not a classic group"
            answer["error_code"] = error_number(GroupIdNotFound.code)
            answer["error_message"] = f"Group {group_id} {why}."
            answer["authorized_operations"] = NOT_ASKED
        return answer

    async def list_groups(self, context: RequestContext, request: Any) -> Entry:
        groups = await self.coordinator.list_groups(
            states=tuple(getattr(request, "states_filter", ())),
            types=tuple(getattr(request, "types_filter", ())),
        )
        return {
            "groups": [
                {
                    "group_id": group.group_id,
                    "protocol_type": group.protocol_type,
                    "group_state": group.state,
                    "group_type": group.group_type,
                }
                for group in groups
            ]
        }

    async def delete_groups(self, context: RequestContext, request: Any) -> Entry:
        return {
            "results": [
                {"group_id": group_id, **await self._delete(group_id)}
                for group_id in dict.fromkeys(request.groups_names)
            ]
        }

    async def _delete(self, group_id: str) -> Entry:
        """Delete a group; return the fields of its error, if any."""
        try:
            coordinator = self.coordinator
            coordinator.check_owner(group_id)
            group = await coordinator.describe(group_id)
            if isinstance(group, DescribedShareGroup) and not group.members:
                await self.share.offsets.delete(group_id)
            refused = await coordinator.delete(group_id)
        except PenstockError as error:
            return error_fields(error)
        if refused is None:
            return {}
        return {"error_code": error_number(refused.error), "error_message": refused.message}


def unexpected(response: object) -> BugError:
    """Return the error for a core's response whose type does not match the request."""
    return BugError(f"the group core returned an unexpected {type(response).__name__}")


def _joined(joined: Joined) -> Entry:
    return {
        "generation_id": joined.generation,
        "protocol_type": joined.protocol_type,
        "protocol_name": joined.protocol,
        "leader": joined.leader,
        "skip_assignment": joined.skip_assignment,
        "member_id": joined.member_id,
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.group_instance_id,
                "metadata": member.metadata,
            }
            for member in joined.members
        ],
    }


def _group(group: DescribedGroup) -> Entry:
    return {
        "group_state": group.state,
        "protocol_type": group.protocol_type,
        "protocol_data": group.protocol,
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.group_instance_id,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "member_metadata": member.metadata,
                "member_assignment": member.assignment,
            }
            for member in group.members
        ],
    }


# ConsumerGroupHeartbeat, ConsumerGroupDescribe, ShareGroupHeartbeat, ShareGroupDescribe.
#
# The cores in `coordination/consumer/` and `coordination/share/` handle the requests.
#
# Source: KIP-848; KIP-1082 (the client creates its member id, from version 1); KIP-932,
# `ShareGroupHeartbeatRequest.json`, `ShareGroupDescribeRequest.json`.


MEMBER_ID_VERSION: Final = 1
"""First version in which members create their own ids; before, the coordinator creates them."""

CLASSIC: Final = 0
CONSUMER: Final = 1
"""Member types in the response to ConsumerGroupDescribe."""

_NO_TOPICS: Final[Entry] = {"topic_partitions": ()}
Found = TypeVar("Found")
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
        kind: type[DescribedConsumerGroup | DescribedShareGroup],
        name: str,
        member: Callable[[Any, Names], Entry],
    ) -> Entry:
        """Return the descriptions of the requested groups, which must be of one type.

        `kind` is the class in which the core describes groups of this type. `name` is the type's
        name in error messages, such as "share". `member` returns the response fields of a member.
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
    kind: type[DescribedConsumerGroup | DescribedShareGroup],
    name: str,
    names: Names,
    member: Callable[[Any, Names], Entry],
) -> Entry:
    try:
        found = await find_group(coordinator, group_id, kind, name)
    except PenstockError as error:
        return undescribed(error)
    return {
        **description(found),
        "members": [member(described, names) for described in found.members],
    }


async def find_group(
    coordinator: GroupCoordinator, group_id: str, kind: type[Found], name: str
) -> Found:
    """Return the description of a group of one type; `name` is the type's name in the error.

    Raises:
        GroupIdNotFound: there is no such group, or it is of another type.
        PenstockError: this broker does not coordinate the group.
    """
    coordinator.check_owner(group_id)
    group = await coordinator.describe(group_id)
    if type(group) is kind:
        return group
    why = "not found" if group is None else f"is not a {name} group"
    raise GroupIdNotFound(f"Group {group_id} {why}.")


def description(group: DescribedConsumerGroup | DescribedShareGroup) -> Entry:
    """Return the fields that descriptions of all modern groups have."""
    return {
        "group_state": group.state,
        "group_epoch": group.epoch,
        "assignment_epoch": group.assignment_epoch,
        "assignor_name": group.assignor,
    }


def undescribed(error: PenstockError) -> Entry:
    """Return the fields of a description that failed."""
    return {
        **error_fields(error), "group_state": "", "group_epoch": 0, "assignment_epoch": 0,
        "assignor_name": "", "members": (),
    }  # fmt: skip


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
