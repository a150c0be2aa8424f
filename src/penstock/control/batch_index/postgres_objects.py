"""Rows of objects, and of their store, in PostgreSQL.

The tables are in `0002_diskless.sql` and `0004_store_identity.sql` of `migrations/postgres/`.

Reading and writing values, nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from penstock.control.batch_index.values import (
    Condemned,
    ObjectKind,
    ObjectLease,
    ObjectState,
    ObjectTotals,
    StoreIdentity,
)
from penstock.control.drivers.postgres_connections import Connection
from penstock.control.metadata.postgres_tables import uuid_of

PENDING: Final = "state = 'pending'"
UNREFERENCED: Final = "state = 'committed' AND extents = 0"
"""The conditions of two indexes, word by word."""


class ObjectRow(NamedTuple):
    """What a commit asks of an object's row; with the database's time, and the image's stamp."""

    lease: ObjectLease
    state: ObjectState
    now_ms: int
    image: tuple[int, UUID]


async def allocate_ids(connection: Connection, count: int) -> int:
    """The highest of new ids of objects."""
    highest: int = await connection.fetchval(
        "UPDATE counters SET value = value + $1 WHERE name = 'highest_object_id' RETURNING value",
        count,
    )
    return highest


async def highest_id(connection: Connection) -> int:
    found: int = await connection.fetchval(
        "SELECT value FROM counters WHERE name = 'highest_object_id'"
    )
    return found


async def read_store(connection: Connection) -> StoreIdentity | None:
    row = await connection.fetchrow("SELECT store_id, place FROM diskless_store")
    return None if row is None else StoreIdentity(uuid_of(row[0]), row[1])


async def adopt_store(connection: Connection, identity: StoreIdentity) -> StoreIdentity:
    """Keep the identity of the first store; the one that is kept."""
    await connection.execute(
        "INSERT INTO diskless_store VALUES (true, $1, $2) ON CONFLICT DO NOTHING", *identity
    )
    return await read_store(connection) or identity


async def write_leases(connection: Connection, leases: Sequence[ObjectLease]) -> None:
    await connection.execute(
        "INSERT INTO diskless_objects SELECT object_id, key, 'pending', 'wal', 0, 0,"
        " penstock_now_ms() FROM unnest($1::bigint[], $2::text[]) AS new (object_id, key)",
        [lease.object_id for lease in leases],
        [lease.key for lease in leases],
    )


async def lock_object(connection: Connection, object_id: int) -> ObjectRow | None:
    """An object's row, locked."""
    row = await connection.fetchrow(
        "SELECT o.key, o.state, penstock_now_ms(), v.version, v.stamp"
        " FROM diskless_objects o, image_version v WHERE o.object_id = $1 FOR UPDATE OF o",
        object_id,
    )
    if row is None:
        return None
    key, state, now_ms, version, stamp = row
    return ObjectRow(ObjectLease(object_id, key), state, now_ms, (version, uuid_of(stamp)))


async def write_object(
    connection: Connection,
    object_id: int,
    *,
    state: ObjectState,
    kind: ObjectKind,
    size_bytes: int,
    extents: int,
) -> None:
    """What a commit makes of a leased object."""
    await connection.execute(
        "UPDATE diskless_objects SET state = $2, kind = $3, size_bytes = $4, extents = $5,"
        " changed_ms = penstock_now_ms() WHERE object_id = $1",
        object_id,
        state,
        kind,
        size_bytes,
        extents,
    )


async def lock_states(connection: Connection, object_ids: Sequence[int]) -> dict[int, ObjectState]:
    """The states of objects that have a row, locked in the order of their ids."""
    found = await connection.fetch(
        "SELECT object_id, state FROM diskless_objects WHERE object_id = ANY($1)"
        " ORDER BY object_id FOR UPDATE",
        object_ids,
    )
    return {object_id: state for object_id, state in found}


async def renew_leases(connection: Connection, object_ids: Sequence[int]) -> set[int]:
    """Let PENDING rows be as young as new ones; which of these there are."""
    found = await connection.fetch(
        "WITH locked AS (SELECT object_id FROM diskless_objects WHERE object_id = ANY($1)"
        " AND state = 'pending' ORDER BY object_id FOR UPDATE)"
        " UPDATE diskless_objects o SET changed_ms = penstock_now_ms() FROM locked"
        " WHERE o.object_id = locked.object_id RETURNING o.object_id",
        object_ids,
    )
    return {row[0] for row in found}


