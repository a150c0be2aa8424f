"""The table of groups' offsets: its statements and rows.

The metadata of an offset is bytes, as PostgreSQL's text has no zero byte.
"""

from __future__ import annotations

from typing import Any, Final

from penstock.control.drivers.statements import Each, changed, rows, uuid_of
from penstock.control.values import CommittedOffset

_COLUMNS: Final = (
    "topic, number, topic_id, committed_offset, leader_epoch, metadata, commit_timestamp_ms,"
    " expire_timestamp_ms"
)

read_renewed = Each(
    "rows",
    "",
    sqlite="SELECT name, topic_id FROM topics WHERE name = $1 AND topic_id <> $2",
)
"""Topics of these names that have other ids; PostgreSQL's `write` looks by itself."""
write = Each(
    "changed",
    f"INSERT INTO group_offsets (group_id, {_COLUMNS}) SELECT $9, new.*"  # noqa: S608  (fixed)
    " FROM unnest($1::text[], $2::int[], $3::uuid[], $4::bigint[], $5::int[], $6::bytea[],"
    " $7::bigint[], $8::bigint[]) AS new (topic, number, topic_id)"
    " WHERE NOT EXISTS (SELECT 1 FROM topics"
    "  WHERE topics.name = new.topic AND topics.topic_id <> new.topic_id)"
    " ON CONFLICT (group_id, topic, number) DO UPDATE SET topic_id = excluded.topic_id,"
    " committed_offset = excluded.committed_offset, leader_epoch = excluded.leader_epoch,"
    " metadata = excluded.metadata, commit_timestamp_ms = excluded.commit_timestamp_ms,"
    " expire_timestamp_ms = excluded.expire_timestamp_ms",
    sqlite="INSERT OR REPLACE INTO group_offsets VALUES ($9, $1, $2, $3, $4, $5, $6, $7, $8)",
)
read_all = rows(f"SELECT {_COLUMNS} FROM group_offsets WHERE group_id = $1")  # noqa: S608
read = Each(
    "rows",
    f"SELECT {_COLUMNS} FROM group_offsets"  # noqa: S608  (fixed)
    " JOIN unnest($1::text[], $2::int[]) AS n (topic, number) USING (topic, number)"
    " WHERE group_id = $3",
    sqlite=f"SELECT {_COLUMNS} FROM group_offsets"  # noqa: S608  (fixed)
    " WHERE group_id = $3 AND topic = $1 AND number = $2",
)
read_group_ids = rows("SELECT DISTINCT group_id FROM group_offsets ORDER BY group_id")
delete = Each(
    "changed",
    "DELETE FROM group_offsets WHERE group_id = $3"
    " AND (topic, number) IN (SELECT * FROM unnest($1::text[], $2::int[]))",
    sqlite="DELETE FROM group_offsets WHERE group_id = $3 AND topic = $1 AND number = $2",
)
delete_all = Each(
    "changed",
    "DELETE FROM group_offsets WHERE group_id = ANY($1::text[])",
    sqlite="DELETE FROM group_offsets WHERE group_id = $1",
)
having_offsets = Each(
    "rows",
    "SELECT g FROM unnest($1::text[]) AS g"
    " WHERE EXISTS (SELECT 1 FROM group_offsets WHERE group_id = g)",
    sqlite="SELECT group_id FROM group_offsets WHERE group_id = $1 LIMIT 1",
)
expire = changed(
    "DELETE FROM group_offsets WHERE (group_id, topic, number) IN"
    " (WITH old AS MATERIALIZED (SELECT group_id, topic, number FROM group_offsets"
    " WHERE expire_timestamp_ms <= $1 LIMIT $2 FOR UPDATE SKIP LOCKED)"
    " SELECT group_id, topic, number FROM old)"
)


def values_of(one: CommittedOffset) -> tuple[Any, ...]:
    return (
        one.topic,
        one.partition,
        one.topic_id,
        one.offset,
        one.leader_epoch,
        one.metadata.encode(),
        one.commit_timestamp_ms,
        one.expire_timestamp_ms,
    )


def offset_of(found: Any) -> CommittedOffset:
    topic, number, topic_id, offset, leader_epoch, metadata, committed_ms, expires_ms = found
    return CommittedOffset(
        topic_id=uuid_of(topic_id),
        topic=topic,
        partition=number,
        offset=offset,
        leader_epoch=leader_epoch,
        metadata=metadata.decode(),
        commit_timestamp_ms=committed_ms,
        expire_timestamp_ms=expires_ms,
    )
