"""Rows of diskless partitions in PostgreSQL; the tables are in `migrations/postgres/`.

Reading and writing values, nothing else. Statements take sets of rows, so that how many there are
does not change how often the server is asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple
from uuid import UUID

from penstock.control.batch_index.commit_rules import CommitPlan
from penstock.control.batch_index.formats import decode_batches, encode_answer, encode_batches
from penstock.control.batch_index.rules import EMPTY, PartitionRow, ProducerKey
from penstock.control.batch_index.values import FindRequest, PartitionKey
from penstock.control.drivers.postgres_connections import Connection
from penstock.control.metadata.postgres_tables import uuid_of
from penstock.records.extents import Extent
from penstock.records.idempotence import Producer

_ROW: Final = "p.log_start_offset, p.high_watermark, p.size_bytes, p.wal_extents, p.wal_bytes"
_EXTENT: Final = (
    "e.object_id, o.key, o.kind, e.byte_offset, e.size_bytes, e.base_offset, e.next_offset,"
    " e.max_timestamp, e.append_time_ms, e.layout"
)
_EXTENTS: Final = "diskless_extents e JOIN diskless_objects o ON o.object_id = e.object_id"
_ID: Final = "(SELECT partition_id FROM diskless_partitions WHERE topic_id = $1 AND number = $2)"
_FIRST: Final = (
    "coalesce((SELECT max(x.base_offset) FROM diskless_extents x"
    " WHERE x.partition_id = {partition} AND x.base_offset <= {offset}), 0)"
)
"""Where the extent begins that holds an offset, if one does; looked up once, not for each row."""


class LockedPartition(NamedTuple):
    """A partition's row and its id; 0 and `EMPTY` for one without a commit."""

    partition_id: int
    row: PartitionRow


ABSENT: Final = LockedPartition(0, EMPTY)


def _keys(keys: Iterable[PartitionKey]) -> tuple[list[UUID], list[int]]:
    ordered = sorted(keys)
    return [topic_id for topic_id, _ in ordered], [number for _, number in ordered]


async def lock_partitions(
    connection: Connection, keys: Iterable[PartitionKey]
) -> dict[PartitionKey, LockedPartition]:
    """Partitions that have a row, as they are once all are locked, one after the other by id."""
    found = await connection.fetch(
        f"SELECT p.partition_id, p.topic_id, p.number, {_ROW} FROM diskless_partitions p"  # noqa: S608
        " JOIN unnest($1::uuid[], $2::int[]) AS k (topic_id, number)"
        " ON p.topic_id = k.topic_id AND p.number = k.number"
        " ORDER BY p.partition_id FOR UPDATE OF p",
        *_keys(keys),
    )
    return {
        (uuid_of(topic_id), number): LockedPartition(partition_id, PartitionRow._make(row))
        for partition_id, topic_id, number, *row in found
    }


async def add_partitions(connection: Connection, keys: Iterable[PartitionKey]) -> None:
    """Make the rows of partitions that have none."""
    await connection.execute(
        "INSERT INTO diskless_partitions (topic_id, number, log_start_offset, high_watermark,"
        " size_bytes, wal_extents, wal_bytes)"
        " SELECT k.topic_id, k.number, 0, 0, 0, 0, 0 FROM unnest($1::uuid[], $2::int[])"
        " AS k (topic_id, number) ON CONFLICT (topic_id, number) DO NOTHING",
        *_keys(keys),
    )


async def read_partitions(
    connection: Connection, keys: Sequence[PartitionKey]
) -> list[LockedPartition]:
    """One for each key, in their order; nothing is locked."""
    found = await connection.fetch(
        f"SELECT p.partition_id, {_ROW} FROM unnest($1::uuid[], $2::int[])"  # noqa: S608  (fixed)
        " WITH ORDINALITY AS k (topic_id, number, place) LEFT JOIN diskless_partitions p"
        " ON p.topic_id = k.topic_id AND p.number = k.number ORDER BY k.place",
        [topic_id for topic_id, _ in keys],
        [number for _, number in keys],
    )
    return [
        ABSENT if partition_id is None else LockedPartition(partition_id, PartitionRow._make(row))
        for partition_id, *row in found
    ]


async def write_partition(connection: Connection, partition_id: int, row: PartitionRow) -> None:
    await connection.execute(
        "UPDATE diskless_partitions SET log_start_offset = $2, high_watermark = $3,"
        " size_bytes = $4, wal_extents = $5, wal_bytes = $6 WHERE partition_id = $1",
        partition_id,
        *row,
    )


