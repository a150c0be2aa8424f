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
from penstock.control.batch_index.rules import PartitionRow, ProducerKey
from penstock.control.batch_index.values import PartitionKey
from penstock.control.drivers.postgres_connections import Connection
from penstock.control.drivers.statements import uuid_of
from penstock.records.extents import Extent
from penstock.records.idempotence import Producer

_ROW: Final = "p.log_start_offset, p.high_watermark, p.size_bytes, p.wal_extents, p.wal_bytes"


class LockedPartition(NamedTuple):
    """A partition's row and its id; 0 and `EMPTY` for one without a commit."""

    partition_id: int
    row: PartitionRow


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
