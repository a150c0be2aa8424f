"""Rows of objects, and of their store, in the SQLite form.

The tables are in `0003_diskless.sql` and `0005_store_identity.sql` of `migrations/sqlite/`.

Reading and writing values, nothing else. Every function runs inside a transaction of the writer.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import NamedTuple

from penstock.control.batch_index.values import (
    ObjectKind,
    ObjectLease,
    ObjectState,
)


class ObjectRow(NamedTuple):
    """An object's row, but for its key's uniqueness and its times."""

    lease: ObjectLease
    state: ObjectState


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


def read_answer(connection: sqlite3.Connection, object_id: int) -> bytes | None:
    row = connection.execute(
        "SELECT answer FROM diskless_answers WHERE object_id = ?", (object_id,)
    ).fetchone()
    return None if row is None else bytes(row[0])
