"""Stored rows of a consumer group: one for the group, and one for each member.

Rows are JSON. The group's own row has the empty member id:

    {"kind": "consumer", "format": 1, "epoch": int, "assignment_epoch": int, "assignor": text,
     "topics": text (fingerprint of the topics that members read)}

A member's row, under its id:

    {"member": {"instance": text | null, "rack": text | null, "client": text, "host": text,
                "rebalance_timeout_ms": int, "topics": [text, …], "regex": text, "assignor": text,
                "classic": {"session_timeout_ms": int, "protocols": [[name, base64], …]} | null},
     "current": {"state": text, "epoch": int, "previous_epoch": int,
                 "assigned": partitions, "revoking": partitions},
     "target": partitions}

Partitions are {topic id in hexadecimal: [int, …], …}.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any, Final

from penstock.broker.coordination.classic import Protocol
from penstock.broker.coordination.consumer.classic_member import ClassicSide
from penstock.broker.coordination.consumer.group import ConsumerGroup, ConsumerMember
from penstock.broker.coordination.consumer.reconciliation import MemberState
from penstock.broker.coordination.modern.record import decode_rows, encode_rows, row_of
from penstock.broker.coordination.modern.targets import decode_partitions, encode_partitions

KIND: Final = "consumer"
FORMAT: Final = 1


def encode_group(group: ConsumerGroup) -> dict[str, bytes]:
    return encode_rows(group, kind=KIND, row_format=FORMAT, member=_member, current=_current)


def _member(member: ConsumerMember) -> bytes:
    return row_of(
        {
            "instance": member.instance_id,
            "rack": member.rack_id,
            "client": member.client_id,
            "host": member.client_host,
            "rebalance_timeout_ms": member.rebalance_timeout_ms,
            "topics": sorted(member.topics),
            "regex": member.regex,
            "assignor": member.assignor,
            "classic": None if member.classic is None else _classic(member.classic),
        }
    )


def _classic(side: ClassicSide) -> dict[str, Any]:
    return {
        "session_timeout_ms": side.session_timeout_ms,
        "protocols": [[p.name, b64encode(p.metadata).decode()] for p in side.protocols],
    }


def _current(member: ConsumerMember) -> bytes:
    return b'{"state":"%s","epoch":%d,"previous_epoch":%d,"assigned":%s,"revoking":%s}' % (
        member.state.value.encode(),
        member.epoch,
        member.previous_epoch,
        encode_partitions(member.assigned),
        encode_partitions(member.revoking),
    )


def decode_group(group_id: str, rows: Mapping[str, bytes]) -> tuple[ConsumerGroup, str]:
    """Return the group of stored rows, without running timers, and the fingerprint of its topics.

    Raises:
        CorruptGroup: the rows do not have the format above.
    """
    empty = ConsumerGroup(group_id, touched_ms=0)
    return decode_rows(empty, rows, row_format=FORMAT, member=_decode_member)


def _decode_member(member_id: str, saved: Mapping[str, Any]) -> ConsumerMember:
    member = ConsumerMember(member_id)
    fields, current = saved["member"], saved["current"]
    member.instance_id, member.rack_id = fields["instance"], fields["rack"]
    member.client_id, member.client_host = fields["client"], fields["host"]
    member.rebalance_timeout_ms = int(fields["rebalance_timeout_ms"])
    member.topics, member.regex = frozenset(fields["topics"]), str(fields["regex"])
    member.assignor = str(fields["assignor"])
    if fields["classic"] is not None:
        member.classic = ClassicSide(
            session_timeout_ms=int(fields["classic"]["session_timeout_ms"]),
            protocols=tuple(
                Protocol(name=name, metadata=b64decode(metadata, validate=True))
                for name, metadata in fields["classic"]["protocols"]
            ),
        )
    member.state = MemberState(current["state"])
    member.epoch, member.previous_epoch = int(current["epoch"]), int(current["previous_epoch"])
    member.assigned = decode_partitions(current["assigned"])
    member.revoking = decode_partitions(current["revoking"])
    member.target = decode_partitions(saved["target"])
    return member
