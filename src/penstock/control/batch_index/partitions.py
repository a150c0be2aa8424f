"""Rows of diskless partitions, and of their idempotent producers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from penstock.control.batch_index.formats import decode_batches, encode_batches
from penstock.control.batch_index.rules import EMPTY, PartitionRow, ProducerKey
from penstock.control.batch_index.values import PartitionKey
from penstock.control.drivers.statements import (
    Each,
    Operation,
    changed,
    rows,
    value,
)
from penstock.records.idempotence import Producer

ROW: Final = (
    "p.partition_id, p.log_start_offset, p.high_watermark, p.size_bytes, p.wal_extents,"
    " p.wal_bytes, p.open_offset, p.aborted_offset"
)
_OF_KEY: Final = (
    f"SELECT $3, {ROW} FROM diskless_partitions p"  # noqa: S608  (fixed, as all)
    " WHERE p.topic_id = $1 AND p.number = $2"
)
_OF_KEYS: Final = (
    f"SELECT k.place, {ROW} FROM unnest($1::uuid[], $2::int[], $3::int[])"  # noqa: S608
    " AS k (topic_id, number, place)"
    " JOIN diskless_partitions p ON p.topic_id = k.topic_id AND p.number = k.number"
)
_read = Each("rows", _OF_KEYS, sqlite=_OF_KEY)
_lock = Each("rows", f"{_OF_KEYS} ORDER BY p.partition_id FOR UPDATE OF p", sqlite=_OF_KEY)
_add = Each(
    "changed",
    "INSERT INTO diskless_partitions (topic_id, number, log_start_offset, high_watermark,"
    " size_bytes, wal_extents, wal_bytes) SELECT k.topic_id, k.number, 0, 0, 0, 0, 0"
    " FROM unnest($1::uuid[], $2::int[]) AS k (topic_id, number)"
    " ON CONFLICT (topic_id, number) DO NOTHING",
    sqlite="INSERT INTO diskless_partitions VALUES (NULL, $1, $2, 0, 0, 0, 0, 0, -1, -1, 0)"
    " ON CONFLICT (topic_id, number) DO NOTHING",
)
write_rows = Each(
    "changed",
    "UPDATE diskless_partitions p SET log_start_offset = n.log_start_offset,"
    " high_watermark = n.high_watermark, size_bytes = n.size_bytes, wal_extents = n.wal_extents,"
    " wal_bytes = n.wal_bytes, open_offset = n.open_offset, aborted_offset = n.aborted_offset"
    " FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[],"
    " $6::bigint[], $7::bigint[], $8::bigint[]) AS n (partition_id, log_start_offset,"
    " high_watermark, size_bytes, wal_extents, wal_bytes, open_offset, aborted_offset)"
    " WHERE p.partition_id = n.partition_id",
    sqlite="UPDATE diskless_partitions SET log_start_offset = $2, high_watermark = $3,"
    " size_bytes = $4, wal_extents = $5, wal_bytes = $6, open_offset = $7, aborted_offset = $8"
    " WHERE partition_id = $1",
)
clean_offset = value(
    "SELECT clean_offset FROM diskless_partitions WHERE topic_id = $1 AND number = $2"
)
note_clean = changed(
    "UPDATE diskless_partitions SET clean_offset = $2 WHERE partition_id = $1 AND clean_offset < $2"
)
"""Stores a partition's clean offset, below which no key has two records.

Takes (partition id, offset).
"""
retire = changed("UPDATE diskless_partitions SET topic_id = $2 WHERE topic_id = $1")
"""Moves the rows of a topic's partitions to an id that no topic has.

Takes (topic id, new id). Background jobs then delete the rows, as they do after the deletion of a
topic.
"""
drop_row = changed("DELETE FROM diskless_partitions WHERE partition_id = $1")
forgotten = value(
    "SELECT p.partition_id FROM diskless_partitions p"
    " WHERE NOT EXISTS (SELECT 1 FROM topics t WHERE t.topic_id = p.topic_id)"
    " ORDER BY p.partition_id LIMIT 1 FOR UPDATE OF p SKIP LOCKED"
)
"""Locks and returns the id of one partition whose topic is deleted.

