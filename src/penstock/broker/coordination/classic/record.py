"""Stored rows of a classic group: one for the group, and one for each member.

Rows are JSON. The group's own row has the empty member id:

    {"format": 2, "generation": int, "protocol_type": text, "protocol": text,
     "epoch": int, "leader": text}

A member's row, under its id:

    {"number": int, "instance": text | null, "client": text, "host": text,
     "session_timeout_ms": int, "rebalance_timeout_ms": int,
     "protocols": [[name, base64], …], "assignment": base64}

Format 1 is read but not written. Its group row also contains the members, in order and without
numbers: `"members": [{"id": text, …}, …]`.

A group is saved when it becomes stable, when a static member returns, and when it becomes empty. A
stored group with members is therefore stable. `epoch` is the epoch of the coordinating broker when
the generation began.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any, Final

from penstock.broker.coordination.classic.events import Protocol
from penstock.broker.coordination.classic.group import Group, Member
from penstock.broker.coordination.classic.states import GroupState
from penstock.broker.coordination.kinds import GROUP_ROW, CorruptGroup

GENERATIONS_PER_EPOCH: Final = 100
"""Number of generations that a loaded group skips for each broker epoch since it was saved.

Members receive a generation before it is saved. If a crash loses it, its number must not be reused:
the assignment of its old leader could otherwise be accepted in the new generation.
"""

FORMAT: Final = 2
FORMAT_OF_ONE_ROW: Final = 1


def encode_group(group: Group) -> dict[str, bytes]:
    """Return the rows of a group by member id; during a rebalance with the proposed assignments."""
    proposed = group.proposed or {}
    completing = group.state is GroupState.COMPLETING_REBALANCE
    rows = {
        GROUP_ROW: _row(
            format=FORMAT,
            generation=group.generation,
            protocol_type=group.protocol_type,
            protocol=group.protocol,
            epoch=group.epoch,
            leader=group.leader,
        )
    }
    for member_id, member in group.members.items():
        assignment = proposed.get(member_id, b"") if completing else member.assignment
        rows[member_id] = _row(
            number=member.number,
            instance=member.group_instance_id,
            client=member.client_id,
            host=member.client_host,
            session_timeout_ms=member.session_timeout_ms,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            protocols=[[p.name, b64encode(p.metadata).decode()] for p in member.protocols],
            assignment=b64encode(assignment).decode(),
        )
    return rows


def _row(**fields: Any) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


def decode_group(group_id: str, rows: Mapping[str, bytes], *, epoch: int, now_ms: int) -> Group:
    """Return the group of stored rows, without running sessions.

    Its next generation is above all generations that were used in earlier broker epochs.

    Raises:
        CorruptGroup: the rows do not have the format above.
    """
    group = Group(group_id, touched_ms=now_ms)
    try:
        saved = json.loads(rows[GROUP_ROW])
        group.epoch = int(saved["epoch"])
        group.generation = int(saved["generation"])
        protocol_type, protocol = str(saved["protocol_type"]), str(saved["protocol"])
        for member in _members(saved, rows):
            group.add(member, protocol_type)
        if group.members and saved["leader"] not in group.members:
            raise ValueError(f"the leader {saved['leader']!r} is not a member")
        if group.members and not group.supports(
            protocol_type, (Protocol(name=protocol, metadata=b""),)
        ):
            raise ValueError(f"not all members support the protocol {protocol!r}")
    except (ValueError, TypeError, KeyError) as error:
        raise CorruptGroup(f"the saved group {group_id!r} cannot be read: {error}") from None
    group.generation_gap = max(1, epoch - group.epoch) * GENERATIONS_PER_EPOCH
    group.protocol_type = protocol_type
    if group.members:
        group.leader = saved["leader"]
        group.protocol = protocol
        group.state = GroupState.STABLE
    return group


def _members(saved: dict[str, Any], rows: Mapping[str, bytes]) -> list[Member]:
    if saved["format"] == FORMAT_OF_ONE_ROW:
        return [_member(member["id"], member, number=0) for member in saved["members"]]
    if saved["format"] != FORMAT:
        raise ValueError(f"format {saved['format']!r} is not {FORMAT}")
    members = []
    for member_id, row in rows.items():
        if member_id != GROUP_ROW:
            member = json.loads(row)
            members.append(_member(member_id, member, number=int(member["number"])))
    return sorted(members, key=lambda member: member.number)


def _member(member_id: str, saved: dict[str, Any], *, number: int) -> Member:
    return Member(
        member_id=member_id,
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
        number=number,
    )
