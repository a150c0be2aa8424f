"""Rows of objects, and of their store, in PostgreSQL.

The tables are in `0002_diskless.sql` and `0004_store_identity.sql` of `migrations/postgres/`.

Reading and writing values, nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from penstock.control.batch_index.values import (
    ObjectLease,
    ObjectState,
)
from penstock.control.drivers.postgres_connections import Connection
from penstock.control.drivers.statements import uuid_of


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


async def lock_states(connection: Connection, object_ids: Sequence[int]) -> dict[int, ObjectState]:
    """The states of objects that have a row, locked in the order of their ids."""
    found = await connection.fetch(
        "SELECT object_id, state FROM diskless_objects WHERE object_id = ANY($1)"
        " ORDER BY object_id FOR UPDATE",
        object_ids,
    )
    return {object_id: state for object_id, state in found}


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
