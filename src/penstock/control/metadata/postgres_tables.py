"""Group records in PostgreSQL: reading and writing values, nothing else."""

from __future__ import annotations

from penstock.control.drivers.postgres_connections import Connection
from penstock.control.values import GroupRecord


async def read_groups(connection: Connection) -> list[GroupRecord]:
    rows = await connection.fetch(
        "SELECT group_id, version, generation, protocol_type, protocol, state"
        " FROM group_records ORDER BY group_id"
    )
    return [
        GroupRecord(
            group_id=group_id,
            version=version,
            generation=generation,
            protocol_type=protocol_type,
            protocol=protocol,
            state=state,
        )
        for group_id, version, generation, protocol_type, protocol, state in rows
    ]


async def read_group_version(connection: Connection, group_id: str) -> int:
    """The version of a group's record, 0 for none; its row is locked."""
    found: int | None = await connection.fetchval(
        "SELECT version FROM group_records WHERE group_id = $1 FOR UPDATE", group_id
    )
    return found or 0


async def write_group(connection: Connection, record: GroupRecord, *, new: bool) -> int | None:
    """Store a group's record under the next version; None if a new one is there already."""
    if new:
        statement = (
            "INSERT INTO group_records VALUES ($1, nextval('group_versions'), $2, $3, $4, $5)"
            " ON CONFLICT (group_id) DO NOTHING RETURNING version"
        )
    else:
        statement = (
            "UPDATE group_records SET version = nextval('group_versions'), generation = $2,"
            " protocol_type = $3, protocol = $4, state = $5 WHERE group_id = $1 RETURNING version"
        )
    found: int | None = await connection.fetchval(
        statement,
        record.group_id,
        record.generation,
        record.protocol_type,
        record.protocol,
        record.state,
    )
    return found


async def delete_group(connection: Connection, group_id: str) -> None:
    await connection.execute("DELETE FROM group_offsets WHERE group_id = $1", group_id)
    await connection.execute("DELETE FROM group_records WHERE group_id = $1", group_id)