async def read_producers(
    connection: Connection, ids: Mapping[PartitionKey, int], keys: Iterable[ProducerKey]
) -> dict[ProducerKey, Producer]:
    """The states of producers; `ids` are those of partitions that have a row."""
    asked = {
        (ids[topic_id, number], producer_id): (topic_id, number, producer_id)
        for topic_id, number, producer_id in keys
        if (topic_id, number) in ids
    }
    if not asked:
        return {}
    found = await connection.fetch(
        "SELECT s.partition_id, s.producer_id, s.epoch, s.batches, s.seen_ms"
        " FROM diskless_producers s JOIN unnest($1::bigint[], $2::bigint[]) AS k (partition_id,"
        " producer_id) ON s.partition_id = k.partition_id AND s.producer_id = k.producer_id",
        [partition_id for partition_id, _ in asked],
        [producer_id for _, producer_id in asked],
    )
    return {
        asked[partition_id, producer_id]: Producer(epoch, decode_batches(batches), seen_ms)
        for partition_id, producer_id, epoch, batches, seen_ms in found
    }


async def read_all_producers(
    connection: Connection, key: PartitionKey
) -> list[tuple[int, Producer]]:
    """The producers of one partition, by id."""
    found = await connection.fetch(
        "SELECT s.producer_id, s.epoch, s.batches, s.seen_ms FROM diskless_producers s"
        " JOIN diskless_partitions p ON p.partition_id = s.partition_id"
        " WHERE p.topic_id = $1 AND p.number = $2 ORDER BY s.producer_id",
        *key,
    )
    return [
        (producer_id, Producer(epoch, decode_batches(batches), seen_ms))
        for producer_id, epoch, batches, seen_ms in found
    ]


_WRITE_COMMIT: Final = """
WITH now AS (SELECT $8::bigint AS ms), partitions AS (
    UPDATE diskless_partitions p SET log_start_offset = n.log_start_offset,
        high_watermark = n.high_watermark, size_bytes = n.size_bytes,
        wal_extents = n.wal_extents, wal_bytes = n.wal_bytes
    FROM unnest($9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[], $13::bigint[],
        $14::bigint[]) AS n (partition_id, log_start_offset, high_watermark, size_bytes,
        wal_extents, wal_bytes)
    WHERE p.partition_id = n.partition_id
), extents AS (
    INSERT INTO diskless_extents (partition_id, base_offset, next_offset, object_id, byte_offset,
        size_bytes, max_timestamp, append_time_ms, layout)
    SELECT n.partition_id, n.base_offset, n.next_offset, $1, n.byte_offset, n.size_bytes,
        n.max_timestamp, n.append_time_ms, n.layout
    FROM unnest($15::bigint[], $16::bigint[], $17::bigint[], $18::bigint[], $19::bigint[],
        $20::bigint[], $21::bigint[], $22::bytea[]) AS n (partition_id, base_offset,
        next_offset, byte_offset, size_bytes, max_timestamp, append_time_ms, layout)
), producers AS (
    INSERT INTO diskless_producers (partition_id, producer_id, epoch, seen_ms, batches)
    SELECT * FROM unnest($23::bigint[], $24::bigint[], $25::int[], $26::bigint[], $27::bytea[])
    ON CONFLICT (partition_id, producer_id) DO UPDATE
    SET epoch = excluded.epoch, seen_ms = excluded.seen_ms, batches = excluded.batches
), answers AS (
    INSERT INTO diskless_answers SELECT $1, now.ms, $7 FROM now
)
UPDATE diskless_objects SET state = $2, kind = $3, size_bytes = $4, extents = $5,
    changed_ms = now.ms
FROM now WHERE object_id = $1 AND state = $6
"""


async def write_commit(
    connection: Connection,
    object_id: int,
    size_bytes: int,
    plan: CommitPlan,
    ids: Mapping[PartitionKey, int],
    now_ms: int,
) -> bool:
    """Everything of a commit, in one statement; false if the object is not PENDING any more."""
    done = await connection.execute(
        _WRITE_COMMIT,
        object_id,
        plan.state,
        "wal",
        size_bytes,
        plan.references,
        "pending",
        encode_answer(plan.answer),
        now_ms,
        *_columns(6, [(ids[key], *row) for key, row in plan.partitions.items()]),
        *_columns(8, _extent_rows(ids, plan.answer.extents)),
        *_columns(
            5,
            [
                (ids[topic_id, number], producer_id, state.epoch, state.seen_ms,
                 encode_batches(state.batches))
                for (topic_id, number, producer_id), state in plan.producers.items()
            ],
        ),
    )  # fmt: skip
    return done == "UPDATE 1"


