"""Stored rows of a share group: one for the group, and one for each member.

Rows are JSON. The group's own row has the empty member id:

    {"kind": "share", "format": 1, "epoch": int, "assignment_epoch": int, "assignor": text,
     "topics": text (fingerprint of the topics that members read)}

A member's row, under its id:

    {"member": {"rack": text | null, "client": text, "host": text, "topics": [text, …]},
     "current": {"epoch": int, "previous_epoch": int}, "target": partitions}

Partitions are {topic id in hexadecimal: [int, …], …}. The states of records are in other rows
(`broker/share/record.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from penstock.broker.coordination.modern.record import decode_rows, encode_rows, row_of
from penstock.broker.coordination.modern.targets import decode_partitions
from penstock.broker.coordination.share.group import ShareGroup, ShareMember

KIND: Final = "share"
FORMAT: Final = 1


def encode_group(group: ShareGroup) -> dict[str, bytes]:
    return encode_rows(group, kind=KIND, row_format=FORMAT, member=_member, current=_current)


def _member(member: ShareMember) -> bytes:
    return row_of(
        {
            "rack": member.rack_id,
            "client": member.client_id,
            "host": member.client_host,
            "topics": sorted(member.topics),
        }
    )


def _current(member: ShareMember) -> bytes:
    return b'{"epoch":%d,"previous_epoch":%d}' % (member.epoch, member.previous_epoch)


def decode_group(group_id: str, rows: Mapping[str, bytes]) -> tuple[ShareGroup, str]:
    """Return the group of stored rows, without running timers, and the fingerprint of its topics.

    Raises:
        CorruptGroup: the rows do not have the format above.
    """
    empty = ShareGroup(group_id, touched_ms=0)
    return decode_rows(empty, rows, row_format=FORMAT, member=_decode_member)


def _decode_member(member_id: str, saved: Mapping[str, Any]) -> ShareMember:
    member = ShareMember(member_id)
    fields, current = saved["member"], saved["current"]
    member.rack_id = fields["rack"]
    member.client_id, member.client_host = fields["client"], fields["host"]
    member.topics = frozenset(fields["topics"])
    member.epoch, member.previous_epoch = int(current["epoch"]), int(current["previous_epoch"])
    member.target = decode_partitions(saved["target"])
    return member
