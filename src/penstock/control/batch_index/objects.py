"""Rows of objects, of the stored results of commits, and of the object store's identity."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple
from uuid import UUID

from penstock.control.batch_index.values import (
    MarkedObject,
    ObjectLease,
    ObjectState,
    StoreIdentity,
)
from penstock.control.drivers.statements import (
    Each,
    One,
    Operation,
    changed,
    row,
    rows,
    uuid_of,
    value,
)

_HIGHEST_ID: Final = "SELECT value FROM counters WHERE name = 'highest_object_id'"
_RAISE: Final = "UPDATE counters SET value = value + $1 WHERE name = 'highest_object_id'"

highest_id = value(_HIGHEST_ID)
allocate_ids = value(f"{_RAISE} RETURNING value", sqlite=(_RAISE, _HIGHEST_ID))
"""Reserves object ids. Takes their number; returns the highest of the new ids."""

now = value("SELECT penstock_now_ms()")
_store = row("SELECT store_id, place FROM diskless_store")
adopt_store = changed("INSERT INTO diskless_store VALUES (true, $1, $2) ON CONFLICT DO NOTHING")
write_leases = Each(
    "changed",
    "INSERT INTO diskless_objects SELECT object_id, key, 'pending', 'wal', 0, 0,"
    " penstock_now_ms() FROM unnest($1::bigint[], $2::text[]) AS new (object_id, key)",
    sqlite="INSERT INTO diskless_objects"
    " VALUES ($1, $2, 'pending', 'wal', 0, 0, penstock_now_ms())",
)
_lock = Each(
    "rows",
    "SELECT o.object_id, o.key, o.state, penstock_now_ms(), v.stamp"
    " FROM diskless_objects o, image_version v WHERE o.object_id = ANY($1::bigint[])"
    " ORDER BY o.object_id FOR UPDATE OF o",
    sqlite="SELECT object_id, key, state, penstock_now_ms(), NULL"
    " FROM diskless_objects WHERE object_id = $1",
)
write_committed = Each(
    "changed",
    "UPDATE diskless_objects o SET state = n.state, kind = n.kind, size_bytes = n.size_bytes,"
    " extents = n.extents, changed_ms = penstock_now_ms() FROM unnest($1::bigint[], $2::text[],"
    " $3::text[], $4::bigint[], $5::bigint[]) AS n (object_id, state, kind, size_bytes, extents)"
    " WHERE o.object_id = n.object_id AND o.state = 'pending'",
    sqlite="UPDATE diskless_objects SET state = $2, kind = $3, size_bytes = $4, extents = $5,"
    " changed_ms = penstock_now_ms() WHERE object_id = $1 AND state = 'pending'",
)
"""Commits PENDING objects. Takes rows of (id, state, kind, bytes, number of extents)."""

renew_leases = Each(
    "changed",
    "UPDATE diskless_objects SET changed_ms = penstock_now_ms()"
    " WHERE object_id = ANY($1::bigint[])",
)
_answers = Each(
    "rows",
    "SELECT object_id, answer FROM diskless_answers WHERE object_id = ANY($1::bigint[])",
)
write_answer = Each(
    "changed",
    "INSERT INTO diskless_answers SELECT n.object_id, penstock_now_ms(), n.answer"
    " FROM unnest($1::bigint[], $2::bytea[]) AS n (object_id, answer)",
    sqlite="INSERT INTO diskless_answers VALUES ($1, penstock_now_ms(), $2)",
)
drop_answers = changed(
    "DELETE FROM diskless_answers WHERE object_id IN"
    " (WITH old AS MATERIALIZED (SELECT object_id FROM diskless_answers"
    " WHERE committed_ms <= penstock_now_ms() - $1 ORDER BY committed_ms LIMIT $2"
    " FOR UPDATE SKIP LOCKED) SELECT object_id FROM old)"
)
"""Deletes the oldest results of commits.

Takes a minimum age in milliseconds and a limit of rows.
"""

release = Each(
    "changed",
    "WITH locked AS (SELECT object_id FROM diskless_objects WHERE object_id = ANY($1::bigint[])"
    " ORDER BY object_id FOR UPDATE)"
    " UPDATE diskless_objects o SET extents = o.extents - gone.count,"
    " changed_ms = CASE WHEN o.extents = gone.count THEN penstock_now_ms() ELSE o.changed_ms END"
    " FROM locked JOIN unnest($1::bigint[], $2::bigint[]) AS gone (object_id, count)"
    " ON gone.object_id = locked.object_id WHERE o.object_id = locked.object_id",
    sqlite="UPDATE diskless_objects SET extents = extents - $2,"
    " changed_ms = CASE WHEN extents = $2 THEN penstock_now_ms() ELSE changed_ms END"
    " WHERE object_id = $1",
)
"""Lowers the number of extents that refer to an object.

Takes rows of (id, number of dropped extents).
"""


def _mark_deleting(which: str) -> One:
    """Return a statement that marks objects as DELETING, and skips locked rows.

    It takes the minimum age in milliseconds in the present state, and a limit of rows.
    """
    return changed(
        "UPDATE diskless_objects SET state = 'deleting', changed_ms = penstock_now_ms()"  # noqa: S608
        " WHERE object_id IN"
        f" (WITH old AS MATERIALIZED (SELECT object_id FROM diskless_objects WHERE {which}"
        " AND changed_ms <= penstock_now_ms() - $1 ORDER BY changed_ms, object_id LIMIT $2"
        " FOR UPDATE SKIP LOCKED) SELECT object_id FROM old)"
    )


mark_pending = _mark_deleting("state = 'pending'")
mark_unreferenced = _mark_deleting("state = 'committed' AND extents = 0")
"""Each condition must equal the text of a partial index's condition, so that the index is used."""

_deleting = rows(
    "SELECT object_id, key, size_bytes FROM diskless_objects WHERE state = 'deleting'"
    " ORDER BY object_id LIMIT $1"
)
forget = Each(
    "changed",
    "DELETE FROM diskless_objects WHERE object_id = ANY($1::bigint[]) AND state = 'deleting'",
)
forget_answers = Each(
    "changed",
    "DELETE FROM diskless_answers WHERE object_id = ANY($1::bigint[])"
    " AND NOT EXISTS (SELECT 1 FROM diskless_objects o"
    " WHERE o.object_id = diskless_answers.object_id)",
)
totals = rows("SELECT state, kind, count(*), sum(size_bytes) FROM diskless_objects GROUP BY 1, 2")
keys_after = rows(
    "SELECT state, object_id, key FROM diskless_objects WHERE key > $1 ORDER BY key LIMIT $2"
)


class ObjectRow(NamedTuple):
    """The row of an object, with the control plane's time and the image's stamp.

    The stamp is None in SQLite.
    """

    lease: ObjectLease
    state: ObjectState
    now_ms: int
    stamp: UUID | None


def lock(object_ids: Iterable[int]) -> Operation[dict[int, ObjectRow]]:
    found = yield _lock([(object_id,) for object_id in object_ids])
    return {
        object_id: ObjectRow(ObjectLease(object_id, key), state, now_ms, stamp and uuid_of(stamp))
        for object_id, key, state, now_ms, stamp in found
    }


def answers(object_ids: Iterable[int]) -> Operation[dict[int, bytes]]:
    return dict((yield _answers([(object_id,) for object_id in object_ids])))


def deleting(limit: int) -> Operation[list[MarkedObject]]:
    return list(map(MarkedObject._make, (yield _deleting(limit))))


def store() -> Operation[StoreIdentity | None]:
    found = yield _store()
    return None if found is None else StoreIdentity(uuid_of(found[0]), found[1])
