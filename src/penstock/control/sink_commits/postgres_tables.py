"""Rows of sink commits in the PostgreSQL form; lanes are as in `sqlite_tables.py`."""

from __future__ import annotations

from typing import Any, Final

from penstock.control.drivers.postgres_connections import Again, Connection
from penstock.control.sink_commits.rules import next_sink_version
from penstock.control.sink_commits.sqlite_tables import decode_lanes, encode_lanes
from penstock.control.values import SinkCommit

_COLUMNS: Final = "query_id, version, owner, batch_id, state, updated_ms, lanes"


async def read_sink(
    connection: Connection, query_id: str, *, manifest: bool = True, lock: bool = False
) -> SinkCommit | None:
    """One query's commit, with its manifest or an empty one; its row locked if asked."""
    columns = f"{_COLUMNS}, manifest" if manifest else f"{_COLUMNS}, ''::bytea"
    row = await connection.fetchrow(
        f"SELECT {columns} FROM sink_commits WHERE query_id = $1"  # noqa: S608  (both fixed)
        + (" FOR UPDATE" if lock else ""),
        query_id,
    )
    return None if row is None else _sink(row)


async def read_sinks(connection: Connection) -> list[SinkCommit]:
    rows = await connection.fetch(
        f"SELECT {_COLUMNS}, ''::bytea FROM sink_commits ORDER BY query_id"  # noqa: S608  (fixed)
    )
    return [_sink(row) for row in rows]


async def count_sinks(connection: Connection) -> int:
    found: int = await connection.fetchval("SELECT count(*) FROM sink_commits")
    return found


async def write_sink(connection: Connection, record: SinkCommit, *, new: bool) -> int | None:
    """Store a query's commit under the next version; None if a new one is there already."""
    if new:
        statement = (
            "INSERT INTO sink_commits VALUES"
            " ($1, nextval('sink_versions'), $2, $3, $4, $5, $6, $7)"
            " ON CONFLICT (query_id) DO NOTHING RETURNING version"
        )
    else:
        statement = (
            "UPDATE sink_commits SET version = nextval('sink_versions'), owner = $2,"
            " batch_id = $3, state = $4, updated_ms = $5, lanes = $6, manifest = $7"
            " WHERE query_id = $1 RETURNING version"
        )
    found: int | None = await connection.fetchval(
        statement,
        record.query_id,
        record.owner,
        record.batch_id,
        record.state,
        record.updated_ms,
        encode_lanes(record.lanes),
        record.manifest,
    )
    return found


async def save_sink(
    connection: Connection, record: SinkCommit, found: SinkCommit | None, expected_version: int
) -> int:
    """Store a query's commit by the rules, over its locked row; its new version.

    Raises:
        StaleSink, TooLarge: by the rules.
        Again: the query got its first row meanwhile.
    """
    next_sink_version(
        record,
        found=found,
        expected=expected_version,
        highest=0,
        count=await count_sinks(connection) if found is None else 0,
    )
    version = await write_sink(connection, record, new=found is None)
    if version is None:
        raise Again(f"query {record.query_id!r} was saved at the same time")
    return version


async def delete_sink(connection: Connection, query_id: str) -> None:
    await connection.execute("DELETE FROM sink_commits WHERE query_id = $1", query_id)


def _sink(row: Any) -> SinkCommit:
    query_id, version, owner, batch_id, state, updated_ms, lanes, manifest = row
    return SinkCommit(
        query_id=query_id,
        owner=owner,
        batch_id=batch_id,
        state=state,
        lanes=decode_lanes(lanes),
        manifest=manifest,
        updated_ms=updated_ms,
        version=version,
    )
