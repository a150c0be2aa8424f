"""What is saved of a share group: a row for the group, and one for each member.

Rows are JSON. The group's, of the empty member:

    {"kind": "share", "format": 1, "epoch": int, "assignment_epoch": int, "assignor": text,
     "topics": text (fingerprint of the topics that members read)}

A member's, under its id:

    {"member": {"rack": text | null, "client": text, "host": text, "topics": [text, …]},
     "current": {"epoch": int, "previous_epoch": int}, "target": partitions}

Partitions are {topic's id in hexadecimal digits: [int, …], …}. What members have acquired is kept
with the partitions (`broker/share/record.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from penstock.broker.coordination.kinds import GROUP_ROW, KIND_FIELD, CorruptGroup
from penstock.broker.coordination.modern.keeping import member_row
from penstock.broker.coordination.modern.targets import decode_partitions, encode_partitions
from penstock.broker.coordination.share.group import ShareGroup, ShareMember

KIND: Final = "share"
FORMAT: Final = 1


def encode_group(group: ShareGroup) -> dict[str, bytes]:
    """The rows of a group as it is."""
    rows = {
        GROUP_ROW: _row(
            {
                KIND_FIELD: KIND,
                "format": FORMAT,
                "epoch": group.epoch,
                "assignment_epoch": group.assignment_epoch,
                "assignor": group.assignor,
                "topics": group.fingerprint or "",
            }
        )
    }
    for member_id, member in group.members.items():
        rows[member_id] = member_row(
            member,
            {
                "member": partial(_member, member),
                "current": partial(_current, member),
                "target": partial(encode_partitions, member.target),
            },
        )
    return rows


def _row(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


def _member(member: ShareMember) -> bytes:
    return _row(
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
    """The group of its rows, whose timers do not run, and the fingerprint of its topics.

    Raises:
        CorruptGroup: the rows are not of the form above.
    """
    group: ShareGroup = ShareGroup(group_id, touched_ms=0)
    try:
        saved = json.loads(rows[GROUP_ROW])
        if saved["format"] != FORMAT:
            raise ValueError(f"format {saved['format']!r} is not {FORMAT}")
        group.epoch = int(saved["epoch"])
        group.assignment_epoch = int(saved["assignment_epoch"])
        group.assignor = str(saved["assignor"])
        seen = str(saved["topics"])
        for member_id, row in rows.items():
            if member_id != GROUP_ROW:
                group.add(_decode_member(member_id, json.loads(row)))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CorruptGroup(f"the saved group {group_id!r} cannot be read: {error!r}") from None
    return group, seen


def _decode_member(member_id: str, saved: Mapping[str, Any]) -> ShareMember:
    member = ShareMember(member_id)
    fields, current = saved["member"], saved["current"]
    member.rack_id = fields["rack"]
    member.client_id, member.client_host = fields["client"], fields["host"]
    member.topics = frozenset(fields["topics"])
    member.epoch, member.previous_epoch = int(current["epoch"]), int(current["previous_epoch"])
    member.target = decode_partitions(saved["target"])
    return member
