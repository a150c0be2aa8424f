"""SQL statements for the extents of diskless partitions, and conversion of their rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final
from uuid import UUID

from penstock.control.batch_index.partitions import ROW
from penstock.control.batch_index.rules import EMPTY, PartitionRow
from penstock.control.drivers.statements import Each, Operation, Scan, changed, row, rows, uuid_of
from penstock.records.extents import Extent

_EXTENT: Final = (
    "e.object_id, o.key, o.kind, e.byte_offset, e.size_bytes, e.base_offset, e.next_offset,"
    " e.max_timestamp, e.append_time_ms, e.layout"
)
_EXTENTS: Final = (
    f"SELECT {_EXTENT} FROM diskless_extents e JOIN diskless_objects o ON o.object_id = e.object_id"  # noqa: S608
)
_OF_KEY: Final = (
    f"{_EXTENTS} JOIN diskless_partitions p ON p.partition_id = e.partition_id"
    " WHERE p.topic_id = $1 AND p.number = $2"
)
_FIRST: Final = (
    "coalesce((SELECT max(x.base_offset) FROM diskless_extents x"
    " WHERE x.partition_id = {partition} AND x.base_offset <= {offset}), 0)"
)
"""Base offset of the extent that holds an offset. The subquery is evaluated once, not per row."""

_ID: Final = "(SELECT partition_id FROM diskless_partitions WHERE topic_id = $1 AND number = $2)"

find = Scan(
    f"""
    SELECT (SELECT stamp FROM image_version), {ROW}, e.*, k.place
    FROM unnest($1::uuid[], $2::int[], $3::bigint[], $4::int[])
        AS k (topic_id, number, first_offset, place)
    LEFT JOIN diskless_partitions p ON p.topic_id = k.topic_id AND p.number = k.number
    LEFT JOIN LATERAL (
        SELECT {_EXTENT} FROM (
            SELECT * FROM diskless_extents
            WHERE partition_id = p.partition_id
                AND k.first_offset >= p.log_start_offset AND k.first_offset < p.high_watermark
                AND base_offset
                    >= {_FIRST.format(partition="p.partition_id", offset="k.first_offset")}
            ORDER BY base_offset LIMIT $5
        ) e JOIN diskless_objects o ON o.object_id = e.object_id
    ) e ON true
    ORDER BY k.place, e.base_offset
    """,  # noqa: S608
    sqlite=f"""
    SELECT NULL, {ROW}, {_EXTENT}
    FROM diskless_partitions p
    LEFT JOIN diskless_extents e ON e.partition_id = p.partition_id
        AND $3 >= p.log_start_offset AND $3 < p.high_watermark
        AND e.base_offset >= {_FIRST.format(partition="p.partition_id", offset="$3")}
    LEFT JOIN diskless_objects o ON o.object_id = e.object_id
    WHERE p.topic_id = $1 AND p.number = $2 ORDER BY e.base_offset
    """,  # noqa: S608
)
"""Reads partitions and their extents.

Takes rows of (topic id, partition, offset), and the number of extents to read per row, which
PostgreSQL alone applies.

A single statement reads one snapshot: a commit's extents and its high watermark appear together.
"""


def stamp_of(found: Any) -> UUID | None:
    """Return the image's stamp in a row of `find`.

    SQLite has none there: its cached image is current.
    """
    return None if found[0] is None else uuid_of(found[0])


def partition_of(found: Any) -> PartitionRow:
    return EMPTY if found is None or found[1] is None else PartitionRow._make(found[1:9])


def has_extent(found: Any) -> bool:
    """Return whether a row of `find` has an extent. Only a partition's first row may lack one."""
    return found[9] is not None


def extent_of(found: Any) -> Extent:
    return Extent._make(found[9:19])


_from = rows(
    f"{_EXTENTS} WHERE e.partition_id = $1 AND e.next_offset > $2"
    f" AND e.base_offset >= {_FIRST.format(partition='$1', offset='$2')}"
    " ORDER BY e.base_offset LIMIT $3"
)
between = rows(
    f"{_EXTENTS} WHERE e.partition_id = {_ID} AND e.next_offset > $3 AND e.base_offset < $4"
    f" AND e.base_offset >= {_FIRST.format(partition=_ID, offset='$3')}"
    " ORDER BY e.base_offset LIMIT $5"
)
at_time = row(
    f"{_OF_KEY} AND e.next_offset > p.log_start_offset AND e.max_timestamp >= $3"
    " ORDER BY e.base_offset LIMIT 1"
)
newest = row(
    f"{_OF_KEY} AND e.next_offset > p.log_start_offset"
    " ORDER BY e.max_timestamp DESC, e.base_offset LIMIT 1"
)
insert = Each(
    "changed",
    "INSERT INTO diskless_extents (partition_id, base_offset, next_offset, object_id, byte_offset,"
    " size_bytes, max_timestamp, append_time_ms, layout) SELECT * FROM unnest($1::bigint[],"
    " $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[],"
    " $8::bigint[], $9::bytea[])",
    sqlite="INSERT INTO diskless_extents VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
)


_drop = changed(
    "DELETE FROM diskless_extents WHERE partition_id = $1 AND base_offset BETWEEN $2 AND $3"
)


def extents_from(partition_id: int, offset: int, limit: int) -> Operation[list[Extent]]:
    """Return up to `limit` extents of a partition, from the extent that holds `offset` on."""
    return list(map(Extent._make, (yield _from(partition_id, offset, limit))))


def drop(partition_id: int, extents: Sequence[Extent]) -> Operation[None]:
    if extents:
        yield _drop(partition_id, extents[0].base_offset, extents[-1].base_offset)


def rows_of(partition_id: int, extents: Iterable[Extent]) -> list[tuple[Any, ...]]:
    return [
        (partition_id, extent.base_offset, extent.next_offset, extent.object_id, extent.byte_offset,
         extent.size_bytes, extent.max_timestamp, extent.append_time_ms, extent.layout)
        for extent in extents
    ]  # fmt: skip
