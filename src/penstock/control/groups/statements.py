"""Statements for the table of groups' offsets.

Metadata is stored as bytes, because PostgreSQL's text cannot hold NUL characters.
"""

from __future__ import annotations

from typing import Any, Final

from penstock.control.drivers.statements import Each, changed, rows, uuid_of
from penstock.control.values import CommittedOffset

_COLUMNS: Final = (
    "topic, number, topic_id, committed_offset, leader_epoch, metadata, commit_timestamp_ms,"
    " expire_timestamp_ms"
)
_PENDING: Final = "topic, number, NULL, 0, 0, NULL, 0, NULL"
_NOT_PENDING: Final = (
    "NOT EXISTS (SELECT 1 FROM pending_offsets p WHERE p.group_id = group_offsets.group_id"
    " AND p.topic = group_offsets.topic AND p.number = group_offsets.number)"
)

read_renewed = Each(
    "rows",
    "",
    sqlite="SELECT name, topic_id FROM topics WHERE name = $1 AND topic_id <> $2",
)
"""Returns (name, id) of topics that have these names and other ids.

For SQLite alone: PostgreSQL's `write` checks ids itself.
"""
_OVERTAKEN: Final = (
    "UPDATE pending_offsets p SET overtaken = true"
    " FROM unnest($1::text[], $2::text[], $3::int[], $4::uuid[]) AS n (group_id, topic, number, id)"
    " WHERE EXISTS (SELECT 1 FROM pending_offsets WHERE group_id = ANY($1::text[]))"
    " AND p.group_id = n.group_id AND p.topic = n.topic AND p.number = n.number"
    " AND p.topic_id = n.id RETURNING 1"
)
_WRITE: Final = (
    f"INSERT INTO group_offsets (group_id, {_COLUMNS})"  # noqa: S608  (fixed)
    " SELECT new.* FROM unnest($1::text[], $2::text[], $3::int[], $4::uuid[], $5::bigint[],"
    " $6::int[], $7::bytea[], $8::bigint[], $9::bigint[])"
    " AS new (group_id, topic, number, topic_id)"
    " WHERE {condition} AND NOT EXISTS (SELECT 1 FROM topics"
    "  WHERE topics.name = new.topic AND topics.topic_id <> new.topic_id)"
    " ON CONFLICT (group_id, topic, number) DO UPDATE SET topic_id = excluded.topic_id,"
    " committed_offset = excluded.committed_offset, leader_epoch = excluded.leader_epoch,"
    " metadata = excluded.metadata, commit_timestamp_ms = excluded.commit_timestamp_ms,"
    " expire_timestamp_ms = excluded.expire_timestamp_ms"
)
_WRITE_SQLITE: Final = (
    "INSERT OR REPLACE INTO group_offsets VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)"
)

