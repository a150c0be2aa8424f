"""Rows of diskless partitions in SQLite; the tables are in `migrations/sqlite/0003_diskless.sql`.

Reading and writing values, nothing else. Every function runs inside a transaction of the writer.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping

from penstock.control.batch_index.commit_rules import CommitPlan
from penstock.control.batch_index.formats import decode_batches, encode_answer, encode_batches
from penstock.control.batch_index.rules import EMPTY, PartitionRow
from penstock.control.batch_index.values import (
    PartitionKey,
)
from penstock.records.extents import Extent
from penstock.records.idempotence import Producer


def read_partition(connection: sqlite3.Connection, key: PartitionKey) -> tuple[int, PartitionRow]:
    """A partition's row and its id; 0 and `EMPTY` for one without a commit."""
    row = connection.execute(
        "SELECT partition_id, log_start_offset, high_watermark, size_bytes, wal_extents, wal_bytes"
        " FROM diskless_partitions WHERE topic_id = ? AND number = ?",
        (key[0].bytes, key[1]),
    ).fetchone()
    return (0, EMPTY) if row is None else (row[0], PartitionRow._make(row[1:]))


def add_partition(connection: sqlite3.Connection, key: PartitionKey) -> int:
    """A new partition's id."""
    cursor = connection.execute(
        "INSERT INTO diskless_partitions VALUES (NULL, ?, ?, 0, 0, 0, 0, 0)",
        (key[0].bytes, key[1]),
    )
    return cursor.lastrowid or 0


def write_partitions(
    connection: sqlite3.Connection, rows: Iterable[tuple[int, PartitionRow]]
) -> None:
    connection.executemany(
        "UPDATE diskless_partitions SET log_start_offset = ?, high_watermark = ?, size_bytes = ?,"
        " wal_extents = ?, wal_bytes = ? WHERE partition_id = ?",
        [(*row, partition_id) for partition_id, row in rows],
    )


def read_producer(
    connection: sqlite3.Connection, partition_id: int, producer_id: int
) -> Producer | None:
    row = connection.execute(
        "SELECT epoch, batches, seen_ms FROM diskless_producers"
        " WHERE partition_id = ? AND producer_id = ?",
        (partition_id, producer_id),
    ).fetchone()
    return None if row is None else Producer(row[0], decode_batches(row[1]), row[2])


def write_commit(
    connection: sqlite3.Connection,
    object_id: int,
    plan: CommitPlan,
    ids: Mapping[PartitionKey, int],
    now_ms: int,
) -> None:
    """Everything of a commit but the object's own row; `ids` are the partitions'."""
    write_partitions(connection, [(ids[key], row) for key, row in plan.partitions.items()])
    write_extents(
        connection,
        [(ids[key], one) for key, extents in plan.answer.extents.items() for one in extents],
    )
    write_producers(
        connection,
        [
            (ids[topic_id, partition], producer_id, state)
            for (topic_id, partition, producer_id), state in plan.producers.items()
        ],
    )
    connection.execute(
        "INSERT INTO diskless_answers VALUES (?, ?, ?)",
        (object_id, now_ms, encode_answer(plan.answer)),
    )


def write_producers(
    connection: sqlite3.Connection, producers: Iterable[tuple[int, int, Producer]]
) -> None:
    """Remember producers, each with the id of its partition and its own."""
    connection.executemany(
        "INSERT OR REPLACE INTO diskless_producers VALUES (?, ?, ?, ?, ?)",
        [
            (partition_id, producer_id, state.epoch, state.seen_ms, encode_batches(state.batches))
            for partition_id, producer_id, state in producers
        ],
    )


def write_extents(connection: sqlite3.Connection, extents: Iterable[tuple[int, Extent]]) -> None:
    """Add extents, each with the id of its partition."""
    connection.executemany(
        "INSERT INTO diskless_extents VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (partition_id, one.base_offset, one.next_offset, one.object_id, one.byte_offset,
             one.size_bytes, one.max_timestamp, one.append_time_ms, one.layout)
            for partition_id, one in extents
        ],
    )  # fmt: skip