def _extent_rows(
    ids: Mapping[PartitionKey, int], extents: Mapping[PartitionKey, Sequence[Extent]]
) -> list[tuple[Any, ...]]:
    return [
        (ids[key], one.base_offset, one.next_offset, one.byte_offset, one.size_bytes,
         one.max_timestamp, one.append_time_ms, one.layout)
        for key, added in extents.items()
        for one in added
    ]  # fmt: skip


def _columns(count: int, rows: Sequence[tuple[Any, ...]]) -> list[list[Any]]:
    """Rows turned into as many lists, which are empty where there are none."""
    return [list(column) for column in zip(*rows, strict=True)] if rows else [[]] * count


async def write_extents(
    connection: Connection, partition_id: int, extents: Sequence[Extent]
) -> None:
    await connection.executemany(
        "INSERT INTO diskless_extents (partition_id, base_offset, next_offset, object_id,"
        " byte_offset, size_bytes, max_timestamp, append_time_ms, layout)"
        " VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
        [
            (partition_id, one.base_offset, one.next_offset, one.object_id, one.byte_offset,
             one.size_bytes, one.max_timestamp, one.append_time_ms, one.layout)
            for one in extents
        ],
    )  # fmt: skip


async def write_producers(
    connection: Connection, partition_id: int, producers: Mapping[int, Producer]
) -> None:
    """Remember a partition's producers, as if they had appended just now."""
    await connection.executemany(
        "INSERT INTO diskless_producers (partition_id, producer_id, epoch, seen_ms, batches)"
        " VALUES ($1, $2, $3, penstock_now_ms(), $4)",
        [
            (partition_id, producer_id, state.epoch, encode_batches(state.batches))
            for producer_id, state in producers.items()
        ],
    )


class FoundRows(NamedTuple):
    """A partition and its extents from an offset on, up to the limit of the query."""

    row: PartitionRow
    extents: list[Extent]


_FIND: Final = f"""
SELECT k.place, {_ROW}, e.*, (SELECT stamp FROM image_version)
FROM unnest($1::uuid[], $2::int[], $3::bigint[])
    WITH ORDINALITY AS k (topic_id, number, first_offset, place)
LEFT JOIN diskless_partitions p ON p.topic_id = k.topic_id AND p.number = k.number
LEFT JOIN LATERAL (
    SELECT {_EXTENT} FROM (
        SELECT * FROM diskless_extents
        WHERE partition_id = p.partition_id
            AND k.first_offset >= p.log_start_offset AND k.first_offset < p.high_watermark
            AND base_offset >= {_FIRST.format(partition="p.partition_id", offset="k.first_offset")}
        ORDER BY base_offset LIMIT $4
    ) e JOIN diskless_objects o ON o.object_id = e.object_id
) e ON true
ORDER BY k.place, e.base_offset
"""  # noqa: S608  (of fixed parts)


async def find(
    connection: Connection, requests: Sequence[FindRequest], limit: int
) -> tuple[list[FoundRows], UUID | None]:
    """What each request needs, with at most `limit` extents each, and the image's stamp.

    One statement, which sees one state: no extent of a commit without its high watermark.
    """
    found = [FoundRows(EMPTY, []) for _ in requests]
    stamp: UUID | None = None
    for place, *fields in await connection.fetch(
        _FIND,
        [one.topic_id for one in requests],
        [one.partition for one in requests],
        [one.offset for one in requests],
        limit,
    ):
        row, extent, stamp = fields[:5], fields[5:15], fields[15]
        if row[0] is None:
            continue
        if not found[place - 1].extents:
            found[place - 1] = FoundRows(PartitionRow._make(row), [])
        if extent[0] is not None:
            found[place - 1].extents.append(Extent._make(extent))
    return found, None if stamp is None else uuid_of(stamp)


async def extents_from(
    connection: Connection, partition_id: int, offset: int, limit: int
) -> list[Extent]:
    """A partition's extents from the one that holds an offset on."""
    rows = await connection.fetch(
        f"SELECT {_EXTENT} FROM {_EXTENTS} WHERE e.partition_id = $1 AND e.next_offset > $2"  # noqa: S608
        f" AND e.base_offset >= {_FIRST.format(partition='$1', offset='$2')}"
        " ORDER BY e.base_offset LIMIT $3",
        partition_id,
        offset,
        limit,
    )
    return [Extent._make(row) for row in rows]