async def write_segments(connection: Connection, segments: Sequence[tuple[int, int, int]]) -> None:
    """Commit leased objects as sealed segments: (id, bytes, extents that refer to it)."""
    await connection.executemany(
        "UPDATE diskless_objects SET state = 'committed', kind = 'segment', size_bytes = $2,"
        " extents = $3, changed_ms = penstock_now_ms() WHERE object_id = $1",
        segments,
    )


async def read_answer(connection: Connection, object_id: int) -> bytes | None:
    found: bytes | None = await connection.fetchval(
        "SELECT answer FROM diskless_answers WHERE object_id = $1", object_id
    )
    return found


async def drop_answers(connection: Connection, kept_ms: int, limit: int) -> None:
    """Drop answers of commits that are older than that, the oldest first."""
    await connection.execute(
        "DELETE FROM diskless_answers WHERE object_id IN (SELECT object_id FROM diskless_answers"
        " WHERE committed_ms <= penstock_now_ms() - $1 ORDER BY committed_ms LIMIT $2"
        " FOR UPDATE SKIP LOCKED)",
        kept_ms,
        limit,
    )


async def release(connection: Connection, counts: Mapping[int, int]) -> None:
    """Count references that are gone; an object without any is unreferenced from now on."""
    if not counts:
        return
    await connection.execute(
        "WITH locked AS (SELECT object_id FROM diskless_objects WHERE object_id = ANY($1)"
        " ORDER BY object_id FOR UPDATE)"
        " UPDATE diskless_objects o SET extents = o.extents - gone.count,"
        " changed_ms = CASE WHEN o.extents = gone.count THEN penstock_now_ms()"
        " ELSE o.changed_ms END"
        " FROM locked JOIN unnest($1::bigint[], $2::bigint[]) AS gone (object_id, count)"
        " ON gone.object_id = locked.object_id WHERE o.object_id = locked.object_id",
        list(counts),
        list(counts.values()),
    )


async def mark_deleting(connection: Connection, which: str, grace_ms: int, limit: int) -> int:
    """Mark objects that are `PENDING` or `UNREFERENCED` for so long; how many.

    Those that somebody has locked are left for the next time.
    """
    done = await connection.execute(
        "UPDATE diskless_objects SET state = 'deleting', changed_ms = penstock_now_ms()"  # noqa: S608
        f" WHERE object_id IN (SELECT object_id FROM diskless_objects WHERE {which}"
        " AND changed_ms <= penstock_now_ms() - $1 ORDER BY changed_ms, object_id LIMIT $2"
        " FOR UPDATE SKIP LOCKED)",
        grace_ms,
        limit,
    )
    return int(done.split()[-1])


async def read_deleting(connection: Connection, limit: int) -> list[Condemned]:
    rows = await connection.fetch(
        "SELECT object_id, key, size_bytes FROM diskless_objects WHERE state = 'deleting'"
        " ORDER BY object_id LIMIT $1",
        limit,
    )
    return [Condemned._make(row) for row in rows]


async def forget_objects(connection: Connection, object_ids: Sequence[int]) -> None:
    """Drop the rows of those that are marked, and their answers."""
    await connection.execute(
        "WITH gone AS (DELETE FROM diskless_objects WHERE object_id = ANY($1)"
        " AND state = 'deleting' RETURNING object_id)"
        " DELETE FROM diskless_answers a USING gone WHERE a.object_id = gone.object_id",
        list(object_ids),
    )


async def read_totals(connection: Connection) -> list[ObjectTotals]:
    found = await connection.fetch(
        "SELECT state, kind, count(*), sum(size_bytes)::bigint FROM diskless_objects"
        ' GROUP BY state, kind ORDER BY state COLLATE "C", kind COLLATE "C"'
    )
    return [ObjectTotals._make(row) for row in found]


async def read_keys(
    connection: Connection, after: str, limit: int
) -> list[tuple[str, ObjectLease]]:
    found = await connection.fetch(
        "SELECT state, object_id, key FROM diskless_objects WHERE key > $1 ORDER BY key LIMIT $2",
        after,
        limit,
    )
    return [(state, ObjectLease(object_id, key)) for state, object_id, key in found]