having_pending = Each(
    "rows", "", sqlite="SELECT 1 FROM pending_offsets WHERE group_id = $1 LIMIT 1"
)
overtake = Each(
    "changed",
    "",
    sqlite="UPDATE pending_offsets SET overtaken = 1 WHERE group_id = $1 AND topic = $2"
    " AND number = $3 AND topic_id = $4",
)
"""`having_pending` and `overtake` are for SQLite alone: PostgreSQL's `write` includes them."""
write = Each(
    "changed",
    f"WITH overtaken AS ({_OVERTAKEN}) "  # noqa: S608  (fixed)
    + _WRITE.format(condition="(SELECT count(*) FROM overtaken) >= 0"),
    sqlite=_WRITE_SQLITE,
)
"""Stores offsets committed outside of transactions, which supersede pending offsets.

PostgreSQL locks the pending rows first, in the order in which a completed transaction locks them.
"""
overtake_older = Each(
    "changed",
    "UPDATE pending_offsets p SET overtaken = true"
    " FROM unnest($1::text[], $2::text[], $3::int[], $4::uuid[], $5::bigint[])"
    " AS n (group_id, topic, number, id, ordinal)"
    " WHERE p.group_id = n.group_id AND p.topic = n.topic AND p.number = n.number"
    " AND p.topic_id = n.id AND p.ordinal < n.ordinal",
    sqlite="UPDATE pending_offsets SET overtaken = 1 WHERE group_id = $1 AND topic = $2"
    " AND number = $3 AND topic_id = $4 AND ordinal < $5",
)
write_completed = Each("changed", _WRITE.format(condition="true"), sqlite=_WRITE_SQLITE)
read_all = rows(f"SELECT {_COLUMNS} FROM group_offsets WHERE group_id = $1")  # noqa: S608
read = Each(
    "rows",
    f"SELECT {_COLUMNS} FROM group_offsets"  # noqa: S608  (fixed)
    " JOIN unnest($1::text[], $2::int[]) AS n (topic, number) USING (topic, number)"
    " WHERE group_id = $3",
    sqlite=f"SELECT {_COLUMNS} FROM group_offsets"  # noqa: S608  (fixed)
    " WHERE group_id = $3 AND topic = $1 AND number = $2",
)
read_stable = Each(
    "rows",
    f"SELECT {_COLUMNS} FROM group_offsets"  # noqa: S608  (fixed)
    " JOIN unnest($1::text[], $2::int[]) AS n (topic, number) USING (topic, number)"
    f" WHERE group_id = $3 UNION ALL SELECT {_PENDING} FROM pending_offsets"
    " JOIN unnest($1::text[], $2::int[]) AS n (topic, number) USING (topic, number)"
    " WHERE group_id = $3",
    sqlite=f"SELECT {_COLUMNS} FROM group_offsets"  # noqa: S608  (fixed)
    " WHERE group_id = $3 AND topic = $1 AND number = $2"
    f" UNION ALL SELECT {_PENDING} FROM pending_offsets"
    " WHERE group_id = $3 AND topic = $1 AND number = $2",
)
"""Returns committed offsets, and for each partition with pending offsets a row without topic id."""
read_all_stable = rows(
    f"SELECT {_COLUMNS} FROM group_offsets WHERE group_id = $1"  # noqa: S608  (fixed)
    f" UNION ALL SELECT {_PENDING} FROM pending_offsets WHERE group_id = $1"
)
read_group_ids = rows(
    "SELECT group_id FROM group_offsets UNION SELECT group_id FROM pending_offsets"
    " ORDER BY group_id"
)
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
    " WHERE EXISTS (SELECT 1 FROM group_offsets WHERE group_id = g)"
    " OR EXISTS (SELECT 1 FROM pending_offsets WHERE group_id = g)",
    sqlite="SELECT $1 WHERE EXISTS (SELECT 1 FROM group_offsets WHERE group_id = $1)"
    " OR EXISTS (SELECT 1 FROM pending_offsets WHERE group_id = $1)",
)
expire = changed(
    "DELETE FROM group_offsets WHERE (group_id, topic, number) IN"  # noqa: S608  (fixed)
    " (WITH old AS MATERIALIZED (SELECT group_id, topic, number FROM group_offsets"
    f" WHERE expire_timestamp_ms <= $1 AND {_NOT_PENDING} LIMIT $2 FOR UPDATE SKIP LOCKED)"
    " SELECT group_id, topic, number FROM old)"
)
expire_of = changed(
    "DELETE FROM group_offsets WHERE group_id = $1 AND (topic, number) IN"  # noqa: S608  (fixed)
    " (WITH old AS MATERIALIZED (SELECT topic, number FROM group_offsets"
    " WHERE group_id = $1 AND expire_timestamp_ms IS NULL AND commit_timestamp_ms <= $2"
    f" AND {_NOT_PENDING} LIMIT $3 FOR UPDATE SKIP LOCKED) SELECT topic, number FROM old)"
)


def values_of(group_id: str, one: CommittedOffset) -> tuple[Any, ...]:
    return (
        group_id,
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