async def extents_between(
    connection: Connection, key: PartitionKey, start: int, end: int, limit: int
) -> list[Extent]:
    """The extents that hold offsets of [start, end), by offset."""
    rows = await connection.fetch(
        f"SELECT {_EXTENT} FROM {_EXTENTS}"  # noqa: S608  (fixed)
        f" WHERE e.partition_id = {_ID} AND e.next_offset > $3 AND e.base_offset < $4"
        f" AND e.base_offset >= {_FIRST.format(partition=_ID, offset='$3')}"
        " ORDER BY e.base_offset LIMIT $5",
        *key,
        start,
        end,
        limit,
    )
    return [Extent._make(row) for row in rows]


async def extent_at_time(
    connection: Connection, key: PartitionKey, timestamp: int | None
) -> Extent | None:
    """See the port."""
    order = "e.max_timestamp DESC, e.base_offset" if timestamp is None else "e.base_offset"
    row = await connection.fetchrow(
        f"SELECT {_EXTENT} FROM {_EXTENTS}"  # noqa: S608  (fixed)
        " JOIN diskless_partitions p ON p.partition_id = e.partition_id"
        " WHERE p.topic_id = $1 AND p.number = $2 AND e.next_offset > p.log_start_offset"
        f" AND ($3::bigint IS NULL OR e.max_timestamp >= $3) ORDER BY {order} LIMIT 1",
        *key,
        timestamp,
    )
    return None if row is None else Extent._make(row)


async def drop_extents(
    connection: Connection, partition_id: int, extents: Sequence[Extent]
) -> None:
    """Drop the rows of adjacent extents."""
    if extents:
        await connection.execute(
            "DELETE FROM diskless_extents WHERE partition_id = $1"
            " AND base_offset BETWEEN $2 AND $3",
            partition_id,
            extents[0].base_offset,
            extents[-1].base_offset,
        )


async def forgotten_partition(connection: Connection) -> int | None:
    """The id of a partition whose topic is deleted, locked; None if no other has one locked."""
    found: int | None = await connection.fetchval(
        "SELECT partition_id FROM diskless_partitions p"
        " WHERE NOT EXISTS (SELECT 1 FROM topics t WHERE t.topic_id = p.topic_id)"
        " ORDER BY partition_id LIMIT 1 FOR UPDATE OF p SKIP LOCKED"
    )
    return found


async def drop_producers(connection: Connection, partition_id: int, limit: int) -> int:
    done = await connection.execute(
        "DELETE FROM diskless_producers WHERE partition_id = $1 AND producer_id IN"
        " (SELECT producer_id FROM diskless_producers WHERE partition_id = $1 LIMIT $2)",
        partition_id,
        limit,
    )
    return int(done.split()[-1])


async def drop_idle_producers(connection: Connection, idle_ms: int, limit: int) -> int:
    """Drop producers that were not seen for a time; how many."""
    done = await connection.execute(
        "DELETE FROM diskless_producers WHERE (partition_id, producer_id) IN"
        " (SELECT partition_id, producer_id FROM diskless_producers"
        " WHERE seen_ms <= penstock_now_ms() - $1 ORDER BY seen_ms LIMIT $2"
        " FOR UPDATE SKIP LOCKED)",
        idle_ms,
        limit,
    )
    return int(done.split()[-1])


async def drop_partition(connection: Connection, partition_id: int) -> None:
    await connection.execute(
        "DELETE FROM diskless_partitions WHERE partition_id = $1", partition_id
    )


async def read_backlogs(
    connection: Connection, min_extents: int, limit: int
) -> list[tuple[UUID, int, int, int, int]]:
    """Topic id, partition, extents, bytes and oldest timestamp, the most extents first."""
    rows = await connection.fetch(
        "SELECT p.topic_id, p.number, p.wal_extents, p.wal_bytes,"
        " (SELECT e.max_timestamp FROM diskless_extents e JOIN diskless_objects o"
        " ON o.object_id = e.object_id WHERE e.partition_id = p.partition_id AND o.kind = 'wal'"
        " ORDER BY e.base_offset LIMIT 1)"
        " FROM diskless_partitions p JOIN topics t ON t.topic_id = p.topic_id"
        " WHERE p.wal_extents >= $1 ORDER BY p.wal_extents DESC, p.topic_id, p.number LIMIT $2",
        max(min_extents, 1),
        limit,
    )
    return [(uuid_of(topic_id), *rest) for topic_id, *rest in rows]
