"""Statements for the table of pending offsets.

Transactional ids are stored as bytes, like the keys of coordinators' records.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from penstock.control.drivers.statements import Each
from penstock.control.values import CommittedOffset

_COLUMNS: Final = (
    "transactional_id, ordinal, overtaken, group_id, topic, number, topic_id, committed_offset,"
    " leader_epoch, metadata, commit_timestamp_ms"
)
_NEXT: Final = (
    "(SELECT coalesce(max(ordinal), 0) + 1 FROM pending_offsets p"
    " WHERE p.group_id = $8 AND p.topic = {topic} AND p.number = {number})"
)

write = Each(
    "changed",
    "INSERT INTO pending_offsets (group_id, transactional_id, topic, number, topic_id,"  # noqa: S608
    " committed_offset, leader_epoch, metadata, commit_timestamp_ms, ordinal, overtaken)"
    f" SELECT $8, $9::bytea, new.*, {_NEXT.format(topic='new.topic', number='new.number')}, false"
    " FROM unnest($1::text[], $2::int[], $3::uuid[], $4::bigint[], $5::int[], $6::bytea[],"
    " $7::bigint[]) AS new (topic, number, topic_id)"
    " WHERE NOT EXISTS (SELECT 1 FROM topics"
    "  WHERE topics.name = new.topic AND topics.topic_id <> new.topic_id)"
    " ON CONFLICT (group_id, topic, number, transactional_id) DO UPDATE"
    " SET topic_id = excluded.topic_id, committed_offset = excluded.committed_offset,"
    " leader_epoch = excluded.leader_epoch, metadata = excluded.metadata,"
    " commit_timestamp_ms = excluded.commit_timestamp_ms, ordinal = excluded.ordinal,"
    " overtaken = false",
    sqlite="INSERT OR REPLACE INTO pending_offsets (group_id, transactional_id, topic, number,"  # noqa: S608
    " topic_id, committed_offset, leader_epoch, metadata, commit_timestamp_ms, ordinal, overtaken)"
    f" VALUES ($8, $9, $1, $2, $3, $4, $5, $6, $7, {_NEXT.format(topic='$1', number='$2')}, 0)",
)
"""Stages offsets. Concurrent transactions may give the offsets of a partition the same ordinal."""
take = Each(
    "rows",
    f"DELETE FROM pending_offsets WHERE transactional_id = ANY($1::bytea[]) RETURNING {_COLUMNS}",  # noqa: S608
    sqlite=f"SELECT {_COLUMNS} FROM pending_offsets WHERE transactional_id = $1",  # noqa: S608
)
drop = Each("changed", "", sqlite="DELETE FROM pending_offsets WHERE transactional_id = $1")
"""Deletes the rows that `take` has read, in SQLite. PostgreSQL's `take` deletes them itself."""
delete = Each(
    "changed",
    "DELETE FROM pending_offsets WHERE group_id = $3"
    " AND (topic, number) IN (SELECT * FROM unnest($1::text[], $2::int[]))",
    sqlite="DELETE FROM pending_offsets WHERE group_id = $3 AND topic = $1 AND number = $2",
)
delete_all = Each(
    "changed",
    "DELETE FROM pending_offsets WHERE group_id = ANY($1::text[])",
    sqlite="DELETE FROM pending_offsets WHERE group_id = $1",
)


class PendingOffset(NamedTuple):
    """A pending offset: the columns of its row from the group's id on."""

    group_id: str
    topic: str
    partition: int
    topic_id: Any
    offset: int
    leader_epoch: int
    metadata: bytes
    commit_timestamp_ms: int


def values_of(one: CommittedOffset) -> tuple[Any, ...]:
    return (
        one.topic,
        one.partition,
        one.topic_id,
        one.offset,
        one.leader_epoch,
        one.metadata.encode(),
        one.commit_timestamp_ms,
    )
