"""Statements for the table of coordinators' records.

Keys and members are stored as bytes, because PostgreSQL's text cannot hold NUL characters.
"""

from __future__ import annotations

from typing import Any

from penstock.control.coordination.values import CoordinationRecord
from penstock.control.drivers.statements import Each, rows, value

keys = rows("SELECT DISTINCT key FROM coordination_records WHERE kind = $1 ORDER BY key")
read = Each(
    "rows",
    "SELECT key, member, version, value FROM coordination_records"
    " WHERE kind = $2 AND key = ANY($1::bytea[])",
    sqlite="SELECT key, member, version, value FROM coordination_records"
    " WHERE kind = $2 AND key = $1",
)
lock = Each(
    "rows",
    "SELECT r.kind, r.key, r.version FROM coordination_records r"
    " JOIN unnest($1::text[], $2::bytea[]) AS n (kind, key) USING (kind, key)"
    " WHERE r.member = '' ORDER BY r.kind, r.key FOR UPDATE OF r",
    sqlite="SELECT kind, key, version FROM coordination_records"
    " WHERE kind = $1 AND key = $2 AND member = x''",
)
"""Locks and returns the keys' own rows, whose member is empty."""
lock_member = value(
    "SELECT value FROM coordination_records WHERE kind = $1 AND key = $2 AND member = $3 FOR UPDATE"
)
write = Each(
    "changed",
    "INSERT INTO coordination_records AS r SELECT n.kind, n.key, n.member,"
    " CASE n.expected WHEN 0 THEN $6 ELSE n.expected END, n.value"
    " FROM unnest($1::text[], $2::bytea[], $3::bytea[], $4::bigint[], $5::bytea[])"
    " AS n (kind, key, member, expected, value)"
    " ON CONFLICT (kind, key, member) DO UPDATE SET version = $6, value = excluded.value"
    " WHERE r.member <> '' OR r.version = excluded.version",
    sqlite="INSERT INTO coordination_records VALUES"
    " ($1, $2, $3, CASE $4 WHEN 0 THEN $6 ELSE $4 END, $5)"
    " ON CONFLICT (kind, key, member) DO UPDATE SET version = $6, value = excluded.value"
    " WHERE member <> x'' OR version = excluded.version",
)
"""Stores rows at one new version. The own row of a key must be new, or at the expected version."""
delete = Each(
    "changed",
    "DELETE FROM coordination_records r"
    " USING unnest($1::text[], $2::bytea[], $3::bytea[]) AS n (kind, key, member)"
    " WHERE (r.kind, r.key, r.member) = (n.kind, n.key, n.member)",
    sqlite="DELETE FROM coordination_records WHERE kind = $1 AND key = $2 AND member = $3",
)


def record_of(found: Any) -> CoordinationRecord:
    key, member, version, value = found
    return CoordinationRecord(
        key=key.decode(), member=member.decode(), version=version, value=value
    )
