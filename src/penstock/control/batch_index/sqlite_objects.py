"""Rows of objects, and of their store, in the SQLite form.

The tables are in `0003_diskless.sql` and `0005_store_identity.sql` of `migrations/sqlite/`.

Reading and writing values, nothing else. Every function runs inside a transaction of the writer.
"""

from __future__ import annotations

import sqlite3
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

PENDING: Final = "state = 'pending'"
UNREFERENCED: Final = "state = 'committed' AND extents = 0"
"""The conditions of two indexes, word by word."""


class ObjectRow(NamedTuple):
    """An object's row, but for its key's uniqueness and its times."""

    lease: ObjectLease
    state: ObjectState


def read_store(connection: sqlite3.Connection) -> StoreIdentity | None:
    row = connection.execute("SELECT store_id, place FROM diskless_store").fetchone()
    return None if row is None else StoreIdentity(UUID(bytes=row[0]), row[1])


def adopt_store(connection: sqlite3.Connection, identity: StoreIdentity) -> StoreIdentity:
    """Keep the identity of the first store; the one that is kept."""
    connection.execute(
        "INSERT INTO diskless_store VALUES (1, ?, ?) ON CONFLICT DO NOTHING",
        (identity.store_id.bytes, identity.place),
    )
    return read_store(connection) or identity


def write_leases(
    connection: sqlite3.Connection, leases: Sequence[ObjectLease], now_ms: int
) -> None:
    connection.executemany(
        "INSERT INTO diskless_objects VALUES (?, ?, 'pending', 'wal', 0, 0, ?)",
        [(object_id, key, now_ms) for object_id, key in leases],
    )


def read_object(connection: sqlite3.Connection, object_id: int) -> ObjectRow | None:
    row = connection.execute(
        "SELECT key, state FROM diskless_objects WHERE object_id = ?", (object_id,)
    ).fetchone()
    return None if row is None else ObjectRow(ObjectLease(object_id, row[0]), row[1])


def write_object(
    connection: sqlite3.Connection,
    object_id: int,
    *,
    state: ObjectState,
    kind: ObjectKind,
    size_bytes: int,
    extents: int,
    now_ms: int,
) -> None:
    """What a commit makes of a leased object."""
    connection.execute(
        "UPDATE diskless_objects SET state = ?, kind = ?, size_bytes = ?, extents = ?,"
        " changed_ms = ? WHERE object_id = ?",
        (state, kind, size_bytes, extents, now_ms, object_id),
    )


def renew_lease(connection: sqlite3.Connection, object_id: int, now_ms: int) -> bool:
    """Let a PENDING row be as young as a new one; false if there is none."""
    done = connection.execute(
        "UPDATE diskless_objects SET changed_ms = ? WHERE object_id = ? AND state = 'pending'",
        (now_ms, object_id),
    )
    return done.rowcount == 1


def read_answer(connection: sqlite3.Connection, object_id: int) -> bytes | None:
    row = connection.execute(
        "SELECT answer FROM diskless_answers WHERE object_id = ?", (object_id,)
    ).fetchone()
    return None if row is None else bytes(row[0])


def drop_answers(connection: sqlite3.Connection, last_ms: int, limit: int) -> None:
    """Drop answers of commits up to a time, the oldest first."""
    connection.execute(
        "DELETE FROM diskless_answers WHERE object_id IN (SELECT object_id FROM diskless_answers"
        " WHERE committed_ms <= ? ORDER BY committed_ms LIMIT ?)",
        (last_ms, limit),
    )


def release(connection: sqlite3.Connection, counts: Mapping[int, int], now_ms: int) -> None:
    """Count references that are gone; an object without any is unreferenced from now on."""
    connection.executemany(
        "UPDATE diskless_objects SET extents = extents - ?2,"
        " changed_ms = CASE extents WHEN ?2 THEN ?3 ELSE changed_ms END WHERE object_id = ?1",
        [(object_id, count, now_ms) for object_id, count in counts.items()],
    )


def mark_deleting(
    connection: sqlite3.Connection, which: str, last_ms: int, limit: int, now_ms: int
) -> int:
    """Mark objects that are `PENDING` or `UNREFERENCED` since a time; how many."""
    return connection.execute(
        "UPDATE diskless_objects SET state = 'deleting', changed_ms = ? WHERE object_id IN"  # noqa: S608
        f" (SELECT object_id FROM diskless_objects WHERE {which} AND changed_ms <= ?"
        " ORDER BY changed_ms, object_id LIMIT ?)",
        (now_ms, last_ms, limit),
    ).rowcount


def read_deleting(connection: sqlite3.Connection, limit: int) -> list[Condemned]:
    rows = connection.execute(
        "SELECT object_id, key, size_bytes FROM diskless_objects WHERE state = 'deleting'"
        " ORDER BY object_id LIMIT ?",
        (limit,),
    )
    return [Condemned._make(row) for row in rows]


def forget_objects(connection: sqlite3.Connection, object_ids: Sequence[int]) -> None:
    """Drop the rows of those that are marked, and their answers."""
    values = [(object_id,) for object_id in object_ids]
    connection.executemany(
        "DELETE FROM diskless_objects WHERE object_id = ? AND state = 'deleting'", values
    )
    connection.executemany(
        "DELETE FROM diskless_answers WHERE object_id = ?1"
        " AND NOT EXISTS (SELECT 1 FROM diskless_objects WHERE object_id = ?1)",
        values,
    )


def read_totals(connection: sqlite3.Connection) -> list[ObjectTotals]:
    found = connection.execute(
        "SELECT state, kind, count(*), sum(size_bytes) FROM diskless_objects"
        " GROUP BY state, kind ORDER BY state, kind"
    )
    return [ObjectTotals._make(row) for row in found]


def read_keys(
    connection: sqlite3.Connection, after: str, limit: int
) -> list[tuple[str, ObjectLease]]:
    found = connection.execute(
        "SELECT state, object_id, key FROM diskless_objects WHERE key > ? ORDER BY key LIMIT ?",
        (after, limit),
    )
    return [(state, ObjectLease(object_id, key)) for state, object_id, key in found]
