"""Group records in SQLite, and counters: reading and writing values, nothing else."""

from __future__ import annotations

import sqlite3

from penstock.control.values import GroupRecord


def read_counter(connection: sqlite3.Connection, name: str) -> int:
    row = connection.execute("SELECT value FROM counters WHERE name = ?", (name,)).fetchone()
    return int(row[0])


def write_counter(connection: sqlite3.Connection, name: str, value: int) -> None:
    connection.execute("UPDATE counters SET value = ? WHERE name = ?", (value, name))


def read_groups(connection: sqlite3.Connection) -> list[GroupRecord]:
    return [
        GroupRecord(
            group_id=group_id,
            version=version,
            generation=generation,
            protocol_type=protocol_type,
            protocol=protocol,
            state=bytes(state),
        )
        for group_id, version, generation, protocol_type, protocol, state in connection.execute(
            "SELECT * FROM group_records ORDER BY group_id"
        )
    ]


def read_group_version(connection: sqlite3.Connection, group_id: str) -> int:
    row = connection.execute(
        "SELECT version FROM group_records WHERE group_id = ?", (group_id,)
    ).fetchone()
    return 0 if row is None else int(row[0])


def write_group(connection: sqlite3.Connection, record: GroupRecord, version: int) -> None:
    connection.execute(
        "INSERT OR REPLACE INTO group_records VALUES (?, ?, ?, ?, ?, ?)",
        (
            record.group_id,
            version,
            record.generation,
            record.protocol_type,
            record.protocol,
            record.state,
        ),
    )


def delete_group(connection: sqlite3.Connection, group_id: str) -> None:
    connection.execute("DELETE FROM group_records WHERE group_id = ?", (group_id,))
    connection.execute("DELETE FROM group_offsets WHERE group_id = ?", (group_id,))