Skips locked rows; returns None if none is left.
"""

backlogs = rows(
    "SELECT p.topic_id, p.number, p.wal_extents, p.wal_bytes,"
    " (SELECT e.max_timestamp FROM diskless_extents e JOIN diskless_objects o"
    " ON o.object_id = e.object_id WHERE e.partition_id = p.partition_id AND o.kind = 'wal'"
    " ORDER BY e.base_offset LIMIT 1)"
    " FROM diskless_partitions p JOIN topics t ON t.topic_id = p.topic_id"
    " WHERE p.wal_extents >= $1 ORDER BY p.wal_extents DESC, p.topic_id, p.number LIMIT $2"
)
_STATE: Final = (
    "s.epoch, s.batches, s.seen_ms, s.coordinator_epoch, s.txn_first_offset, s.guard_offset"
)
_producers = Each(
    "rows",
    f"SELECT k.place, {_STATE} FROM unnest($1::bigint[], $2::bigint[],"  # noqa: S608
    " $3::int[]) AS k (partition_id, producer_id, place) JOIN diskless_producers s"
    " ON s.partition_id = k.partition_id AND s.producer_id = k.producer_id",
    sqlite=f"SELECT $3, {_STATE} FROM diskless_producers s"  # noqa: S608
    " WHERE s.partition_id = $1 AND s.producer_id = $2",
)
_producers_of = rows(
    f"SELECT s.producer_id, {_STATE} FROM diskless_producers s"  # noqa: S608
    " JOIN diskless_partitions p ON p.partition_id = s.partition_id"
    " WHERE p.topic_id = $1 AND p.number = $2 ORDER BY s.producer_id"
)
write_producers = Each(
    "changed",
    "INSERT INTO diskless_producers (partition_id, producer_id, epoch, seen_ms, batches,"
    " coordinator_epoch, txn_first_offset, guard_offset)"
    " SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::int[], $4::bigint[], $5::bytea[],"
    " $6::int[], $7::bigint[], $8::bigint[]) ON CONFLICT (partition_id, producer_id) DO UPDATE"
    " SET epoch = excluded.epoch, seen_ms = excluded.seen_ms, batches = excluded.batches,"
    " coordinator_epoch = excluded.coordinator_epoch,"
    " txn_first_offset = excluded.txn_first_offset, guard_offset = excluded.guard_offset",
    sqlite="INSERT OR REPLACE INTO diskless_producers VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
)


drop_producers = changed(
    "DELETE FROM diskless_producers WHERE partition_id = $1 AND producer_id IN"
    " (WITH few AS MATERIALIZED (SELECT producer_id FROM diskless_producers"
    " WHERE partition_id = $1 LIMIT $2) SELECT producer_id FROM few)"
)
drop_idle_producers = changed(
    "DELETE FROM diskless_producers WHERE (partition_id, producer_id) IN"
    " (WITH idle AS MATERIALIZED (SELECT partition_id, producer_id FROM diskless_producers"
    " WHERE seen_ms <= penstock_now_ms() - $1 AND txn_first_offset < 0"
    " ORDER BY seen_ms LIMIT $2 FOR UPDATE SKIP LOCKED)"
    " SELECT partition_id, producer_id FROM idle)"
)
"""Lists with a limit are materialised: a join that restarted the scan would find more rows."""


def read(
    keys: Iterable[PartitionKey], *, lock: bool = False
) -> Operation[dict[PartitionKey, PartitionRow]]:
    """Return the rows of those partitions that have one.

    `lock` locks them in the order of partition ids.
    """
    asked = list(keys)
    found = yield (_lock if lock else _read)(
        [(topic_id, number, place) for place, (topic_id, number) in enumerate(asked)]
    )
    return {asked[found_row[0]]: PartitionRow._make(found_row[1:]) for found_row in found}


def lock_one(key: PartitionKey) -> Operation[PartitionRow]:
    return (yield from read([key], lock=True)).get(key, EMPTY)


def lock_or_add(keys: Collection[PartitionKey]) -> Operation[dict[PartitionKey, PartitionRow]]:
    """Lock the rows of partitions, add missing rows, and return all of them."""
    found = yield from read(keys, lock=True)
    if len(found) < len(keys):
        yield _add(sorted([key for key in keys if key not in found]))
        found = yield from read(keys, lock=True)
    return found


def producers(
    rows: Mapping[PartitionKey, PartitionRow], keys: Iterable[ProducerKey]
) -> Operation[dict[ProducerKey, Producer]]:
    asked: list[ProducerKey] = []
    where: list[tuple[int, int, int]] = []
    for key in keys:
        row = rows.get(key[:2])
        if row is not None:
            where.append((row.partition_id, key[2], len(asked)))
            asked.append(key)
    found = yield _producers(where)
    return {
        asked[place]: Producer(epoch, decode_batches(batches), *others)
        for place, epoch, batches, *others in found
    }


def producers_of(key: PartitionKey) -> Operation[list[tuple[int, Producer]]]:
    return [
        (producer_id, Producer(epoch, decode_batches(batches), *others))
        for producer_id, epoch, batches, *others in (yield _producers_of(*key))
    ]


def producer_row(partition_id: int, producer_id: int, state: Producer) -> tuple[Any, ...]:
    epoch, batches, seen_ms, coordinator_epoch, txn_first_offset, guard_offset = state
    return (
        partition_id, producer_id, epoch, seen_ms, encode_batches(batches), coordinator_epoch,
        txn_first_offset, guard_offset,
    )  # fmt: skip
