"""Stored rows of consumer and share groups.

A group has one row for itself and one for each member. The row of a member has three parts, which
`consumer/record.py` and `share/record.py` define.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from penstock.base.errors import BugError
from penstock.broker.coordination.kinds import GROUP_ROW, KIND_FIELD, CorruptGroup
from penstock.broker.coordination.modern.group import ModernGroup, ModernMember
from penstock.broker.coordination.modern.group_saver import member_row
from penstock.broker.coordination.modern.targets import encode_partitions

G = TypeVar("G", bound=ModernGroup[Any])
M = TypeVar("M", bound=ModernMember)


def row_of(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


def encode_rows(
    group: ModernGroup[M],
    *,
    kind: str,
    row_format: int,
    member: Callable[[M], bytes],
    current: Callable[[M], bytes],
) -> dict[str, bytes]:
    """Return the rows of a group; `member` and `current` encode parts of a member's row."""
    rows = {
        GROUP_ROW: row_of(
            {
                KIND_FIELD: kind,
                "format": row_format,
                "epoch": group.epoch,
                "assignment_epoch": group.assignment_epoch,
                "assignor": group.assignor,
                "topics": group.fingerprint or "",
            }
        )
    }
    for member_id, item in group.members.items():
        rows[member_id] = member_row(
            item,
            {
                "member": partial(member, item),
                "current": partial(current, item),
                "target": partial(encode_partitions, item.target),
            },
        )
    return rows


def decode_rows(
    group: G,
    rows: Mapping[str, bytes],
    *,
    row_format: int,
    member: Callable[[str, Mapping[str, Any]], Any],
) -> tuple[G, str]:
    """Fill a group from its rows; return the group and the fingerprint of its topics.

    No timers run. `member` decodes a member from its id and row.

    Raises:
        CorruptGroup: the rows do not have the format of their kind.
    """
    try:
        saved = json.loads(rows[GROUP_ROW])
        if saved["format"] != row_format:
            raise ValueError(f"format {saved['format']!r} is not {row_format}")
        group.epoch = int(saved["epoch"])
        group.assignment_epoch = int(saved["assignment_epoch"])
        group.assignor = str(saved["assignor"])
        seen = str(saved["topics"])
        for member_id, row in rows.items():
            if member_id != GROUP_ROW:
                group.add(member(member_id, json.loads(row)))
    except (ValueError, TypeError, KeyError, AttributeError, BugError) as error:
        raise CorruptGroup(
            f"the saved group {group.group_id!r} cannot be read: {error!r}"
        ) from None
    return group, seen
