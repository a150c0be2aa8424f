"""FindCoordinator and the requests of classic groups: join, sync, heartbeat, leave, describe.

The core in `coordination/classic/` handles the requests. This module translates the requests and
responses of all versions to and from the core's events.

Source: KIP-62, KIP-345 (static members), KIP-394 (member ids required), KIP-518 and KIP-848
(filters of ListGroups), KIP-559 (protocol names), KIP-699 (many coordinators), KIP-800 (reasons),
KIP-814 (static leader).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from penstock.base.errors import BugError, PenstockError
from penstock.broker.admin_errors import BadRequest
from penstock.broker.connection import RequestContext
from penstock.broker.coordination.classic import (
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
from penstock.broker.coordination.core import Refused
from penstock.broker.coordination.group_events import Accepted, DeleteGroup, DescribedGroup
from penstock.broker.coordination.groups import DEAD, GroupIdNotFound
from penstock.broker.coordination.ownership import owner_of
from penstock.broker.coordination.share import DescribedShareGroup
from penstock.broker.errors import error_fields, error_number, error_of
from penstock.broker.identity import address_of
from penstock.broker.operations import NOT_ASKED, operations_of
from penstock.security import CLUSTER
from penstock.wire.kafka.primitives import milliseconds

if TYPE_CHECKING:
    from penstock.base.system import Randomness
    from penstock.broker.coordination.groups import GroupCoordinator
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
                {"group_id": group_id, "error_code": await self._delete(group_id)}
                for group_id in dict.fromkeys(request.groups_names)
            ]
        }

    async def _delete(self, group_id: str) -> int:
        try:
            coordinator = self.coordinator
            coordinator.check_owner(group_id)
            group = await coordinator.describe(group_id)
            if isinstance(group, DescribedShareGroup) and not group.members:
                await self.share.offsets.delete(group_id)
            response = await coordinator.call(DeleteGroup(group_id=group_id))
        except PenstockError as error:
            number, _ = error_of(error)
            return number
        return error_number(response.error) if isinstance(response, Refused) else 0


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
