"""Statements for the tables of tiered storage: one row per partition, and one per segment."""

from __future__ import annotations

from typing import Any, Final

from penstock.control.drivers.statements import Each, changed, row, rows
from penstock.control.tiers.values import TierBounds, TierSegment

_MARKS: Final = "p.log_start_offset, p.tiered_offset, p.size_bytes, p.segments"
_SEGMENT: Final = (
    "s.base_offset, s.next_offset, s.leader_epoch, s.max_timestamp, s.object_id, s.stem,"
    " s.size_bytes, s.index_bytes, s.time_index_bytes, s.aborted_bytes, s.checksum"
)
_ABORTED: Final = "max(CASE WHEN s.aborted_bytes > 0 THEN s.base_offset ELSE -1 END)"
_OF_KEY: Final = "topic_id = $1 AND number = $2"
_KEYS: Final = "unnest($1::uuid[], $2::int[], $3::int[]) AS k (topic_id, number, place)"

read_bounds = Each(
    "rows",
    f"SELECT k.place, {_MARKS} FROM {_KEYS}"  # noqa: S608  (fixed, as all)
    " JOIN tiered_partitions p ON p.topic_id = k.topic_id AND p.number = k.number",
    sqlite=f"SELECT $3, {_MARKS} FROM tiered_partitions p WHERE {_OF_KEY}",  # noqa: S608
)
"""Takes rows of (topic id, partition, number); returns (number, bounds)."""
read_epochs = Each(
    "rows",
    f"SELECT k.place, s.leader_epoch, min(s.base_offset), {_ABORTED} FROM {_KEYS}"  # noqa: S608
    " JOIN tiered_segments s ON s.topic_id = k.topic_id AND s.number = k.number"
    " GROUP BY k.place, s.leader_epoch",
    sqlite=f"SELECT $3, s.leader_epoch, min(s.base_offset), {_ABORTED} FROM tiered_segments s"  # noqa: S608
    f" WHERE {_OF_KEY} GROUP BY s.leader_epoch",
)
"""Takes the same rows; returns (number, epoch, first offset, aborted offset) of each epoch.

The aborted offset is the base offset of the last segment with markers of aborted transactions, or
-1.
"""
lock = row(f"SELECT {_MARKS} FROM tiered_partitions p WHERE {_OF_KEY} FOR UPDATE")  # noqa: S608
add = changed(
    "INSERT INTO tiered_partitions VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING"
)
write = changed(
    "UPDATE tiered_partitions SET log_start_offset = $3, tiered_offset = $4, size_bytes = $5,"  # noqa: S608
    f" segments = $6 WHERE {_OF_KEY}"
)
"""`add` and `write` take (topic id, partition, *values_of)."""
delete = changed(f"DELETE FROM tiered_partitions WHERE {_OF_KEY}")  # noqa: S608
first_of = row(
    f"SELECT p.number, {_MARKS} FROM tiered_partitions p WHERE p.topic_id = $1"  # noqa: S608
    " ORDER BY p.number LIMIT 1 FOR UPDATE SKIP LOCKED"
)
topics = rows("SELECT DISTINCT topic_id FROM tiered_partitions")

segments_from = rows(
    f"SELECT {_SEGMENT} FROM tiered_segments s WHERE {_OF_KEY}"  # noqa: S608
    " AND s.base_offset >= coalesce((SELECT max(o.base_offset) FROM tiered_segments o"
    " WHERE o.topic_id = $1 AND o.number = $2 AND o.base_offset <= $3), 0)"
    " ORDER BY s.base_offset LIMIT $4"
)
"""Returns the segment that holds an offset and those after it.

If no segment holds the offset, the last one before it comes first.
"""
aborted_from = rows(
    f"SELECT {_SEGMENT} FROM tiered_segments s WHERE {_OF_KEY}"  # noqa: S608
    " AND s.next_offset > $3 AND s.aborted_bytes > 0 ORDER BY s.base_offset LIMIT $4"
)
at_time = row(
    f"SELECT {_SEGMENT} FROM tiered_segments s WHERE {_OF_KEY} AND s.next_offset > $3"  # noqa: S608
    " AND s.max_timestamp >= $4 ORDER BY s.base_offset LIMIT 1"
)
newest = row(
    f"SELECT {_SEGMENT} FROM tiered_segments s WHERE {_OF_KEY} AND s.next_offset > $3"  # noqa: S608
    " ORDER BY s.max_timestamp DESC, s.base_offset LIMIT 1"
)
insert = changed(
    "INSERT INTO tiered_segments VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)"
)
shorten = changed(
    f"UPDATE tiered_segments SET next_offset = $4 WHERE {_OF_KEY} AND base_offset = $3"  # noqa: S608
)
delete_segments = changed(
    f"DELETE FROM tiered_segments WHERE {_OF_KEY} AND base_offset BETWEEN $3 AND $4"  # noqa: S608
)


def bounds_of(found: Any) -> TierBounds:
    return TierBounds(*found[-4:])


def values_of(bounds: TierBounds) -> tuple[int, int, int, int]:
    return bounds[:4]


def segment_of(found: Any) -> TierSegment:
    return TierSegment(*found)
