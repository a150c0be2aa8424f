"""What is saved of a group: its generation, its protocol, and its members with assignments.

The state of a `GroupRecord` is JSON:

    {"format": 1, "epoch": int, "leader": text, "members": [
        {"id": text, "instance": text | null, "client": text, "host": text,
         "session_timeout_ms": int, "rebalance_timeout_ms": int,
         "protocols": [[name, base64], …], "assignment": base64}, …]}

A group is saved when it becomes stable, when a static member returns, and when it becomes
empty; so a record with members is one of a stable group. The epoch is that of the coordinator
in which the generation began.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from typing import Any, ClassVar, Final

from penstock.base.errors import CorruptError
from penstock.broker.coordination.classic.events import Protocol
from penstock.broker.coordination.classic.group import Group, Member
from penstock.broker.coordination.classic.limits import GENERATIONS_PER_EPOCH
from penstock.broker.coordination.classic.states import GroupState
from penstock.control import GroupRecord

FORMAT: Final = 1


class CorruptGroup(CorruptError):
    """A saved group cannot be read."""

    code: ClassVar[str] = "coordinator_not_available"


def encode_group(group: Group) -> GroupRecord:
    """The record of a group as it is, or, while it completes a rebalance, as it will be."""
    proposed = group.proposed or {}
    completing = group.state is GroupState.COMPLETING_REBALANCE
    members = [
        {
            "id": member.member_id,
            "instance": member.group_instance_id,
            "client": member.client_id,
            "host": member.client_host,
            "session_timeout_ms": member.session_timeout_ms,
            "rebalance_timeout_ms": member.rebalance_timeout_ms,
            "protocols": [[p.name, b64encode(p.metadata).decode()] for p in member.protocols],
            "assignment": b64encode(
                proposed.get(member.member_id, b"") if completing else member.assignment
            ).decode(),
        }
        for member in group.members.values()
    ]
    state = {"format": FORMAT, "epoch": group.epoch, "leader": group.leader, "members": members}
    return GroupRecord(
        group_id=group.group_id,
        version=group.version,
        generation=group.generation,
        protocol_type=group.protocol_type,
        protocol=group.protocol,
        state=json.dumps(state, separators=(",", ":")).encode(),
    )


def decode_group(record: GroupRecord, *, epoch: int, now_ms: int) -> Group:
    """The group of a record; its members' sessions are not started.

    Its next generation is above all that earlier epochs handed out.

    Raises:
        CorruptGroup: the state is not of the form above.
    """
    group = Group(record.group_id, touched_ms=now_ms)
    try:
        state = json.loads(record.state)
        if state["format"] != FORMAT:
            raise ValueError(f"format {state['format']!r} is not {FORMAT}")
        group.epoch = int(state["epoch"])
        for saved in state["members"]:
            group.add(_member(saved), record.protocol_type)
        if group.members and state["leader"] not in group.members:
            raise ValueError(f"the leader {state['leader']!r} is not a member")
        if group.members and not group.supports(
            record.protocol_type, (Protocol(name=record.protocol, metadata=b""),)
        ):
            raise ValueError(f"not all members support the protocol {record.protocol!r}")
    except (ValueError, TypeError, KeyError) as error:
        raise CorruptGroup(f"the saved group {record.group_id!r} cannot be read: {error}") from None
    group.version = record.version
    group.generation = record.generation
    group.generation_gap = max(1, epoch - group.epoch) * GENERATIONS_PER_EPOCH
    group.protocol_type = record.protocol_type
    if group.members:
        group.leader = state["leader"]
        group.protocol = record.protocol
        group.state = GroupState.STABLE
    return group


def _member(saved: dict[str, Any]) -> Member:
    return Member(
        member_id=saved["id"],
        group_instance_id=saved["instance"],
        client_id=saved["client"],
        client_host=saved["host"],
        session_timeout_ms=int(saved["session_timeout_ms"]),
        rebalance_timeout_ms=int(saved["rebalance_timeout_ms"]),
        protocols=tuple(
            Protocol(name=name, metadata=b64decode(metadata, validate=True))
            for name, metadata in saved["protocols"]
        ),
        assignment=b64decode(saved["assignment"], validate=True),
    )
