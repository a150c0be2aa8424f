"""Rows of diskless partitions in SQLite; the tables are in `migrations/sqlite/0003_diskless.sql`.

Reading and writing values, nothing else. Every function runs inside a transaction of the writer.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence

from penstock.control.batch_index.commit_rules import CommitPlan
from penstock.control.batch_index.formats import decode_batches, encode_answer, encode_batches
from penstock.control.batch_index.rules import EMPTY, PartitionRow
from penstock.control.batch_index.values import PartitionKey
from penstock.records.extents import Extent
from penstock.records.idempotence import Producer

_EXTENT = (
    "SELECT e.object_id, o.key, o.kind, e.byte_offset, e.size_bytes, e.base_offset, e.next_offset,"
    " e.max_timestamp, e.append_time_ms, e.layout FROM diskless_extents e"
    " JOIN diskless_objects o ON o.object_id = e.object_id"
)


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


def read_producers(
    connection: sqlite3.Connection, partition_id: int
) -> Iterator[tuple[int, Producer]]:
    for producer_id, epoch, batches, seen_ms in connection.execute(
        "SELECT producer_id, epoch, batches, seen_ms FROM diskless_producers"
        " WHERE partition_id = ? ORDER BY producer_id",
        (partition_id,),
    ):
        yield producer_id, Producer(epoch, decode_batches(batches), seen_ms)


def drop_idle_producers(connection: sqlite3.Connection, last_ms: int, limit: int) -> int:
    """Drop producers that were not seen since a time; how many."""
    return connection.execute(
        "DELETE FROM diskless_producers WHERE (partition_id, producer_id) IN"
        " (SELECT partition_id, producer_id FROM diskless_producers WHERE seen_ms <= ?"
        " ORDER BY seen_ms LIMIT ?)",
        (last_ms, limit),
    ).rowcount


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


def extents_from(
    connection: sqlite3.Connection, partition_id: int, offset: int, limit: int
) -> Iterator[Extent]:
    """A partition's extents from the one that holds an offset on, read as they are taken."""
    return map(
        Extent._make,
        connection.execute(
            f"{_EXTENT} WHERE e.partition_id = ?1 AND e.next_offset > ?2 AND e.base_offset >="  # noqa: S608
            " ifnull((SELECT max(base_offset) FROM diskless_extents"
            " WHERE partition_id = ?1 AND base_offset <= ?2), 0) ORDER BY e.base_offset LIMIT ?3",
            (partition_id, offset, limit),
        ),
    )


def extent_at_time(
    connection: sqlite3.Connection, partition_id: int, start: int, timestamp: int | None
) -> Extent | None:
    """See the port; `start` is the log start."""
    which, values = "e.max_timestamp >= ? ORDER BY e.base_offset", [timestamp]
    if timestamp is None:
        which, values = "true ORDER BY e.max_timestamp DESC, e.base_offset", []
    row = connection.execute(
        f"{_EXTENT} WHERE e.partition_id = ? AND e.next_offset > ? AND {which} LIMIT 1",
        (partition_id, start, *values),
    ).fetchone()
    return None if row is None else Extent._make(row)


def drop_extents(
    connection: sqlite3.Connection, partition_id: int, extents: Sequence[Extent]
) -> None:
    """Drop the rows of adjacent extents."""
    if extents:
        connection.execute(
            "DELETE FROM diskless_extents WHERE partition_id = ? AND base_offset BETWEEN ? AND ?",
            (partition_id, extents[0].base_offset, extents[-1].base_offset),
        )


def forgotten_partition(connection: sqlite3.Connection) -> int | None:
    """The id of a partition whose topic is deleted; None if there is none."""
    row = connection.execute(
        "SELECT partition_id FROM diskless_partitions p"
        " WHERE NOT EXISTS (SELECT 1 FROM topics t WHERE t.topic_id = p.topic_id) LIMIT 1"
    ).fetchone()
    return None if row is None else int(row[0])


def drop_producers(connection: sqlite3.Connection, partition_id: int, limit: int) -> int:
    return connection.execute(
        "DELETE FROM diskless_producers WHERE partition_id = ?1 AND producer_id IN"
        " (SELECT producer_id FROM diskless_producers WHERE partition_id = ?1 LIMIT ?2)",
        (partition_id, limit),
    ).rowcount


def drop_partition(connection: sqlite3.Connection, partition_id: int) -> None:
    connection.execute("DELETE FROM diskless_partitions WHERE partition_id = ?", (partition_id,))


def read_backlogs(
    connection: sqlite3.Connection, min_extents: int, limit: int
) -> list[tuple[bytes, int, int, int, int]]:
    """Topic id, partition, extents, bytes and oldest timestamp, the most extents first."""
    return connection.execute(
        "SELECT p.topic_id, p.number, p.wal_extents, p.wal_bytes,"
        " (SELECT e.max_timestamp FROM diskless_extents e JOIN diskless_objects o"
        " ON o.object_id = e.object_id WHERE e.partition_id = p.partition_id AND o.kind = 'wal'"
        " ORDER BY e.base_offset LIMIT 1)"
        " FROM diskless_partitions p JOIN topics t ON t.topic_id = p.topic_id"
        " WHERE p.wal_extents >= ? ORDER BY p.wal_extents DESC, p.topic_id, p.number LIMIT ?",
        (max(min_extents, 1), limit),
    ).fetchall()
